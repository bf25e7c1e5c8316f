package kafka

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// A subscriber is one consumer's: one member of its group, for all of its
// topics. It implements message.Subscriber.
type subscriber struct {
	config   Config
	consumer string
	topics   []string // as declared
	window   int
	forget   func()
	member   *member

	mu     sync.Mutex
	closed bool
	feeds  map[string]*feed // by topic; what was declared
	close  func()
	err    error // of Close
}

// A feed is a topic's place in a subscriber: where its partitions look for a
// subscription. The subscriber's mutex guards it.
type feed struct {
	live    *subscription // or nil
	ended   time.Time     // the last one; zero: there was none
	linger  *time.Timer   // until the partitions are given away
	changed chan struct{} // closed when live changes
}

func newSubscriber(config Config, consumer string, topics []string, window int, forget func(*subscriber)) *subscriber {
	s := &subscriber{config: config, consumer: consumer, topics: topics, window: window, feeds: map[string]*feed{}}
	for _, topic := range topics {
		s.feeds[topic] = &feed{changed: make(chan struct{})}
	}
	s.forget = func() { forget(s) }
	s.close = sync.OnceFunc(s.shut)
	s.member = newMember(s)
	return s
}

// Subscribe hands out the topic's messages until ctx or the subscriber ends;
// then the channel is closed, and what was not acked is handed out again, to
// whoever has the partition. A topic can be subscribed to again after that.
// Subscribe does not wait for the group or the broker.
//
// A message's context is derived from ctx. It ends when the message's ack or
// nack has been recorded, when the subscription ends, by Close with the cause
// [ErrClosed], and with the cause schema.ErrRevoked when the partition has been
// given away.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	for {
		sub, ended, err := s.start(ctx, topic)
		if err != nil {
			return nil, fmt.Errorf("subscribe to %.300q: %w", topic, err)
		}
		if sub != nil {
			return sub.out, nil
		}
		<-ended
	}
}

// start returns a running subscription, or, while one is still ending, what is
// closed when it has.
func (s *subscriber) start(ctx context.Context, topic string) (*subscription, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.feeds[topic]
	switch {
	case !ok:
		return nil, nil, ErrUndeclaredTopic
	case s.closed:
		return nil, nil, ErrClosed
	case f.live != nil && f.live.ctx.Err() == nil:
		return nil, nil, ErrSubscribed
	case f.live != nil:
		return nil, f.live.ended, nil
	}
	sub := newSubscription(ctx, topic, s.window)
	f.set(sub)
	go sub.run(func() { s.remove(topic) })
	s.member.start()
	return sub, nil, nil
}

// remove takes out a subscription that has ended. The topic's partitions are
// given away at once if it was the last one, or else when none has followed
// after a while: joining the group anew disturbs the other topics.
func (s *subscriber) remove(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.feeds[topic]
	f.set(nil)
	f.ended = time.Now()
	if !s.closed {
		f.linger = time.AfterFunc(s.config.grace(), s.member.signal)
	}
	s.member.signal()
}

func (f *feed) set(live *subscription) {
	f.live = live
	close(f.changed)
	f.changed = make(chan struct{})
	if f.linger != nil {
		f.linger.Stop()
	}
}

// current returns the topic's subscription, or nil, and what is closed when
// that changes.
func (s *subscriber) current(topic string) (*subscription, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.feeds[topic]
	return f.live, f.changed
}

// wanted returns the topics to be in the group for, as declared: none without
// any subscription.
func (s *subscriber) wanted() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var wanted []string
	any := false
	for _, topic := range s.topics {
		f := s.feeds[topic]
		any = any || f.live != nil
		if f.live != nil || f.ended.IsZero() || time.Since(f.ended) < s.config.grace() {
			wanted = append(wanted, topic)
		}
	}
	if s.closed || !any {
		return nil
	}
	return wanted
}

// Close ends the subscriptions, stores what was acked and leaves the group. The
// channels are closed when it returns. What was not acked is handed out again.
// It gives up on the group after [Config.CloseTimeout]. Idempotent; subscribing
// afterwards is [ErrClosed].
func (s *subscriber) Close() error {
	s.close()
	return s.err
}

func (s *subscriber) shut() {
	defer s.forget()
	for _, sub := range s.end() {
		<-sub.ended
	}
	if !s.member.stop(s.config.CloseTimeout) {
		s.err = fmt.Errorf("kafka subscriber %s: %w: %s", s.consumer, ErrCloseTimeout, s.config.CloseTimeout)
	}
}

func (s *subscriber) end() (ending []*subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, f := range s.feeds {
		if f.linger != nil {
			f.linger.Stop()
		}
		if f.live != nil {
			f.live.cancel(ErrClosed)
			ending = append(ending, f.live)
		}
	}
	return ending
}

// A subscription is a channel that the partitions of its topic share, and a
// window of places for what is not acked.
type subscription struct {
	topic  string
	ctx    context.Context //nolint:containedctx // the subscription's life, parent of its messages'
	cancel context.CancelCauseFunc
	out    chan *message.Message
	places chan struct{} // one entry a record that has a place
	ended  chan struct{}

	mu    sync.Mutex
	over  bool
	users sync.WaitGroup // partitions that hand out, messages in hand
}

func newSubscription(ctx context.Context, topic string, window int) *subscription {
	sub := &subscription{
		topic: topic, out: make(chan *message.Message),
		places: make(chan struct{}, window), ended: make(chan struct{}),
	}
	sub.ctx, sub.cancel = context.WithCancelCause(ctx)
	return sub
}

// run returns when the subscription has ended and nobody uses it any more.
func (s *subscription) run(remove func()) {
	defer close(s.ended)
	<-s.ctx.Done()
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.users.Wait()
	s.cancel(nil)
	remove()
	close(s.out)
}

// join lets a partition hand out until it leaves; false when it is over.
func (s *subscription) join() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.users.Add(1)
	return true
}

func (s *subscription) leave() { s.users.Done() }
