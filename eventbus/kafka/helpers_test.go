//go:build slow

package kafka_test

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus/kafka"
	"github.com/postbus-io/postbus/schema"
)

const deadline = 20 * time.Second

// addresses returns where Kafka is, or skips.
func addresses(t testing.TB) []string {
	t.Helper()
	env := os.Getenv("POSTBUS_TEST_KAFKA")
	if env == "" {
		if os.Getenv("POSTBUS_TEST_STRICT") == "1" {
			t.Fatal("POSTBUS_TEST_KAFKA is not set: run dev/services up kafka")
		}
		t.Skip("SKIPPED: needs a Kafka in POSTBUS_TEST_KAFKA; run dev/services up kafka")
	}
	return strings.Split(env, ",")
}

// testConfig is for tests: they make members come and go all the time.
func testConfig(addresses []string) kafka.Config {
	return kafka.Config{
		Brokers: addresses, Topics: kafka.Topics{Replication: 1},
		SessionTimeout: 6 * time.Second, RebalanceTimeout: 4 * time.Second, HeartbeatInterval: 100 * time.Millisecond,
		CommitInterval: 100 * time.Millisecond,
		NackBackoffMin: time.Millisecond, NackBackoffMax: 2 * time.Millisecond, // Watermill's suite nacks 600 times in a row
		Logger: slog.New(slog.DiscardHandler),
	}
}

func newBroker(t testing.TB, config kafka.Config) *kafka.Broker {
	t.Helper()
	broker, err := kafka.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	return broker
}

func newPublisher(t testing.TB, broker *kafka.Broker) schema.Publisher {
	t.Helper()
	pub, err := broker.NewPublisher()
	require.NoError(t, err)
	return pub
}

// subscribe makes a subscriber of one topic and subscribes.
func subscribe(t testing.TB, broker *kafka.Broker, consumer, topic string, window int) (message.Subscriber, <-chan *message.Message) {
	t.Helper()
	sub, err := broker.NewSubscriber(consumer, []string{topic}, window)
	require.NoError(t, err)
	msgs, err := sub.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	return sub, msgs
}

func freshName(what string) string { return what + "-" + strings.ToLower(watermill.NewULID()) }

// newTopic makes a topic with so many partitions.
func newTopic(t testing.TB, addresses []string, partitions int) string {
	t.Helper()
	topic := freshName("topic")
	require.NoError(t, createTopic(addresses, topic, partitions))
	return topic
}

var admins sync.Mutex

func newAdmin(addresses []string) (sarama.ClusterAdmin, error) {
	conf := sarama.NewConfig()
	conf.Version = sarama.V4_0_0_0
	conf.Metadata.AllowAutoTopicCreation = false
	return sarama.NewClusterAdmin(addresses, conf)
}

// createTopic makes a topic and waits until it has leaders.
func createTopic(addresses []string, topic string, partitions int) error {
	admins.Lock()
	defer admins.Unlock()
	admin, err := newAdmin(addresses)
	if err != nil {
		return err
	}
	defer admin.Close()
	if err := admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: int32(partitions), ReplicationFactor: 1}, false); err != nil {
		return err
	}
	for started := time.Now(); ; <-time.After(10 * time.Millisecond) {
		described, err := admin.DescribeTopics([]string{topic})
		if err == nil && described[0].Err == sarama.ErrNoError && led(described[0], partitions) {
			return nil
		}
		if time.Since(started) > deadline {
			return err
		}
	}
}

func led(topic *sarama.TopicMetadata, partitions int) bool {
	n := 0
	for _, p := range topic.Partitions {
		if p.Err == sarama.ErrNoError && p.Leader >= 0 {
			n++
		}
	}
	return n == partitions
}

func newMessage(id, key string) *message.Message {
	msg := message.NewMessage(id, []byte(id))
	if key != "" {
		msg.Metadata.Set(schema.HeaderKey, key)
	}
	return msg
}

// publish sends one message after the other: "a1" has the id "a1" and the key
// "a", "1" has no key.
func publish(t testing.TB, broker *kafka.Broker, topic string, ids ...string) {
	t.Helper()
	pub := newPublisher(t, broker)
	for _, id := range ids {
		require.NoError(t, publishOne(t, pub, topic, newMessage(id, id[:len(id)-1])))
	}
	require.NoError(t, pub.Close())
}

func publishOne(t testing.TB, pub schema.Publisher, topic string, msg *message.Message) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	return pub.PublishBatch(ctx, topic, []*message.Message{msg})[0]
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

func requireEnd(t testing.TB, ended <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(deadline):
		require.FailNow(t, what+" did not end", "within %s", deadline)
	}
}
