package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	bunschema "github.com/uptrace/bun/schema"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
	"github.com/postbus-io/postbus/schema/schematest"
)

// Transactions of libraries that wrap *sql.Tx work like it.
func TestPostgres_H63_WrappedTransactions(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		for _, keyLock := range []bool{false, true} {
			b := setup(t, driver, postgres.Config{KeyLock: keyLock})
			bunDB := bun.NewDB(b.db, bunschema.NewNopQueryGen().Dialect())
			for _, commits := range []bool{false, true} {
				fromSQLX, err := sqlx.NewDb(b.db, driver).BeginTxx(b.ctx, nil)
				require.NoError(t, err)
				fromBun, err := bunDB.BeginTx(b.ctx, nil)
				require.NoError(t, err)
				for id, tx := range map[string]schema.Tx{"sqlx": fromSQLX, "bun": fromBun} {
					b.insert(tx, "k-"+id, fmt.Sprintf("%s %t", id, commits))
					if commits {
						require.NoError(t, tx.Commit())
					} else {
						require.NoError(t, tx.Rollback())
					}
				}
			}
			assert.Equal(t, []string{"sqlx true"}, b.claimed("k-sqlx"))
			assert.Equal(t, []string{"bun true"}, b.claimed("k-bun"))
		}
	})
}

// twoWriters publishes in two transactions that lock no aggregate: the first
// one before and after the second one's only message. It returns the messages in
// the order of their ids.
func (b testBundle) twoWriters(meanwhile func()) []string {
	b.t.Helper()
	first, second := b.begin(), b.begin()
	b.insert(first, "k", "first.1")
	done := async(func() error { return b.Insert(b.ctx, second, messages("k", "second")) })
	meanwhile()
	b.insert(first, "k", "first.2")
	require.NoError(b.t, first.Commit())
	require.NoError(b.t, await(b.t, "the second writer", done))
	require.NoError(b.t, second.Commit())
	return b.claimed("k")
}

// With key_lock, ids of one key are drawn behind the lock that their
// transaction holds until it commits: id order is commit order.
func TestPostgres_H04_KeyLockOrdersIDsByCommit(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{KeyLock: true})
		order := b.twoWriters(func() { b.awaitBlocked(1) })
		assert.Equal(t, []string{"first.1", "first.2", "second"}, order)
	})
}

// Without it ids follow the order in which they were drawn, which is that of
// the effects only when the aggregate is locked first.
func TestPostgres_H04_WithoutKeyLockIDsAreInTheOrderOfInserts(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{})
	drawn := func() {
		const lastSQL = `SELECT last_value FROM pg_sequences WHERE schemaname = current_schema() AND sequencename = 'postbus_outbox_id_seq'`
		eventually(t, "the second writer has its id", func() bool { return b.count(lastSQL) == 2 })
	}
	assert.Equal(t, []string{"first.1", "second", "first.2"}, b.twoWriters(drawn))

	// The aggregate is locked before its event is published.
	b.exec(b.db, "CREATE TABLE aggregates (id text PRIMARY KEY, version int NOT NULL)")
	b.exec(b.db, "INSERT INTO aggregates VALUES ('a', 0)")
	update := func(tx *sql.Tx) error {
		var version int
		row := tx.QueryRowContext(b.ctx, "UPDATE aggregates SET version = version + 1 WHERE id = 'a' RETURNING version")
		if err := row.Scan(&version); err != nil {
			return err
		}
		return b.Insert(b.ctx, tx, messages("a", fmt.Sprintf("v%d", version)))
	}
	first, second := b.begin(), b.begin()
	require.NoError(t, update(first))
	done := async(func() error { return update(second) })
	b.awaitBlocked(1)
	require.NoError(t, first.Commit())
	require.NoError(t, await(t, "the second update", done))
	require.NoError(t, second.Commit())
	assert.Equal(t, []string{"v1", "v2"}, b.claimed("a"))
}

// Calls that publish the same keys in another order do not deadlock; keys that
// differ, and records without a key, do not wait.
func TestPostgres_H04_KeyLocksAreSortedAndFew(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{KeyLock: true})
	var wg sync.WaitGroup
	faults := make([]error, 6)
	for i := range faults {
		wg.Go(func() {
			for round := 0; round < 30 && faults[i] == nil; round++ {
				faults[i] = b.publishBoth(i%2 == 0)
			}
		})
	}
	wg.Wait()
	assert.Equal(t, make([]error, 6), faults)
	assert.Len(t, b.claimed("left"), 180)

	holder, other := b.begin(), b.begin()
	b.insert(holder, "k", "locked")
	b.insert(holder, "", "keyless")
	done := async(func() error {
		for _, key := range []string{"another", ""} {
			if err := b.Insert(b.ctx, other, messages(key, "m-"+key)); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, await(t, "inserts of other keys", done))
}

func (b testBundle) publishBoth(leftFirst bool) error {
	tx, err := b.db.BeginTx(b.ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	msgs := append(messages("left", "l"), messages("right", "r")...)
	if !leftFirst {
		msgs[0], msgs[1] = msgs[1], msgs[0]
	}
	if err := b.Insert(b.ctx, tx, msgs); err != nil {
		return err
	}
	return tx.Commit()
}

// The time of a record is for people: neither a transaction that began early
// and publishes late, nor times that are wrong, change the order.
func TestPostgres_H02_H14_CreatedAtIsNotTheOrder(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{})
	long := b.begin()
	var began time.Time
	require.NoError(t, long.QueryRowContext(b.ctx, "SELECT now()").Scan(&began))
	b.publish("k", "m1", "m2")
	b.insert(long, "k", "m3")
	require.NoError(t, long.Commit())
	b.publish("k", "m4")

	records := b.claim("k")
	require.Len(t, records, 4)
	for _, r := range records {
		assert.True(t, r.CreatedAt.After(began), "created_at is when the row was written")
	}
	b.exec(b.db, "UPDATE postbus_outbox SET created_at = now() - id * interval '1 hour'")
	assert.Equal(t, []string{"m1", "m2", "m3", "m4"}, b.claimed("k"))
	b.exec(b.db, "UPDATE postbus_outbox SET created_at = 'epoch'")
	assert.Equal(t, []string{"m1", "m2", "m3", "m4"}, b.claimed("k"))
}

// The number of a transaction is drawn at its first write, which may be long
// before its change of the aggregate.
func TestPostgres_H03_TransactionNumberIsNotTheOrder(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{})
	early, late := b.begin(), b.begin()
	b.insert(early, "another", "z")
	b.insert(late, "k", "v1")
	require.NoError(t, late.Commit())
	b.insert(early, "k", "v2")
	require.NoError(t, early.Commit())
	assert.Less(t, b.count("SELECT xmin::text::bigint FROM postbus_outbox WHERE message_id = 'v2'"),
		b.count("SELECT xmin::text::bigint FROM postbus_outbox WHERE message_id = 'v1'"))
	assert.Equal(t, []string{"v1", "v2"}, b.claimed("k"))
}

// Ids go on beyond 32 bits, and gaps mean nothing.
func TestPostgres_H13_IDsBeyond32BitsAndGaps(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		b.publish("k", "before")
		b.exec(b.db, "ALTER TABLE postbus_outbox ALTER COLUMN id RESTART WITH 2147483640")
		for range 20 { // a storm of rollbacks burns ids
			tx := b.begin()
			b.insert(tx, "k", "ghost")
			require.NoError(t, tx.Rollback())
		}
		b.publish("k", "after.1", "after.2")
		records := b.claim("k")
		require.Len(t, records, 3)
		assert.Equal(t, int64(2147483660), records[1].ID)
		assert.Equal(t, []string{"before", "after.1", "after.2"}, b.claimed("k"))

		shard := b.own("relay", "k")
		require.NoError(t, b.Settle(b.ctx, "relay", holdOf(shard, records[1])))
		holds, err := b.Holds(b.ctx, []int{shard.ID})
		require.NoError(t, err)
		require.Len(t, holds, 1)
		assert.Equal(t, records[1].ID, holds[0].Head)
		require.NoError(t, b.Sent(b.ctx, records))
		assert.Equal(t, 0, b.count("SELECT count(*) FROM postbus_outbox"))
	})
}

// An insert that waits for a lock ends with its caller's context.
func TestPostgres_H74_BlockedInsertEndsWithItsContext(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		b.publish("k", "m1")
		locker, tx := b.begin(), b.begin()
		b.exec(locker, "LOCK TABLE postbus_outbox IN EXCLUSIVE MODE")
		ctx, cancel := context.WithCancel(b.ctx)
		defer cancel()
		inserted := async(func() error { return b.Insert(ctx, tx, messages("k", "ghost")) })
		b.awaitBlocked(1)
		cancel()
		require.Error(t, await(t, "the cancelled insert", inserted))
		_ = tx.Rollback() // the driver may have broken the connection
		require.NoError(t, locker.Rollback())
		assert.Equal(t, []string{"m1"}, b.claimed("k"))
	})
}

// Transactions that have nothing to do with the outbox stay open, and hold up
// nothing: a writer, a reader with an old snapshot, a prepared one, a writer in
// another database of the server.
func TestPostgres_S03_ForeignTransactionsStallNothing(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		b.exec(b.db, "CREATE TABLE unrelated (id int)")
		writer := b.begin()
		b.exec(writer, "INSERT INTO unrelated VALUES (1)")
		reader := begin(b.ctx, t, b.db, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
		b.exec(reader, "SELECT count(*) FROM unrelated")
		b.prepareTransaction()

		elsewhere, err := url.Parse(b.url)
		require.NoError(t, err)
		elsewhere.Path = "/postgres"
		other := begin(b.ctx, t, schematest.Open(t, driver, elsewhere.String()), nil)
		b.exec(other, "CREATE TEMPORARY TABLE unrelated (id int)")
		b.exec(other, "INSERT INTO unrelated VALUES (1)")

		done := async(func() bool {
			for range 3 {
				wholeJob(b.ctx, t, b.db, b.Database)
			}
			return true
		})
		assert.True(t, await(t, "the whole job, three times", done))
	})
}

// prepareTransaction leaves a prepared transaction, if the server allows any.
func (b testBundle) prepareTransaction() {
	b.t.Helper()
	if b.count("SELECT current_setting('max_prepared_transactions')::int") == 0 {
		b.t.Log("max_prepared_transactions is 0: no prepared transaction in this test")
		return
	}
	conn, err := b.db.Conn(b.ctx)
	require.NoError(b.t, err)
	defer conn.Close()
	name := fmt.Sprintf("postbus_test_%d", time.Now().UnixNano())
	b.exec(conn, "BEGIN")
	b.exec(conn, "INSERT INTO unrelated VALUES (2)")
	b.exec(conn, "PREPARE TRANSACTION '"+name+"'")
	b.t.Cleanup(func() {
		_, err := b.db.ExecContext(b.ctx, "ROLLBACK PREPARED '"+name+"'")
		assert.NoError(b.t, err)
	})
}
