// Package postbus is the root of the module and has no code of its own. Postbus is an eventing framework for Go
// services, built on Watermill: a service states an event inside its own SQL transaction, the event reaches the broker
// if and only if that transaction commits, in order per key, and the service that receives it applies it once. The
// broker is chosen in a config file.
//
// The front door is the package eventbus. Each room beside it can be used alone: schema (what travels and what is
// stored), forwarder (the relay from outbox to broker), middleware (promises around a handler) and handlers (from
// message to typed function).
package postbus
