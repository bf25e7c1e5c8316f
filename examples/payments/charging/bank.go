package charging

import "context"

// A Bank moves the money. It is asked by several goroutines at once.
type Bank interface {
	// Charge takes the amount. It may be asked again for what it has done
	// already, with the same key, and then returns what it returned before.
	Charge(ctx context.Context, key string, payment Payment) error
}

// A Payment is what a bank is asked for.
type Payment struct {
	// OrderID is what the customer reads on the statement.
	OrderID string
	// Amount is in minor units of the currency.
	Amount   int64
	Currency string
}

// PlayBank is a Bank that has money for everybody.
type PlayBank struct{}

// Charge implements [Bank].
func (PlayBank) Charge(context.Context, string, Payment) error { return nil }
