//go:build slow

package kafka_test

import (
	"testing"

	"github.com/postbus-io/postbus/eventbus/eventbustest"
	"github.com/postbus-io/postbus/schema"
)

// TestKafka_H20_H41_H45_H53_H81_H82_Exercise is not parallel: see Exercise.
func TestKafka_H20_H41_H45_H53_H81_H82_Exercise(t *testing.T) {
	brokers := addresses(t)
	config := testConfig(brokers)
	config.MaxMessageBytes = 1 << 20
	features := eventbustest.Features{
		OldMessages: true, NilPayload: true,
		PrepareTopicFunc: func(topic string) error { return createTopic(brokers, topic, 3) },
		MaxMessageBytes:  config.MaxMessageBytes,
		RefusedTopic:     freshName("nowhere"),
	}
	eventbustest.Exercise(t, features, func(t *testing.T) schema.Broker { return newBroker(t, config) })
}
