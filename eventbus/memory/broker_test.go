package memory_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus/memory"
	"github.com/postbus-io/postbus/schema"
)

func Example() {
	broker, err := memory.New(memory.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	defer func() { _ = broker.Close() }()

	pub, _ := broker.NewPublisher()
	msg := message.NewMessage("01", []byte(`{"order_id":"o-1"}`))
	msg.Metadata.Set(schema.HeaderKey, "o-1")
	fmt.Println("confirmed:", pub.PublishBatch(context.Background(), "orders", []*message.Message{msg})[0] == nil)

	sub, _ := broker.NewSubscriber("payments", []string{"orders"}, 32)
	msgs, _ := sub.Subscribe(context.Background(), "orders")
	received := <-msgs
	fmt.Println("received:", received.UUID, string(received.Payload))
	received.Ack()
	<-received.Context().Done() // the ack has been recorded
	fmt.Println("backlog:", broker.Backlog("payments", "orders"))
	// Output:
	// confirmed: true
	// received: 01 {"order_id":"o-1"}
	// backlog: 0
}

func TestMemory_SaysOnceThatMessagesEndWithTheProcess(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	broker := newBroker(t, memory.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	publish(t, broker, "a1")
	require.NoError(t, broker.Close())
	assert.Equal(t, 1, strings.Count(log.String(), "\n"))
	assert.Contains(t, log.String(), "memory confirms into this process's memory")
}

func TestMemory_ConfigFaultsNameFieldValueAndBound(t *testing.T) {
	t.Parallel()
	_, err := memory.New(memory.Config{
		RetainEntries: -1, RetainBytes: -2, MaxBacklog: -3, MaxBacklogBytes: -4,
		PublishTimeout: -5, NackBackoffMin: -6, NackBackoffMax: -7,
	})
	require.ErrorIs(t, err, schema.ErrInvalidOption)
	for _, fault := range []string{
		"RetainEntries is -1, the least is 1", "RetainBytes is -2, the least is 1",
		"MaxBacklog is -3, the least is 1", "MaxBacklogBytes is -4, the least is 1",
		"PublishTimeout is -5ns, the least is 1ns", "NackBackoffMin is -6ns, the least is 1ns",
		"NackBackoffMax is -7ns, the least is 1ns",
	} {
		assert.ErrorContains(t, err, fault)
	}
	_, err = memory.New(memory.Config{NackBackoffMin: 10, NackBackoffMax: 9})
	require.ErrorContains(t, err, "NackBackoffMax is 9ns, the least is 10ns")
	newBroker(t, memory.Config{NackBackoffMin: 2 * memory.DefaultNackBackoffMax})
}

func TestMemory_SubscriberFaultsComeAllAtOnce(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, memory.Config{})
	_, err := broker.NewSubscriber("No Name", []string{"a b", "twice", "twice"}, 0)
	require.ErrorIs(t, err, schema.ErrInvalidOption)
	for _, fault := range []string{`"No Name"`, `"a b"`, `"twice" is there twice`, "window is 0, the least is 1"} {
		assert.ErrorContains(t, err, fault)
	}
	_, err = broker.NewSubscriber(consumer, nil, 1)
	require.ErrorContains(t, err, "no topics")
}

func TestMemory_SubscribesToDeclaredTopicsOnceAtATime(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, memory.Config{})
	sub := newSubscriber(t, broker, consumer, 1)
	_, err := sub.Subscribe(t.Context(), "undeclared")
	require.ErrorIs(t, err, memory.ErrUndeclaredTopic)

	publish(t, broker, "a1")
	ctx, cancel := context.WithCancel(t.Context())
	msgs, err := sub.Subscribe(ctx, topic)
	require.NoError(t, err)
	_, err = sub.Subscribe(t.Context(), topic)
	require.ErrorIs(t, err, memory.ErrSubscribed)
	held := receive(t, msgs)

	cancel()
	again, err := sub.Subscribe(t.Context(), topic) // while the first one ends
	require.NoError(t, err)
	requireEnd(t, held.Context().Done(), "the first subscription's message")
	ack(t, receiveAll(t, again, "a1")...)
}

// TestMemory_CloseEndsEverything: what publishers and subscribers were given
// out, too, and nothing new is.
func TestMemory_CloseEndsEverything(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, memory.Config{})
	pub := newPublisher(t, broker)
	sub := newSubscriber(t, broker, consumer, 1)
	msgs := subscribe(t, sub)
	publish(t, broker, "a1", "a2")
	held := receive(t, msgs)

	require.NoError(t, broker.Close())
	_, open := <-msgs
	assert.False(t, open)
	require.Error(t, held.Context().Err())
	require.ErrorIs(t, context.Cause(held.Context()), memory.ErrClosed)
	requireBrokerFault(t, pub.Publish(topic, newMessage("a3", "a")), memory.ErrClosed)
	_, err := sub.Subscribe(t.Context(), topic)
	require.ErrorIs(t, err, memory.ErrClosed)
	_, err = broker.NewPublisher()
	require.ErrorIs(t, err, memory.ErrClosed)
	_, err = broker.NewSubscriber(consumer, []string{topic}, 1)
	require.ErrorIs(t, err, memory.ErrClosed)

	require.NoError(t, broker.Close())
	assert.Equal(t, []string{"a1", "a2"}, idsOf(broker.Messages(topic)))
	assert.Equal(t, 2, broker.Backlog(consumer, topic))
	assert.Equal(t, "memory", broker.Kind())
}

// BenchmarkBroker is one message published, handed out and acked, with the
// window that services use and 64 keys.
func BenchmarkBroker(b *testing.B) {
	broker := newBroker(b, memory.Config{})
	pub := newPublisher(b, broker)
	msgs := subscribe(b, newSubscriber(b, broker, consumer, 32))
	batch := make([]*message.Message, 64)
	for i := range batch {
		batch[i] = newMessage("id", fmt.Sprintf("key-%d", i))
	}
	for b.Loop() {
		pub.PublishBatch(b.Context(), topic, batch)
		for range batch {
			(<-msgs).Ack()
		}
	}
	b.ReportMetric(float64(b.N*len(batch))/b.Elapsed().Seconds(), "messages/s")
}
