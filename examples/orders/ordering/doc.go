// Package ordering is the orders service: it takes orders, states that they
// were placed, and notes what the payments service has made of them.
//
//	Place --> row in orders + orders.placed, one transaction
//	payments.completed --> status paid
//	payments.declined  --> status declined
//
// The service shares no Go type with the payments service: contract.go is its
// own copy of what the two have agreed on.
package ordering
