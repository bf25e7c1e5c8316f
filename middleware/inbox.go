package middleware

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// DefaultCommitTimeout bounds COMMIT and ROLLBACK.
const DefaultCommitTimeout = 10 * time.Second

// The steps of an attempt, as [AttemptError] names them.
const (
	stepBegin   = "begin"
	stepReceive = "receive"
	stepRevive  = "revive"
	stepHandler = "handler"
	stepCommit  = "commit"
)

// A Database is what [Inbox] and [Standard] need of a [schema.Database].
type Database interface {
	schema.Inbox
	schema.DeadLetters
	// Classify says what an error means, as in [schema.Database].
	Classify(err error) schema.ErrorClass
}

// InboxConfig configures [Inbox].
type InboxConfig struct {
	// DB is where the handler's effects and the inbox are. Not closed.
	DB *sql.DB
	// Database knows the inbox in DB.
	Database Database
	// TxOptions are those of every attempt's transaction. Defaults to the
	// database's own. Above READ COMMITTED a message whose dead letter is being
	// stored by another process at the same moment can end both applied and
	// dead: the snapshot is older than the key's lock.
	TxOptions *sql.TxOptions
	// CommitTimeout bounds COMMIT and ROLLBACK, which outlive the message's
	// context, as far as the driver lets itself be interrupted. Defaults to
	// 10 s (DefaultCommitTimeout).
	CommitTimeout time.Duration
	// AfterCommitFunc is called after each commit, by many goroutines at once;
	// the message waits for it. Optional.
	AfterCommitFunc func()
}

// Inbox makes the handler's effect and the memory of it one transaction. Each
// call is one attempt: begin, write the inbox row, run the handler with the
// transaction in the message's context ([schema.TxFromContext]), commit. A
// message that was applied before, or that is a dead letter, is acked without
// running the handler, and hooks are told.
//
// A handler that returns an error, panics, ends its goroutine, or returns
// messages to publish ([ErrProduced]) leaves nothing behind. What it returns and
// what the database says is an [AttemptError]; what came of a context that
// ended, an [InterruptedError]. An answer to COMMIT that was lost is one of class
// [schema.ErrorUnavailable]: the next attempt finds the row, or finds none and
// runs.
//
// The transaction does not end with the message's context while it commits.
// Before that it does: a handler that hangs keeps no locks.
func Inbox(receiver Receiver, cfg InboxConfig) (message.HandlerMiddleware, error) {
	receiver = receiver.withDefaults()
	cfg = cfg.withDefaults()
	if err := configError("inbox", append(receiver.faults(true), cfg.faults()...)); err != nil {
		return nil, err
	}
	return (&inbox{receiver, cfg}).wrap, nil
}

func (c InboxConfig) withDefaults() InboxConfig {
	if c.CommitTimeout == 0 {
		c.CommitTimeout = DefaultCommitTimeout
	}
	if c.AfterCommitFunc == nil {
		c.AfterCommitFunc = func() {}
	}
	return c
}

func (c InboxConfig) faults() []error {
	var faults []error
	if c.DB == nil {
		faults = append(faults, errors.New("DB: nil"))
	}
	if c.Database == nil {
		faults = append(faults, errors.New("Database: nil"))
	}
	if c.TxOptions != nil && c.TxOptions.ReadOnly {
		faults = append(faults, errors.New("TxOptions: ReadOnly is true, but the inbox is written"))
	}
	if c.CommitTimeout < 0 {
		faults = append(faults, fmt.Errorf("CommitTimeout: %s is negative", c.CommitTimeout))
	}
	return faults
}

type inbox struct {
	receiver Receiver
	cfg      InboxConfig
}

func (in *inbox) wrap(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		unit, err := schema.BeginUnit(ctx, in.cfg.DB, in.cfg.TxOptions, in.cfg.CommitTimeout)
		if err != nil {
			return nil, in.fault(ctx, stepBegin, err)
		}
		defer unit.Close()
		return nil, in.attempt(ctx, unit, msg, h)
	}
}

func (in *inbox) attempt(ctx context.Context, unit *schema.Unit, msg *message.Message, h message.HandlerFunc) error {
	verdict, step, err := in.receive(ctx, unit.Tx, msg)
	if err != nil {
		return in.failed(ctx, unit, step, err)
	}
	if verdict != schema.VerdictFresh {
		unit.Close()
		notify(in.receiver.Hooks, func(h SkipHook) { h.OnSkip(in.receiver.delivery(msg), verdict) })
		return nil
	}
	if err := run(h, msg, unit.Tx); err != nil {
		return in.failed(ctx, unit, stepHandler, err)
	}
	if err := unit.Commit(); err != nil {
		return in.commitFault(ctx, unit, err)
	}
	in.cfg.AfterCommitFunc()
	return nil
}

// receive asks the inbox, or turns the dead letter that is run again into an
// inbox row.
func (in *inbox) receive(ctx context.Context, tx *sql.Tx, msg *message.Message) (schema.Verdict, string, error) {
	letter, ok := redriven(ctx)
	if !ok {
		verdict, err := in.cfg.Database.Receive(ctx, tx, in.receiver.delivery(msg))
		return verdict, stepReceive, err
	}
	revived, err := in.cfg.Database.Revive(ctx, tx, letter.ID)
	if err == nil && (revived.Consumer != in.receiver.Consumer || revived.Handler != in.receiver.Handler) {
		err = fmt.Errorf("%w: %d is one of %s/%s", schema.ErrNotDead, letter.ID, revived.Consumer, revived.Handler)
	}
	return schema.VerdictFresh, stepRevive, err
}

// run runs the handler with tx in the message's context.
func run(h message.HandlerFunc, msg *message.Message, tx *sql.Tx) error {
	ctx := msg.Context()
	defer msg.SetContext(ctx)
	msg.SetContext(schema.ContextWithTx(ctx, tx))
	produced, err := h(msg)
	if err == nil && len(produced) > 0 {
		return schema.Permanent(ErrProduced)
	}
	return err
}

// failed rolls back and says what err means. The rollback tells whether the
// connection is still alive, whatever the handler's error looks like.
func (in *inbox) failed(ctx context.Context, unit *schema.Unit, step string, err error) error {
	dead := unit.Rollback() != nil
	if dead && ctx.Err() == nil && !isOwnLimit(err) {
		return &AttemptError{Step: step, Ran: step == stepHandler, Class: schema.ErrorUnavailable, Err: err}
	}
	return in.fault(ctx, step, err)
}

// fault says what an error means whose transaction is over.
func (in *inbox) fault(ctx context.Context, step string, err error) error {
	if stopped := interrupted(ctx, err); stopped != nil {
		return stopped
	}
	class := in.cfg.Database.Classify(err)
	if step == stepHandler && class == schema.ErrorUnavailable {
		class = schema.ErrorOther // of some other connection: the handler's own affair
	}
	return &AttemptError{Step: step, Ran: step == stepHandler, Class: class, Err: err}
}

// commitFault says what a failed COMMIT means. The outcome may be unknown; the
// inbox row will tell.
func (in *inbox) commitFault(ctx context.Context, unit *schema.Unit, err error) error {
	if stopped := interrupted(ctx, err); stopped != nil {
		return stopped
	}
	class := in.cfg.Database.Classify(err)
	switch {
	case errors.Is(err, sql.ErrTxDone):
		err = fmt.Errorf("%w: %w", ErrTransactionEnded, err)
	case unit.TimedOut():
		class, err = schema.ErrorUnavailable, fmt.Errorf("%w: %w", schema.ErrCommitTimeout, err)
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone):
		class = schema.ErrorUnavailable
	}
	return &AttemptError{Step: stepCommit, Ran: true, Class: class, Err: err}
}

// stateQueryCanceled is what lib/pq reports, and has broken the connection for,
// when the context of a statement ends.
const stateQueryCanceled = "57014"

// isOwnLimit tells whether err came of a time limit of the handler's own, given
// that the message's context is alive. Drivers break the connection then, and
// that is no sign of a database that is away.
func isOwnLimit(err error) bool {
	var s interface{ SQLState() string }
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.As(err, &s) && s.SQLState() == stateQueryCanceled
}
