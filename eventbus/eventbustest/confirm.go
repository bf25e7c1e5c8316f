package eventbustest

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// exerciseConfirmed: what was confirmed, by a batch or a plain Publish, is
// there for a subscriber that comes later, after the publisher is gone.
func exerciseConfirmed(t *testing.T, s *stage) {
	pub := s.publisher(t)
	batch := make([]*message.Message, 3*s.features.Window)
	for i := range batch {
		batch[i] = newMessage(freshName("key"), i)
	}
	s.publishBatch(t, pub, batch)
	require.Empty(t, pub.PublishBatch(t.Context(), s.topic, nil))
	plain := newMessages("plain", 3)
	require.NoError(t, pub.Publish(s.topic, plain...))
	require.NoError(t, pub.Publish(s.topic))
	require.NoError(t, pub.Close())

	_, msgs := s.consume(t)
	var received []*message.Message
	for range len(batch) + len(plain) {
		received = append(received, s.receive(t, msgs))
		received[len(received)-1].Ack()
	}
	assert.ElementsMatch(t, append(idsOf(batch), idsOf(plain)...), idsOf(received))
}

// exerciseEndedContext: a batch whose time is over is not confirmed, and it is
// not a record's fault.
func exerciseEndedContext(t *testing.T, s *stage) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	errs := s.publisher(t).PublishBatch(ctx, s.topic, newMessages("", 2))
	requireClass(t, errs, 2, schema.PublishBroker)
}

// exerciseInvalidTopic: a name that no broker takes is the record's fault.
func exerciseInvalidTopic(t *testing.T, s *stage) {
	pub := s.publisher(t)
	for _, topic := range []string{"", "a b", "..", "a/b"} {
		errs := pub.PublishBatch(t.Context(), topic, newMessages("", 2))
		requireClass(t, errs, 2, schema.PublishRecord)
		err := pub.Publish(topic, newMessage("", 1))
		requireClass(t, []error{err}, 1, schema.PublishRecord)
	}
}

// exerciseTooLarge: a message beyond the broker's bound is the record's fault,
// and the others of its batch are confirmed.
func exerciseTooLarge(t *testing.T, s *stage) {
	large := message.NewMessage(watermill.NewULID(), bytes.Repeat([]byte("x"), 2*s.features.MaxMessageBytes))
	before, after := newMessage("a", 1), newMessage("b", 1)
	ctx, cancel := context.WithTimeout(t.Context(), s.features.Deadline)
	defer cancel()
	errs := s.publisher(t).PublishBatch(ctx, s.topic, []*message.Message{before, large, after})
	require.Len(t, errs, 3)
	require.NoError(t, errs[0])
	requireClass(t, errs[1:2], 1, schema.PublishRecord)
	require.NoError(t, errs[2])

	_, msgs := s.consume(t)
	received := []*message.Message{s.receive(t, msgs), s.receive(t, msgs)}
	assert.ElementsMatch(t, idsOf([]*message.Message{before, after}), idsOf(received))
}

// exerciseRefusedTopic: a destination that takes nothing is the destination's
// fault, within the deadline, and other topics go on.
func exerciseRefusedTopic(t *testing.T, s *stage) {
	ctx, cancel := context.WithTimeout(t.Context(), s.features.Deadline)
	defer cancel()
	started := time.Now()
	errs := s.publisher(t).PublishBatch(ctx, s.features.RefusedTopic, newMessages("", 2))
	requireClass(t, errs, 2, schema.PublishDestination)
	require.Less(t, time.Since(started), s.features.Deadline)
	s.publish(t, newMessage("", 1))
}

// requireClass requires n errors of one class that say so themselves.
func requireClass(t *testing.T, errs []error, n int, class schema.PublishClass) {
	t.Helper()
	require.Len(t, errs, n)
	for _, err := range errs {
		require.Error(t, err)
		require.Equal(t, class, schema.ClassOfPublish(err), "%v", err)
		var published *schema.PublishError
		if class != schema.PublishBroker {
			require.ErrorAs(t, err, &published)
		}
	}
}
