package eventbustest

import (
	"context"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// The names of the subtests that run Watermill's suite. [skips] refers to them.
const (
	watermillSuites = "watermill"
	suiteWindow1    = "window_1"
	suiteRealWindow = "real_window"
	suiteAlone      = "alone"
)

// exerciseWatermill runs Watermill's own suite twice on the bare adapter, and
// alone those of its tests that need other features than the rest.
func exerciseWatermill(t *testing.T, features Features, open OpenFunc) {
	t.Run(suiteWindow1, func(t *testing.T) {
		a := newAdapter(t, features, open, 1)
		tests.TestPubSub(t, a.suiteFeatures(true), a.construct, a.constructFor)
	})
	t.Run(suiteRealWindow, func(t *testing.T) {
		a := newAdapter(t, features, open, features.Window)
		tests.TestPubSub(t, a.suiteFeatures(false), a.construct, a.constructFor)
	})
	t.Run(suiteAlone, func(t *testing.T) {
		a := newAdapter(t, features, open, features.Window)
		t.Run("TestPublishSubscribeInOrder", func(t *testing.T) {
			tests.TestPublishSubscribeInOrder(t, a.testContext(), a.construct)
		})
		if features.OldMessages {
			t.Run("TestNewSubscriberReceivesOldMessages", func(t *testing.T) {
				tctx := a.testContext()
				tctx.Features.NewSubscriberReceivesOldMessages = true
				tests.TestNewSubscriberReceivesOldMessages(t, tctx, a.constructStranger)
			})
		}
	})
}

// An adapter makes of a broker what Watermill's suite wants to be given.
type adapter struct {
	features Features
	broker   schema.Broker
	window   int
	consumer string

	mu       sync.Mutex
	prepared map[string]bool
}

func newAdapter(t *testing.T, features Features, open OpenFunc, window int) *adapter {
	t.Helper()
	a := &adapter{
		features: features, broker: open(t), window: window,
		consumer: freshName("watermill"), prepared: map[string]bool{},
	}
	t.Cleanup(func() { require.NoError(t, a.broker.Close()) })
	return a
}

func (a *adapter) suiteFeatures(ordered bool) tests.Features {
	return tests.Features{
		ConsumerGroups:                      true,
		GuaranteedOrder:                     ordered,
		GuaranteedOrderWithSingleSubscriber: ordered && a.features.OneMemberOrder,
		Persistent:                          true,
		RestartServiceCommand:               a.features.RestartCommand,
	}
}

// testContext is for one test: its id is part of the topic's name.
func (a *adapter) testContext() tests.TestContext {
	return tests.TestContext{TestID: tests.NewTestID(), Features: a.suiteFeatures(true)}
}

// construct returns a publisher and a subscriber of the one consumer.
func (a *adapter) construct(t *testing.T) (message.Publisher, message.Subscriber) {
	return a.constructFor(t, a.consumer)
}

// constructStranger returns a subscriber of a consumer that nobody knows.
func (a *adapter) constructStranger(t *testing.T) (message.Publisher, message.Subscriber) {
	return a.constructFor(t, freshName("stranger"))
}

func (a *adapter) constructFor(t *testing.T, consumer string) (message.Publisher, message.Subscriber) {
	pub, err := a.broker.NewPublisher()
	require.NoError(t, err)
	return &keyedPublisher{pub, a}, &lateSubscriber{adapter: a, consumer: consumer}
}

// prepare has the topic made, once.
func (a *adapter) prepare(topic string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.features.PrepareTopicFunc == nil || a.prepared[topic] {
		return nil
	}
	a.prepared[topic] = true
	return a.features.PrepareTopicFunc(topic)
}

// A keyedPublisher takes the payload for the key: the suite checks order among
// messages of equal payload and knows no keys.
type keyedPublisher struct {
	message.Publisher
	adapter *adapter
}

func (p *keyedPublisher) Publish(topic string, msgs ...*message.Message) error {
	if err := p.adapter.prepare(topic); err != nil {
		return err
	}
	keyed := make([]*message.Message, len(msgs))
	for i, msg := range msgs {
		keyed[i] = msg.CopyWithContext()
		keyed[i].Metadata.Set(schema.HeaderKey, string(msg.Payload))
	}
	return p.Publisher.Publish(topic, keyed...)
}

// A lateSubscriber opens a subscriber of its own for every subscription: the
// suite does not say beforehand which topics it will subscribe to.
type lateSubscriber struct {
	adapter  *adapter
	consumer string

	mu   sync.Mutex
	subs []message.Subscriber
}

func (s *lateSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if err := s.adapter.prepare(topic); err != nil {
		return nil, err
	}
	sub, err := s.adapter.broker.NewSubscriber(s.consumer, []string{topic}, s.adapter.window)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.subs = append(s.subs, sub)
	s.mu.Unlock()
	return sub.Subscribe(ctx, topic)
}

// SubscribeInitialize makes the consumer known, if that needs to be done before
// messages are published.
func (s *lateSubscriber) SubscribeInitialize(topic string) error {
	if s.adapter.features.OldMessages {
		return nil
	}
	first := &lateSubscriber{adapter: s.adapter, consumer: s.consumer}
	if _, err := first.Subscribe(context.Background(), topic); err != nil {
		return err
	}
	return first.Close()
}

func (s *lateSubscriber) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs {
		if err := sub.Close(); err != nil {
			return err
		}
	}
	return nil
}
