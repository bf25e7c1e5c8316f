package story

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus"
)

// Each of these is a fault that the sums have to show. They are put into the
// databases when everything has stopped.
func TestTell_sumsDisagree(t *testing.T) {
	t.Parallel()
	const (
		inOrders   = true
		inPayments = false
	)
	for name, c := range map[string]struct {
		inOrders      bool
		fault         string
		lost, doubled int
		says          string
	}{
		"an order that was not charged": {
			inPayments, `DELETE FROM charges WHERE order_id = 'order-0001'`, 1, 0, "orders lost: 1"},
		"an order that was charged twice": {
			inPayments, `INSERT INTO charges SELECT * FROM charges WHERE order_id = 'order-0001'`, 0, 1, "orders doubled: 1"},
		"an answer that did not arrive": {
			inOrders, `DELETE FROM order_log WHERE order_id = 'order-0001'`, 1, 0, "orders lost: 1"},
		"an answer that was noted twice": {
			inOrders, `INSERT INTO order_log SELECT * FROM order_log WHERE order_id = 'order-0001'`, 0, 1, "orders doubled: 1"},
		"an order whose status was not changed": {
			inOrders, `UPDATE orders SET status = 'placed' WHERE id = 'order-0001'`, 0, 0, "paid or declined in the database of orders: 5, expected 6"},
		"a charge for an order that was rolled back": {
			inPayments, `INSERT INTO charges VALUES ('order-0000', 1, 'EUR', 'x')`, 0, 0, "orders that nobody placed, in the database of payments: 1"},
		"the wrong amount of money": {
			inPayments, `UPDATE charges SET amount = amount + 1 WHERE order_id = 'order-0001'`, 0, 0, "money of the paid orders"},
		"an order that is missing": {
			inOrders, `DELETE FROM orders WHERE id = 'order-0001'`, 0, 0, "orders in the database of orders: 5, expected 6"},
		"an event that was not sent": {
			inOrders, `INSERT INTO postbus_outbox (message_id, topic, shard, created_at) VALUES ('x', 'orders', 0, 0)`, 0, 0, "events left in the outboxes: 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			spoil := func(s *stage) error {
				db := s.payments
				if c.inOrders {
					db = s.orders
				}
				_, err := db.ExecContext(ctx, c.fault)
				return err
			}

			summary, err := Tell(ctx, Config{Orders: 6, Out: io.Discard, beforeSums: spoil})

			require.ErrorIs(t, err, ErrSums)
			assert.ErrorContains(t, err, c.says)
			require.NotNil(t, summary)
			assert.Equal(t, c.lost, summary.Lost, "lost")
			assert.Equal(t, c.doubled, summary.Doubled, "doubled")
		})
	}
}

// A part of a service that fails ends the story, with its error.
func TestPlay_serviceFails(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := setUp(ctx, Config{Orders: 6, Out: io.Discard, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer func() { assert.NoError(t, s.close()) }()
	over, end := context.WithCancel(ctx)
	end()
	require.NoError(t, s.payments.bus.RunConsumers(over)) // a second time will be an error

	err = s.play(ctx)

	require.ErrorIs(t, err, eventbus.ErrRunning)
	assert.ErrorContains(t, err, "chapter 3")
	assert.ErrorContains(t, err, "payments: ")
}
