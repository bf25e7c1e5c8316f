package eventbustest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// exerciseWindow: as many messages as the window allows are handed out before
// one is acked, and not one more.
func exerciseWindow(t *testing.T, s *stage) {
	const window = 4
	for i := range 2 * window {
		s.publish(t, newMessage(fmt.Sprintf("key-%d", i), i))
	}
	msgs := s.subscribe(t, s.subscriber(t, s.consumer, window))
	var held []*message.Message
	for range window {
		held = append(held, s.receive(t, msgs))
	}
	requireQuiet(t, msgs, "the window is full")
	require.True(t, held[window-1].Ack())
	held[window-1] = s.receive(t, msgs)
	requireQuiet(t, msgs, "the window is full again")
	for _, msg := range held {
		require.True(t, msg.Ack())
	}
	for range window - 1 {
		s.receive(t, msgs).Ack()
	}
}

// exerciseKeyOrder: the bare adapter hands out the messages of a key in their
// order, however they are acked, with many of several keys in hand.
func exerciseKeyOrder(t *testing.T, s *stage) {
	const keys, each = 5, 40
	published := s.publishBatches(t, newBatches(keys, each))
	_, msgs := s.consume(t)
	received := map[string][]string{}
	var held []*message.Message
	for range keys * each {
		msg := s.receive(t, msgs)
		received[schema.Key(msg)] = append(received[schema.Key(msg)], msg.UUID)
		held = append(held, msg)
		if len(held) == s.features.Window {
			held = ackOne(t, held)
		}
	}
	assert.Equal(t, published, received)
}

// ackOne acks one of the messages, any, and returns the others.
func ackOne(t *testing.T, held []*message.Message) []*message.Message {
	t.Helper()
	i, last := rand.IntN(len(held)), len(held)-1 //nolint:gosec // no secret
	require.True(t, held[i].Ack())
	held[i] = held[last]
	return held[:last]
}

// newBatches returns batches of one message of each key.
func newBatches(keys, batches int) [][]*message.Message {
	all := make([][]*message.Message, batches)
	for n := range all {
		for k := range keys {
			all[n] = append(all[n], newMessage(fmt.Sprintf("key-%d", k), n))
		}
	}
	return all
}

// publishBatches publishes one batch after the other and returns the ids by
// key.
func (s *stage) publishBatches(t *testing.T, batches [][]*message.Message) map[string][]string {
	t.Helper()
	pub := s.publisher(t)
	ids := map[string][]string{}
	for _, batch := range batches {
		s.publishBatch(t, pub, batch)
		for _, msg := range batch {
			ids[schema.Key(msg)] = append(ids[schema.Key(msg)], msg.UUID)
		}
	}
	return ids
}

// exerciseIntakeOrder: through lanes, one message of a key is worked on at a
// time, in order, and several keys at once (H20).
func exerciseIntakeOrder(t *testing.T, s *stage) {
	const keys, each = 4, 50
	w := newWitness(true)
	batches := newBatches(keys, each)
	w.expect(batches)
	s.publishBatches(t, batches)
	sub := s.intake(t, s.subscriber(t, s.consumer, s.features.Window))
	ended := w.work(s.subscribe(t, sub), "only member", keys)
	s.eventually(t, w.leaves(0), "all messages done")
	require.NoError(t, sub.Close())
	s.requireEnd(t, ended, "the subscription")
	w.report(t)
	assert.Greater(t, w.mostAtOnce, 1, "keys that were worked on at the same time")
}
