//go:build slow

package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus/kafka"
	"github.com/postbus-io/postbus/schema"
)

// A network opens connections and can cut them.
type network struct {
	down atomic.Bool

	mu    sync.Mutex
	conns []net.Conn
	dials int
}

var errDown = &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("down for the test")}

func (n *network) dial(kind, address string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dials++
	if n.down.Load() {
		return nil, errDown
	}
	conn, err := (&net.Dialer{Timeout: deadline}).Dial(kind, address)
	if err == nil {
		n.conns = append(n.conns, conn)
	}
	return conn, err
}

func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, conn := range n.conns {
		_ = conn.Close()
	}
	n.conns = nil
}

func (n *network) dialed() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials
}

// TestKafka_H16_H61_OrderWhenConnectionsBreak: a publisher that has one
// unconfirmed message of a key, and repeats what was not confirmed, leaves the
// first occurrences of every key in their order, and loses none.
func TestKafka_H16_H61_OrderWhenConnectionsBreak(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	topic := newTopic(t, brokers, 3)
	wire := &network{}
	pub := newPublisher(t, newBroker(t, testConfig(brokers).WithDialer(wire.dial)))
	const keys, each, cutEvery = 8, 60, 6
	for n := range each {
		var wave []*message.Message
		for k := range keys {
			wave = append(wave, newMessage(fmt.Sprintf("%d-%02d", k, n), fmt.Sprintf("key-%d", k)))
		}
		if n%cutEvery == cutEvery-1 {
			time.AfterFunc(time.Duration(n%4)*time.Millisecond, wire.cut)
		}
		publishAll(t, pub, topic, wave)
	}
	assert.Greater(t, wire.dialed(), each/cutEvery, "connections were cut")
	require.NoError(t, pub.Close())
	requireFirstInOrder(t, records(t, brokers, topic), keys, each)
}

// publishAll repeats what is not confirmed until everything is.
func publishAll(t *testing.T, pub schema.Publisher, topic string, wave []*message.Message) {
	t.Helper()
	ctx := withTimeout(t)
	for len(wave) > 0 {
		require.NoError(t, ctx.Err())
		left := wave[:0:0]
		for i, err := range pub.PublishBatch(ctx, topic, wave) {
			if err != nil {
				require.Contains(t, []schema.PublishClass{schema.PublishBroker, schema.PublishDestination}, schema.ClassOfPublish(err), "%v", err)
				left = append(left, wave[i])
			}
		}
		wave = left
	}
}

// requireFirstInOrder looks at payloads "<key>-<number>".
func requireFirstInOrder(t *testing.T, log [][]*sarama.ConsumerMessage, keys, each int) {
	t.Helper()
	next := make([]int, keys)
	for _, partition := range log {
		for _, record := range partition {
			var key, n int
			_, err := fmt.Sscanf(string(record.Value), "%d-%d", &key, &n)
			require.NoError(t, err)
			require.LessOrEqual(t, n, next[key], "key %d: %d before %d", key, n, next[key])
			next[key] = max(next[key], n+1)
		}
	}
	for key, n := range next {
		require.Equal(t, each, n, "key %d", key)
	}
}

// TestKafka_H29_UnknownTopicIsTheDestinationsFault, and does not come into
// being by being published or subscribed to. It is used once it exists.
func TestKafka_H29_UnknownTopicIsTheDestinationsFault(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	config, log := configWithLog(brokers)
	broker := newBroker(t, config)
	topic := freshName("typo")
	pub := newPublisher(t, broker)
	for range 5 { // no breaker of the client library gets in the way
		started := time.Now()
		err := publishOne(t, pub, topic, newMessage("a0", "a"))
		require.Equal(t, schema.PublishDestination, schema.ClassOfPublish(err), "%v", err)
		require.ErrorIs(t, err, sarama.ErrUnknownTopicOrPartition)
		require.Less(t, time.Since(started), 2*time.Second)
	}
	_, msgs := subscribe(t, broker, freshName("consumer"), topic, 1)
	log.awaitText(t, kafka.TextMissing)
	require.NotContains(t, topicNames(t, brokers), topic)

	require.NoError(t, createTopic(brokers, topic, 2))
	require.NoError(t, publishOne(t, pub, topic, newMessage("a1", "a")))
	assert.Equal(t, "a1", receive(t, msgs).UUID)
}

// TestKafka_MissingTopicStopsNoOther: a consumer works on the topics that exist
// and joins for another one when that appears.
func TestKafka_MissingTopicStopsNoOther(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	broker := newBroker(t, testConfig(brokers))
	here, later := newTopic(t, brokers, 2), freshName("later")
	sub, err := broker.NewSubscriber(freshName("consumer"), []string{later, here}, 4)
	require.NoError(t, err)
	fromLater, err := sub.Subscribe(t.Context(), later)
	require.NoError(t, err)
	fromHere, err := sub.Subscribe(t.Context(), here)
	require.NoError(t, err)
	publish(t, broker, here, "a1")
	receive(t, fromHere).Ack()

	require.NoError(t, createTopic(brokers, later, 2))
	publish(t, broker, later, "b1")
	receive(t, fromLater).Ack()
	publish(t, broker, here, "a2")
	for msg := receive(t, fromHere); msg.UUID != "a2"; msg = receive(t, fromHere) {
		msg.Ack()
	}
}

// TestKafka_TopicsAreCreatedWhenThatIsWanted, by a publisher and by a
// subscriber.
func TestKafka_TopicsAreCreatedWhenThatIsWanted(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	config := testConfig(brokers)
	config.Topics = kafka.Topics{Create: true, Partitions: 2, Replication: 1}
	broker := newBroker(t, config)
	published, subscribed := freshName("published"), freshName("subscribed")
	publish(t, broker, published, "a1", "b1")
	require.Len(t, records(t, brokers, published), 2)

	_, msgs := subscribe(t, broker, freshName("consumer"), subscribed, 1)
	require.Eventually(t, func() bool { return slices.Contains(topicNames(t, brokers), subscribed) }, deadline, 50*time.Millisecond)
	publish(t, broker, subscribed, "a1")
	receive(t, msgs).Ack()

	config.Topics.Replication = 3
	err := publishOne(t, newPublisher(t, newBroker(t, config)), freshName("impossible"), newMessage("a1", "a"))
	require.Equal(t, schema.PublishDestination, schema.ClassOfPublish(err), "%v", err)
}

// TestKafka_H30_TooLargeHarmsNoOther: neither for the client nor for a broker
// that takes less than the client, and refuses a request for one record of it.
func TestKafka_H30_TooLargeHarmsNoOther(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	admin, err := newAdmin(brokers)
	require.NoError(t, err)
	defer admin.Close()
	small, most := freshName("small"), "20000"
	require.NoError(t, admin.CreateTopic(small, &sarama.TopicDetail{
		NumPartitions: 1, ReplicationFactor: 1, ConfigEntries: map[string]*string{"max.message.bytes": &most},
	}, false))
	pub := newPublisher(t, newBroker(t, testConfig(brokers)))
	for topic, bytesEach := range map[string]int{newTopic(t, brokers, 1): 2 << 20, small: 30_000} {
		var batch []*message.Message
		for i := range 9 {
			msg := newMessage(fmt.Sprint(i), fmt.Sprintf("key-%d", i))
			msg.Payload = bytes.Repeat([]byte("x"), 3000)
			batch = append(batch, msg)
		}
		batch[4].Payload = bytes.Repeat([]byte("x"), bytesEach)
		require.Eventually(t, func() bool { return publishOne(t, pub, topic, newMessage("first", "")) == nil }, deadline, 50*time.Millisecond)
		for i, err := range pub.PublishBatch(withTimeout(t), topic, batch) {
			if i == 4 {
				require.Equal(t, schema.PublishRecord, schema.ClassOfPublish(err), "%v", err)
			} else {
				require.NoError(t, err, "%s, message %d", topic, i)
			}
		}
	}
}

// TestKafka_H30_ReservedHeaderIsTheRecordsFault: Watermill's adapters refuse it,
// too.
func TestKafka_H30_ReservedHeaderIsTheRecordsFault(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	pub := newPublisher(t, newBroker(t, testConfig(brokers)))
	bad := newMessage("a1", "a")
	bad.Metadata.Set(kafka.HeaderMessageID, "another")
	errs := pub.PublishBatch(withTimeout(t), newTopic(t, brokers, 1), []*message.Message{bad, newMessage("b1", "b")})
	require.Equal(t, schema.PublishRecord, schema.ClassOfPublish(errs[0]))
	require.NoError(t, errs[1])
}

// TestKafka_H25_PublishIsBoundedByItsContext: nothing of what is not confirmed in
// time is an error of the record, nothing blocks, and Close is bounded.
func TestKafka_H25_PublishIsBoundedByItsContext(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	topic := newTopic(t, brokers, 1)
	wire := &network{}
	broker := newBroker(t, testConfig(brokers).WithDialer(wire.dial))
	pub := newPublisher(t, broker)
	require.NoError(t, publishOne(t, pub, topic, newMessage("a1", "a")))
	wire.down.Store(true)
	wire.cut()
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		started := time.Now()
		errs := pub.PublishBatch(ctx, topic, []*message.Message{newMessage("a2", "a"), newMessage("b2", "b")})
		cancel()
		require.Less(t, time.Since(started), time.Second)
		for _, err := range errs {
			require.Equal(t, schema.PublishBroker, schema.ClassOfPublish(err), "%v", err)
		}
	}
	wire.down.Store(false)
	started := time.Now()
	publishAll(t, pub, topic, []*message.Message{newMessage("a2", "a")})
	assert.Less(t, time.Since(started), 5*time.Second, "no breaker of the client library keeps it from coming back")
	require.NoError(t, pub.Close())
}

// TestKafka_DownAtStart: a broker that is down when the process starts is waited
// for, with a line in the log now and then.
func TestKafka_DownAtStart(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	topic := newTopic(t, brokers, 2)
	wire := &network{}
	wire.down.Store(true)
	config, log := configWithLog(brokers)
	broker := newBroker(t, config.WithDialer(wire.dial))
	sub, msgs := subscribe(t, broker, freshName("consumer"), topic, 4)
	pub := newPublisher(t, broker)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		err := pub.PublishBatch(ctx, topic, []*message.Message{newMessage("a1", "a")})[0]
		return schema.ClassOfPublish(err) == schema.PublishBroker && strings.Contains(err.Error(), "down for the test")
	}, deadline, time.Millisecond, "the fault is said")
	log.awaitText(t, kafka.TextNoGroup)
	before := wire.dialed()
	require.Eventually(t, func() bool { return wire.dialed() > before+4 }, deadline, 10*time.Millisecond)
	assert.Equal(t, 1, log.count(kafka.TextUnreachable))
	assert.Equal(t, 1, log.count(kafka.TextNoGroup))

	wire.down.Store(false)
	require.NoError(t, publishOne(t, pub, topic, newMessage("a1", "a")))
	receive(t, msgs).Ack()
	assert.Equal(t, 1, log.count(kafka.TextReachable))
	require.NoError(t, sub.Close())
}

// TestKafka_ClosesWhileDown: without any connection there is nothing to wait
// for.
func TestKafka_ClosesWhileDown(t *testing.T) {
	t.Parallel()
	wire := &network{}
	wire.down.Store(true)
	broker := newBroker(t, testConfig([]string{"localhost:1"}).WithDialer(wire.dial))
	_, msgs := subscribe(t, broker, "consumer", "topic", 4)
	pub := newPublisher(t, broker)
	failed := make(chan error, 1)
	go func() { failed <- pub.Publish("topic", newMessage("a1", "a")) }()
	require.Eventually(t, func() bool { return wire.dialed() > 2 }, deadline, time.Millisecond)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		assert.NoError(t, broker.Close())
	}()
	requireEnd(t, closed, "Close")
	require.ErrorIs(t, <-failed, kafka.ErrClosed)
	_, open := <-msgs
	require.False(t, open)
	_, err := broker.NewPublisher()
	require.ErrorIs(t, err, kafka.ErrClosed)
	_, err = broker.NewSubscriber("consumer", []string{"topic"}, 1)
	require.ErrorIs(t, err, kafka.ErrClosed)
}

// TestKafka_ClosesWhileCutOff: what was connected gives up in time.
func TestKafka_ClosesWhileCutOff(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	topic := newTopic(t, brokers, 3)
	wire := &network{}
	config := testConfig(brokers).WithDialer(wire.dial)
	config.CloseTimeout = 3 * time.Second
	broker, err := kafka.New(config)
	require.NoError(t, err)
	pub := newPublisher(t, broker)
	require.NoError(t, publishOne(t, pub, topic, newMessage("a1", "a")))
	sub, err := broker.NewSubscriber(freshName("consumer"), []string{topic}, 4)
	require.NoError(t, err)
	msgs, err := sub.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	held := receive(t, msgs)
	wire.down.Store(true)
	wire.cut()
	started := time.Now()
	if err := broker.Close(); err != nil {
		require.ErrorIs(t, err, kafka.ErrCloseTimeout)
	}
	assert.Less(t, time.Since(started), config.CloseTimeout+time.Second)
	requireEnd(t, held.Context().Done(), "the message in hand")
	_, open := <-msgs
	require.False(t, open)
}
