//go:build slow

package rabbitmq_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus/rabbitmq"
	"github.com/postbus-io/postbus/schema"
)

// TestRabbitMQ_H26_S18_UnroutableIsTheDestinations: the broker confirms what no
// queue takes, after giving it back.
func TestRabbitMQ_H26_S18_UnroutableIsTheDestinations(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, rabbitmq.Config{})
	topic := fresh("orders")
	pub := newPublisher(t, broker)
	msgs := numbered("", 50)
	for _, err := range publishAll(t, pub, topic, deadline, msgs...) {
		requireClass(t, schema.PublishDestination, err, rabbitmq.ErrUnroutable)
	}

	received := subscribe(t, newSubscriber(t, broker, "payments", topic, 64), topic)
	for _, err := range publishAll(t, pub, topic, deadline, msgs...) {
		require.NoError(t, err)
	}
	ids := map[string]bool{}
	for range msgs {
		msg := receive(t, received)
		ids[msg.UUID] = true
		msg.Ack()
	}
	require.Len(t, ids, len(msgs))
}

// TestRabbitMQ_H26_SomeUnroutable: of a batch, exactly those without a queue
// fail.
func TestRabbitMQ_H26_SomeUnroutable(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, rabbitmq.Config{Queues: 2})
	topic := fresh("orders")
	introduce(t, broker, "payments", topic)
	require.NoError(t, manage(http.MethodDelete, "queues/"+host+"/"+rabbitmq.QueueName("payments", topic, 1), nil, nil))
	var msgs []*message.Message
	for i := range 200 {
		msgs = append(msgs, newMessage(fmt.Sprint(i), fmt.Sprint(i)))
	}
	for i, err := range publishAll(t, newPublisher(t, broker), topic, deadline, msgs...) {
		if rabbitmq.Bucket(msgs[i].UUID, msgs[i].UUID)%2 == 1 {
			requireClass(t, schema.PublishDestination, err, rabbitmq.ErrUnroutable)
		} else {
			require.NoError(t, err)
		}
	}
}

// TestRabbitMQ_H25_HalfOpenPublishEndsByItsDeadline: the peer is there and
// says nothing, reads nothing.
func TestRabbitMQ_H25_HalfOpenPublishEndsByItsDeadline(t *testing.T) {
	t.Parallel()
	proxy := newProxy(t, needBroker(t))
	broker := newBroker(t, rabbitmq.Config{URL: proxy.url, Heartbeat: time.Minute, PublishTimeout: time.Second, MaxMessageBytes: 32 << 20})
	topic := fresh("orders")
	introduce(t, broker, "payments", topic)
	pub := newPublisher(t, broker)
	require.NoError(t, publishOne(t, pub, topic, newMessage("1", "")))

	proxy.goDeaf()
	started := time.Now()
	requireClass(t, schema.PublishBroker, publishAll(t, pub, topic, 200*time.Millisecond, newMessage("2", ""))[0], context.DeadlineExceeded)
	large := message.NewMessage("", bytes.Repeat([]byte("x"), 24<<20)) // more than the sockets hold: the write hangs
	err := publishAll(t, pub, topic, 200*time.Millisecond, large)[0]
	requireClass(t, schema.PublishBroker, err, context.DeadlineExceeded)
	require.Less(t, time.Since(started), 2*time.Second)

	require.Eventually(t, func() bool {
		return publishAll(t, pub, topic, 500*time.Millisecond, newMessage("3", ""))[0] == nil
	}, deadline, time.Millisecond, "publishing again over a new connection")
	proxy.goDeaf()
	started = time.Now()
	require.NoError(t, pub.Close())
	require.Less(t, time.Since(started), 5*time.Second, "Close with a peer that says nothing")
}

// TestRabbitMQ_H30_TooLargeIsTheRecords: headers that do not fit a frame would
// end the connection, and with it what others are sending.
func TestRabbitMQ_H30_TooLargeIsTheRecords(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, rabbitmq.Config{})
	topic, other := fresh("orders"), fresh("others")
	msgs := subscribe(t, newSubscriber(t, broker, "payments", topic, 8), topic)
	introduce(t, broker, "payments", other)
	pub := newPublisher(t, broker)

	large := message.NewMessage("large", bytes.Repeat([]byte("x"), 2<<20))
	require.NoError(t, publishOne(t, pub, topic, large))
	require.Equal(t, large.Payload, receive(t, msgs).Payload)

	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // others of the same connection
		defer close(stopped)
		for running := true; running; {
			select {
			case <-stop:
				running = false
			default:
			}
			assert.NoError(t, publishOne(t, pub, other, newMessage("", "")))
		}
	}()
	heavy, many := newMessage("heavy", ""), newMessage("many", "")
	heavy.Metadata.Set("heavy", strings.Repeat("x", 200<<10))
	for i := range 10_000 {
		many.Metadata.Set(fmt.Sprintf("header-%05d", i), "x")
	}
	for range 3 {
		errs := publishAll(t, pub, topic, deadline, newMessage("a", ""), heavy, many, newMessage("b", ""))
		require.NoError(t, errs[0])
		requireClass(t, schema.PublishRecord, errs[1], rabbitmq.ErrMessage)
		requireClass(t, schema.PublishRecord, errs[2], rabbitmq.ErrMessage)
		require.NoError(t, errs[3])
	}
	close(stop)
	requireEnd(t, stopped, "the other publisher")
}

// TestRabbitMQ_H30_LargestHeadersThatFit: the bound is where the broker has it.
func TestRabbitMQ_H30_LargestHeadersThatFit(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, rabbitmq.Config{})
	topic := fresh("orders")
	msgs := subscribe(t, newSubscriber(t, broker, "payments", topic, 8), topic)
	pub := newPublisher(t, broker)
	size, least, most := 0, 100<<10, 200<<10
	for least < most-1 {
		size = (least + most) / 2
		msg := newMessage("id", "key")
		msg.Metadata.Set(schema.HeaderType, "orders.placed")
		msg.Metadata.Set("heavy", strings.Repeat("x", size))
		if err := publishOne(t, pub, topic, msg); err != nil {
			requireClass(t, schema.PublishRecord, err, rabbitmq.ErrMessage)
			most = size
		} else {
			least = size
			receive(t, msgs).Ack()
		}
	}
	require.InDelta(t, 128<<10, least, 500, "headers that the broker took")
}

// TestRabbitMQ_H43_FullQueueIsTheDestinations: a policy bounds the queue. What
// it does not take is refused, and nothing of what it has is dropped.
func TestRabbitMQ_H43_FullQueueIsTheDestinations(t *testing.T) {
	t.Parallel()
	for _, queueType := range []rabbitmq.QueueType{rabbitmq.Quorum, rabbitmq.Classic} {
		t.Run(string(queueType), func(t *testing.T) {
			t.Parallel()
			testFullQueue(t, newBroker(t, rabbitmq.Config{Queues: 1, QueueType: queueType}))
		})
	}
}

func testFullQueue(t *testing.T, broker *rabbitmq.Broker) {
	topic := fresh("orders")
	require.NoError(t, manage(http.MethodPut, "policies/"+host+"/"+topic, map[string]any{
		"pattern": ":" + topic + ":", "definition": map[string]any{"max-length": 10}, "apply-to": "queues",
	}, nil))
	introduce(t, broker, "payments", topic)
	pub := newPublisher(t, broker)
	var confirmed, left []*message.Message
	for _, msg := range numbered("key", 100) {
		if err := publishOne(t, pub, topic, msg); err == nil {
			confirmed = append(confirmed, msg)
		} else {
			requireClass(t, schema.PublishDestination, err, rabbitmq.ErrRejected)
			left = append(left, msg)
		}
	}
	require.GreaterOrEqual(t, len(confirmed), 10)
	require.NotEmpty(t, left)

	msgs := subscribe(t, newSubscriber(t, broker, "payments", topic, 1), topic)
	for _, msg := range confirmed {
		ack(t, receiveAll(t, msgs, msg.UUID)...)
	}
	require.Eventually(t, func() bool { return publishOne(t, pub, topic, left[0]) == nil }, deadline, 10*time.Millisecond, "room again")
}

// TestRabbitMQ_H43_QueuesAreDeclaredSafe asserts what the broker has.
func TestRabbitMQ_H43_QueuesAreDeclaredSafe(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, rabbitmq.Config{Queues: 3})
	topic := fresh("orders")
	introduce(t, broker, "payments", topic)
	bound := map[string]string{}
	for i := range 3 {
		var queue struct {
			Durable   bool           `json:"durable"`
			Arguments map[string]any `json:"arguments"`
		}
		name := rabbitmq.QueueName("payments", topic, i)
		require.NoError(t, manage(http.MethodGet, "queues/"+host+"/"+name, nil, &queue))
		require.True(t, queue.Durable)
		require.Equal(t, map[string]any{
			"x-queue-type": "quorum", "x-single-active-consumer": true, "x-overflow": "reject-publish",
		}, queue.Arguments, "on RabbitMQ 3.x: no limit of deliveries, no TTL, no length")
		var bindings []struct {
			Source string `json:"source"`
			Key    string `json:"routing_key"`
		}
		require.NoError(t, manage(http.MethodGet, "queues/"+host+"/"+name+"/bindings", nil, &bindings))
		for _, b := range bindings {
			if b.Source == topic {
				require.Empty(t, bound[b.Key])
				bound[b.Key] = name
			}
		}
	}
	require.Len(t, bound, rabbitmq.Buckets)
	require.Equal(t, rabbitmq.QueueName("payments", topic, 1), bound["31.#"])
	var exchange struct {
		Type    string `json:"type"`
		Durable bool   `json:"durable"`
	}
	require.NoError(t, manage(http.MethodGet, "exchanges/"+host+"/"+topic, nil, &exchange))
	require.Equal(t, "topic", exchange.Type)
	require.True(t, exchange.Durable)
}

// TestRabbitMQ_S19_ConnectionsClosedWhilePublishing: what was confirmed is
// there, whatever was under way when the connection ended.
func TestRabbitMQ_S19_ConnectionsClosedWhilePublishing(t *testing.T) {
	t.Parallel()
	proxy := newProxy(t, needBroker(t))
	broker := newBroker(t, rabbitmq.Config{URL: proxy.url, ReconnectMin: time.Millisecond, ReconnectMax: 10 * time.Millisecond})
	topic := fresh("orders")
	introduce(t, broker, "payments", topic)
	pub := newPublisher(t, broker)
	confirmed := map[string]bool{}
	failed := 0
	for n := range 100 {
		var batch []*message.Message
		for i := range 50 {
			batch = append(batch, newMessage(fmt.Sprintf("%d-%d", n, i), ""))
		}
		var cutting sync.WaitGroup
		if n%10 == 5 {
			cutting.Go(func() { proxy.cut(false) })
		}
		for i, err := range publishAll(t, pub, topic, deadline, batch...) {
			if err == nil {
				confirmed[batch[i].UUID] = true
				continue
			}
			failed++
			require.Equal(t, schema.PublishBroker, schema.ClassOfPublish(err), "%v", err)
		}
		cutting.Wait()
	}
	require.NoError(t, publishOne(t, pub, topic, newMessage("last", "")))
	confirmed["last"] = true
	t.Logf("confirmed %d, failed %d", len(confirmed), failed)

	msgs := subscribe(t, newSubscriber(t, broker, "payments", topic, 64), topic)
	for len(confirmed) > 0 {
		msg := receive(t, msgs)
		delete(confirmed, msg.UUID)
		msg.Ack()
	}
}

// TestRabbitMQ_PublishToAnExchangeOfAnotherType: the error names it.
func TestRabbitMQ_PublishToAnExchangeOfAnotherType(t *testing.T) {
	t.Parallel()
	topic := fresh("orders")
	withChannel(t, func(ch *amqp.Channel) {
		require.NoError(t, ch.ExchangeDeclare(topic, amqp.ExchangeFanout, true, false, false, false, nil))
	})
	err := publishOne(t, newPublisher(t, newBroker(t, rabbitmq.Config{})), topic, newMessage("1", ""))
	requireClass(t, schema.PublishDestination, err, rabbitmq.ErrMismatch)
	require.ErrorContains(t, err, "exchange "+topic)
	require.ErrorContains(t, err, "'type'")
}

// TestRabbitMQ_PublishAfterTheExchangeWasDeleted: the topic's channel dies, the
// next one declares the exchange again.
func TestRabbitMQ_PublishAfterTheExchangeWasDeleted(t *testing.T) {
	t.Parallel()
	topic := fresh("orders")
	pub := newPublisher(t, newBroker(t, rabbitmq.Config{}))
	requireClass(t, schema.PublishDestination, publishOne(t, pub, topic, newMessage("1", "")), rabbitmq.ErrUnroutable)
	withChannel(t, func(ch *amqp.Channel) { require.NoError(t, ch.ExchangeDelete(topic, false, false)) })
	requireClass(t, schema.PublishDestination, publishOne(t, pub, topic, newMessage("1", "")), rabbitmq.ErrLost)
	requireClass(t, schema.PublishDestination, publishOne(t, pub, topic, newMessage("1", "")), rabbitmq.ErrUnroutable)
}

// withChannel calls f with a channel of a connection of the test's own.
func withChannel(t *testing.T, f func(*amqp.Channel)) {
	t.Helper()
	conn, err := amqp.Dial(string(needBroker(t)))
	require.NoError(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(t, err)
	f(ch)
}
