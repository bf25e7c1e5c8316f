package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
	"github.com/postbus-io/postbus/schema/schematest"
)

func TestPostgres_New(t *testing.T) {
	t.Parallel()
	_, err := postgres.New(nil, postgres.Config{})
	require.ErrorContains(t, err, "db is nil")
	db := schematest.Open(t, "postgres", "postgres://nobody@127.0.0.1:1/nothing") // New does no I/O
	_, err = postgres.New(db, postgres.Config{Tables: schema.Tables{Prefix: "x; --"}})
	require.ErrorIs(t, err, schema.ErrInvalidOption)
	assert.Equal(t, postgres.Kind, open(t, db, postgres.Config{}).Kind())
}

// A sequence with a cache gives each session a block of ids: out of order.
func TestPostgres_H12_CacheAboveOneIsRefused(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		require.NoError(t, b.Check(b.ctx))
		b.exec(b.db, "ALTER TABLE postbus_outbox ALTER COLUMN id SET CACHE 20")
		err := b.Check(b.ctx)
		require.ErrorIs(t, err, schema.ErrUnsafeDatabase)
		require.ErrorContains(t, err, "CACHE 20")

		_, wayOut, found := strings.Cut(err.Error(), "; ")
		require.True(t, found)
		b.exec(b.db, wayOut)
		require.NoError(t, b.Check(b.ctx))
	})
}

func TestPostgres_CheckWantsMigrations(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		empty := schematest.Postgres(t, driver, nil)
		err := open(t, empty, postgres.Config{}).Check(t.Context())
		require.ErrorIs(t, err, schema.ErrNotMigrated)
		require.ErrorContains(t, err, "postbus_outbox")

		b := setup(t, driver, postgres.Config{})
		b.exec(b.db, "DELETE FROM postbus_migrations WHERE version_id = (SELECT max(version_id) FROM postbus_migrations)")
		err = b.Check(b.ctx)
		require.ErrorIs(t, err, schema.ErrNotMigrated)
		require.ErrorContains(t, err, "at version 2, this program needs 3")
	})
}

// With a hole among the shards somebody's records would have no owner, and a
// smaller count would put all keys on other shards. Neither relays nor
// publishers go on.
func TestPostgres_MissingShardsAreRefused(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"a hole": "DELETE FROM postbus_shards WHERE shard = 5", "none": "DELETE FROM postbus_shards",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, "postgres", postgres.Config{})
			b.exec(b.db, statement)
			err := b.Check(b.ctx)
			require.ErrorIs(t, err, schema.ErrUnsafeDatabase)
			require.ErrorContains(t, err, "from 0 to 63")
			require.ErrorIs(t, b.Insert(b.ctx, b.begin(), messages("k", "m1")), schema.ErrUnsafeDatabase)

			b.exec(b.db, "INSERT INTO postbus_shards (shard) SELECT generate_series(0, 63) ON CONFLICT DO NOTHING")
			require.NoError(t, b.Check(b.ctx))
			b.publish("k", "m1")
		})
	}
}

func TestPostgres_CheckSaysWhatTheServerSays(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{})
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	err := b.Check(ctx)
	require.Error(t, err)
	assert.NotErrorIs(t, err, schema.ErrNotMigrated)
	assert.NotErrorIs(t, err, schema.ErrUnsafeDatabase)
}

// While one publisher waits for the number of shards, another one's context is
// still its own.
func TestPostgres_H74_FirstInsertBlocksNobodyElse(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{})
	locker, first, second := b.begin(), b.begin(), b.begin()
	b.exec(locker, "LOCK TABLE postbus_shards IN ACCESS EXCLUSIVE MODE")
	waiting := async(func() error { return b.Insert(b.ctx, first, messages("k", "m1")) })
	b.awaitBlocked(1)

	ctx, cancel := context.WithTimeout(b.ctx, 50*time.Millisecond)
	defer cancel()
	impatient := async(func() error { return b.Insert(ctx, second, messages("k", "m2")) })
	require.Error(t, await(t, "an insert whose context has ended", impatient))

	require.NoError(t, locker.Rollback())
	require.NoError(t, await(t, "the insert behind the lock", waiting))
	require.NoError(t, first.Commit())
	assert.Equal(t, []string{"m1"}, b.claimed("k"))
}
