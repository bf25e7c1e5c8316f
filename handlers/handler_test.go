package handlers_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/schema"
)

func TestHandler_SeesTheEventAndTheTransaction(t *testing.T) {
	t.Parallel()
	tx := new(sql.Tx)
	var got schema.Received[orderPlaced]
	var gotTx *sql.Tx
	handler := handlers.On(placed, "charge", func(_ context.Context, tx *sql.Tx, e schema.Received[orderPlaced]) error {
		got, gotTx = e, tx
		return nil
	})
	msg := event("id", "k", "orders.placed", "1", `{"order_id":"o1"}`)
	msg.SetContext(schema.ContextWithTx(t.Context(), tx))
	produced, err := handler.HandlerFunc(nil, "orders")(msg)
	require.NoError(t, err)
	assert.Empty(t, produced)
	assert.Same(t, tx, gotTx)
	assert.Equal(t, "o1", got.Body.OrderID)
	assert.Equal(t, "orders", got.Topic)
	assert.Equal(t, "id", got.ID)
	assert.Equal(t, "charge", handler.Name())
	assert.Equal(t, placed.Definition(), handler.Definition())
}

func TestHandler_RefusesForGood(t *testing.T) {
	t.Parallel()
	handler := handlers.On(placed, "charge", note[orderPlaced](&journal{}, "charge"))
	broken := handlers.On(placed, "Charge", note[orderPlaced](&journal{}, "charge"))
	tx := schema.ContextWithTx(t.Context(), new(sql.Tx))
	for _, test := range []struct {
		name    string
		handler handlers.Handler
		msg     *message.Message
		ctx     context.Context
		is      error
		text    string
	}{
		{"payload", handler, event("1", "", "orders.placed", "1", `{"order`), tx, schema.ErrUndecodable, "undecodable payload"},
		{"transaction", handler, event("1", "", "orders.placed", "1", `{}`), t.Context(), schema.ErrNoTransaction, "handler charge"},
		{"event", handler, event("1", "", "orders.cancelled", "1", `{}`), tx, handlers.ErrWrongEvent, `"orders.cancelled", handler charge handles orders.placed`},
		{"version", handler, event("1", "", "orders.placed", "3", `{}`), tx, nil, "orders.placed: version 3 is not known, this consumer handles 1"},
		{"no version", handler, event("1", "", "orders.placed", "x", `{}`), tx, schema.ErrUndecodable, "not a number"},
		{"faulty", broken, event("1", "", "orders.placed", "1", `{}`), tx, schema.ErrInvalidOption, `"Charge"`},
		{"zero", handlers.Handler{}, event("1", "", "orders.placed", "1", `{}`), tx, schema.ErrInvalidEvent, "no function"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.msg.SetContext(test.ctx)
			_, err := test.handler.HandlerFunc(schema.JSON, "orders")(test.msg)
			require.Error(t, err)
			assert.True(t, schema.IsPermanent(err))
			assert.ErrorContains(t, err, test.text)
			if test.is != nil {
				assert.ErrorIs(t, err, test.is)
			}
		})
	}
}

func FuzzHandler(f *testing.F) {
	f.Add("orders.placed", "1", []byte(`{"order_id":"o1"}`))
	f.Add("orders.placed", "-0x1", []byte("\x00\xff"))
	f.Add("", "", []byte(nil))
	handler := handlers.On(placed, "charge", note[orderPlaced](&journal{}, "charge"))
	apply := handler.HandlerFunc(schema.JSON, "orders")
	f.Fuzz(func(t *testing.T, eventType, version string, payload []byte) {
		msg := event("1", "", eventType, version, string(payload))
		msg.SetContext(schema.ContextWithTx(t.Context(), new(sql.Tx)))
		if _, err := apply(msg); err != nil && !schema.IsPermanent(err) {
			t.Fatalf("it would be tried for ever: %v", err)
		}
	})
}
