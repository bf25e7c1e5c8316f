package middleware

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

type redriveKey struct{}

// Redrive runs a dead letter again, now, in the caller's goroutine. The handler
// is that of a chain with [DeadLetter], [Retry] and [Inbox], such as
// [Chain.Inner] returns, for the letter's consumer and handler.
//
// The letter turns into the inbox row in the transaction of the effect. It is
// one attempt: conflicts are tried again, nothing else is, a database that is
// away included. When the handler fails, its error is returned and the letter
// stays, its counts raised. [schema.ErrNotDead] when it is none any more. nil
// means that the message is applied, if not by this call then by another one.
// The context that ends ends the attempt, which then counts for nothing.
func Redrive(ctx context.Context, letter schema.DeadLetter, h message.HandlerFunc) error {
	msg := letter.Message()
	msg.SetContext(context.WithValue(ctx, redriveKey{}, letter))
	_, err := h(msg)
	return err
}

// redriven returns the letter that is run again under ctx.
func redriven(ctx context.Context) (schema.DeadLetter, bool) {
	letter, ok := ctx.Value(redriveKey{}).(schema.DeadLetter)
	return letter, ok
}
