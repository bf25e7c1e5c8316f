package schema

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// A Broker is what one folder below eventbus implements. All methods are safe
// for concurrent use.
type Broker interface {
	// Kind is the name of the broker in a config file, for example "kafka".
	Kind() string
	// NewPublisher returns a publisher; the caller closes it. It does not
	// wait for the broker to be reachable.
	NewPublisher() (Publisher, error)
	// NewSubscriber returns the subscriber of one consumer for all the topics
	// that it will subscribe to, each once. It hands out up to window messages
	// of a subscription that are neither acked nor nacked, in the order of
	// their key, and takes acks in any order. The caller closes it. It does
	// not wait for the broker to be reachable.
	NewSubscriber(consumer string, topics []string, window int) (message.Subscriber, error)
	// Close ends what publishers and subscribers share. Idempotent.
	Close() error
}

// A Publisher is a Watermill publisher that also takes a batch and says of
// each message whether the broker has confirmed it durably.
type Publisher interface {
	message.Publisher
	BatchPublisher
}

// A BatchPublisher sends many messages to one topic at once.
type BatchPublisher interface {
	// PublishBatch sends msgs and waits until each is confirmed, refused or
	// ctx ends. The result has one entry a message, nil for confirmed. An
	// entry that is not nil may still have reached the broker. Messages of
	// one batch have distinct keys, or none: no order is kept among them.
	PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error
}

// A PublishClass says whose fault a failed publish is.
type PublishClass int

const (
	// PublishUnknown: no class is known; it counts as an attempt of the record.
	PublishUnknown PublishClass = iota
	// PublishRecord: this record can never be sent: too large, invalid.
	PublishRecord
	// PublishDestination: the topic cannot take anything now: unknown,
	// unroutable, not authorised, unavailable.
	PublishDestination
	// PublishBroker: the broker cannot be reached or takes nothing.
	PublishBroker
)

// String returns the word for the class.
func (c PublishClass) String() string {
	switch c {
	case PublishRecord:
		return "record"
	case PublishDestination:
		return "destination"
	case PublishBroker:
		return "broker"
	}
	return "unknown"
}

// A PublishError says why a message was not confirmed.
type PublishError struct {
	// Class says whose fault it is.
	Class PublishClass
	// Topic is the destination.
	Topic string
	// Err is what the broker or its client said; no secret, no payload.
	Err error
}

// Error implements error.
func (e *PublishError) Error() string {
	return fmt.Sprintf("publish to %s (%s): %v", e.Topic, e.Class, e.Err)
}

// Unwrap returns Err.
func (e *PublishError) Unwrap() error { return e.Err }

// PublishClass returns the class.
func (e *PublishError) PublishClass() PublishClass { return e.Class }

// ClassOfPublish returns the class that some error in err's chain claims by a
// method PublishClass() PublishClass. A context that ended is the broker's: the
// deadline was the relay's own.
func ClassOfPublish(err error) PublishClass {
	var c interface{ PublishClass() PublishClass }
	switch {
	case errors.As(err, &c):
		return c.PublishClass()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return PublishBroker
	}
	return PublishUnknown
}
