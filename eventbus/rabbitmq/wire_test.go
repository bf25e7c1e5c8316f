//go:build slow

package rabbitmq_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus/rabbitmq"
	"github.com/postbus-io/postbus/schema"
)

// stockConfig is watermill-amqp's for an exchange of ours: the exchange's type
// is to be told, and the queue to be bound to every routing key. It publishes
// with the routing key that is given.
func stockConfig(t *testing.T, routingKey string) wmamqp.Config {
	config := wmamqp.NewDurablePubSubConfig(string(needBroker(t)), wmamqp.GenerateQueueNameTopicNameWithSuffix("stock"))
	config.Exchange.Type = amqp.ExchangeTopic
	config.QueueBind.GenerateRoutingKey = func(string) string { return "#" }
	config.Publish.GenerateRoutingKey = func(string) string { return routingKey }
	return config
}

// TestRabbitMQ_Wire_StockConsumerReadsOurs: watermill-amqp's subscriber, bound
// to our exchange.
func TestRabbitMQ_Wire_StockConsumerReadsOurs(t *testing.T) {
	t.Parallel()
	topic := fresh("orders")
	stock, err := wmamqp.NewSubscriber(stockConfig(t, ""), watermill.NopLogger{})
	require.NoError(t, err)
	defer stock.Close()
	msgs, err := stock.Subscribe(context.Background(), topic)
	require.NoError(t, err)

	sent := newMessage("id ☃", "key")
	sent.Metadata.Set(schema.HeaderType, "orders.placed")
	sent.Metadata.Set("header", "ünï")
	publish(t, newBroker(t, rabbitmq.Config{}), topic, sent)
	received := receive(t, msgs)
	require.Equal(t, sent.UUID, received.UUID)
	require.Equal(t, sent.Metadata, received.Metadata)
	require.Equal(t, sent.Payload, received.Payload)
	received.Ack()
}

// TestRabbitMQ_Wire_OursReadsStockPublisher: watermill-amqp's publisher, with a
// routing key that begins with a bucket.
func TestRabbitMQ_Wire_OursReadsStockPublisher(t *testing.T) {
	t.Parallel()
	topic := fresh("orders")
	msgs := subscribe(t, newSubscriber(t, newBroker(t, rabbitmq.Config{}), "payments", topic, 8), topic)
	stock, err := wmamqp.NewPublisher(stockConfig(t, rabbitmq.RoutingKey("id", "key", "")), watermill.NopLogger{})
	require.NoError(t, err)
	defer stock.Close()

	sent := newMessage("id", "key")
	sent.Metadata.Set("header", "ünï")
	require.NoError(t, stock.Publish(topic, sent))
	received := receive(t, msgs)
	require.Equal(t, sent.UUID, received.UUID)
	require.Equal(t, sent.Metadata, received.Metadata)
	require.Equal(t, sent.Payload, received.Payload)
	require.True(t, schema.IsForeign(received))
}

// TestRabbitMQ_Wire_Properties: what people and tools of other languages read.
func TestRabbitMQ_Wire_Properties(t *testing.T) {
	t.Parallel()
	topic := fresh("orders")
	broker := newBroker(t, rabbitmq.Config{ConnectionName: "shop"})
	msg := newMessage("id", "key")
	msg.Metadata.Set(schema.HeaderType, "orders.placed")
	msg.Metadata.Set(schema.HeaderContentType, "application/json")
	withChannel(t, func(ch *amqp.Channel) {
		require.NoError(t, ch.ExchangeDeclare(topic, amqp.ExchangeTopic, true, false, false, false, nil))
		queue, err := ch.QueueDeclare("", false, true, true, false, nil)
		require.NoError(t, err)
		require.NoError(t, ch.QueueBind(queue.Name, "#.orders.placed", topic, false, nil))
		publish(t, broker, topic, msg)
		d, ok, err := ch.Get(queue.Name, true)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, "id", d.MessageId)
		require.Equal(t, "orders.placed", d.Type)
		require.Equal(t, "application/json", d.ContentType)
		require.Equal(t, "shop", d.AppId)
		require.Equal(t, amqp.Persistent, d.DeliveryMode)
		require.WithinDuration(t, time.Now(), d.Timestamp, time.Minute)
		require.Equal(t, rabbitmq.RoutingKey("id", "key", "orders.placed"), d.RoutingKey)
		require.Equal(t, amqp.Table{
			"_watermill_message_uuid": "id", schema.HeaderKey: "key",
			schema.HeaderType: "orders.placed", schema.HeaderContentType: "application/json",
		}, d.Headers)
	})
}

// TestRabbitMQ_H53_H104_ForeignMessagesComeOnceEach: whatever is in the queue is
// handed out, with an id of its own that stays the same, and never makes the
// queue stand still.
func TestRabbitMQ_H53_H104_ForeignMessagesComeOnceEach(t *testing.T) {
	t.Parallel()
	topic := fresh("orders")
	broker := newBroker(t, rabbitmq.Config{Queues: 1})
	sub := newSubscriber(t, broker, "payments", topic, 16)
	introduce(t, broker, "payments", topic)
	foreign := []amqp.Publishing{
		{Body: []byte("1")},
		{Body: []byte("2")},
		{Body: []byte{0xff, 0x00}, Headers: amqp.Table{"raw": []byte{0xff, 0x00}, "text": string([]byte{'a', 0xff, 0x00})}},
		{Headers: amqp.Table{"_watermill_message_uuid": int64(7), "n": int64(1 << 60), "b": true, "f": 1.5, "none": nil}},
		{Headers: amqp.Table{"time": time.Unix(0, 0), "table": amqp.Table{"a": int32(1)}, "list": []any{"x", int32(2)}}},
		{Headers: amqp.Table{"x-death": []any{amqp.Table{"count": int64(3)}}, "x-first-death-queue": "q", "x-delivery-count": int64(9)}},
		{MessageId: "its own id", Headers: amqp.Table{schema.HeaderKey: int32(5)}},
		{MessageId: string([]byte{0xff}), Headers: amqp.Table{"_watermill_message_uuid": string(bytes.Repeat([]byte("x"), 300))}},
	}
	withChannel(t, func(ch *amqp.Channel) {
		require.NoError(t, ch.Confirm(false))
		for i, publishing := range foreign {
			confirmed, err := ch.PublishWithDeferredConfirm(topic, fmt.Sprint(i), true, false, publishing)
			require.NoError(t, err)
			require.True(t, confirmed.Wait())
		}
	})
	publish(t, broker, topic, newMessage("ours", "key"))

	var first []*message.Message
	msgs := subscribe(t, sub, topic)
	ids := map[string]bool{}
	for range foreign {
		msg := receive(t, msgs)
		require.NotEmpty(t, msg.UUID)
		require.True(t, schema.IsForeign(msg))
		ids[msg.UUID] = true
		first = append(first, msg)
	}
	require.Len(t, ids, len(foreign))
	receiveAll(t, msgs, "ours")
	require.Equal(t, message.Metadata{"raw": "\uFFFD\uFFFD", "text": "a\uFFFD\uFFFD"}, first[2].Metadata)
	require.Equal(t, []byte{0xff, 0x00}, []byte(first[2].Payload))
	require.Equal(t, message.Metadata{"n": "1152921504606846976", "b": "true", "f": "1.5", "none": ""}, first[3].Metadata)
	require.Equal(t, message.Metadata{"time": "1970-01-01T00:00:00Z", "table": `{"a":1}`, "list": `["x",2]`}, first[4].Metadata)
	require.Empty(t, first[5].Metadata)
	require.Equal(t, "its own id", first[6].UUID)
	require.NoError(t, sub.Close())

	msgs = subscribe(t, newSubscriber(t, broker, "payments", topic, 16), topic)
	for _, msg := range first {
		again := receive(t, msgs)
		require.Equal(t, msg.UUID, again.UUID, "the id when handed out again")
		require.Equal(t, msg.Metadata, again.Metadata)
		ack(t, again)
	}
	ack(t, receiveAll(t, msgs, "ours")...)
}
