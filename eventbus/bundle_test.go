package eventbus_test

import (
	"context"
	"database/sql"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus"
	"github.com/postbus-io/postbus/eventbus/memory"
	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/middleware"
	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
	"github.com/postbus-io/postbus/schema/schematest"
	"github.com/postbus-io/postbus/schema/sqlite"
)

// patience bounds every wait.
const patience = 60 * time.Second

// eachDatabase runs a test on SQLite and on PostgreSQL with both drivers.
func eachDatabase(t *testing.T, test func(t *testing.T, db *sql.DB)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { test(t, schematest.SQLite(t, sqlite.DSN, sqlite.Migrate)) })
	t.Run("libpq", func(t *testing.T) { test(t, schematest.Postgres(t, "postgres", postgres.Migrate)) })
	t.Run("pgx", func(t *testing.T) { test(t, schematest.Postgres(t, "pgx", postgres.Migrate)) })
}

// A bundle is a bus with a broker of its own, and a record of what came of its
// messages.
type bundle struct {
	db     *sql.DB
	bus    *eventbus.Bus
	broker *memory.Broker
	seen   *record
}

func setup(t *testing.T, db *sql.DB, change ...func(*eventbus.Config)) *bundle {
	t.Helper()
	broker, err := memory.New(memory.Config{Logger: quiet()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	return setupWith(t, db, broker, broker, change...)
}

// setupWith opens a bus on a broker that may be a wrapper around memory.
func setupWith(t *testing.T, db *sql.DB, inner *memory.Broker, broker schema.Broker, change ...func(*eventbus.Config)) *bundle {
	t.Helper()
	cfg := eventbus.DefaultConfig()
	cfg.Consumer.Retry.Initial, cfg.Consumer.Retry.Max = time.Millisecond, 10*time.Millisecond
	for _, f := range change {
		f(&cfg)
	}
	b := &bundle{db: db, broker: inner, seen: &record{}}
	bus, err := eventbus.Open(t.Context(), db, cfg,
		eventbus.WithBroker(broker), eventbus.WithLogger(quiet()), eventbus.WithHook(b.seen))
	require.NoError(t, err)
	b.bus = bus
	return b
}

// run runs the bus until the test or the returned function ends it.
func (b *bundle) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.bus.Run(ctx) }()
	await(t, b.bus.Ready(), "ready")
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				require.NoError(t, err)
			case <-time.After(patience):
				t.Fatal("the bus did not stop")
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// publish publishes in a transaction of its own.
func (b *bundle) publish(t *testing.T, events ...schema.Outgoing) {
	t.Helper()
	require.NoError(t, b.bus.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		return b.bus.Publish(ctx, tx, events...)
	}))
}

// deliver puts a message on the broker, past the outbox.
func (b *bundle) deliver(t *testing.T, topic string, msgs ...*message.Message) {
	t.Helper()
	publisher, err := b.broker.NewPublisher()
	require.NoError(t, err)
	require.NoError(t, publisher.Publish(topic, msgs...))
	require.NoError(t, publisher.Close())
}

func (b *bundle) count(t *testing.T, query string) int {
	t.Helper()
	var n int
	require.NoError(t, b.db.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

func (b *bundle) dead(t *testing.T) []schema.DeadLetter {
	t.Helper()
	letters, err := b.bus.DeadLetters(t.Context(), schema.DeadFilter{})
	require.NoError(t, err)
	return letters
}

func await[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s within %s", what, patience)
		panic("unreachable")
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, patience, 10*time.Millisecond, what)
}

// record counts what the hooks of a bus are told.
type record struct {
	mu       sync.Mutex
	failures []middleware.Failure
	skips    []schema.Verdict
	buried   []schema.DeadLetter
}

func (r *record) OnFailure(f middleware.Failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, f)
}

func (r *record) OnSkip(_ schema.Delivery, v schema.Verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.skips = append(r.skips, v)
}

func (r *record) OnBury(l schema.DeadLetter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buried = append(r.buried, l)
}

func (r *record) counts() (failures, skips, buried int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures), len(r.skips), len(r.buried)
}

// note is the event of the small tests.
type note struct {
	Text string `json:"text"`
}

var noted = schema.Define[note]("notes.noted", 1)

// effects is a table without a unique key, so that doubles are seen.
func createEffects(t *testing.T, db *sql.DB) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `CREATE TABLE effects (handler text NOT NULL, message_id text NOT NULL, text text NOT NULL)`)
	require.NoError(t, err)
}

// writeEffect is what handlers do; $1 means the same to all drivers.
func writeEffect(ctx context.Context, tx *sql.Tx, handler string, e schema.Received[note]) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (handler, message_id, text) VALUES ($1, $2, $3)`, handler, e.ID, e.Body.Text)
	return err
}

// onNote is a handler that writes its effect and then does what after says.
func onNote(name string, after func(ctx context.Context, tx *sql.Tx, e schema.Received[note]) error) handlers.Handler {
	return handlers.On(noted, name, func(ctx context.Context, tx *sql.Tx, e schema.Received[note]) error {
		if err := writeEffect(ctx, tx, name, e); err != nil {
			return err
		}
		if after == nil {
			return nil
		}
		return after(ctx, tx, e)
	})
}

var migratePostgres = postgres.Migrate

// onAnswer writes its effect and then does what after says.
func onAnswer(after func(ctx context.Context) error) handlers.Handler {
	return handlers.On(answered, "settle", func(ctx context.Context, tx *sql.Tx, e schema.Received[note]) error {
		if err := writeEffect(ctx, tx, "settle", e); err != nil {
			return err
		}
		return after(ctx)
	})
}

func withKeyLock(cfg *eventbus.Config) { cfg.Outbox.KeyLock = true }
