//go:build slow

package rabbitmq_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus/rabbitmq"
	"github.com/postbus-io/postbus/schema"
)

// TestRabbitMQ_H18_NackKeepsTheOrder: nothing is given back to the queue, which
// would let later messages overtake.
func TestRabbitMQ_H18_NackKeepsTheOrder(t *testing.T) {
	t.Parallel()
	for _, queueType := range []rabbitmq.QueueType{rabbitmq.Quorum, rabbitmq.Classic} {
		for _, window := range []int{1, 10} {
			t.Run(fmt.Sprintf("%s window %d", queueType, window), func(t *testing.T) {
				t.Parallel()
				testNackOrder(t, newBroker(t, rabbitmq.Config{QueueType: queueType}), window)
			})
		}
	}
}

func testNackOrder(t *testing.T, broker *rabbitmq.Broker, window int) {
	topic := fresh("orders")
	introduce(t, broker, "payments", topic)
	publish(t, broker, topic, numbered("key", 8)...)
	msgs := subscribe(t, newSubscriber(t, broker, "payments", topic, window), topic)
	var handled []string
	for nacks := 0; len(handled) < 10; {
		msg := receive(t, msgs)
		handled = append(handled, msg.UUID)
		if msg.UUID == "3" && nacks < 2 {
			nacks++
			require.True(t, msg.Nack())
		} else {
			require.True(t, msg.Ack())
		}
		requireEnd(t, msg.Context().Done(), msg.UUID)
	}
	require.Equal(t, []string{"1", "2", "3", "3", "3", "4", "5", "6", "7", "8"}, handled)
}

// TestRabbitMQ_H19_StandbyTakesOverInOrder: the active member dies in
// mid-handler; the other one gets that message first.
func TestRabbitMQ_H19_StandbyTakesOverInOrder(t *testing.T) {
	t.Parallel()
	topic, proxy := fresh("orders"), newProxy(t, needBroker(t))
	active := newBroker(t, rabbitmq.Config{URL: proxy.url})
	first := subscribe(t, newSubscriber(t, active, "payments", topic, 4), topic)
	standby := newBroker(t, rabbitmq.Config{})
	second := subscribe(t, newSubscriber(t, standby, "payments", topic, 4), topic)
	publish(t, standby, topic, numbered("key", 12)...)

	ack(t, receiveAll(t, first, "1", "2")...)
	held := receiveAll(t, first, "3", "4", "5")
	ack(t, held[1])
	requireQuiet(t, second, "the other member is the active one")
	proxy.cut(true)
	for _, msg := range []*message.Message{held[0], held[2]} {
		requireEnd(t, msg.Context().Done(), "the context of a revoked message")
		require.ErrorIs(t, context.Cause(msg.Context()), schema.ErrRevoked)
		require.True(t, msg.Ack(), "too late")
	}
	for _, id := range []string{"3", "5", "6", "7", "8", "9", "10", "11", "12"} {
		ack(t, receiveAll(t, second, id)...)
	}
	requireQuiet(t, second, "all are done")
	requireQuiet(t, first, "nothing of a dead connection, and no message that nobody sent")
}

// TestRabbitMQ_H42_ManyRedeliveries: deliveries are not counted to a death.
func TestRabbitMQ_H42_ManyRedeliveries(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, rabbitmq.Config{Queues: 1})
	topic := fresh("orders")
	introduce(t, broker, "payments", topic)
	publish(t, broker, topic, newMessage("1", "key"), newMessage("2", "key"))
	for range 30 {
		sub := newSubscriber(t, broker, "payments", topic, 4)
		msgs := subscribe(t, sub, topic)
		msg := receiveAll(t, msgs, "1", "2")[0]
		require.Equal(t, message.Metadata{schema.HeaderKey: "key"}, msg.Metadata, "headers when handed out again")
		require.NoError(t, sub.Close())
	}
	msgs := subscribe(t, newSubscriber(t, broker, "payments", topic, 4), topic)
	ack(t, receiveAll(t, msgs, "1", "2")...)
}

// TestRabbitMQ_RevokedIsHandedOutAgain: the subscription outlives connections
// that are cut; nothing is lost, and nothing comes that nobody sent.
func TestRabbitMQ_RevokedIsHandedOutAgain(t *testing.T) {
	t.Parallel()
	proxy := newProxy(t, needBroker(t))
	broker := newBroker(t, rabbitmq.Config{URL: proxy.url, Heartbeat: 2 * time.Second})
	topic := fresh("orders")
	msgs := subscribe(t, newSubscriber(t, broker, "payments", topic, 3), topic)
	publish(t, broker, topic, numbered("key", 5)...)
	for _, lose := range []func(){func() { proxy.cut(false) }, proxy.goDeaf, func() { proxy.cut(false) }} {
		held := receiveAll(t, msgs, "1", "2", "3")
		lose()
		for _, msg := range held {
			requireEnd(t, msg.Context().Done(), "the context of a revoked message")
			require.ErrorIs(t, context.Cause(msg.Context()), schema.ErrRevoked)
		}
		require.True(t, held[0].Ack(), "too late")
		require.True(t, held[1].Nack(), "too late")
	}
	for _, id := range []string{"1", "2", "3", "4", "5"} {
		ack(t, receiveAll(t, msgs, id)...)
	}
	requireQuiet(t, msgs, "all are done")
}

// TestRabbitMQ_QueueDeletedWhileConsuming: the broker cancels the consumer
// only; the queue is declared again.
func TestRabbitMQ_QueueDeletedWhileConsuming(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, rabbitmq.Config{Queues: 1})
	topic := fresh("orders")
	msgs := subscribe(t, newSubscriber(t, broker, "payments", topic, 3), topic)
	publish(t, broker, topic, newMessage("1", "key"))
	held := receive(t, msgs)
	require.NoError(t, manage(http.MethodDelete, "queues/"+host+"/"+rabbitmq.QueueName("payments", topic, 0), nil, nil))
	requireEnd(t, held.Context().Done(), "the context of a message whose queue is gone")
	require.ErrorIs(t, context.Cause(held.Context()), schema.ErrRevoked)
	pub := newPublisher(t, broker)
	require.Eventually(t, func() bool { return publishOne(t, pub, topic, newMessage("2", "key")) == nil }, deadline, time.Millisecond, "a queue again")
	ack(t, receiveAll(t, msgs, "2")...)
}

// TestRabbitMQ_H92_GivesBackBeforeTheConsumerTimeout: the broker would end the
// channel; the room does it before.
func TestRabbitMQ_H92_GivesBackBeforeTheConsumerTimeout(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	broker := newBroker(t, rabbitmq.Config{Queues: 1, ConsumerTimeout: 2 * time.Second, Logger: log.logger()})
	topic := fresh("orders")
	msgs := subscribe(t, newSubscriber(t, broker, "payments", topic, 2), topic)
	publish(t, broker, topic, numbered("key", 3)...)
	held := receiveAll(t, msgs, "1", "2")
	requireEnd(t, held[0].Context().Done(), "the context of a message that is held too long")
	require.ErrorIs(t, context.Cause(held[1].Context()), schema.ErrRevoked)
	require.Contains(t, log.String(), "message_id=1")
	for _, id := range []string{"1", "2", "3"} {
		ack(t, receiveAll(t, msgs, id)...)
	}
}

// TestRabbitMQ_DrainGivesBackNoAck: what was acked before Close stays acked,
// the rest comes in order, to the standby.
func TestRabbitMQ_DrainGivesBackNoAck(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, rabbitmq.Config{Queues: 1})
	topic := fresh("orders")
	sub := newSubscriber(t, broker, "payments", topic, 4)
	first := subscribe(t, sub, topic)
	second := subscribe(t, newSubscriber(t, broker, "payments", topic, 4), topic)
	const all = 30 // more than are on their way
	publish(t, broker, topic, numbered("key", all)...)
	held := receiveAll(t, first, "1", "2", "3", "4")
	require.True(t, held[0].Ack())
	require.True(t, held[2].Ack())
	require.NoError(t, sub.Close())
	require.ErrorIs(t, context.Cause(held[1].Context()), rabbitmq.ErrClosed)
	require.True(t, held[1].Ack(), "too late")
	for n := range all {
		if n+1 != 1 && n+1 != 3 {
			ack(t, receiveAll(t, second, fmt.Sprint(n+1))...)
		}
	}
}

// TestRabbitMQ_MismatchNamesQueueAndSetting: the queues were declared
// otherwise.
func TestRabbitMQ_MismatchNamesQueueAndSetting(t *testing.T) {
	t.Parallel()
	topic := fresh("orders")
	introduce(t, newBroker(t, rabbitmq.Config{Queues: 1, QueueType: rabbitmq.Classic}), "payments", topic)
	sub := newSubscriber(t, newBroker(t, rabbitmq.Config{Queues: 1}), "payments", topic, 1)
	_, err := sub.Subscribe(context.Background(), topic)
	require.ErrorIs(t, err, rabbitmq.ErrMismatch)
	require.ErrorContains(t, err, "queue "+rabbitmq.QueueName("payments", topic, 0))
	require.ErrorContains(t, err, "'x-queue-type'")
	require.NoError(t, sub.Close())
}

// TestRabbitMQ_QueuesTellConsumersApart: the names of two would be one, joined
// by dots.
func TestRabbitMQ_QueuesTellConsumersApart(t *testing.T) {
	t.Parallel()
	require.NotEqual(t, rabbitmq.QueueName("a.b", "c", 0), rabbitmq.QueueName("a", "b.c", 0))
}
