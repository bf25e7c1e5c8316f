package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// DeadLetterConfig configures [DeadLetter].
type DeadLetterConfig struct {
	// DeadLetters stores what cannot be applied.
	DeadLetters schema.DeadLetters
	// BuryTimeout bounds one try to store a dead letter. Defaults to 10 s
	// (DefaultBuryTimeout).
	BuryTimeout time.Duration
}

// DeadLetter keeps a message that its handler cannot apply: when the work
// inside is done with it ([ExhaustedError]) or calls it permanent, the message
// is stored as it was received, and nil is returned, so that it is acked. Every
// other error passes through, an interruption above all, and never becomes a
// dead letter.
//
// While the letter cannot be stored the message is held, neither acked nor
// nacked; when its context ends first, the result is an [InterruptedError].
//
// A [Redrive] gets its error back, with the letter's counts raised.
func DeadLetter(receiver Receiver, cfg DeadLetterConfig) (message.HandlerMiddleware, error) {
	receiver = receiver.withDefaults()
	digger, err := newGravedigger("dead letter", receiver, cfg.DeadLetters, cfg.BuryTimeout, true)
	if err != nil {
		return nil, err
	}
	return (&deadLetter{receiver, digger}).wrap, nil
}

func newGravedigger(what string, r Receiver, store schema.DeadLetters, timeout time.Duration, withHandler bool) (*gravedigger, error) {
	faults := r.faults(withHandler)
	if store == nil {
		faults = append(faults, errors.New("DeadLetters: nil"))
	}
	if timeout == 0 {
		timeout = DefaultBuryTimeout
	}
	if timeout < 0 {
		faults = append(faults, fmt.Errorf("BuryTimeout: %s is negative", timeout))
	}
	return &gravedigger{receiver: r, store: store, timeout: timeout, log: r.log()}, configError(what, faults)
}

type deadLetter struct {
	receiver Receiver
	digger   *gravedigger
}

func (d *deadLetter) wrap(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := originalOf(msg).lend(h, msg)
		if err == nil {
			return produced, nil
		}
		final := finalOf(msg.Context(), err)
		if final == nil {
			return nil, err
		}
		return nil, d.settle(msg, final)
	}
}

// finalOf returns what ends the message's tries, or nil when err does not.
func finalOf(ctx context.Context, err error) *ExhaustedError {
	var said decision
	if errors.As(err, &said) {
		final, _ := said.(*ExhaustedError)
		return final
	}
	if ctx.Err() == nil && schema.IsPermanent(err) {
		return &ExhaustedError{Attempts: 1, First: err, Last: err}
	}
	return nil
}

func (d *deadLetter) settle(msg *message.Message, final *ExhaustedError) error {
	letter := d.letter(msg, final)
	if earlier, ok := redriven(msg.Context()); ok {
		return d.again(msg.Context(), letter, earlier, final)
	}
	return d.digger.hold(msg.Context(), letter)
}

// again counts a redrive that failed. The caller waits for the answer, so the
// database is asked once.
func (d *deadLetter) again(ctx context.Context, letter, earlier schema.DeadLetter, final error) error {
	letter.ID = earlier.ID
	letter.Redriven = earlier.Redriven + 1
	buried, err := d.digger.bury(ctx, letter)
	if err != nil {
		return errors.Join(final, err)
	}
	if buried {
		return final
	}
	return nil // somebody else's redrive has applied it
}

func (d *deadLetter) letter(msg *message.Message, final *ExhaustedError) schema.DeadLetter {
	v := d.receiver.delivery(msg)
	return schema.DeadLetter{
		Consumer: v.Consumer, Handler: v.Handler, Topic: v.Topic,
		MessageID: msg.UUID, Key: schema.Key(msg), Payload: msg.Payload, Headers: msg.Metadata,
		Attempts:   final.Attempts,
		FirstError: textOf(final.First, maxErrorBytes), LastError: textOf(final.Last, maxErrorBytes),
	}
}
