package forwarder_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"github.com/postbus-io/postbus/forwarder"
	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
	"github.com/postbus-io/postbus/schema/schematest"
	"github.com/postbus-io/postbus/schema/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// orders is the topic of tests that need one.
const orders = "orders"

// A bundle is an outbox, a broker and what was published so far.
type bundle struct {
	*testing.T
	db       *sql.DB
	database schema.Database
	broker   *broker
	log      *logbook
	patience time.Duration

	mu        sync.Mutex
	published map[schema.Lane][]string // ids in the order of their commits
	relays    []*running
}

// virtual runs a test on a SQLite file in a bubble with a clock of its own:
// time passes only while every goroutine waits for it, and SQLite's clock is
// the same. A wait of minutes costs nothing, and no machine is too slow.
func virtual(t *testing.T, test func(b *bundle)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(setup(t)) })
}

// setup is for tests in a bubble of their own.
func setup(t *testing.T) *bundle {
	t.Helper()
	db := schematest.SQLite(t, dsn, sqlite.Migrate)
	database, err := sqlite.New(db, sqlite.Config{})
	require.NoError(t, err)
	return newBundle(t, db, database, 10*time.Minute)
}

// dsn spares the disk: no test here cuts the power.
func dsn(path string) string { return strings.Replace(sqlite.DSN(path), "FULL", "OFF", 1) }

// setupPostgres is for what SQLite cannot do: several transactions at once.
func setupPostgres(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	db := schematest.Postgres(t, "postgres", postgres.Migrate)
	database, err := postgres.New(db, postgres.Config{})
	require.NoError(t, err)
	return newBundle(t, db, database, time.Minute)
}

func newBundle(t *testing.T, db *sql.DB, database schema.Database, patience time.Duration) *bundle {
	b := &bundle{
		T: t, db: db, database: database, broker: newBroker(t, patience), log: &logbook{}, patience: patience,
		published: map[schema.Lane][]string{},
	}
	t.Cleanup(b.cleanUp)
	return b
}

// cleanUp is the last of the cleanups, before the database is closed: nothing
// is left behind that would still want the bubble's time.
func (b *bundle) cleanUp() {
	b.mu.Lock()
	relays := b.relays
	b.mu.Unlock()
	for _, r := range relays {
		select {
		case <-r.done:
		case <-time.After(b.patience):
			b.Errorf("a relay does not stop; log: %s", b.log)
		}
	}
	b.broker.calls.Wait()
}

// newMessage returns the nth message of a lane.
func newMessage(topic, key string, n int) *message.Message {
	id := fmt.Sprintf("%s/%s#%d", topic, key, n)
	msg := message.NewMessage(id, []byte("payload of "+id))
	msg.Metadata.Set(schema.HeaderTopic, topic)
	msg.Metadata.Set(schema.HeaderKey, key)
	msg.Metadata.Set("color", "blue")
	return msg
}

// publish commits the next n messages of a lane. Any goroutine may call it.
func (b *bundle) publish(topic, key string, n int) {
	b.Helper()
	lane := schema.Lane{Topic: topic, Key: key}
	var msgs []*message.Message
	for i := range n {
		msgs = append(msgs, newMessage(topic, key, b.count(lane)+i+1))
	}
	if err := b.insert(msgs); err != nil {
		b.Errorf("publish: %v", err)
		return
	}
	b.committed(lane, msgs...)
}

func (b *bundle) insert(msgs []*message.Message) error {
	tx, err := b.db.BeginTx(context.Background(), nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := b.database.Insert(context.Background(), tx, msgs); err != nil {
		return err
	}
	return tx.Commit()
}

func (b *bundle) count(lane schema.Lane) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.published[lane])
}

func (b *bundle) committed(lane schema.Lane, msgs ...*message.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, msg := range msgs {
		b.published[lane] = append(b.published[lane], msg.UUID)
	}
}

// total is the number of messages that were committed.
func (b *bundle) total() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, ids := range b.published {
		n += len(ids)
	}
	return n
}

// awaitAll waits until the broker has every committed message and the outbox is
// empty, and checks the order.
func (b *bundle) awaitAll() {
	b.Helper()
	b.broker.await(b.total())
	b.eventually("the outbox is empty", func() bool { return len(b.records()) == 0 })
	b.checkOrder()
	require.Equal(b, b.total(), b.broker.distinct())
}

// checkOrder checks that the first occurrences of each lane at the broker are
// the beginning of what was committed, in order and without a gap.
func (b *bundle) checkOrder() {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for lane, got := range b.broker.firsts() {
		want := b.published[lane]
		if lane.Key == "" { // no order is kept
			want = slices.Sorted(slices.Values(want))
			slices.Sort(got)
		}
		require.LessOrEqual(b, len(got), len(want), "%v", lane)
		require.Equal(b, want[:len(got)], got, "order of %v", lane)
	}
}

// eventually polls the database until what is true.
func (b *bundle) eventually(what string, isTrue func() bool) {
	b.Helper()
	deadline := time.After(b.patience)
	for !isTrue() {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			b.Fatalf("not within %s: %s; log: %s", b.patience, what, b.log)
		}
	}
}

// gate returns a channel that is closed by open, or when the test is over.
func (b *bundle) gate() (closed chan struct{}, open func()) {
	closed = make(chan struct{})
	open = sync.OnceFunc(func() { close(closed) })
	b.Cleanup(open)
	return closed, open
}

// pass lets time pass: the bubble's, not the tester's.
func pass(d time.Duration) { <-time.After(d) }

// A running relay.
type running struct {
	*forwarder.Relay
	b      *bundle
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error
}

// start runs a relay with a BatchPublisher of the broker and waits until it has
// joined.
func (b *bundle) start(changes ...func(*forwarder.Config)) *running {
	b.Helper()
	r := b.launch(changes...)
	select {
	case <-r.Ready():
	case <-time.After(b.patience):
		b.Fatalf("the relay is not ready; log: %s", b.log)
	}
	return r
}

// launch is start without the wait.
func (b *bundle) launch(changes ...func(*forwarder.Config)) *running {
	b.Helper()
	cfg := forwarder.Config{Source: b.database, Publisher: b.broker.batches(), Logger: slog.New(b.log)}
	for _, change := range changes {
		change(&cfg)
	}
	relay, err := forwarder.New(cfg)
	require.NoError(b, err)
	ctx, cancel := context.WithCancelCause(context.Background())
	r := &running{Relay: relay, b: b, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = relay.Run(ctx)
	}()
	b.mu.Lock()
	b.relays = append(b.relays, r)
	b.mu.Unlock()
	b.Cleanup(func() { r.cancel(nil) })
	return r
}

// stop stops the relay as a deployment does.
func (r *running) stop() {
	r.b.Helper()
	require.NoError(r.b, r.end(nil))
}

// abandon ends the relay as a crash does.
func (r *running) abandon() {
	r.b.Helper()
	require.NoError(r.b, r.end(forwarder.ErrAbandoned))
}

func (r *running) end(cause error) error {
	r.cancel(cause)
	select {
	case <-r.done:
	case <-time.After(r.b.patience):
		r.b.Errorf("the relay does not stop; log: %s", r.b.log)
	}
	return r.err
}

// A row is a record as it stands in the outbox.
type row struct {
	ID, Message string
	State       schema.State
	Attempts    int
	Error       string
}

// records returns what is in the outbox, by id.
func (b *bundle) records() []row {
	b.Helper()
	return query(b, `SELECT id, message_id, state, retry_count, coalesce(last_error, '') FROM postbus_outbox ORDER BY id`,
		func(rows *sql.Rows, r *row) error {
			return rows.Scan(&r.ID, &r.Message, &r.State, &r.Attempts, &r.Error)
		})
}

// messages returns the ids of the messages in the outbox.
func (b *bundle) messages() []string {
	b.Helper()
	ids := []string{}
	for _, r := range b.records() {
		ids = append(ids, r.Message)
	}
	return ids
}

// record returns one record.
func (b *bundle) record(id string) row {
	b.Helper()
	for _, r := range b.records() {
		if r.Message == id {
			return r
		}
	}
	b.Fatalf("%s is not in the outbox", id)
	return row{}
}

// holds returns the holds of all shards.
func (b *bundle) holds() []schema.Hold {
	b.Helper()
	shards := make([]int, schema.DefaultShards)
	for i := range shards {
		shards[i] = i
	}
	holds, err := b.database.Holds(context.Background(), shards)
	require.NoError(b, err)
	return holds
}

// owners returns how many shards each owner has; free ones under "".
func (b *bundle) owners() map[string]int {
	b.Helper()
	owners := map[string]int{}
	for _, owner := range query(b, `SELECT coalesce(owner, '') FROM postbus_shards`,
		func(rows *sql.Rows, s *string) error { return rows.Scan(s) }) {
		owners[owner]++
	}
	return owners
}

// exec changes the tables by hand.
func (b *bundle) exec(statement string, args ...any) {
	b.Helper()
	_, err := b.db.ExecContext(context.Background(), statement, args...)
	require.NoError(b, err)
}

func query[T any](b *bundle, statement string, scan func(*sql.Rows, *T) error) []T {
	b.Helper()
	rows, err := b.db.QueryContext(context.Background(), statement)
	require.NoError(b, err)
	defer rows.Close()
	var found []T
	for rows.Next() {
		var one T
		require.NoError(b, scan(rows, &one))
		found = append(found, one)
	}
	require.NoError(b, rows.Err())
	return found
}
