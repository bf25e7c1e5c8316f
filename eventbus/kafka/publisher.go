package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// A publisher sends over a producer of its own. It implements
// schema.Publisher.
type publisher struct {
	config Config
	life   context.Context //nolint:containedctx // ends with Close, for calls that have not sent
	end    context.CancelCauseFunc
	late   context.Context //nolint:containedctx // ends when Close gives up, for calls that have
	giveUp context.CancelCauseFunc
	forget func()

	link   *link
	solo   *link // for messages that a batch was refused with
	topics topicChecks
	waits  sync.WaitGroup // for what the publisher has started

	calls sync.RWMutex // held for reading by every call
	close func()
	err   error // of Close
}

func newPublisher(config Config, forget func(*publisher)) *publisher {
	p := &publisher{config: config}
	p.life, p.end = context.WithCancelCause(context.Background())
	p.late, p.giveUp = context.WithCancelCause(context.Background())
	p.forget = func() { forget(p) }
	n := newNotice(config.Logger, config.LogInterval)
	p.link = &link{addresses: config.Brokers, conf: config.producer, notice: n, life: p.life, waits: &p.waits}
	p.solo = &link{addresses: config.Brokers, conf: config.soloProducer, notice: n, life: p.life, waits: &p.waits}
	p.topics.known = map[string]sarama.Client{}
	p.close = sync.OnceFunc(p.shut)
	return p
}

// Publish sends msgs in their order, those of different keys at the same time,
// and stops after the first that is refused: it and those behind it may be
// published again. It waits up to [Config.PublishTimeout] for each wave.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	for len(msgs) > 0 {
		n := wave(msgs)
		if err := p.publishWave(topic, msgs[:n]); err != nil {
			return err
		}
		msgs = msgs[n:]
	}
	return nil
}

func (p *publisher) publishWave(topic string, msgs []*message.Message) error {
	ctx, cancel := context.WithTimeout(context.Background(), p.config.PublishTimeout)
	defer cancel()
	for _, err := range p.PublishBatch(ctx, topic, msgs) {
		if err != nil {
			return err
		}
	}
	return nil
}

// wave returns how many of msgs can be sent before a key comes again.
func wave(msgs []*message.Message) int {
	keys := map[string]bool{}
	for i, msg := range msgs {
		key := schema.Key(msg)
		if keys[key] {
			return i
		}
		keys[key] = key != ""
	}
	return len(msgs)
}

// PublishBatch implements schema.BatchPublisher. A message that ctx's end
// leaves unconfirmed may still be sent, for a second or two.
func (p *publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	if fault := schema.TopicFault(topic); fault != "" {
		return allFailed(len(msgs), failureOf(schema.PublishRecord, topic, errors.New(fault)))
	}
	if len(msgs) == 0 {
		return []error{}
	}
	p.calls.RLock()
	defer p.calls.RUnlock()
	c, done := p.newCall(ctx, topic)
	defer done()
	if c.sending.Err() != nil {
		return allFailed(len(msgs), failureOf(schema.PublishBroker, topic, context.Cause(c.sending)))
	}
	return p.publish(c, msgs)
}

// A call is one PublishBatch. What is not sent yet ends with Close, what is
// sent is waited for.
type call struct {
	topic            string
	sending, waiting context.Context //nolint:containedctx // they end with the call
}

func (p *publisher) newCall(ctx context.Context, topic string) (c call, done func()) {
	sending, endSending := either(ctx, p.life)
	waiting, endWaiting := either(ctx, p.late)
	return call{topic: topic, sending: sending, waiting: waiting}, func() {
		endSending()
		endWaiting()
	}
}

// either returns a context that ends with ctx or with other.
func either(ctx, other context.Context) (merged context.Context, done func()) {
	merged, cancel := context.WithCancelCause(ctx)
	if err := context.Cause(other); err != nil {
		cancel(err)
	}
	detach := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return merged, func() {
		detach()
		cancel(nil)
	}
}

func (p *publisher) publish(c call, msgs []*message.Message) []error {
	producer, err := p.link.get(c.sending)
	if err != nil {
		return allFailed(len(msgs), failureOf(schema.PublishBroker, c.topic, err))
	}
	if err := p.check(c.sending, producer, c.topic); err != nil {
		p.dropIfBroken(producer, err)
		return allFailed(len(msgs), failure(c.topic, err))
	}
	errs := p.send(c, p.link, producer, msgs)
	p.sendAlone(c, msgs, errs)
	for i, err := range errs {
		errs[i] = failure(c.topic, err)
	}
	return errs
}

func allFailed(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// send hands all messages to the producer and waits for their results.
func (p *publisher) send(c call, l *link, producer *producer, msgs []*message.Message) []error {
	b := newBatch(len(msgs))
	for i, msg := range msgs {
		record, err := marshal(c.topic, msg)
		if err != nil {
			b.settle(i, failureOf(schema.PublishRecord, c.topic, err))
			continue
		}
		record.Metadata = &delivery{batch: b, index: i}
		if err := producer.send(c.sending, record); err != nil {
			b.settle(i, err)
		}
	}
	errs := b.wait(c.waiting)
	for _, err := range errs {
		if isAny(err, producerFaults) {
			l.drop(producer)
		}
		if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
			p.topics.forget(c.topic)
		}
	}
	return errs
}

func (p *publisher) dropIfBroken(producer *producer, err error) {
	if isAny(err, producerFaults) {
		p.link.drop(producer)
	}
}

// sendAlone sends messages again, each in a request of its own, that the broker
// refused for their size: it refuses all that were in the same request, for the
// sake of one, or of their sum.
func (p *publisher) sendAlone(c call, msgs []*message.Message, errs []error) {
	for i, err := range errs {
		if !errors.Is(err, sarama.ErrMessageSizeTooLarge) || c.sending.Err() != nil {
			continue
		}
		producer, err := p.solo.get(c.sending)
		if err != nil {
			errs[i] = failureOf(schema.PublishBroker, c.topic, err)
			continue
		}
		errs[i] = p.send(c, p.solo, producer, msgs[i:i+1])[0]
	}
}

// check returns nil when the topic can be used, and creates it if that is
// wanted.
func (p *publisher) check(ctx context.Context, producer *producer, topic string) error {
	if p.topics.has(topic, producer.client) {
		return nil
	}
	checked := make(chan error, 1)
	p.waits.Go(func() {
		ctx, cancel := context.WithTimeout(p.life, p.config.PublishTimeout)
		defer cancel()
		err := p.config.ensureTopic(ctx, producer.client, topic)
		if err == nil {
			p.topics.remember(topic, producer.client)
		}
		checked <- err
	})
	select {
	case err := <-checked:
		return err
	case <-ctx.Done():
		return fmt.Errorf("look for the topic: %w", context.Cause(ctx))
	}
}

// topicChecks remembers which client has seen which topic.
type topicChecks struct {
	mu    sync.Mutex
	known map[string]sarama.Client
}

func (t *topicChecks) has(topic string, client sarama.Client) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known[topic] == client
}

func (t *topicChecks) remember(topic string, client sarama.Client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known[topic] = client
}

func (t *topicChecks) forget(topic string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.known, topic)
}

// Close ends the calls that have sent nothing yet, lets what was sent be
// confirmed, and returns when no call is left or [Config.CloseTimeout] has
// passed.
// Idempotent; publishing afterwards is [ErrClosed].
func (p *publisher) Close() error {
	p.close()
	return p.err
}

func (p *publisher) shut() {
	defer p.forget()
	deadline := time.NewTimer(p.config.CloseTimeout)
	defer deadline.Stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.end(ErrClosed)
		p.link.close()
		p.solo.close()
		p.calls.Lock()   // until the calls have returned
		p.calls.Unlock() //nolint:staticcheck // nothing is guarded
		p.waits.Wait()
	}()
	select {
	case <-done:
		p.giveUp(nil)
	case <-deadline.C:
		p.giveUp(ErrClosed)
		p.err = fmt.Errorf("kafka publisher: %w: %s", ErrCloseTimeout, p.config.CloseTimeout)
	}
}
