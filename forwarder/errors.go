package forwarder

import "errors"

var (
	// ErrInvalidConfig is returned when a Config cannot be used; all faults are
	// named, a line each.
	ErrInvalidConfig = errors.New("invalid relay config")
	// ErrAbandoned as the cause of the context given to Run ends the relay as
	// a crash would: it finishes nothing, marks nothing and releases nothing,
	// so that its shards change hands only when its lease is over. It is for
	// demonstrations and tests.
	ErrAbandoned = errors.New("relay abandoned")
	// ErrRunning is returned by Run when the relay runs or has run: a relay
	// runs once.
	ErrRunning = errors.New("relay has been started before")
)
