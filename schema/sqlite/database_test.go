package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/schematest"
	"github.com/postbus-io/postbus/schema/sqlite"
)

func TestSQLite_New(t *testing.T) {
	t.Parallel()
	_, err := sqlite.New(nil, sqlite.Config{})
	require.ErrorContains(t, err, "db is nil")
	db := schematest.SQLite(t, sqlite.DSN, nil)
	for _, tables := range []schema.Tables{{Prefix: `x"; --`}, {Schema: "app"}} {
		_, err = sqlite.New(db, sqlite.Config{Tables: tables})
		require.ErrorIs(t, err, schema.ErrInvalidOption)
		require.ErrorIs(t, sqlite.Migrate(t.Context(), db, tables), schema.ErrInvalidOption)
	}
	assert.Equal(t, sqlite.Kind, open(t, db, sqlite.Config{}).Kind())
}

// Each setting without which a promise breaks is missed by name, with the way
// out.
func TestSQLite_CheckNamesTheMissingSetting(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ query, missing string }{
		"plain":         {"", "busy_timeout is 0"},
		"no timeout":    {"_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate", "busy_timeout is 0"},
		"no WAL":        {"_pragma=busy_timeout(10000)&_pragma=synchronous(FULL)&_txlock=immediate", "journal_mode is delete"},
		"not FULL":      {"_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate", "synchronous is 1"},
		"not immediate": {"_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)", "transactions are not immediate"},
		"deferred":      {"_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=deferred", "transactions are not immediate"},
		"all there":     {"_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate", ""},
		"exclusive":     {"_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=exclusive", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := schematest.SQLite(t, func(path string) string { return "file:" + path + "?" + c.query }, sqlite.Migrate)
			for range 2 { // the first look changes nothing
				err := open(t, db, sqlite.Config{}).Check(t.Context())
				if c.missing == "" {
					require.NoError(t, err)
					continue
				}
				require.ErrorIs(t, err, schema.ErrUnsafeDatabase)
				require.ErrorContains(t, err, c.missing)
				require.ErrorContains(t, err, "sqlite.DSN(path)")
			}
		})
	}
}

// The look at the settings leaves the connections as they were.
func TestSQLite_CheckChangesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, sqlite.Config{})
	b.db.SetMaxOpenConns(2)
	for range 3 {
		require.NoError(t, b.Check(b.ctx))
	}
	for range 2 {
		conn, err := b.db.Conn(b.ctx)
		require.NoError(t, err)
		defer conn.Close()
		var timeout int
		require.NoError(t, conn.QueryRowContext(b.ctx, "PRAGMA busy_timeout").Scan(&timeout))
		assert.Equal(t, int(sqlite.BusyTimeout/time.Millisecond), timeout)
	}
}

func TestSQLite_CheckInAPoolOfOne(t *testing.T) {
	t.Parallel()
	b := setup(t, sqlite.Config{})
	b.db.SetMaxOpenConns(1)
	require.NoError(t, b.Check(b.ctx))
}

func TestSQLite_CheckWantsMigrationsAndShards(t *testing.T) {
	t.Parallel()
	err := open(t, schematest.SQLite(t, sqlite.DSN, nil), sqlite.Config{}).Check(t.Context())
	require.ErrorIs(t, err, schema.ErrNotMigrated)
	require.ErrorContains(t, err, "postbus_outbox")

	b := setup(t, sqlite.Config{})
	b.exec("DELETE FROM postbus_migrations WHERE version_id = 3")
	err = b.Check(b.ctx)
	require.ErrorIs(t, err, schema.ErrNotMigrated)
	require.ErrorContains(t, err, "at version 2, this program needs 3")

	b = setup(t, sqlite.Config{})
	for _, statement := range []string{"DELETE FROM postbus_shards WHERE shard = 5", "DELETE FROM postbus_shards"} {
		b.exec(statement)
		err = b.Check(b.ctx)
		require.ErrorIs(t, err, schema.ErrUnsafeDatabase)
		require.ErrorContains(t, err, "from 0 to 63")
		err = b.inTx(func(tx *sql.Tx) error { return b.Insert(b.ctx, tx, messages("k", "m1")) })
		require.ErrorIs(t, err, schema.ErrUnsafeDatabase)
	}
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	err = b.Check(ctx)
	require.Error(t, err)
	assert.NotErrorIs(t, err, schema.ErrNotMigrated)
}

// readThenPublish is what a business transaction looks like: it reads, decides,
// writes and publishes.
func (b testBundle) readThenPublish(id string) error {
	return b.inTx(func(tx *sql.Tx) error {
		var total int
		if err := tx.QueryRowContext(b.ctx, "SELECT total FROM accounts").Scan(&total); err != nil {
			return err
		}
		if _, err := tx.ExecContext(b.ctx, fmt.Sprintf("UPDATE accounts SET total = %d", total+1)); err != nil {
			return err
		}
		return b.Insert(b.ctx, tx, messages("k", id))
	})
}

// 200 transactions that read and then publish, on four goroutines: none fails,
// none loses its update.
func TestSQLite_ReadThenPublishNeverFails(t *testing.T) {
	t.Parallel()
	b := setup(t, sqlite.Config{})
	b.exec("CREATE TABLE accounts (total INTEGER NOT NULL)")
	b.exec("INSERT INTO accounts VALUES (0)")
	var failed atomic.Int64
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 50 {
				if err := b.readThenPublish(fmt.Sprintf("%d.%d", worker, i)); err != nil {
					failed.Add(1)
					t.Logf("%d.%d: %v", worker, i, err)
				}
			}
		})
	}
	wg.Wait()
	assert.Zero(t, failed.Load())
	assert.Equal(t, 200, b.count("SELECT total FROM accounts"))
	assert.Len(t, b.claimed("k"), 200)
}

// The file's name may have anything in it that a path may have.
func TestSQLite_DSNTakesOddPaths(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"plain", "a space", "what?.db", "100%", "%41", "a#b", "a&b=c", "Größe", "a+b", "x?_txlock=deferred&_pragma=journal_mode(DELETE)#%00", "'quoted\"", ";",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			db := schematest.Open(t, "sqlite", sqlite.DSN(dir+"/"+name))
			require.NoError(t, sqlite.Migrate(t.Context(), db, schema.Tables{}))
			require.NoError(t, open(t, db, sqlite.Config{}).Check(t.Context()))
			files := fileNames(t, dir)
			assert.Contains(t, files, name)
			for _, file := range files {
				assert.True(t, strings.HasPrefix(file, name), "%q is not the file that was asked for", file)
			}
		})
	}
}

// An id is never drawn again, also when the newest record was sent and deleted.
func TestSQLite_IDsAreNotDrawnAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, sqlite.Config{})
	b.publish("k", "m1")
	first := b.count("SELECT max(id) FROM postbus_outbox")
	b.exec("DELETE FROM postbus_outbox")
	b.publish("k", "m2")
	assert.Greater(t, b.count("SELECT max(id) FROM postbus_outbox"), first)

	b.exec("UPDATE sqlite_sequence SET seq = 3000000000 WHERE name = 'postbus_outbox'")
	b.publish("k", "m3")
	assert.Equal(t, []string{"m2", "m3"}, b.claimed("k"))
}
