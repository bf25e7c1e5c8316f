package eventbus

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// Publish writes events to the outbox inside the caller's transaction, at once
// and in order: they are relayed if and only if tx commits. Any number of
// events is one call. What is wrong with an event (limits, reserved headers, an
// empty key, a definition) is an error before anything is written; after any
// other error tx is to be rolled back.
//
// A relay of this bus looks for about a second after Publish; tell it of the
// commit with Wake to be sure that it looks at once, or use InTx, which does.
func (b *Bus) Publish(ctx context.Context, tx schema.Tx, events ...schema.Outgoing) error {
	msgs := make([]*message.Message, 0, len(events))
	var faults []error
	for i, event := range events {
		msg, err := b.registry.Encode(event)
		if err == nil {
			err = b.cfg.Outbox.Limits().Check(msg)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("event %d: %w", i, err))
			continue
		}
		msgs = append(msgs, msg)
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return b.insert(ctx, tx, msgs)
}

func (b *Bus) insert(ctx context.Context, tx schema.Tx, msgs []*message.Message) error {
	if err := b.database.Insert(ctx, tx, msgs); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	for _, relay := range b.runningRelays() {
		relay.Expect()
	}
	return nil
}

// Publisher returns a plain Watermill publisher that writes to the outbox
// inside tx, under ctx. Use it for as long as tx lives, from one goroutine.
// A message without an id is given one; metadata that starts with "postbus_"
// may only be what a received message carries, and sets key and type.
func (b *Bus) Publisher(ctx context.Context, tx schema.Tx) message.Publisher {
	return &txPublisher{bus: b, ctx: ctx, tx: tx}
}

type txPublisher struct {
	bus    *Bus
	ctx    context.Context //nolint:containedctx // Watermill's Publish has none
	tx     schema.Tx
	closed atomic.Bool
}

// Publish implements message.Publisher.
func (p *txPublisher) Publish(topic string, messages ...*message.Message) error {
	if p.closed.Load() {
		return fmt.Errorf("publish: publisher is closed")
	}
	msgs := make([]*message.Message, len(messages))
	var faults []error
	for i, original := range messages {
		msg := message.NewMessage(original.UUID, original.Payload)
		if msg.UUID == "" {
			msg.UUID = watermill.NewULID()
		}
		for name, value := range original.Metadata {
			msg.Metadata.Set(name, value)
		}
		delete(msg.Metadata, schema.HeaderAggregateType)
		msg.Metadata.Set(schema.HeaderTopic, topic)
		if err := p.bus.cfg.Outbox.Limits().Check(msg); err != nil {
			faults = append(faults, fmt.Errorf("message %d: %w", i, err))
		}
		msgs[i] = msg
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return p.bus.insert(p.ctx, p.tx, msgs)
}

// Close implements message.Publisher. It leaves the transaction alone.
func (p *txPublisher) Close() error {
	p.closed.Store(true)
	return nil
}

// Wake makes the relays of this bus look at once: call it after a commit of
// your own. It never blocks.
func (b *Bus) Wake() {
	for _, relay := range b.runningRelays() {
		relay.Wake()
	}
}

const (
	// commitTimeout bounds COMMIT and ROLLBACK of InTx.
	commitTimeout = 10 * time.Second
	// maxTxTries bounds how often InTx runs its function when transactions
	// conflict.
	maxTxTries = 20
	// maxTxWait bounds the random wait before each of them, in steps that
	// double from txWait.
	maxTxWait = 250 * time.Millisecond
	txWait    = 5 * time.Millisecond
)

// InTx begins a transaction, calls f with it, commits it and wakes the relay.
// An error or a panic of f rolls back. f must not end the transaction, and may
// run more than once: after a serialization failure, a deadlock or a busy
// database it runs again in a fresh transaction, up to 20 times, so what it
// does outside the transaction must bear that. COMMIT is not cut short by the
// end of ctx; it is bounded by 10 s.
//
// [ErrCommitUnknown] when the answer to COMMIT was lost; [ErrNestedTx] when ctx
// carries a transaction. At most one sql.TxOptions may be given.
func (b *Bus) InTx(ctx context.Context, f func(ctx context.Context, tx *sql.Tx) error, options ...sql.TxOptions) error {
	if _, nested := schema.TxFromContext(ctx); nested {
		return fmt.Errorf("in tx: %w: use the transaction that you were given", ErrNestedTx)
	}
	var txOptions *sql.TxOptions
	if len(options) > 0 {
		txOptions = &options[0]
	}
	for try := 1; ; try++ {
		err := b.tryTx(ctx, f, txOptions)
		if err == nil {
			b.Wake()
			return nil
		}
		conflict := b.database.Classify(err) == schema.ErrorConflict && !errors.Is(err, ErrCommitUnknown)
		if !conflict || try == maxTxTries || !waitConflict(ctx, try) {
			return fmt.Errorf("in tx: %w", err)
		}
	}
}

// waitConflict waits a random while before the next try; false when ctx ended.
func waitConflict(ctx context.Context, try int) bool {
	limit := min(txWait<<min(try, 10), maxTxWait)
	timer := time.NewTimer(rand.N(limit)) //nolint:gosec // jitter is no secret
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func (b *Bus) tryTx(ctx context.Context, f func(ctx context.Context, tx *sql.Tx) error, options *sql.TxOptions) error {
	unit, err := schema.BeginUnit(ctx, b.db, options, commitTimeout)
	if err != nil {
		return fmt.Errorf("begin: %w", withCause(ctx, redactedError(err)))
	}
	defer unit.Close()
	if err := f(schema.ContextWithTx(ctx, unit.Tx), unit.Tx); err != nil {
		return withCause(ctx, err)
	}
	if err := unit.Commit(); err != nil {
		return b.commitFault(ctx, unit, err)
	}
	return nil
}

// commitFault tells a COMMIT that was refused from one whose answer was lost.
func (b *Bus) commitFault(ctx context.Context, unit *schema.Unit, err error) error {
	switch {
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return err // it was not sent
	case unit.TimedOut(), b.database.Classify(err) == schema.ErrorUnavailable:
		return fmt.Errorf("commit: %w: %w", ErrCommitUnknown, err)
	}
	return fmt.Errorf("commit: %w", err)
}

// withCause adds why ctx ended: a driver may report it in words of its own.
func withCause(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
		return errors.Join(err, context.Cause(ctx))
	}
	return err
}
