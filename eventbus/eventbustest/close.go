package eventbustest

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/postbus-io/postbus/schema"
)

// exerciseClose: everything can be closed twice, a subscription is over when
// Close returns, and what is closed does nothing any more.
func exerciseClose(t *testing.T, s *stage) {
	pub := s.publisher(t)
	require.NoError(t, pub.Close())
	require.NoError(t, pub.Close())
	require.Error(t, pub.Publish(s.topic, newMessage("", 1)))
	errs := pub.PublishBatch(t.Context(), s.topic, newMessages("", 2))
	requireClass(t, errs, 2, schema.PublishBroker)

	sub, msgs := s.consume(t)
	require.NoError(t, sub.Close())
	select {
	case _, open := <-msgs:
		require.False(t, open, "a message from a closed subscriber")
	default:
		require.FailNow(t, "the subscription is not over")
	}
	require.NoError(t, sub.Close())
	_, err := sub.Subscribe(t.Context(), s.topic)
	require.Error(t, err)

	require.NoError(t, s.broker.Close())
	require.NoError(t, s.broker.Close())
}

// exerciseGoroutines: closing leaves none. The first round is for those that a
// client library starts once and keeps.
func exerciseGoroutines(t *testing.T, s *stage) {
	openAndClose(t, s)
	before := goleak.IgnoreCurrent()
	openAndClose(t, s)
	goleak.VerifyNone(t, before)
}

func openAndClose(t *testing.T, s *stage) {
	t.Helper()
	s = newStage(t, s.features, s.open)
	sub, msgs := s.consume(t)
	s.publish(t, newMessages("key", 3)...)
	s.receive(t, msgs).Ack()
	s.receive(t, msgs).Nack()
	held := s.receive(t, msgs)
	require.NoError(t, sub.Close())
	require.NoError(t, s.broker.Close())
	held.Ack()
}

// exerciseDrain: closing an intake lets what is in hand finish, on a living
// context, and neither loses nor acks the rest (H41).
func exerciseDrain(t *testing.T, s *stage) {
	published := s.publishBatches(t, newBatches(3*s.features.Window, 1))
	sub := s.intake(t, s.subscriber(t, s.consumer, s.features.Window))
	msgs := s.subscribe(t, sub)
	inHand := []*message.Message{s.receive(t, msgs), s.receive(t, msgs), s.receive(t, msgs)}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		assert.NoError(t, sub.Close())
	}()
	select {
	case <-closed:
		require.FailNow(t, "closed with messages in hand")
	case <-time.After(quiet):
	}
	for _, msg := range inHand {
		require.NoError(t, msg.Context().Err(), "a message in hand while draining")
		require.True(t, msg.Ack())
		delete(published, schema.Key(msg))
	}
	s.requireEnd(t, closed, "draining")

	_, msgs = s.consume(t)
	for len(published) > 0 {
		msg := s.receive(t, msgs)
		require.True(t, msg.Ack())
		delete(published, schema.Key(msg))
	}
}
