package charging

import "github.com/postbus-io/postbus/schema"

// The events that this service reads and states. Name and version are the
// contract; the Go types are this service's own.
var (
	// Placed is stated by the orders service.
	Placed = schema.Define[OrderPlaced]("orders.placed", 1)
	// Completed says that an order is paid. Its key is the order's id.
	Completed = schema.Define[PaymentCompleted]("payments.completed", 1)
	// Declined says that an order will not be paid. Its key is the order's id.
	Declined = schema.Define[PaymentDeclined]("payments.declined", 1)
)

// OrderPlaced has the fields of orders.placed that this service needs.
type OrderPlaced struct {
	OrderID string `json:"order_id"`
	// Amount is in minor units of the currency: cents.
	Amount int64 `json:"amount"`
	// Currency is an ISO 4217 code.
	Currency string `json:"currency"`
}

// PaymentCompleted is the body of payments.completed.
type PaymentCompleted struct {
	OrderID  string `json:"order_id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

// PaymentDeclined is the body of payments.declined.
type PaymentDeclined struct {
	OrderID string `json:"order_id"`
	Reason  string `json:"reason"`
}
