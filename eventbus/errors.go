package eventbus

import "errors"

var (
	// ErrDatabase is wrapped by Open when the database cannot be used: it
	// cannot be reached, is of another kind, or is not set up.
	ErrDatabase = errors.New("database")
	// ErrCommitUnknown is returned by InTx when the answer to COMMIT was lost:
	// the transaction may have committed or not. Repeating it with the same
	// message ids (schema.MessageID) is safe for the events.
	ErrCommitUnknown = errors.New("outcome of commit is unknown")
	// ErrNestedTx is returned by InTx when ctx carries a transaction already:
	// use that one. A second one would wait for the first in SQLite, and in a
	// pool of one connection.
	ErrNestedTx = errors.New("already in a transaction")
	// ErrRunning is returned when consumers are added, or run again, while
	// they run or after they have run.
	ErrRunning = errors.New("consumers have been started before")
	// ErrNoHandler is returned by Redrive when the dead letter's handler is not
	// registered on this bus.
	ErrNoHandler = errors.New("no such handler on this bus")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("bus is closed")
)
