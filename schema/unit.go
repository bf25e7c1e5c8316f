package schema

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// ErrCommitTimeout is the cause when COMMIT or ROLLBACK was not answered in
// time. After a COMMIT the outcome is unknown.
var ErrCommitTimeout = errors.New("commit timeout passed")

// A Unit is one transaction that ends with its context until COMMIT starts,
// and with a timeout of its own from then on.
//
// database/sql rolls a transaction back when the context that began it ends,
// and drivers use that context until COMMIT is answered: some then break the
// connection, with the outcome unknown. So the transaction begins on a context
// that only the Unit ends. It is for one goroutine.
type Unit struct {
	// Tx is the transaction; only the Unit ends it.
	Tx *sql.Tx

	caller  context.Context //nolint:containedctx // both live exactly as long as the transaction
	ctx     context.Context //nolint:containedctx // see above
	end     context.CancelCauseFunc
	detach  func() bool
	timeout time.Duration
}

// BeginUnit begins a transaction. COMMIT and ROLLBACK are bounded by timeout
// as far as the driver lets itself be interrupted. The caller closes it.
func BeginUnit(ctx context.Context, db *sql.DB, options *sql.TxOptions, timeout time.Duration) (*Unit, error) {
	txCtx, end := context.WithCancelCause(context.WithoutCancel(ctx))
	detach := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	tx, err := db.BeginTx(txCtx, options)
	if err != nil {
		detach()
		end(nil)
		return nil, err
	}
	return &Unit{Tx: tx, caller: ctx, ctx: txCtx, end: end, detach: detach, timeout: timeout}, nil
}

// Commit commits, unless the context has ended already: then it rolls back and
// returns the context's cause.
func (u *Unit) Commit() error {
	if !u.detach() {
		// The cause of our own context may not be set yet: a goroutine sets it.
		return errors.Join(context.Cause(u.caller), u.Rollback())
	}
	defer u.limit()()
	return u.Tx.Commit()
}

// Rollback rolls back. It returns an error only when the connection did not
// answer: what it was used for has failed with it.
func (u *Unit) Rollback() error {
	u.detach()
	defer u.limit()()
	if err := u.Tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}

// limit starts the timeout and returns what stops it.
func (u *Unit) limit() func() bool {
	return time.AfterFunc(u.timeout, func() { u.end(ErrCommitTimeout) }).Stop
}

// TimedOut tells whether COMMIT or ROLLBACK took longer than the timeout.
func (u *Unit) TimedOut() bool { return errors.Is(context.Cause(u.ctx), ErrCommitTimeout) }

// Close rolls back what is still open, after a panic for example, and lets go
// of the context. Idempotent.
func (u *Unit) Close() {
	_ = u.Rollback() // after a commit there is nothing to roll back
	u.end(nil)
}
