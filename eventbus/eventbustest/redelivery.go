package eventbustest

import (
	"context"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// exerciseAnyAckOrder: messages are acked in any order; those that were not are
// handed out again to the next subscription, in the order of their key, and
// the oldest of them is not lost because later ones were acked (H45).
func exerciseAnyAckOrder(t *testing.T, s *stage) {
	published := newMessages("key", 8)
	if s.features.Window < len(published) {
		published = published[:s.features.Window]
	}
	s.publish(t, published...)
	sub, msgs := s.consume(t)
	held := s.receiveAll(t, msgs, idsOf(published))
	var left []string
	for _, i := range []int{2, 0} {
		require.True(t, held[i].Ack())
	}
	for i, msg := range held {
		if i >= 4 {
			require.True(t, msg.Ack())
		} else if i%2 == 1 {
			left = append(left, msg.UUID)
		}
	}
	require.NoError(t, sub.Close())

	_, msgs = s.consume(t)
	s.requireInOrder(t, msgs, left)
}

// receiveAll receives messages with these ids, in this order, and acks none.
func (s *stage) receiveAll(t *testing.T, msgs <-chan *message.Message, ids []string) []*message.Message {
	t.Helper()
	received := make([]*message.Message, len(ids))
	for i, id := range ids {
		received[i] = s.receive(t, msgs)
		require.Equal(t, id, received[i].UUID)
	}
	return received
}

// requireInOrder receives and acks until all ids have come, in this order. A
// message that is not among them was acked before and may come again.
func (s *stage) requireInOrder(t *testing.T, msgs <-chan *message.Message, ids []string) {
	t.Helper()
	for next := 0; next < len(ids); {
		msg := s.receive(t, msgs)
		at := slices.Index(ids, msg.UUID)
		require.LessOrEqual(t, at, next, "%s came too early: %v", msg.UUID, ids)
		if at == next {
			next++
		}
		require.True(t, msg.Ack())
	}
}

// exerciseNack: a nacked message is handed out again before any later one of
// its key is handed out for the first time.
func exerciseNack(t *testing.T, s *stage) {
	const window = 4
	published := newMessages("key", 2*window)
	s.publish(t, published...)
	msgs := s.subscribe(t, s.subscriber(t, s.consumer, window))
	held := s.receiveAll(t, msgs, idsOf(published[:window]))

	for range 3 {
		require.True(t, held[1].Nack())
		held[1] = s.receive(t, msgs)
		require.Equal(t, published[1].UUID, held[1].UUID, "handed out after the nack")
		require.Equal(t, published[1].Payload, held[1].Payload)
	}
	for _, msg := range held {
		require.True(t, msg.Ack())
	}
	s.requireInOrder(t, msgs, idsOf(published[window:]))
}

// exerciseReopen: a consumer that stops in mid-stream, several times, goes on
// where what it has not acked begins: nothing is lost and the order of keys is
// kept. An ack that comes after the end acknowledges nothing.
func exerciseReopen(t *testing.T, s *stage) {
	left := s.publishBatches(t, newBatches(3, 12))
	for total(left) > 0 {
		sub, msgs := s.consume(t)
		late := s.consumeSome(t, msgs, left)
		require.NoError(t, sub.Close())
		for _, msg := range late {
			msg.Ack()
		}
	}
}

// consumeSome receives some of the messages that are left, in the order of
// their key, acks two of three and takes those out of left. It returns the
// others.
func (s *stage) consumeSome(t *testing.T, msgs <-chan *message.Message, left map[string][]string) (unacked []*message.Message) {
	t.Helper()
	next := map[string]int{}
	acked := map[string]bool{}
	for received, most := 0, min(12, s.features.Window, total(left)); received < most; {
		msg := s.receive(t, msgs)
		key := schema.Key(msg)
		at := slices.Index(left[key], msg.UUID)
		require.LessOrEqual(t, at, next[key], "%s came too early: %v", msg.UUID, left[key])
		if at == next[key] {
			next[key]++
			received++
		}
		if at >= 0 && received%3 == 2 {
			unacked = append(unacked, msg)
			continue
		}
		require.True(t, msg.Ack())
		acked[msg.UUID] = true
	}
	for key, ids := range left {
		left[key] = slices.DeleteFunc(ids, func(id string) bool { return acked[id] })
	}
	return unacked
}

func total(ids map[string][]string) (n int) {
	for _, of := range ids {
		n += len(of)
	}
	return n
}

// exerciseMessageContext: a message's context lives while the message is in
// hand, and ends with its ack, with its subscription's context, and with Close.
func exerciseMessageContext(t *testing.T, s *stage) {
	s.publish(t, newMessages("key", 1)...)
	sub := s.subscriber(t, s.consumer, s.features.Window)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	msgs, err := sub.Subscribe(ctx, s.topic)
	require.NoError(t, err)
	held := s.receive(t, msgs)
	require.NoError(t, held.Context().Err())
	cancel()
	s.requireEnd(t, held.Context().Done(), "the context of a message whose subscription's has ended")
	s.requireDrained(t, msgs)
	require.NoError(t, sub.Close())

	sub, msgs = s.consume(t)
	acked := s.receive(t, msgs)
	require.NoError(t, acked.Context().Err())
	require.True(t, acked.Ack())
	s.requireEnd(t, acked.Context().Done(), "the context of a message that was acked")

	s.publish(t, newMessages("key", 1)...)
	held = s.receive(t, msgs)
	require.NoError(t, sub.Close())
	s.requireEnd(t, held.Context().Done(), "the context of a message whose subscriber was closed")
	require.NotErrorIs(t, context.Cause(held.Context()), schema.ErrRevoked)
}

// requireDrained requires the subscription to end; what it still hands out is
// left alone.
func (s *stage) requireDrained(t *testing.T, msgs <-chan *message.Message) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range msgs {
		}
	}()
	s.requireEnd(t, ended, "the subscription")
}
