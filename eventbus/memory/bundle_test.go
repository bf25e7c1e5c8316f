package memory_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus/memory"
	"github.com/postbus-io/postbus/schema"
)

const (
	topic    = "orders"
	consumer = "payments"
	deadline = 10 * time.Second
)

func newBroker(t testing.TB, config memory.Config) *memory.Broker {
	t.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	broker, err := memory.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	return broker
}

func newPublisher(t testing.TB, broker *memory.Broker) schema.Publisher {
	t.Helper()
	pub, err := broker.NewPublisher()
	require.NoError(t, err)
	return pub
}

func newSubscriber(t testing.TB, broker *memory.Broker, consumer string, window int) message.Subscriber {
	t.Helper()
	sub, err := broker.NewSubscriber(consumer, []string{topic}, window)
	require.NoError(t, err)
	return sub
}

func subscribe(t testing.TB, sub message.Subscriber) <-chan *message.Message {
	t.Helper()
	msgs, err := sub.Subscribe(context.Background(), topic)
	require.NoError(t, err)
	return msgs
}

// newMessage returns a message whose payload is its id.
func newMessage(id, key string) *message.Message {
	msg := message.NewMessage(id, []byte(id))
	if key != "" {
		msg.Metadata.Set(schema.HeaderKey, key)
	}
	return msg
}

// publish sends one message after the other: "a1" has the id "a1" and the key
// "a", "1" has no key.
func publish(t testing.TB, broker *memory.Broker, ids ...string) {
	t.Helper()
	pub := newPublisher(t, broker)
	for _, id := range ids {
		require.NoError(t, pub.Publish(topic, newMessage(id, id[:len(id)-1])))
	}
	require.NoError(t, pub.Close())
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

// ack acks and waits until the broker has recorded it.
func ack(t testing.TB, msgs ...*message.Message) {
	t.Helper()
	for _, msg := range msgs {
		require.True(t, msg.Ack())
		requireEnd(t, msg.Context().Done(), fmt.Sprintf("ack of %s", msg.UUID))
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

// requireNothing looks whether a message is there now: only for synctest, where
// everything else has come to rest.
func requireNothing(t testing.TB, msgs <-chan *message.Message, why string) {
	t.Helper()
	select {
	case msg := <-msgs:
		require.FailNow(t, "handed out "+msg.UUID, why)
	default:
	}
}

func idsOf(msgs []*message.Message) []string { return message.Messages(msgs).IDs() }
