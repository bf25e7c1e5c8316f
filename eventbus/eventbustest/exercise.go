package eventbustest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/schema"
)

// An OpenFunc returns a broker for one test. Messages that earlier brokers of
// the same test run confirmed need not be there. Exercise closes it.
type OpenFunc func(t *testing.T) schema.Broker

// Exercise runs everything that a broker room must pass, against brokers that
// open returns. Its test must not have called t.Parallel, since it looks for
// goroutines that are left, and must have called Exercise directly: the test
// binary is run once more, for that test alone, to see what was skipped.
func Exercise(t *testing.T, features Features, open OpenFunc) {
	features = features.withDefaults()
	require.GreaterOrEqual(t, features.Window, 4, "Features.Window")

	run := func(name string, check func(*testing.T, *stage)) {
		t.Run(name, func(t *testing.T) { check(t, newStage(t, features, open)) })
	}
	for _, c := range checks(features) {
		run(c.name, c.check)
	}
	t.Run(watermillSuites, func(t *testing.T) { exerciseWatermill(t, features, open) })
	t.Run("skips", func(t *testing.T) { exerciseSkips(t, features) })
}

// A check is one promise, exercised on a broker of its own.
type check struct {
	name  string
	check func(*testing.T, *stage)
}

func checks(features Features) []check {
	all := []check{
		{"goroutines", exerciseGoroutines},
		{"close", exerciseClose},

		{"payloads", exercisePayloads},
		{"headers", exerciseHeaders},
		{"empty ids", exerciseEmptyIDs},
		{"copies", exerciseCopies},

		{"confirmed is received", exerciseConfirmed},
		{"ended context confirms nothing", exerciseEndedContext},
		{"invalid topic", exerciseInvalidTopic},

		{"window", exerciseWindow},
		{"key order", exerciseKeyOrder},
		{"key order through intake", exerciseIntakeOrder},

		{"acks in any order", exerciseAnyAckOrder},
		{"nack", exerciseNack},
		{"reopen", exerciseReopen},
		{"message context", exerciseMessageContext},
		{"drain through intake", exerciseDrain},

		{"consumers", exerciseConsumers},
		{"join", exerciseJoin},
		{"members", exerciseMembers},
		{"members through intake", exerciseIntakeMembers},
	}
	if features.MaxMessageBytes > 0 {
		all = append(all, check{"too large", exerciseTooLarge})
	}
	if features.RefusedTopic != "" {
		all = append(all, check{"refused topic", exerciseRefusedTopic})
	}
	return all
}

// A stage is one broker with what a check needs around it.
type stage struct {
	features Features
	open     OpenFunc
	broker   schema.Broker
	topic    string // fresh, prepared
	consumer string // fresh, known
}

func newStage(t *testing.T, features Features, open OpenFunc) *stage {
	t.Helper()
	s := &stage{features: features, open: open, broker: open(t), topic: freshName("topic"), consumer: freshName("consumer")}
	t.Cleanup(func() { require.NoError(t, s.broker.Close()) })
	if features.PrepareTopicFunc != nil {
		require.NoError(t, features.PrepareTopicFunc(s.topic))
	}
	s.introduce(t, s.consumer)
	return s
}

func freshName(what string) string { return what + "-" + strings.ToLower(watermill.NewULID()) }

// introduce makes the consumer known to a broker that keeps nothing for
// consumers that it does not know.
func (s *stage) introduce(t *testing.T, consumer string) {
	t.Helper()
	if s.features.OldMessages {
		return
	}
	sub := s.subscriber(t, consumer, s.features.Window)
	s.subscribe(t, sub)
	require.NoError(t, sub.Close())
}

// intake decorates a subscriber as services do.
func (s *stage) intake(t *testing.T, sub message.Subscriber) message.Subscriber {
	t.Helper()
	intake, err := handlers.NewIntake(sub, handlers.IntakeConfig{Window: s.features.Window, Lanes: s.features.Window})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, intake.Close()) })
	return intake
}

func (s *stage) publisher(t *testing.T) schema.Publisher {
	t.Helper()
	pub, err := s.broker.NewPublisher()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pub.Close()) })
	return pub
}

func (s *stage) subscriber(t *testing.T, consumer string, window int) message.Subscriber {
	t.Helper()
	sub, err := s.broker.NewSubscriber(consumer, []string{s.topic}, window)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	return sub
}

func (s *stage) subscribe(t *testing.T, sub message.Subscriber) <-chan *message.Message {
	t.Helper()
	msgs, err := sub.Subscribe(t.Context(), s.topic)
	require.NoError(t, err)
	return msgs
}

// consume subscribes for the stage's consumer with the real window.
func (s *stage) consume(t *testing.T) (message.Subscriber, <-chan *message.Message) {
	t.Helper()
	sub := s.subscriber(t, s.consumer, s.features.Window)
	return sub, s.subscribe(t, sub)
}

// publish sends msgs one after the other and requires each to be confirmed.
func (s *stage) publish(t *testing.T, msgs ...*message.Message) {
	t.Helper()
	pub := s.publisher(t)
	for _, msg := range msgs {
		s.publishBatch(t, pub, []*message.Message{msg})
	}
}

func (s *stage) publishBatch(t *testing.T, pub schema.Publisher, batch []*message.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), s.features.Deadline)
	defer cancel()
	require.Equal(t, make([]error, len(batch)), pub.PublishBatch(ctx, s.topic, batch))
}

// receive returns the next message. It is not to be called from a goroutine
// other than the test's.
func (s *stage) receive(t *testing.T, msgs <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, ok := <-msgs:
		require.True(t, ok, "the subscription ended")
		return msg
	case <-time.After(s.features.Deadline):
		require.FailNow(t, "no message", "within %s", s.features.Deadline)
		return nil
	}
}

// quiet is how long nothing must happen where nothing may happen. Such a look
// can miss a fault on a slow machine, and never reports one that is not there.
const quiet = 100 * time.Millisecond

func requireQuiet(t *testing.T, msgs <-chan *message.Message, why string) {
	t.Helper()
	select {
	case msg, ok := <-msgs:
		if ok {
			require.FailNow(t, "handed out "+msg.UUID, why)
		}
		require.FailNow(t, "the subscription ended", why)
	case <-time.After(quiet):
	}
}

// requireEnd waits for a channel, or what it stands for, to be closed.
func (s *stage) requireEnd(t *testing.T, ended <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(s.features.Deadline):
		require.FailNow(t, what+" did not end", "within %s", s.features.Deadline)
	}
}

// eventually waits for something that has no signal.
func (s *stage) eventually(t *testing.T, is func() bool, what string) {
	t.Helper()
	require.Eventually(t, is, s.features.Deadline, time.Millisecond, what)
}

// newMessage returns a message with a key. Its id says which one it is, and is
// fresh, so that a broker that others use, too, mixes nothing up.
func newMessage(key string, n int) *message.Message {
	id := fmt.Sprintf("%s-%d-%s", key, n, watermill.NewULID())
	msg := message.NewMessage(id, fmt.Appendf(nil, "%d", n))
	if key != "" {
		msg.Metadata.Set(schema.HeaderKey, key)
	}
	return msg
}

// newMessages returns n messages of one key, in order.
func newMessages(key string, n int) []*message.Message {
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = newMessage(key, i)
	}
	return msgs
}

func idsOf(msgs []*message.Message) []string { return message.Messages(msgs).IDs() }
