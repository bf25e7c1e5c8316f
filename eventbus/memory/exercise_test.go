package memory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/eventbus/eventbustest"
	"github.com/postbus-io/postbus/eventbus/memory"
	"github.com/postbus-io/postbus/schema"
)

const (
	maxBytes     = 64 << 10
	refusedTopic = "refused"
)

// TestMemory_H20_H41_H45_H53_H81_H82_Exercise is not parallel: see Exercise.
// The bounds that the memory broker does not have by itself are set by its
// PublishFunc, so that the checks of what a broker refuses run here, too.
func TestMemory_H20_H41_H45_H53_H81_H82_Exercise(t *testing.T) {
	features := eventbustest.Features{
		OldMessages: true, NilPayload: true, MaxMessageBytes: maxBytes, RefusedTopic: refusedTopic,
	}
	eventbustest.Exercise(t, features, func(t *testing.T) schema.Broker {
		return newBroker(t, memory.Config{
			PublishFunc:    refuse,
			NackBackoffMin: time.Millisecond, NackBackoffMax: 2 * time.Millisecond, // Watermill's suite nacks 600 times in a row
		})
	})
}

func refuse(_ context.Context, topic string, msg *message.Message, next func() error) error {
	if topic == refusedTopic {
		return &schema.PublishError{Class: schema.PublishDestination, Topic: topic, Err: errors.New("refused")}
	}
	if len(msg.Payload) > maxBytes {
		return &schema.PublishError{Class: schema.PublishRecord, Topic: topic, Err: errors.New("too large")}
	}
	return next()
}
