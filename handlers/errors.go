package handlers

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Errors of an [Intake].
var (
	// ErrClosed is returned by Subscribe after Close.
	ErrClosed = errors.New("intake is closed")
	// ErrDrainTimeout is returned when a message was still worked on although
	// the drain timeout and the grace were over. It was not acknowledged.
	ErrDrainTimeout = errors.New("drain timeout")
	// ErrStuckSubscriber is returned by Close when the inner subscriber closed
	// itself but not the channel of a subscription.
	ErrStuckSubscriber = errors.New("inner subscriber did not close its channel")
)

// Errors of a [Consumer].
var (
	// ErrRunTwice is returned by the second Run of a consumer.
	ErrRunTwice = errors.New("consumer has been run already")
	// ErrSubscriptionEnded is returned by Run when the subscriber ended a
	// subscription that nobody had stopped.
	ErrSubscriptionEnded = errors.New("subscription ended by itself")
)

// Errors of a [Handler].
var (
	// ErrWrongEvent is returned when a handler is given a message of another
	// event. It is permanent.
	ErrWrongEvent = errors.New("not the event of this handler")
	// ErrPanic is returned for a handler's chain that panicked. The stack is
	// in the log.
	ErrPanic = errors.New("panic")
)

// An UnknownVersionError says that the event's name is known and its version
// is not. It is permanent.
type UnknownVersionError struct {
	// Event is the name of the event.
	Event string
	// Version is the version of the message.
	Version int
	// Known are the versions that are handled, ascending.
	Known []int
}

// Error implements error.
func (e *UnknownVersionError) Error() string {
	known := make([]string, len(e.Known))
	for i, version := range e.Known {
		known[i] = strconv.Itoa(version)
	}
	return fmt.Sprintf("%s: version %d is not known, this consumer handles %s", e.Event, e.Version, strings.Join(known, ", "))
}

// Permanent reports true: the same message will be refused again.
func (e *UnknownVersionError) Permanent() bool { return true }
