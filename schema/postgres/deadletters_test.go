package postgres_test

import (
	"database/sql"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
	"github.com/postbus-io/postbus/schema/schematest"
)

// A message is given up while its twin is being applied: Bury waits, and looks
// into the inbox as it is after the wait, whatever isolation the server gives
// to transactions that ask for none.
func TestPostgres_H55_BuryWaitsForHandler(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			b := setup(t, "postgres", postgres.Config{})
			db := schematest.Open(t, "postgres", b.url)
			for range 2 { // a pool may hand out either connection
				b.exec(db, fmt.Sprintf("SET default_transaction_isolation = '%s'", level))
			}
			db.SetMaxOpenConns(1)
			other := open(t, db, postgres.Config{})
			for id, commits := range map[string]bool{"applied": true, "failed": false} {
				b.buryBehindHandler(other, id, commits)
			}
		})
	}
}

// buryBehindHandler gives a message up while a handler applies it.
func (b testBundle) buryBehindHandler(d *postgres.Database, id string, commits bool) {
	b.t.Helper()
	handler := b.begin()
	verdict, err := b.Receive(b.ctx, handler, delivery(id))
	require.NoError(b.t, err)
	require.Equal(b.t, schema.VerdictFresh, verdict)

	type answer struct {
		buried bool
		err    error
	}
	result := async(func() answer {
		buried, err := d.Bury(b.ctx, letter(id))
		return answer{buried, err}
	})
	b.awaitBlocked(1)
	end(b.t, handler, commits)
	assert.Equal(b.t, answer{buried: !commits}, await(b.t, "bury", result), id)
	assert.Equal(b.t, 1, b.count("SELECT (SELECT count(*) FROM postbus_inbox WHERE message_id = $1) + (SELECT count(*) FROM postbus_parked WHERE message_id = $1)", id))
}

func end(t *testing.T, tx *sql.Tx, commits bool) {
	t.Helper()
	if commits {
		require.NoError(t, tx.Commit())
	} else {
		require.NoError(t, tx.Rollback())
	}
}

// A message comes again while a person has its letter redriven: it waits, and
// is a duplicate after the commit, dead as before after the rollback.
func TestPostgres_H55_ReceiveWaitsForRevive(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		for id, commits := range map[string]bool{"applied": true, "failed": false} {
			_, err := b.Bury(b.ctx, letter(id))
			require.NoError(t, err)
			dead, err := b.Dead(b.ctx, schema.DeadFilter{})
			require.NoError(t, err)
			redrive := b.begin()
			_, err = b.Revive(b.ctx, redrive, dead[len(dead)-1].ID)
			require.NoError(t, err)

			tx := b.begin()
			again := b.receiveAsync(tx, id)
			b.awaitBlocked(1)
			end(t, redrive, commits)
			want := map[bool]schema.Verdict{true: schema.VerdictDuplicate, false: schema.VerdictDead}[commits]
			assert.Equal(t, received{verdict: want}, await(t, "receive", again), id)
			require.NoError(t, tx.Rollback())
		}
	})
}

// Two persons redrive one letter: the second waits for the first, and then has
// it, or is told that there is none.
func TestPostgres_RevivesWaitForEachOther(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		for _, commits := range []bool{false, true} {
			_, err := b.Bury(b.ctx, letter("m1"))
			require.NoError(t, err)
			dead, err := b.Dead(b.ctx, schema.DeadFilter{})
			require.NoError(t, err)
			first, second := b.begin(), b.begin()
			_, err = b.Revive(b.ctx, first, dead[0].ID)
			require.NoError(t, err)
			result := async(func() error {
				_, err := b.Revive(b.ctx, second, dead[0].ID)
				return err
			})
			b.awaitBlocked(1)
			end(t, first, commits)
			err = await(t, "the second revive", result)
			if commits {
				require.ErrorIs(t, err, schema.ErrNotDead)
			} else {
				require.NoError(t, err)
			}
			require.NoError(t, second.Rollback())
		}
	})
}
