package schema

import (
	"errors"
	"fmt"
)

// Errors of definitions and of publishing.
var (
	// ErrInvalidEvent is returned when an event's definition cannot be used:
	// no name, a version below 1, or a name that a topic cannot carry.
	ErrInvalidEvent = errors.New("invalid event definition")
	// ErrEventConflict is returned when two definitions of one name and
	// version carry different Go types.
	ErrEventConflict = errors.New("conflicting event definitions")
	// ErrEmptyKey is returned when an event that keeps order has no key. Use
	// Unordered for an event whose order does not matter.
	ErrEmptyKey = errors.New("empty key")
	// ErrInvalidMessage is wrapped by every [InvalidMessageError].
	ErrInvalidMessage = errors.New("invalid message")
	// ErrInvalidOption is wrapped by the error of every option that cannot be
	// applied.
	ErrInvalidOption = errors.New("invalid option")
	// ErrNoTransaction is returned when a transaction is nil or hides no
	// *sql.Tx that could be written to.
	ErrNoTransaction = errors.New("no transaction")
)

// Errors of a database.
var (
	// ErrFenced is returned when a relay's epoch of a shard has passed: another
	// relay took the shard over, and nothing was changed.
	ErrFenced = errors.New("shard is owned by another relay")
	// ErrNotMigrated is returned when the tables are missing or older than
	// this version of Postbus needs.
	ErrNotMigrated = errors.New("database is not migrated")
	// ErrUnsafeDatabase is returned when a setting of the database breaks a
	// promise, for example a sequence that hands out ids out of order.
	ErrUnsafeDatabase = errors.New("database setting is unsafe")
	// ErrNotDead is returned when a dead letter is asked for that does not
	// exist, or no longer.
	ErrNotDead = errors.New("no such dead letter")
)

// Errors of consuming.
var (
	// ErrRevoked is the cause of a message's context when the broker gave the
	// message's partition or queue to another member: whatever happens next is
	// neither an attempt nor an acknowledgement.
	ErrRevoked = errors.New("delivery revoked by the broker")
	// ErrDraining is the cause of a message's context when this process stops
	// and the time to finish is over: neither an attempt nor an
	// acknowledgement.
	ErrDraining = errors.New("drain deadline passed")
	// ErrUndecodable is wrapped by the error of a payload that the codec
	// cannot read. It is permanent.
	ErrUndecodable = errors.New("undecodable payload")
)

// An InvalidMessageError says why a message was refused before it was
// written. Nothing of the message but its id is in the text.
type InvalidMessageError struct {
	// MessageID is the id of the refused message, possibly empty.
	MessageID string
	// Reason names the field, the value and the bound.
	Reason string
}

// Error implements error.
func (e *InvalidMessageError) Error() string {
	return fmt.Sprintf("invalid message %.64q: %s", e.MessageID, e.Reason)
}

// Unwrap returns [ErrInvalidMessage].
func (e *InvalidMessageError) Unwrap() error { return ErrInvalidMessage }

// Permanent reports true: the same message will be refused again.
func (e *InvalidMessageError) Permanent() bool { return true }

// Permanent marks err as one that no retry can mend: the message becomes a
// dead letter at once. It returns nil for nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string   { return e.err.Error() }
func (e *permanentError) Unwrap() error   { return e.err }
func (e *permanentError) Permanent() bool { return true }

// IsPermanent tells whether some error in err's chain says of itself, by a
// method Permanent() bool, that a retry cannot mend it.
func IsPermanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}
