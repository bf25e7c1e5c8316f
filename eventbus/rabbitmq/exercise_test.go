//go:build slow

package rabbitmq_test

import (
	"testing"
	"time"

	"github.com/postbus-io/postbus/eventbus/eventbustest"
	"github.com/postbus-io/postbus/eventbus/rabbitmq"
	"github.com/postbus-io/postbus/schema"
)

const maxBytes = 1 << 20

// TestRabbitMQ_H20_H41_H45_H53_H81_H82_Exercise is not parallel: see Exercise.
func TestRabbitMQ_H20_H41_H45_H53_H81_H82_Exercise(t *testing.T) {
	needBroker(t)
	features := eventbustest.Features{
		MaxMessageBytes: maxBytes, RefusedTopic: fresh("without-queues"),
	}
	eventbustest.Exercise(t, features, func(t *testing.T) schema.Broker {
		return newBroker(t, rabbitmq.Config{
			Queues: 2, MaxMessageBytes: maxBytes,
			NackBackoffMin: time.Millisecond, NackBackoffMax: 2 * time.Millisecond, // Watermill's suite nacks 600 times in a row
		})
	})
}
