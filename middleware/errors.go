package middleware

import (
	"context"
	"errors"
	"fmt"

	"github.com/postbus-io/postbus/schema"
)

var (
	// ErrInvalidConfig is wrapped by every error of a configuration that cannot
	// be used.
	ErrInvalidConfig = errors.New("invalid middleware configuration")
	// ErrEnvelope is wrapped by what [Envelope] says of a message that no
	// handler can be told for.
	ErrEnvelope = errors.New("unusable envelope")
	// ErrTransactionEnded is returned when a handler reports success but has
	// itself ended the transaction that it was lent.
	ErrTransactionEnded = errors.New("handler ended the transaction")
	// ErrProduced is returned when a handler behind [Inbox] returns messages
	// for the router to publish: that would happen after the commit, and a
	// crash in between would lose them. It is permanent; publish through the
	// outbox, in the handler's transaction.
	ErrProduced = errors.New("handler returned messages instead of publishing them in its transaction")
)

// An AttemptError says where in an attempt an error came up and what it means.
// [Inbox] returns nothing else but an [InterruptedError].
type AttemptError struct {
	// Step is "begin", "receive", "revive", "handler" or "commit".
	Step string
	// Ran tells whether the handler had been called. If not, the error says
	// nothing about the message.
	Ran bool
	// Class is the meaning for the attempt: [schema.ErrorUnavailable] only if
	// it was the inbox transaction's own connection that failed.
	Class schema.ErrorClass
	// Err is what was returned.
	Err error
}

// Error implements error.
func (e *AttemptError) Error() string {
	if e.Step == stepHandler {
		return fmt.Sprint(e.Err) // fmt outlives an Error method that panics
	}
	return fmt.Sprintf("%s: %v", e.Step, e.Err)
}

// Unwrap returns Err.
func (e *AttemptError) Unwrap() error { return e.Err }

// An ExhaustedError is returned by [Retry] for a message that will not be tried
// again: its attempts are used up, or the last one failed for good.
type ExhaustedError struct {
	// Attempts counts the runs of the handler that failed, from 1.
	Attempts int
	// First and Last are what the first and the last attempt returned.
	First, Last error
}

// Error implements error.
func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("%d attempts: %v", e.Attempts, e.Last)
}

// Unwrap returns Last.
func (e *ExhaustedError) Unwrap() error { return e.Last }

func (e *ExhaustedError) isFinal() bool { return true }

// An InterruptedError is returned for a message whose context ended before it
// was settled: neither an attempt nor an acknowledgement. It matches the cause,
// such as [schema.ErrRevoked] or [schema.ErrDraining], and the context's error.
type InterruptedError struct {
	// Cause is the context's cause.
	Cause error
	// Err is what the work said when it was interrupted, possibly nil. Drivers
	// say many things of a context that ended; lib/pq says SQLSTATE 57014.
	Err error

	ctxErr error
}

// interrupted returns an InterruptedError when ctx is done, and nil otherwise.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return nil
	}
	var already *InterruptedError
	if errors.As(err, &already) && errors.Is(already.Cause, context.Cause(ctx)) {
		return err
	}
	return &InterruptedError{Cause: context.Cause(ctx), Err: err, ctxErr: ctx.Err()}
}

// Error implements error.
func (e *InterruptedError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("interrupted: %v", e.Cause)
	}
	return fmt.Sprintf("interrupted: %v: %v", e.Cause, e.Err)
}

// Unwrap returns the cause, the context's error and Err, without the nil ones.
func (e *InterruptedError) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.Cause, e.ctxErr, e.Err} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

func (e *InterruptedError) isFinal() bool { return false }

// A decision is what an error says about the end of a message. The outermost one
// in a chain of errors counts: a handler may run a chain of its own.
type decision interface {
	error
	isFinal() bool
}
