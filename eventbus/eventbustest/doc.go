// Package eventbustest is what every broker room must pass: [Exercise].
//
// It runs Watermill's own suite, github.com/ThreeDotsLabs/watermill/pubsub/tests,
// twice on the bare adapter, with a window of one message and with the real
// window, and checks of Postbus's own for what its contract ([schema.Broker])
// says beyond Watermill's: bytes, headers and ids, confirmation by message and
// the classes of failure, the window, order by key, acks in any order, what is
// handed out again, several consumers, several members of one, draining and
// closing.
//
// A room declares its broker's abilities in [Features]; what it does not declare
// is not exercised. Which tests of Watermill's suite are therefore skipped, or
// skip themselves, is listed with reasons in skips.go. Any other skip fails.
//
// # What it is not
//
// It says nothing about speed, or about a broker's own faults (lost disks,
// partitions of a network): it kills nothing but by [Features.RestartCommand].
package eventbustest
