//go:build slow

package rabbitmq_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus/rabbitmq"
	"github.com/postbus-io/postbus/schema"
)

const deadline = 20 * time.Second

func newBroker(t testing.TB, config rabbitmq.Config) *rabbitmq.Broker {
	t.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.URL == "" {
		config.URL = needBroker(t)
	}
	broker, err := rabbitmq.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	return broker
}

func newPublisher(t testing.TB, broker *rabbitmq.Broker) schema.Publisher {
	t.Helper()
	pub, err := broker.NewPublisher()
	require.NoError(t, err)
	return pub
}

func newSubscriber(t testing.TB, broker *rabbitmq.Broker, consumer, topic string, window int) message.Subscriber {
	t.Helper()
	sub, err := broker.NewSubscriber(consumer, []string{topic}, window)
	require.NoError(t, err)
	return sub
}

func subscribe(t testing.TB, sub message.Subscriber, topic string) <-chan *message.Message {
	t.Helper()
	msgs, err := sub.Subscribe(context.Background(), topic)
	require.NoError(t, err)
	return msgs
}

// introduce makes the queues.
func introduce(t testing.TB, broker *rabbitmq.Broker, consumer, topic string) {
	t.Helper()
	sub := newSubscriber(t, broker, consumer, topic, 1)
	subscribe(t, sub, topic)
	require.NoError(t, sub.Close())
}

func fresh(what string) string { return what + "-" + strings.ToLower(watermill.NewULID()) }

// newMessage returns a message whose payload is its id.
func newMessage(id, key string) *message.Message {
	msg := message.NewMessage(id, []byte(id))
	if key != "" {
		msg.Metadata.Set(schema.HeaderKey, key)
	}
	return msg
}

// numbered returns n messages of one key with the ids 1, 2, 3 ...
func numbered(key string, n int) (msgs []*message.Message) {
	for i := range n {
		msgs = append(msgs, newMessage(fmt.Sprint(i+1), key))
	}
	return msgs
}

// publish sends one message after the other.
func publish(t testing.TB, broker *rabbitmq.Broker, topic string, msgs ...*message.Message) {
	t.Helper()
	pub := newPublisher(t, broker)
	for _, msg := range msgs {
		require.NoError(t, publishOne(t, pub, topic, msg))
	}
	require.NoError(t, pub.Close())
}

func publishOne(t testing.TB, pub schema.Publisher, topic string, msg *message.Message) error {
	t.Helper()
	return publishAll(t, pub, topic, deadline, msg)[0]
}

func publishAll(t testing.TB, pub schema.Publisher, topic string, limit time.Duration, msgs ...*message.Message) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	errs := pub.PublishBatch(ctx, topic, msgs)
	require.Len(t, errs, len(msgs))
	return errs
}

func receive(t testing.TB, msgs <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, ok := <-msgs:
		require.True(t, ok, "the subscription ended")
		return msg
	case <-time.After(deadline):
		require.FailNow(t, "no message", "within %s", deadline)
		return nil
	}
}

// receiveAll receives these messages in this order and acks none.
func receiveAll(t testing.TB, msgs <-chan *message.Message, ids ...string) []*message.Message {
	t.Helper()
	var received []*message.Message
	for i, id := range ids {
		received = append(received, receive(t, msgs))
		require.Equal(t, id, received[i].UUID)
	}
	return received
}

// ack acks and waits until that has been sent.
func ack(t testing.TB, msgs ...*message.Message) {
	t.Helper()
	for _, msg := range msgs {
		require.True(t, msg.Ack())
		requireEnd(t, msg.Context().Done(), "ack of "+msg.UUID)
	}
}

func requireEnd(t testing.TB, ended <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(deadline):
		require.FailNow(t, what+" did not end", "within %s", deadline)
	}
}

// requireQuiet looks for a while whether something is handed out.
func requireQuiet(t testing.TB, msgs <-chan *message.Message, why string) {
	t.Helper()
	select {
	case msg := <-msgs:
		require.FailNow(t, "handed out "+msg.UUID, why)
	case <-time.After(150 * time.Millisecond):
	}
}

func requireClass(t testing.TB, class schema.PublishClass, err, is error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, class, schema.ClassOfPublish(err), "%v", err)
	require.ErrorIs(t, err, is)
}
