package kafka

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// Kind is the broker's name in a config file.
const Kind = "kafka"

var _ schema.Broker = (*Broker)(nil)

// A Broker opens publishers and subscribers on one cluster. All methods are
// safe for concurrent use.
type Broker struct {
	config Config

	mu     sync.Mutex
	closed bool
	opened map[interface{ Close() error }]struct{}
}

// New returns a broker; the caller closes it. It does no I/O. A config that
// cannot be used is [schema.ErrInvalidOption], all faults at once.
func New(config Config) (*Broker, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("kafka broker: %w", err)
	}
	return &Broker{config: config, opened: map[interface{ Close() error }]struct{}{}}, nil
}

// Kind returns "kafka".
func (b *Broker) Kind() string { return Kind }

// NewPublisher returns a publisher; the caller closes it, or closes the broker.
// It connects when it is first used. The error is [ErrClosed].
func (b *Broker) NewPublisher() (schema.Publisher, error) {
	p := newPublisher(b.config, func(p *publisher) { b.forget(p) })
	if err := b.remember(p); err != nil {
		return nil, fmt.Errorf("kafka publisher: %w", err)
	}
	return p, nil
}

// NewSubscriber returns a subscriber as schema.Broker says; the caller closes
// it, or closes the broker. With its first subscription it joins the group that
// has the consumer's name, for all topics. Errors are
// [schema.ErrInvalidOption], all faults at once, and [ErrClosed].
func (b *Broker) NewSubscriber(consumer string, topics []string, window int) (message.Subscriber, error) {
	if err := subscriberFaults(consumer, topics, window); err != nil {
		return nil, fmt.Errorf("kafka subscriber: %w", err)
	}
	s := newSubscriber(b.config, consumer, topics, window, func(s *subscriber) { b.forget(s) })
	if err := b.remember(s); err != nil {
		return nil, fmt.Errorf("kafka subscriber: %w", err)
	}
	return s, nil
}

func subscriberFaults(consumer string, topics []string, window int) error {
	var faults []error
	if fault := schema.NameFault(consumer); fault != "" {
		faults = append(faults, invalid("consumer: %s", fault))
	}
	if len(topics) == 0 {
		faults = append(faults, invalid("no topics"))
	}
	for i, topic := range topics {
		if fault := schema.TopicFault(topic); fault != "" {
			faults = append(faults, invalid("%s", fault))
		} else if slices.Contains(topics[:i], topic) {
			faults = append(faults, invalid("topic %q is there twice", topic))
		}
	}
	faults = append(faults, atLeast("window", window, 1))
	return errors.Join(faults...)
}

// Close closes all publishers and subscribers, at the same time, and returns
// when they are. Idempotent; using the broker afterwards is [ErrClosed].
func (b *Broker) Close() error {
	open := b.close()
	errs := make([]error, len(open))
	var closing sync.WaitGroup
	for i, o := range open {
		closing.Go(func() { errs[i] = o.Close() })
	}
	closing.Wait()
	return errors.Join(errs...)
}

func (b *Broker) close() (open []interface{ Close() error }) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for o := range b.opened {
		open = append(open, o)
	}
	return open
}

func (b *Broker) remember(o interface{ Close() error }) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return ErrClosed
	}
	b.opened[o] = struct{}{}
	return nil
}

func (b *Broker) forget(o interface{ Close() error }) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.opened, o)
}
