//go:build slow

package kafka_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus/kafka"
	"github.com/postbus-io/postbus/schema"
)

func TestKafka_ConfigFaultsNameFieldValueAndBound(t *testing.T) {
	t.Parallel()
	_, err := kafka.New(kafka.Config{
		Version: "1.1.0", Topics: kafka.Topics{Partitions: -1, Replication: -2}, MaxMessageBytes: -3,
		DialTimeout: -4, PublishTimeout: -5, CloseTimeout: -6, SessionTimeout: -7, RebalanceTimeout: -8,
		HeartbeatInterval: -9, CommitInterval: -10, NackBackoffMin: -11, NackBackoffMax: -12, LogInterval: -13,
	})
	require.ErrorIs(t, err, schema.ErrInvalidOption)
	for _, fault := range []string{
		"Brokers is empty, at least one host:port is required", `Version is "1.1.0", it is to be a version of Kafka from 2.4.0 on`,
		"Topics.Partitions is -1, the least is 1", "Topics.Replication is -2, the least is 1",
		"MaxMessageBytes is -3, the least is 1", "DialTimeout is -4ns, the least is 10ms",
		"PublishTimeout is -5ns, the least is 10ms", "CloseTimeout is -6ns, the least is 10ms",
		"SessionTimeout is -7ns, the least is 30ms", "RebalanceTimeout is -8ns, the least is 10ms",
		"HeartbeatInterval is -9ns, the least is 10ms", "CommitInterval is -10ns, the least is 10ms",
		"NackBackoffMin is -11ns, the least is 1ns", "NackBackoffMax is -12ns, the least is 1ns",
		"LogInterval is -13ns, the least is 10ms",
	} {
		assert.ErrorContains(t, err, fault)
	}
}

func TestKafka_ConfigUpperBounds(t *testing.T) {
	t.Parallel()
	_, err := kafka.New(kafka.Config{
		Brokers: []string{"localhost", "a:1,b:2", ":9092", "ok:9092"}, Version: "new",
		Topics:          kafka.Topics{Partitions: kafka.MaxPartitions + 1, Replication: kafka.MaxReplication + 1},
		MaxMessageBytes: kafka.MaxMaxMessageBytes + 1,
		SessionTimeout:  time.Second, HeartbeatInterval: time.Second,
		NackBackoffMin: 10, NackBackoffMax: 9,
	})
	for _, fault := range []string{
		`Brokers[0] is "localhost", it is to be host:port`, `Brokers[1] is "a:1,b:2"`, `Brokers[2] is ":9092"`,
		`Version is "new"`, "Topics.Partitions is 100001, the most is 100000", "Topics.Replication is 1001, the most is 1000",
		"MaxMessageBytes is 67108865, the most is 67108864", "HeartbeatInterval is 1s, the most is 333.333333ms",
		"NackBackoffMax is 9ns, the least is 10ns",
	} {
		assert.ErrorContains(t, err, fault)
	}
	assert.NotContains(t, err.Error(), "Brokers[3]")
}

func TestKafka_SubscriberFaultsComeAllAtOnce(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, kafka.Config{Brokers: []string{"localhost:1"}})
	_, err := broker.NewSubscriber("No Name", []string{"a b", "twice", "twice"}, 0)
	require.ErrorIs(t, err, schema.ErrInvalidOption)
	for _, fault := range []string{`"No Name"`, `"a b"`, `"twice" is there twice`, "window is 0, the least is 1"} {
		assert.ErrorContains(t, err, fault)
	}
	_, err = broker.NewSubscriber("payments", nil, 1)
	require.ErrorContains(t, err, "no topics")
	assert.Equal(t, "kafka", broker.Kind())
}
