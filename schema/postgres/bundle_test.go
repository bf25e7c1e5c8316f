package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
	"github.com/postbus-io/postbus/schema/schematest"
)

// patience bounds every wait.
const patience = 30 * time.Second

type testBundle struct {
	*postgres.Database
	t   *testing.T
	ctx context.Context //nolint:containedctx // the one context of a test, which bounds all its waits
	url string
	db  *sql.DB
}

// setup migrates a fresh schema and opens it with the driver.
func setup(t *testing.T, driver string, cfg postgres.Config) testBundle {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	url := schematest.PostgresURL(t)
	db := schematest.Open(t, driver, url)
	require.NoError(t, postgres.Migrate(ctx, db, cfg.Tables))
	return testBundle{Database: open(t, db, cfg), t: t, ctx: ctx, url: url, db: db}
}

func open(t *testing.T, db *sql.DB, cfg postgres.Config) *postgres.Database {
	t.Helper()
	d, err := postgres.New(db, cfg)
	require.NoError(t, err)
	return d
}

// eachDriver runs a test with lib/pq and with pgx.
func eachDriver(t *testing.T, f func(t *testing.T, driver string)) {
	t.Helper()
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			f(t, driver)
		})
	}
}

// begin starts a transaction that ends with the test at the latest.
func (b testBundle) begin() *sql.Tx { return begin(b.ctx, b.t, b.db, nil) }

func begin(ctx context.Context, t *testing.T, db *sql.DB, options *sql.TxOptions) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(ctx, options)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func (b testBundle) exec(on execer, statement string) {
	b.t.Helper()
	_, err := on.ExecContext(b.ctx, statement)
	require.NoError(b.t, err, statement)
}

func (b testBundle) count(query string, args ...any) int {
	b.t.Helper()
	var n int
	require.NoError(b.t, b.db.QueryRowContext(b.ctx, query, args...).Scan(&n), query)
	return n
}

// insert writes one message a name, all of them in one call.
func (b testBundle) insert(tx schema.Tx, key string, ids ...string) {
	b.t.Helper()
	require.NoError(b.t, b.Insert(b.ctx, tx, messages(key, ids...)))
}

// publish writes them in a transaction of their own.
func (b testBundle) publish(key string, ids ...string) {
	b.t.Helper()
	tx := b.begin()
	b.insert(tx, key, ids...)
	require.NoError(b.t, tx.Commit())
}

func messages(key string, ids ...string) []*message.Message {
	msgs := make([]*message.Message, len(ids))
	for i, id := range ids {
		msgs[i] = message.NewMessage(id, []byte(id))
		msgs[i].Metadata.Set(schema.HeaderTopic, "orders")
		msgs[i].Metadata.Set(schema.HeaderKey, key)
	}
	return msgs
}

// claimed returns the ids of all waiting messages of a key.
func (b testBundle) claimed(key string) []string {
	b.t.Helper()
	var ids []string
	for _, r := range b.claim(key) {
		ids = append(ids, r.MessageID)
	}
	return ids
}

func (b testBundle) claim(key string) []schema.Record {
	b.t.Helper()
	records, err := b.Claim(b.ctx, []int{shardOf(key)}, 1<<20, 1<<20)
	require.NoError(b.t, err)
	return records
}

func shardOf(key string) int { return schema.ShardOf(key, schema.DefaultShards) }

// own makes owner the owner of all shards and returns that of the key.
func (b testBundle) own(owner, key string) schema.Shard {
	b.t.Helper()
	_, err := b.Heartbeat(b.ctx, owner, time.Hour)
	require.NoError(b.t, err)
	taken, err := b.Acquire(b.ctx, owner, schema.DefaultShards)
	require.NoError(b.t, err)
	for _, s := range taken {
		if s.ID == shardOf(key) {
			return s
		}
	}
	b.t.Fatalf("%s did not get shard %d", owner, shardOf(key))
	return schema.Shard{}
}

func delivery(id string) schema.Delivery {
	return schema.Delivery{Consumer: "payments", Handler: "charge", Topic: "orders", Message: messages("k", id)[0]}
}

func letter(id string) schema.DeadLetter {
	return schema.DeadLetter{Consumer: "payments", Handler: "charge", Topic: "orders", Key: "k", MessageID: id, Payload: []byte(id), Attempts: 1}
}

// async runs f on a goroutine of its own; await returns what it reports.
func async[T any](f func() T) <-chan T {
	result := make(chan T, 1)
	go func() { result <- f() }()
	return result
}

func await[T any](t *testing.T, what string, result <-chan T) T {
	t.Helper()
	select {
	case value := <-result:
		return value
	case <-time.After(patience):
		t.Fatalf("still waiting after %s: %s", patience, what)
		panic("unreachable")
	}
}

// awaitBlocked returns when n connections of this test wait for locks.
func (b testBundle) awaitBlocked(n int) {
	b.t.Helper()
	const blockedSQL = `SELECT count(*) FROM pg_stat_activity
WHERE application_name = current_setting('application_name') AND wait_event_type = 'Lock'`
	eventually(b.t, fmt.Sprintf("%d connections wait for locks", n), func() bool { return b.count(blockedSQL) == n })
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for !f() {
		select {
		case <-deadline.C:
			t.Fatalf("still not after %s: %s", patience, what)
		case <-ticker.C:
		}
	}
}

// wholeJob takes one message through everything that a relay and a consumer do
// to the database, and another one to its dead letter and back.
func wholeJob(ctx context.Context, t *testing.T, db *sql.DB, d *postgres.Database) {
	t.Helper()
	key := watermill.NewULID()
	tx := begin(ctx, t, db, nil)
	require.NoError(t, d.Insert(ctx, tx, messages(key, key+".1", key+".2")))
	require.NoError(t, tx.Commit())
	relayJob(ctx, t, d, key)
	consumerJob(ctx, t, db, d, key)
}

func relayJob(ctx context.Context, t *testing.T, d *postgres.Database, key string) {
	t.Helper()
	_, err := d.Heartbeat(ctx, key, time.Hour)
	require.NoError(t, err)
	taken, err := d.Acquire(ctx, key, schema.DefaultShards)
	require.NoError(t, err)
	require.Len(t, taken, schema.DefaultShards)
	records, err := d.Claim(ctx, []int{shardOf(key)}, 10, 10)
	require.NoError(t, err)
	records = slices.DeleteFunc(records, func(r schema.Record) bool { return r.Key != key }) // others of the shard
	require.Len(t, records, 2)
	hold := schema.Hold{Lane: records[0].Lane(), Shard: shardOf(key), Head: records[0].ID}
	settlement := schema.Settlement{
		Failed: []schema.Failure{{Record: records[0].ID, State: schema.StateHeld, Attempts: 1}},
		Held:   []int64{records[1].ID}, Holds: []schema.Hold{hold},
	}
	for _, s := range taken {
		if s.ID == shardOf(key) {
			settlement.Shard = s
		}
	}
	require.NoError(t, d.Settle(ctx, key, settlement))
	held, err := d.Held(ctx, []schema.Hold{hold}, 10)
	require.NoError(t, err)
	require.Len(t, held, 2)
	require.NoError(t, d.Sent(ctx, held))
	require.NoError(t, d.Settle(ctx, key, schema.Settlement{Shard: settlement.Shard, Lifted: []schema.Hold{hold}}))
	holds, err := d.Holds(ctx, []int{shardOf(key)})
	require.NoError(t, err)
	require.Empty(t, holds)
	require.NoError(t, d.Release(ctx, key, []int{1, 2}))
	require.NoError(t, d.Leave(ctx, key))
}

func consumerJob(ctx context.Context, t *testing.T, db *sql.DB, d *postgres.Database, key string) {
	t.Helper()
	tx := begin(ctx, t, db, nil)
	verdict, err := d.Receive(ctx, tx, delivery(key+".1"))
	require.NoError(t, err)
	assert.Equal(t, schema.VerdictFresh, verdict)
	require.NoError(t, tx.Commit())
	buried, err := d.Bury(ctx, letter(key+".2"))
	require.NoError(t, err)
	require.True(t, buried)
	dead, err := d.Dead(ctx, schema.DeadFilter{})
	require.NoError(t, err)
	require.Len(t, dead, 1)
	tx = begin(ctx, t, db, nil)
	_, err = d.Revive(ctx, tx, dead[0].ID)
	require.NoError(t, err)
	require.NoError(t, tx.Commit())
}
