package memory

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// Kind is the broker's name in a config file.
const Kind = "memory"

var _ schema.Broker = (*Broker)(nil)

// A Broker is a set of logs in this process. All methods are safe for
// concurrent use.
type Broker struct {
	config Config

	mu          sync.Mutex
	closed      bool
	logs        map[string]*topicLog
	publishers  map[*publisher]struct{}
	subscribers map[*subscriber]struct{}
}

// New returns a broker without messages; the caller closes it. A config that
// cannot be used is [schema.ErrInvalidOption], all faults at once.
func New(config Config) (*Broker, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("memory broker: %w", err)
	}
	config.Logger.Warn("memory confirms into this process's memory: confirmed messages end with the process")
	return &Broker{
		config: config, logs: map[string]*topicLog{},
		publishers: map[*publisher]struct{}{}, subscribers: map[*subscriber]struct{}{},
	}, nil
}

// Kind returns "memory".
func (b *Broker) Kind() string { return Kind }

// NewPublisher returns a publisher; the caller closes it, or closes the broker.
// The error is [ErrClosed].
func (b *Broker) NewPublisher() (schema.Publisher, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, fmt.Errorf("memory broker: %w", ErrClosed)
	}
	p := newPublisher(b)
	b.publishers[p] = struct{}{}
	return p, nil
}

// NewSubscriber returns a subscriber as schema.Broker says; the caller closes
// it, or closes the broker. From now on the topics keep what the consumer has
// not acked. Errors are [schema.ErrInvalidOption], all faults at once, and
// [ErrClosed].
func (b *Broker) NewSubscriber(consumer string, topics []string, window int) (message.Subscriber, error) {
	if err := subscriberFaults(consumer, topics, window); err != nil {
		return nil, fmt.Errorf("memory subscriber: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, fmt.Errorf("memory subscriber: %w", ErrClosed)
	}
	s := newSubscriber(b, window)
	for _, topic := range topics {
		s.cursors[topic] = b.open(topic).cursor(consumer)
	}
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
		if fault := schema.TopicFault(topic); fault != "" {
			add("%s", fault)
		} else if slices.Contains(topics[:i], topic) {
			add("topic %q is there twice", topic)
		}
	}
	if window < 1 {
		add("window is %d, the least is 1", window)
	}
	return errors.Join(faults...)
}

// Messages returns copies of the messages that the topic's log keeps, oldest
// first, whoever has acked them. It answers after Close, too. It is meant for
// witnesses: tests, checks, people who look.
func (b *Broker) Messages(topic string) []*message.Message {
	if l := b.known(topic); l != nil {
		return l.messages()
	}
	return nil
}

// Backlog returns how many messages of the topic the consumer has not acked: all
// that the log keeps when the broker does not know the consumer. It answers
// after Close, too.
func (b *Broker) Backlog(consumer, topic string) int {
	if l := b.known(topic); l != nil {
		return l.backlog(consumer)
	}
	return 0
}

// known returns the topic's log, or nil.
func (b *Broker) known(topic string) *topicLog {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.logs[topic]
}

// log returns the topic's log, a new one if there is none.
func (b *Broker) log(topic string) *topicLog {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open(topic)
}

// open is log for whoever holds the mutex.
func (b *Broker) open(topic string) *topicLog {
	l, ok := b.logs[topic]
	if !ok {
		l = newTopicLog(b.config)
		b.logs[topic] = l
	}
	return l
}

// Close closes all publishers and subscribers and returns when no goroutine of
// theirs is left. Idempotent; using the broker afterwards is [ErrClosed].
func (b *Broker) Close() error {
	var errs []error
	for _, closeFunc := range b.close() {
		errs = append(errs, closeFunc())
	}
	return errors.Join(errs...)
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
