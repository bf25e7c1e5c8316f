package ordering

import "errors"

// ErrNotFound is returned for an order that does not exist.
var ErrNotFound = errors.New("not found")

// An Order is what a customer has ordered.
type Order struct {
	// ID is the caller's choice, so that a request that is repeated names the
	// same order.
	ID       string
	Customer string
	// Amount is in minor units of the currency.
	Amount int64
	// Currency is an ISO 4217 code.
	Currency string
	Status   Status
}

// A Status says where an order stands.
type Status string

// The statuses.
const (
	StatusPlaced   Status = "placed"
	StatusPaid     Status = "paid"
	StatusDeclined Status = "declined"
)
