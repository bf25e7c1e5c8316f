package ordering_test

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
	"github.com/postbus-io/postbus/examples/orders/ordering"
	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/sqlite"
)

// witness is a hook that reports what the consumer orders was given.
type witness struct {
	skipped chan string // ids of messages that came again
	buried  chan schema.DeadLetter
}

func (w witness) OnSkip(d schema.Delivery, _ schema.Verdict) { w.skipped <- d.Message.UUID }
func (w witness) OnBury(letter schema.DeadLetter)            { w.buried <- letter }

type testBundle struct {
	witness
	db      *sql.DB
	bus     *eventbus.Bus
	service *ordering.Service
	placed  chan schema.Received[ordering.OrderPlaced]
}

func setup(t *testing.T) (context.Context, testBundle) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	b := testBundle{
		witness: witness{skipped: make(chan string, 10), buried: make(chan schema.DeadLetter, 10)},
		placed:  make(chan schema.Received[ordering.OrderPlaced], 10),
	}
	var err error
	b.db, err = sql.Open("sqlite", sqlite.DSN(filepath.Join(t.TempDir(), "orders.db")))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.db.Close()) })
	cfg := eventbus.DefaultConfig()
	require.NoError(t, eventbus.Migrate(ctx, b.db, cfg))
	require.NoError(t, ordering.Migrate(ctx, b.db))
	require.NoError(t, ordering.Migrate(ctx, b.db), "a second time")
	b.bus, err = eventbus.Open(ctx, b.db, cfg, eventbus.WithHook(b.witness), eventbus.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.bus.Close()) })
	b.service, err = ordering.New(b.bus, b.db)
	require.NoError(t, err)
	require.NoError(t, b.bus.Consume("witness", handlers.On(ordering.Placed, "placed",
		func(_ context.Context, _ *sql.Tx, e schema.Received[ordering.OrderPlaced]) error {
			b.placed <- e
			return nil
		})))
	run(ctx, t, b.bus)
	return ctx, b
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

// answer publishes an event of payments twice, under one id, and waits until
// the second one was skipped: the first one is settled then.
func (b testBundle) answer(ctx context.Context, t *testing.T, event schema.Outgoing) {
	t.Helper()
	require.NoError(t, b.bus.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return b.bus.Publish(ctx, tx, event, event)
	}))
	assert.Equal(t, event.ID, next(ctx, t, b.skipped))
}

func (b testBundle) logged(ctx context.Context, t *testing.T, orderID string) int {
	t.Helper()
	var n int
	require.NoError(t, b.db.QueryRowContext(ctx, `SELECT count(*) FROM order_log WHERE order_id = $1`, orderID).Scan(&n))
	return n
}

var anOrder = ordering.Order{ID: "o1", Customer: "Ada", Amount: 1250, Currency: "EUR"}

func TestService_Place(t *testing.T) {
	t.Parallel()
	ctx, b := setup(t)

	require.NoError(t, b.service.Place(ctx, anOrder))

	event := next(ctx, t, b.placed)
	assert.Equal(t, ordering.OrderPlaced{OrderID: "o1", Customer: "Ada", Amount: 1250, Currency: "EUR"}, event.Body)
	assert.Equal(t, "o1", event.Key)
	assert.Equal(t, "orders", event.Topic)
	stored, err := b.service.Order(ctx, "o1")
	require.NoError(t, err)
	want := anOrder
	want.Status = ordering.StatusPlaced
	assert.Equal(t, want, stored)
}

func TestService_PlaceIn_rolledBack(t *testing.T) {
	t.Parallel()
	ctx, b := setup(t)
	noThanks := errors.New("no, thanks")

	err := b.bus.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		require.NoError(t, b.service.PlaceIn(ctx, tx, anOrder))
		return noThanks
	})

	require.ErrorIs(t, err, noThanks)
	_, err = b.service.Order(ctx, "o1")
	require.ErrorIs(t, err, ordering.ErrNotFound)
	later := anOrder
	later.ID = "o2"
	require.NoError(t, b.service.Place(ctx, later))
	assert.Equal(t, "o2", next(ctx, t, b.placed).Body.OrderID, "the first event that arrives")
}

func TestService_notesAnswers(t *testing.T) {
	t.Parallel()
	for status, event := range map[ordering.Status]schema.Outgoing{
		ordering.StatusPaid:     ordering.Completed.New("o1", ordering.PaymentCompleted{OrderID: "o1"}),
		ordering.StatusDeclined: ordering.Declined.New("o1", ordering.PaymentDeclined{OrderID: "o1", Reason: "too much"}),
	} {
		t.Run(string(status), func(t *testing.T) {
			t.Parallel()
			ctx, b := setup(t)
			require.NoError(t, b.service.Place(ctx, anOrder))

			b.answer(ctx, t, event)

			stored, err := b.service.Order(ctx, "o1")
			require.NoError(t, err)
			assert.Equal(t, status, stored.Status)
			assert.Equal(t, 1, b.logged(ctx, t, "o1"))
		})
	}
}

// An answer for an order that does not exist is kept for a person to look at.
func TestService_unknownOrder(t *testing.T) {
	t.Parallel()
	ctx, b := setup(t)

	b.answer(ctx, t, ordering.Completed.New("o1", ordering.PaymentCompleted{OrderID: "o1"}))

	letter := next(ctx, t, b.buried)
	assert.Equal(t, 1, letter.Attempts)
	assert.Contains(t, letter.LastError, ordering.ErrNotFound.Error())
	assert.Zero(t, b.logged(ctx, t, "o1"))
}
