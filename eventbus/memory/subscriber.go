package memory

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// A subscriber is one consumer's. It implements message.Subscriber.
type subscriber struct {
	broker  *Broker
	window  int
	cursors map[string]*cursor // by topic; what was declared

	mu     sync.Mutex
	closed bool
	live   map[string]*subscription // by topic; what has not ended
}

func newSubscriber(b *Broker, window int) *subscriber {
	return &subscriber{broker: b, window: window, cursors: map[string]*cursor{}, live: map[string]*subscription{}}
}

// Subscribe hands out the topic's messages until ctx or the subscriber ends;
// then the channel is closed, and what was not acked is another subscription's
// to hand out. A topic can be subscribed to again after that.
//
// A message's context is derived from ctx. It ends when the message's ack or
// nack has been recorded, and when the subscription ends, by Close with the
// cause [ErrClosed]. The memory broker revokes nothing.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	c, ok := s.cursors[topic]
	if !ok {
		return nil, fmt.Errorf("subscribe to %.300q: %w", topic, ErrUndeclaredTopic)
	}
	for {
		sub, ended, err := s.start(ctx, c, topic)
		if err != nil {
			return nil, fmt.Errorf("subscribe to %s: %w", topic, err)
		}
		if sub != nil {
			return sub.out, nil
		}
		<-ended
	}
}

// start returns a running subscription, or, while one is still ending, what is
// closed when it has.
func (s *subscriber) start(ctx context.Context, c *cursor, topic string) (*subscription, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, ErrClosed
	}
	if old := s.live[topic]; old != nil {
		if old.ctx.Err() == nil {
			return nil, nil, ErrSubscribed
		}
		return nil, old.ended, nil
	}
	sub := newSubscription(ctx, c.join(s.window))
	s.live[topic] = sub
	go sub.run(func() { s.remove(topic) })
	return sub, nil, nil
}

func (s *subscriber) remove(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, topic)
}

// Close ends the subscriptions and returns when their channels are closed.
// What was acked before stays acked, what was not is handed out again.
// Idempotent; subscribing afterwards is [ErrClosed].
func (s *subscriber) Close() error {
	for _, sub := range s.close() {
		<-sub.ended
	}
	s.broker.forgetSubscriber(s)
	return nil
}

func (s *subscriber) close() (ending []*subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, sub := range s.live {
		sub.cancel(ErrClosed)
		ending = append(ending, sub)
	}
	return ending
}

// A subscription hands out messages from one goroutine and waits for each
// one's ack in another.
type subscription struct {
	member *member
	ctx    context.Context //nolint:containedctx // the subscription's life, parent of its messages'
	cancel context.CancelCauseFunc
	out    chan *message.Message
	waits  sync.WaitGroup // for acks
	ended  chan struct{}
}

func newSubscription(ctx context.Context, m *member) *subscription {
	sub := &subscription{member: m, out: make(chan *message.Message), ended: make(chan struct{})}
	sub.ctx, sub.cancel = context.WithCancelCause(ctx)
	return sub
}

func (s *subscription) run(remove func()) {
	defer close(s.ended)
	defer s.cancel(nil)
	for s.ctx.Err() == nil {
		if d, retry := s.member.take(time.Now()); d != nil {
			s.deliver(d)
		} else {
			s.sleep(retry)
		}
	}
	s.waits.Wait()
	s.member.cursor.leave(s.member)
	remove()
	close(s.out)
}

// sleep waits for a signal, for retry to pass, or for the subscription's end.
func (s *subscription) sleep(retry time.Duration) {
	var due <-chan time.Time
	if retry != forever {
		timer := time.NewTimer(retry)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-s.member.wake:
	case <-due:
	case <-s.ctx.Done():
	}
}

func (s *subscription) deliver(d *delivery) {
	msg := d.entry.message()
	ctx, cancel := context.WithCancel(s.ctx)
	msg.SetContext(ctx)
	select {
	case s.out <- msg:
		s.waits.Go(func() {
			defer cancel()
			d.settle(s.await(msg), time.Now())
		})
	case <-s.ctx.Done():
		cancel()
		d.settle(outcomeReturned, time.Now())
	}
}

// await returns how the delivery of msg ends. An ack that came before the
// subscription's end counts, although both are seen at once.
func (s *subscription) await(msg *message.Message) outcome {
	select {
	case <-msg.Acked():
		return outcomeAcked
	case <-msg.Nacked():
		return outcomeNacked
	case <-s.ctx.Done():
	}
	select {
	case <-msg.Acked():
		return outcomeAcked
	default:
		return outcomeReturned
	}
}
