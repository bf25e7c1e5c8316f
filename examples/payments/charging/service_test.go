package charging_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/postbus-io/postbus/eventbus"
	"github.com/postbus-io/postbus/examples/payments/charging"
	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/sqlite"
)

// scriptedBank answers with its script, then with nil.
type scriptedBank struct {
	script []error
	keys   []string
}

func (b *scriptedBank) Charge(_ context.Context, key string, _ charging.Payment) error {
	b.keys = append(b.keys, key)
	if len(b.script) == 0 {
		return nil
	}
	err := b.script[0]
	b.script = b.script[1:]
	return err
}

// buried is a hook that reports dead letters.
type buried chan schema.DeadLetter

func (b buried) OnBury(letter schema.DeadLetter) { b <- letter }

type testBundle struct {
	db      *sql.DB
	bus     *eventbus.Bus
	service *charging.Service
	answers chan any // bodies of payments.completed and payments.declined
	buried  buried
}

func setup(t *testing.T, bank charging.Bank) (context.Context, testBundle) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	b := testBundle{answers: make(chan any, 10), buried: make(buried, 10)}
	var err error
	b.db, err = sql.Open("sqlite", sqlite.DSN(filepath.Join(t.TempDir(), "payments.db")))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.db.Close()) })
	cfg := eventbus.DefaultConfig()
	require.NoError(t, eventbus.Migrate(ctx, b.db, cfg))
	require.NoError(t, charging.Migrate(ctx, b.db))
	require.NoError(t, charging.Migrate(ctx, b.db), "a second time")
	b.bus, err = eventbus.Open(ctx, b.db, cfg, eventbus.WithHook(b.buried), eventbus.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.bus.Close()) })
	b.service, err = charging.New(b.bus, b.db, bank)
	require.NoError(t, err)
	require.NoError(t, b.bus.Consume("witness",
		handlers.On(charging.Completed, "completed", answer[charging.PaymentCompleted](b.answers)),
		handlers.On(charging.Declined, "declined", answer[charging.PaymentDeclined](b.answers))))
	run(ctx, t, b.bus)
	return ctx, b
}

func answer[T any](answers chan<- any) func(context.Context, *sql.Tx, schema.Received[T]) error {
	return func(_ context.Context, _ *sql.Tx, e schema.Received[T]) error {
		answers <- e.Body
		return nil
	}
}

// run runs the bus until the end of the test.
func run(ctx context.Context, t *testing.T, bus *eventbus.Bus) {
	t.Helper()
	ctx, stop := context.WithCancel(ctx)
	stopped := make(chan error, 1)
	go func() { stopped <- bus.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-stopped)
	})
}

func (b testBundle) place(ctx context.Context, t *testing.T, o charging.OrderPlaced) {
	t.Helper()
	require.NoError(t, b.bus.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return b.bus.Publish(ctx, tx, charging.Placed.New(o.OrderID, o))
	}))
}

// charges returns the rows of an order: the reason why it was declined of each.
func (b testBundle) charges(ctx context.Context, t *testing.T, orderID string) []string {
	t.Helper()
	rows, err := b.db.QueryContext(ctx, `SELECT declined FROM charges WHERE order_id = $1`, orderID)
	require.NoError(t, err)
	defer rows.Close()
	var declined []string
	for rows.Next() {
		var reason string
		require.NoError(t, rows.Scan(&reason))
		declined = append(declined, reason)
	}
	require.NoError(t, rows.Err())
	return declined
}

// next returns the next value, or fails when the test's time is over.
func next[T any](ctx context.Context, t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-ctx.Done():
		require.FailNow(t, "nothing came")
		panic("not reached")
	}
}

func TestService_charges(t *testing.T) {
	t.Parallel()
	bank := &scriptedBank{}
	ctx, b := setup(t, bank)

	b.place(ctx, t, charging.OrderPlaced{OrderID: "o1", Amount: 100_000, Currency: "EUR"})

	assert.Equal(t, charging.PaymentCompleted{OrderID: "o1", Amount: 100_000, Currency: "EUR"}, next(ctx, t, b.answers))
	assert.Equal(t, []string{""}, b.charges(ctx, t, "o1"))
	assert.Len(t, bank.keys, 1)
}

func TestService_declinesAboveLimit(t *testing.T) {
	t.Parallel()
	bank := &scriptedBank{}
	ctx, b := setup(t, bank)

	b.place(ctx, t, charging.OrderPlaced{OrderID: "o1", Amount: 100_001, Currency: "EUR"})

	const reason = "100001 is above the limit of 100000"
	assert.Equal(t, charging.PaymentDeclined{OrderID: "o1", Reason: reason}, next(ctx, t, b.answers))
	assert.Equal(t, []string{reason}, b.charges(ctx, t, "o1"))
	assert.Empty(t, bank.keys, "the bank was asked")
}

// The bank is asked again with the same key, and what failed left nothing.
func TestService_bankFails(t *testing.T) {
	t.Parallel()
	bank := &scriptedBank{script: []error{errors.New("no answer"), errors.New("no answer")}}
	ctx, b := setup(t, bank)

	b.place(ctx, t, charging.OrderPlaced{OrderID: "o1", Amount: 1, Currency: "EUR"})

	assert.IsType(t, charging.PaymentCompleted{}, next(ctx, t, b.answers))
	assert.Equal(t, []string{""}, b.charges(ctx, t, "o1"))
	require.Len(t, bank.keys, 3)
	assert.NotEmpty(t, bank.keys[0])
	assert.Equal(t, []string{bank.keys[0], bank.keys[0]}, bank.keys[1:])
}

// Without a limit an order becomes a dead letter at once; with one it is
// redriven.
func TestService_noLimit(t *testing.T) {
	t.Parallel()
	ctx, b := setup(t, charging.PlayBank{})

	b.place(ctx, t, charging.OrderPlaced{OrderID: "o1", Amount: 4200, Currency: "CHF"})

	assert.Equal(t, 1, next(ctx, t, b.buried).Attempts)
	assert.Empty(t, b.charges(ctx, t, "o1"))
	letters, err := b.bus.DeadLetters(ctx, schema.DeadFilter{Consumer: "payments", Handler: "charge", Key: "o1"})
	require.NoError(t, err)
	require.Len(t, letters, 1)
	assert.Contains(t, letters[0].LastError, "no limit is set for CHF")

	require.NoError(t, b.service.SetLimit(ctx, "CHF", 1))
	require.NoError(t, b.service.SetLimit(ctx, "CHF", 4200))
	require.NoError(t, b.bus.Redrive(ctx, letters[0].ID))

	assert.Equal(t, charging.PaymentCompleted{OrderID: "o1", Amount: 4200, Currency: "CHF"}, next(ctx, t, b.answers))
	assert.Equal(t, []string{""}, b.charges(ctx, t, "o1"))
}
