package memory

import (
	"context"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// A publisher appends to the logs of its broker. It implements
// schema.Publisher.
type publisher struct {
	broker *Broker
	life   context.Context //nolint:containedctx // ends with Close, for calls that wait
	end    context.CancelCauseFunc
	calls  sync.RWMutex // held for reading by every call
}

func newPublisher(b *Broker) *publisher {
	p := &publisher{broker: b}
	p.life, p.end = context.WithCancelCause(context.Background())
	return p
}

// Publish appends msgs in their order and stops at the first that is refused:
// it and those behind it may be published again. It waits up to
// [Config.PublishTimeout] for places in a full log.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	ctx, cancel := context.WithTimeout(context.Background(), p.broker.config.PublishTimeout)
	defer cancel()
	send, done := p.begin(ctx, topic)
	defer done()
	for _, msg := range msgs {
		if err := send(msg); err != nil {
			return err
		}
	}
	return nil
}

// PublishBatch implements schema.BatchPublisher.
func (p *publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	send, done := p.begin(ctx, topic)
	defer done()
	errs := make([]error, len(msgs))
	for i, msg := range msgs {
		errs[i] = send(msg)
	}
	return errs
}

// begin starts a call: it returns what sends one message, and what ends the
// call.
func (p *publisher) begin(ctx context.Context, topic string) (send func(*message.Message) error, done func()) {
	p.calls.RLock()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(p.life, func() { cancel(context.Cause(p.life)) })
	send = func(msg *message.Message) error { return p.send(ctx, topic, msg) }
	return send, func() {
		stop()
		cancel(nil)
		p.calls.RUnlock()
	}
}

func (p *publisher) send(ctx context.Context, topic string, msg *message.Message) error {
	if fault := schema.TopicFault(topic); fault != "" {
		return &schema.PublishError{Class: schema.PublishRecord, Topic: topic, Err: errors.New(fault)}
	}
	if p.life.Err() != nil {
		return brokerFault(topic, ErrClosed)
	}
	if ctx.Err() != nil {
		return brokerFault(topic, context.Cause(ctx))
	}
	next := func() error {
		if err := p.broker.log(topic).append(ctx, msg); err != nil {
			return brokerFault(topic, err)
		}
		return nil
	}
	if p.broker.config.PublishFunc != nil {
		return p.broker.config.PublishFunc(ctx, topic, msg, next)
	}
	return next()
}

func brokerFault(topic string, err error) error {
	return &schema.PublishError{Class: schema.PublishBroker, Topic: topic, Err: err}
}

// Close ends the calls that wait and returns when no call is left. Idempotent;
// publishing afterwards is [ErrClosed].
func (p *publisher) Close() error {
	p.end(ErrClosed)
	p.calls.Lock()
	defer p.calls.Unlock()
	p.broker.forgetPublisher(p)
	return nil
}
