package examples_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/examples/orders/ordering"
	"github.com/postbus-io/postbus/examples/payments/charging"
	"github.com/postbus-io/postbus/schema"
)

// The two services have a copy each of what they have agreed on. This holds the
// copies together: what one states, the other one reads.
func TestContract(t *testing.T) {
	t.Parallel()
	states(t, ordering.Placed, charging.Placed,
		ordering.OrderPlaced{OrderID: "o1", Customer: "Ada", Amount: 1250, Currency: "EUR"},
		charging.OrderPlaced{OrderID: "o1", Amount: 1250, Currency: "EUR"})
	states(t, charging.Completed, ordering.Completed,
		charging.PaymentCompleted{OrderID: "o1", Amount: 1250, Currency: "EUR"},
		ordering.PaymentCompleted{OrderID: "o1"})
	states(t, charging.Declined, ordering.Declined,
		charging.PaymentDeclined{OrderID: "o1", Reason: "too much"},
		ordering.PaymentDeclined{OrderID: "o1", Reason: "too much"})
}

// states checks that what is stated as one event is read as the other one.
func states[S, R any](t *testing.T, stated schema.Event[S], read schema.Event[R], body S, want R) {
	t.Helper()
	assert.Equal(t, stated.Name(), read.Name())
	assert.Equal(t, stated.Version(), read.Version())
	payload, err := json.Marshal(body)
	require.NoError(t, err)
	var got R
	require.NoError(t, json.Unmarshal(payload, &got))
	assert.Equal(t, want, got, stated.Name())
}
