//go:build slow

package kafka_test

import (
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// TestKafka_Wire_StockReadsOurs: a watermill-kafka subscriber gets what our
// publisher sent, as it was.
func TestKafka_Wire_StockReadsOurs(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	topic := newTopic(t, brokers, 2)
	sent := newMessage("a1", "a")
	sent.Metadata.Set("header", "ünï")
	sent.Metadata.Set(schema.HeaderType, "orders.placed")
	require.NoError(t, publishOne(t, newPublisher(t, newBroker(t, testConfig(brokers))), topic, sent))

	conf := stock.DefaultSaramaSubscriberConfig()
	conf.Consumer.Offsets.Initial = sarama.OffsetOldest
	sub, err := stock.NewSubscriber(stock.SubscriberConfig{
		Brokers: brokers, ConsumerGroup: freshName("stock"), Unmarshaler: stock.DefaultMarshaler{}, OverwriteSaramaConfig: conf,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	msgs, err := sub.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	got := receive(t, msgs)
	got.Ack()
	assert.True(t, sent.Equals(got))
	require.NoError(t, sub.Close())
}

// TestKafka_Wire_OursReadsStock: our subscriber gets what watermill-kafka's
// publisher sent, as it was. A key that its marshaler made is the message's.
func TestKafka_Wire_OursReadsStock(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	topic := newTopic(t, brokers, 1)
	byKey := stock.NewWithPartitioningMarshaler(func(string, *message.Message) (string, error) { return "their-key", nil })
	var sent []*message.Message
	for _, marshaler := range []stock.Marshaler{stock.DefaultMarshaler{}, byKey} {
		pub, err := stock.NewPublisher(stock.PublisherConfig{Brokers: brokers, Marshaler: marshaler}, watermill.NopLogger{})
		require.NoError(t, err)
		msg := message.NewMessage(watermill.NewUUID(), []byte("payload"))
		msg.Metadata.Set("header", "ünï")
		require.NoError(t, pub.Publish(topic, msg))
		require.NoError(t, pub.Close())
		sent = append(sent, msg)
	}
	_, msgs := subscribe(t, newBroker(t, testConfig(brokers)), freshName("consumer"), topic, 4)
	for i, key := range []string{"", "their-key"} {
		got := receive(t, msgs)
		assert.Equal(t, key, schema.Key(got))
		assert.True(t, schema.IsForeign(got))
		delete(got.Metadata, schema.HeaderKey)
		assert.True(t, sent[i].Equals(got), "%v", got)
		got.Ack()
	}
}
