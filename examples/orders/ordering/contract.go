package ordering

import "github.com/postbus-io/postbus/schema"

// The events that this service states and reads. Name and version are the
// contract; the Go types are this service's own.
var (
	// Placed says that an order was placed. Its key is the order's id.
	Placed = schema.Define[OrderPlaced]("orders.placed", 1)
	// Completed and Declined are stated by the payments service.
	Completed = schema.Define[PaymentCompleted]("payments.completed", 1)
	Declined  = schema.Define[PaymentDeclined]("payments.declined", 1)
)

// OrderPlaced is the body of orders.placed.
type OrderPlaced struct {
	OrderID  string `json:"order_id"`
	Customer string `json:"customer"`
	// Amount is in minor units of the currency: cents.
	Amount int64 `json:"amount"`
	// Currency is an ISO 4217 code.
	Currency string `json:"currency"`
}

// PaymentCompleted has the field of payments.completed that this service needs.
type PaymentCompleted struct {
	OrderID string `json:"order_id"`
}

// PaymentDeclined has the fields of payments.declined that this service needs.
type PaymentDeclined struct {
	OrderID string `json:"order_id"`
	Reason  string `json:"reason"`
}
