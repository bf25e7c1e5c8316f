package memory_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus/memory"
)

// TestMemory_H45_LaterAcksDoNotMoveThePosition: the log keeps what a consumer
// has not acked, however much it has acked behind it.
func TestMemory_H45_LaterAcksDoNotMoveThePosition(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, memory.Config{RetainEntries: 1})
	sub := newSubscriber(t, broker, consumer, 10)
	publish(t, broker, "a1", "b2", "a3", "b4")
	held := receiveAll(t, subscribe(t, sub), "a1", "b2", "a3", "b4")

	ack(t, held[1], held[3])
	assert.Equal(t, 2, broker.Backlog(consumer, topic))
	assert.Equal(t, []string{"a1", "b2", "a3", "b4"}, idsOf(broker.Messages(topic)))

	ack(t, held[0])
	assert.Equal(t, 1, broker.Backlog(consumer, topic))
	assert.Equal(t, []string{"b2", "a3", "b4"}, idsOf(broker.Messages(topic)), "one more than the position is retained")

	require.NoError(t, sub.Close())
	msgs := subscribe(t, newSubscriber(t, broker, consumer, 10))
	ack(t, receiveAll(t, msgs, "a3")...)
	assert.Zero(t, broker.Backlog(consumer, topic))
	publish(t, broker, "a5")
	receiveAll(t, msgs, "a5")
}

// TestMemory_AckRightBeforeCloseCounts: the end of the subscription and the ack
// are seen at once, and the ack is not overlooked.
func TestMemory_AckRightBeforeCloseCounts(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, memory.Config{})
	for round := range 200 {
		publish(t, broker, "a1")
		sub := newSubscriber(t, broker, consumer, 1)
		msg := receive(t, subscribe(t, sub))
		require.True(t, msg.Ack())
		require.NoError(t, sub.Close())
		require.Zero(t, broker.Backlog(consumer, topic), "round %d", round)
	}
}

// TestMemory_OldestComesFirst: of several keys, and of messages without one,
// when they are handed out again.
func TestMemory_OldestComesFirst(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, memory.Config{})
	ids := []string{"b1", "2", "a3", "4", "c5"}
	publish(t, broker, ids...)
	for range 2 {
		sub := newSubscriber(t, broker, consumer, len(ids))
		receiveAll(t, subscribe(t, sub), ids...)
		require.NoError(t, sub.Close())
	}
}

// TestMemory_NackWaitsWithItsKey: a nacked message comes back after a backoff
// that grows to its bound, its key behind it, while other keys go on.
func TestMemory_NackWaitsWithItsKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := newBroker(t, memory.Config{NackBackoffMax: 500 * time.Millisecond})
		msgs := subscribe(t, newSubscriber(t, broker, consumer, 2))
		publish(t, broker, "a1", "a2", "a3")
		held := receiveAll(t, msgs, "a1", "a2")

		for _, wait := range []time.Duration{100, 200, 400, 500, 500} {
			wait *= time.Millisecond
			require.True(t, held[0].Nack())
			nacked := time.Now()
			synctest.Wait()
			requireNothing(t, msgs, "the key waits")
			publish(t, broker, "b0")
			ack(t, receiveAll(t, msgs, "b0")...)
			assert.Zero(t, time.Since(nacked), "another key does not wait")
			held[0] = receiveAll(t, msgs, "a1")[0]
			assert.Equal(t, wait, time.Since(nacked))
		}
		ack(t, held...)
		receiveAll(t, msgs, "a3")
	})
}

// TestMemory_NackedOutOfOrderComesInOrder: what is nacked comes back in the
// order of the log, and not before the longest wait of its key.
func TestMemory_NackedOutOfOrderComesInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := newBroker(t, memory.Config{})
		msgs := subscribe(t, newSubscriber(t, broker, consumer, 3))
		publish(t, broker, "a1", "a2", "a3", "a4")
		held := receiveAll(t, msgs, "a1", "a2", "a3")
		require.True(t, held[0].Nack())
		held[0] = receiveAll(t, msgs, "a1")[0] // its next wait is 200 ms

		nacked := time.Now()
		for _, i := range []int{2, 0, 1} {
			require.True(t, held[i].Nack())
			synctest.Wait()
		}
		held = receiveAll(t, msgs, "a1", "a2", "a3")
		assert.Equal(t, 200*time.Millisecond, time.Since(nacked))
		ack(t, held...)
		receiveAll(t, msgs, "a4")
	})
}

// TestMemory_BackoffSurvivesItsSubscription: the wait of a nacked message is not
// cut short, or lost, when its subscription ends.
func TestMemory_BackoffSurvivesItsSubscription(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := newBroker(t, memory.Config{})
		sub := newSubscriber(t, broker, consumer, 1)
		publish(t, broker, "a1")
		nacked := receive(t, subscribe(t, sub))
		require.True(t, nacked.Nack())
		requireEnd(t, nacked.Context().Done(), "nack")
		at := time.Now()
		require.NoError(t, sub.Close())
		receiveAll(t, subscribe(t, newSubscriber(t, broker, consumer, 1)), "a1")
		assert.Equal(t, 100*time.Millisecond, time.Since(at))
	})
}

// TestMemory_H20_KeyMovesOnceItsMessagesAreSettled: a member that joins gets its
// share of the keys, each only after the old member has none of its messages;
// until then nobody gets more of it.
func TestMemory_H20_KeyMovesOnceItsMessagesAreSettled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := newBroker(t, memory.Config{})
		const keys = 40
		old := subscribe(t, newSubscriber(t, broker, consumer, 2*keys))
		publishRound(t, broker, keys, 1)
		publishRound(t, broker, keys, 2)
		held := receiveRound(t, old, 2*keys)

		joined := subscribe(t, newSubscriber(t, broker, consumer, keys))
		publishRound(t, broker, keys, 3)
		for _, msg := range held[:keys] {
			ack(t, msg)
		}
		synctest.Wait()
		requireNothing(t, joined, "the old member has a message of every key")

		for _, msg := range held[keys:] {
			ack(t, msg)
		}
		var moved, stayed int
		for range keys {
			select {
			case msg := <-joined:
				ack(t, msg)
				moved++
			case msg := <-old:
				ack(t, msg)
				stayed++
			}
		}
		assert.Greater(t, moved, keys/5, "a share of the keys")
		assert.Greater(t, stayed, keys/5, "a share of the keys")
	})
}

// TestMemory_KeysOfAMemberThatLeavesMove: what it had in hand goes first.
func TestMemory_KeysOfAMemberThatLeavesMove(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := newBroker(t, memory.Config{})
		const keys = 20
		leaving := newSubscriber(t, broker, consumer, 1)
		left := subscribe(t, leaving)
		stays := subscribe(t, newSubscriber(t, broker, consumer, 2*keys))
		publishRound(t, broker, keys, 1)
		publishRound(t, broker, keys, 2)
		inHand := receive(t, left)
		synctest.Wait()
		require.NoError(t, leaving.Close())
		require.True(t, inHand.Ack(), "too late to count")

		received := receiveRound(t, stays, 2*keys)
		ids := idsOf(received)
		assert.Contains(t, ids, inHand.UUID)
		seen := map[string]int{}
		for _, id := range ids {
			key, n := id[:len(id)-1], int(id[len(id)-1]-'0')
			assert.Equal(t, seen[key]+1, n, "key %s", key)
			seen[key] = n
		}
	})
}

// TestMemory_KeylessGoToAnyMember: also past a message of theirs that waits.
func TestMemory_KeylessGoToAnyMember(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := newBroker(t, memory.Config{})
		one := subscribe(t, newSubscriber(t, broker, consumer, 1))
		two := subscribe(t, newSubscriber(t, broker, consumer, 1))
		publish(t, broker, "1", "2", "3")
		first, second := receive(t, one), receive(t, two)
		assert.ElementsMatch(t, []string{"1", "2"}, []string{first.UUID, second.UUID})
		require.True(t, first.Nack())
		ack(t, receiveAll(t, one, "3")...)
		ack(t, second)
		at := time.Now()
		select {
		case msg := <-one:
			assert.Equal(t, first.UUID, msg.UUID)
		case msg := <-two:
			assert.Equal(t, first.UUID, msg.UUID)
		}
		assert.Equal(t, 100*time.Millisecond, time.Since(at))
	})
}

// TestMemory_NackedGoesToWhoeverIsFree: a member that sleeps takes a message
// whose backoff ends while the member that nacked it is busy.
func TestMemory_NackedGoesToWhoeverIsFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := newBroker(t, memory.Config{})
		one := subscribe(t, newSubscriber(t, broker, consumer, 1))
		two := subscribe(t, newSubscriber(t, broker, consumer, 1))
		publish(t, broker, "1")
		var held *message.Message
		free := one
		select {
		case held = <-one:
			free = two
		case held = <-two:
		}
		publishRound(t, broker, 20, 1)
		ackUntilRest(t, free)

		require.True(t, held.Nack())
		synctest.Wait() // the busy one has a message of its keys that nobody takes off it
		receiveAll(t, free, "1")
	})
}

// ackUntilRest acks messages until no more come.
func ackUntilRest(t *testing.T, msgs <-chan *message.Message) {
	t.Helper()
	for {
		synctest.Wait()
		select {
		case msg := <-msgs:
			ack(t, msg)
		default:
			return
		}
	}
}

// publishRound publishes a message of each key, with ids such as "key-7/1".
func publishRound(t *testing.T, broker *memory.Broker, keys, round int) {
	t.Helper()
	for k := range keys {
		publish(t, broker, fmt.Sprintf("key-%d/%d", k, round))
	}
}

func receiveRound(t *testing.T, msgs <-chan *message.Message, n int) []*message.Message {
	t.Helper()
	received := make([]*message.Message, n)
	for i := range received {
		received[i] = receive(t, msgs)
	}
	return received
}
