package rabbitmq

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// Kind is the broker's name in a config file.
const Kind = "rabbitmq"

var _ schema.Broker = (*Broker)(nil)

// A Broker is a RabbitMQ, one virtual host of it. All methods are safe for
// concurrent use.
type Broker struct {
	config *Config // sealed

	mu          sync.Mutex
	closed      bool
	publishers  map[*publisher]struct{}
	subscribers map[*subscriber]struct{}
}

// New returns a broker; the caller closes it. It connects to nothing. A config
// that cannot be used is [schema.ErrInvalidOption], all faults at once.
func New(config Config) (*Broker, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("rabbitmq broker: %w", err)
	}
	if config.QueueType == Classic {
		config.Logger.Warn("classic queues live on one RabbitMQ node: confirmed messages are lost with its disk; use quorum queues")
	}
	return &Broker{
		config: config.sealed(), publishers: map[*publisher]struct{}{}, subscribers: map[*subscriber]struct{}{},
	}, nil
}

// Kind returns "rabbitmq".
func (b *Broker) Kind() string { return Kind }

// NewPublisher returns a publisher with a connection of its own, which is made
// with the first message; the caller closes it, or closes the broker. The
// error is [ErrClosed].
func (b *Broker) NewPublisher() (schema.Publisher, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, fmt.Errorf("rabbitmq broker: %w", ErrClosed)
	}
	p := newPublisher(b)
	b.publishers[p] = struct{}{}
	return p, nil
}

// NewSubscriber returns a subscriber as schema.Broker says, with a connection
// of its own, which is made with the first Subscribe; the caller closes it, or
// closes the broker. Topics keep messages for the consumer from the first
// Subscribe on that reached the broker. Errors are [schema.ErrInvalidOption],
// all faults at once, and [ErrClosed].
func (b *Broker) NewSubscriber(consumer string, topics []string, window int) (message.Subscriber, error) {
	if err := subscriberFaults(consumer, topics, window); err != nil {
		return nil, fmt.Errorf("rabbitmq subscriber: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, fmt.Errorf("rabbitmq subscriber: %w", ErrClosed)
	}
	s := newSubscriber(b, consumer, slices.Clone(topics), window)
	b.subscribers[s] = struct{}{}
	return s, nil
}

func subscriberFaults(consumer string, topics []string, window int) error {
	var faults []error
	add := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: %s", schema.ErrInvalidOption, fmt.Sprintf(format, args...)))
	}
	if fault := schema.NameFault(consumer); fault != "" {
		add("consumer: %s", fault)
	}
	if len(topics) == 0 {
		add("no topics")
	}
	for i, topic := range topics {
		name := QueueName(consumer, topic, MaxQueues-1)
		if fault := schema.TopicFault(topic); fault != "" {
			add("%s", fault)
		} else if len(name) > maxShortBytes {
			add("queue name %.64q... has %d bytes, the limit is %d: shorten the consumer's name or the topic's", name, len(name), maxShortBytes)
		} else if slices.Contains(topics[:i], topic) {
			add("topic %q is there twice", topic)
		}
	}
	if window < 1 || window > MaxWindow {
		add("window is %d, it is to be from 1 to %d", window, MaxWindow)
	}
	return errors.Join(faults...)
}

// Close closes all publishers and subscribers, at the same time, and returns
// when no connection and no goroutine of theirs is left. Idempotent; using the
// broker afterwards is [ErrClosed].
func (b *Broker) Close() error {
	var closing sync.WaitGroup
	for _, closeFunc := range b.close() {
		closing.Go(func() { _ = closeFunc() }) // neither's says anything
	}
	closing.Wait()
	return nil
}

func (b *Broker) close() (closeFuncs []func() error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for p := range b.publishers {
		closeFuncs = append(closeFuncs, p.Close)
	}
	for s := range b.subscribers {
		closeFuncs = append(closeFuncs, s.Close)
	}
	return closeFuncs
}

func (b *Broker) forgetPublisher(p *publisher) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.publishers, p)
}

func (b *Broker) forgetSubscriber(s *subscriber) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.subscribers, s)
}
