package middleware

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// An attempt is one transaction of the inbox.
//
// database/sql rolls a transaction back when the context that began it ends,
// and drivers use that context until COMMIT is answered: some then break the
// connection, with the outcome unknown. So the transaction begins on a context
// that only we end: with the message's until COMMIT starts, with the commit
// timeout from then on.
type attempt struct {
	tx      *sql.Tx
	ctx     context.Context //nolint:containedctx // it lives exactly as long as the transaction
	end     context.CancelCauseFunc
	detach  func() bool
	timeout time.Duration
}

func (in *inbox) begin(ctx context.Context) (*attempt, error) {
	txCtx, end := context.WithCancelCause(context.WithoutCancel(ctx))
	detach := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	tx, err := in.cfg.DB.BeginTx(txCtx, in.cfg.TxOptions)
	if err != nil {
		detach()
		end(nil)
		return nil, err
	}
	return &attempt{tx: tx, ctx: txCtx, end: end, detach: detach, timeout: in.cfg.CommitTimeout}, nil
}

// errEnded is why a transaction was not committed whose message's context had
// ended. The cause is not known to a.ctx yet: it is told by a goroutine.
var errEnded = errors.New("context ended before the commit")

// commit commits unless the message's context has ended already.
func (a *attempt) commit() error {
	if !a.detach() {
		return errEnded
	}
	defer a.limit()()
	return a.tx.Commit()
}

// rollback returns an error only when the connection did not answer.
func (a *attempt) rollback() error {
	a.detach()
	defer a.limit()()
	if err := a.tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}

// limit starts the commit timeout and returns what stops it.
func (a *attempt) limit() func() bool {
	return time.AfterFunc(a.timeout, func() { a.end(errCommitTimeout) }).Stop
}

// timedOut tells whether the commit timeout has passed.
func (a *attempt) timedOut() bool { return errors.Is(context.Cause(a.ctx), errCommitTimeout) }

// close rolls back what is still open, after a panic for example.
func (a *attempt) close() {
	_ = a.rollback() // after a commit there is nothing to roll back
	a.end(nil)
}
