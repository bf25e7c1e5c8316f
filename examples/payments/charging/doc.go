// Package charging is the payments service: it hears of placed orders, charges
// them, and states what came of it.
//
//	orders.placed --> charge: row in charges + payments.completed or
//	                  payments.declined, one transaction
//
// An order above the limit of its currency is declined, which is an answer. An
// order in a currency without a limit is a fault of this service's set-up: it
// becomes a dead letter until somebody sets the limit.
//
// The service shares no Go type with the orders service: contract.go is its
// own copy of what the two have agreed on.
package charging
