package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// A subscriber is one consumer's, with one connection for all its topics. It
// implements message.Subscriber.
type subscriber struct {
	broker   *Broker
	consumer string
	topics   []string
	window   int
	link     *link

	mu     sync.Mutex
	closed bool
	live   map[string]*subscription // by topic; what has not ended
}

func newSubscriber(b *Broker, consumer string, topics []string, window int) *subscriber {
	return &subscriber{
		broker: b, consumer: consumer, topics: topics, window: window,
		link: newLink(b.config, consumer), live: map[string]*subscription{},
	}
}

// Subscribe hands out the topic's messages until ctx or the subscriber ends;
// then the channel is closed, and what was not acked is another subscription's
// to hand out. A topic can be subscribed to again after that.
//
// It returns when the queues are there, or when the broker could not be
// reached: then it goes on trying. Queues that exist with other settings are
// [ErrMismatch].
//
// A message's context is derived from ctx. It ends when the message's ack or
// nack has been recorded, with the cause [schema.ErrRevoked] when the broker
// took the message back, and when the subscription ends, by Close with the
// cause [ErrClosed].
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if !slices.Contains(s.topics, topic) {
		return nil, fmt.Errorf("subscribe to %.300q: %w", topic, ErrUndeclaredTopic)
	}
	sub, err := s.open(ctx, topic)
	if err == nil {
		err = sub.awaitBegin()
	}
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", topic, err)
	}
	return sub.out, nil
}

// open returns a running subscription, after an earlier one has ended.
func (s *subscriber) open(ctx context.Context, topic string) (*subscription, error) {
	for {
		sub, ended, err := s.start(ctx, topic)
		if sub != nil || err != nil {
			return sub, err
		}
		<-ended
	}
}

// start returns a running subscription, or, while one is still ending, what is
// closed when it has.
func (s *subscriber) start(ctx context.Context, topic string) (*subscription, <-chan struct{}, error) {
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
	sub := newSubscription(ctx, s, topic)
	s.live[topic] = sub
	go sub.run(func() { s.remove(topic) })
	return sub, nil, nil
}

func (s *subscriber) remove(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, topic)
}

// Close ends the subscriptions and returns when their channels are closed and
// the connection is gone. What was acked before stays acked, what was not is
// handed out again. Idempotent; subscribing afterwards is [ErrClosed].
func (s *subscriber) Close() error {
	for _, sub := range s.close() {
		<-sub.ended
	}
	s.link.close()
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

// awaitBegin waits for the first outcome of each queue. A mismatch ends the
// subscription; whatever else went wrong is tried again in the background.
func (s *subscription) awaitBegin() error {
	for range s.queues {
		select {
		case err := <-s.begun:
			if errors.Is(err, ErrMismatch) {
				s.cancel(err)
				<-s.ended
				return err
			}
		case <-s.ctx.Done():
			<-s.ended
			return context.Cause(s.ctx)
		}
	}
	return nil
}
