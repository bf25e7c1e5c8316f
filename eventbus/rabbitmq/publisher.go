package rabbitmq

import (
	"context"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// A publisher sends over one connection, with a channel for each topic. It
// implements schema.Publisher.
type publisher struct {
	broker *Broker
	link   *link
	life   context.Context //nolint:containedctx // ends with Close, for calls that wait
	end    context.CancelCauseFunc
	calls  sync.RWMutex // held for reading by every call

	mu      sync.Mutex
	outlets map[string]*outlet // by topic; a dead one is replaced
	running sync.WaitGroup     // of outlets
}

func newPublisher(b *Broker) *publisher {
	p := &publisher{broker: b, link: newLink(b.config, "publisher"), outlets: map[string]*outlet{}}
	p.life, p.end = context.WithCancelCause(context.Background())
	return p
}

// Publish sends msgs one after the other, each when the one before is
// confirmed, and stops at the first that is not: it and those behind it may be
// published again. It takes up to [Config.PublishTimeout].
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	ctx, cancel := context.WithTimeout(context.Background(), p.broker.config.PublishTimeout)
	defer cancel()
	for _, msg := range msgs {
		if err := p.PublishBatch(ctx, topic, []*message.Message{msg})[0]; err != nil {
			return err
		}
	}
	return nil
}

// PublishBatch implements schema.BatchPublisher. It returns when ctx ends,
// whatever the connection does.
func (p *publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	ctx, done := p.begin(ctx)
	defer done()
	b := &batch{publisher: p, topic: topic, errs: make([]error, len(msgs)), parcels: make([]*parcel, len(msgs))}
	b.pack(msgs)
	b.send(ctx)
	b.await(ctx)
	return b.errs
}

// begin starts a call: it returns a context that also ends with the publisher,
// and what ends the call.
func (p *publisher) begin(ctx context.Context) (context.Context, func()) {
	p.calls.RLock()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(p.life, func() { cancel(ErrClosed) })
	if p.life.Err() != nil {
		cancel(ErrClosed)
	}
	return ctx, func() {
		stop()
		cancel(nil)
		p.calls.RUnlock()
	}
}

// outlet returns the topic's, which may not be open yet.
func (p *publisher) outlet(topic string) *outlet {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.outlets[topic]
	if o == nil || o.isDead() {
		o = newOutlet(p.broker.config, topic)
		p.outlets[topic] = o
		p.running.Go(func() { o.run(p.life, p.link) })
	}
	return o
}

// Close ends the calls that wait and returns when no call and no connection is
// left. Idempotent; publishing afterwards is [ErrClosed].
func (p *publisher) Close() error {
	p.end(ErrClosed)
	p.calls.Lock()
	defer p.calls.Unlock()
	p.link.close()
	p.running.Wait()
	p.broker.forgetPublisher(p)
	return nil
}

// A batch is one call of PublishBatch.
type batch struct {
	publisher *publisher
	topic     string
	outlet    *outlet
	parcels   []*parcel // nil: is not, or no longer, under way
	errs      []error
}

// pack marshals the messages.
func (b *batch) pack(msgs []*message.Message) {
	topicFault := schema.TopicFault(b.topic)
	for i, msg := range msgs {
		publishing, err := marshal(b.publisher.broker.config, msg)
		if topicFault != "" {
			err = errors.New(topicFault)
		}
		if err != nil {
			b.errs[i] = publishError(schema.PublishRecord, b.topic, err)
			continue
		}
		key := RoutingKey(publishing.MessageId, schema.Key(msg), msg.Metadata.Get(schema.HeaderType))
		b.parcels[i] = newParcel(key, publishing)
	}
}

// send gives the parcels to the outlet. When one cannot be given, the rest
// cannot either.
func (b *batch) send(ctx context.Context) {
	var err error
	for i, parcel := range b.parcels {
		if parcel == nil {
			continue
		}
		if err == nil {
			err = b.hand(ctx, parcel)
		}
		if err == nil {
			continue
		}
		b.errs[i], b.parcels[i] = err, nil
		if schema.ClassOfPublish(err) == schema.PublishRecord {
			err = nil // that one's fault only
		}
	}
}

func (b *batch) hand(ctx context.Context, parcel *parcel) error {
	if ctx.Err() != nil {
		return brokerFault(b.topic, context.Cause(ctx))
	}
	if b.outlet == nil {
		b.outlet = b.publisher.outlet(b.topic)
		if err := b.outlet.open(ctx, b.publisher.link); err != nil {
			return err
		}
	}
	return b.outlet.take(ctx, parcel)
}

// await collects the results of what was given to the outlet.
func (b *batch) await(ctx context.Context) {
	for i, parcel := range b.parcels {
		if parcel != nil {
			b.errs[i] = b.outlet.await(ctx, parcel)
		}
	}
}
