package rabbitmq

import (
	"errors"

	"github.com/postbus-io/postbus/schema"
)

// Errors of publishing, each inside a *schema.PublishError.
var (
	// ErrUnroutable is returned when no queue is bound to the topic for the
	// message: the broker gave it back. Class destination.
	ErrUnroutable = errors.New("no queue takes it")
	// ErrRejected is returned when the broker refused the message, for example
	// because a queue is full or has lost its majority. Class destination.
	ErrRejected = errors.New("rejected by the broker")
	// ErrMessage is returned when the message cannot travel unchanged: too
	// large, or with headers that AMQP does not take. Class record.
	ErrMessage = errors.New("message does not fit")
	// ErrNotConnected is returned when there was no connection in the time
	// given. Class broker.
	ErrNotConnected = errors.New("not connected")
	// ErrBlocked is returned when the broker, low on memory or disk, took
	// nothing in the time given. Class broker.
	ErrBlocked = errors.New("blocked by the broker")
	// ErrLost is returned when the connection or the channel ended before the
	// broker confirmed the message. Class broker.
	ErrLost = errors.New("connection lost")
	// ErrClosed is returned when the broker, the publisher or the subscriber
	// that is used has been closed. It is also the cause of a message's context
	// when its subscriber is closed. Class broker.
	ErrClosed = errors.New("closed")
)

// Errors of subscribing and of declaring.
var (
	// ErrMismatch is returned when a queue or an exchange of the name exists
	// with other settings than this room's. It goes on being tried.
	ErrMismatch = errors.New("exists with other settings")
	// ErrUndeclaredTopic is returned when a topic is subscribed to that
	// NewSubscriber was not told of.
	ErrUndeclaredTopic = errors.New("topic was not declared to NewSubscriber")
	// ErrSubscribed is returned when a subscriber has a subscription of the
	// topic that has not ended.
	ErrSubscribed = errors.New("topic is subscribed to already")
)

func publishError(class schema.PublishClass, topic string, err error) error {
	return &schema.PublishError{Class: class, Topic: topic, Err: err}
}

func brokerFault(topic string, err error) error {
	return publishError(schema.PublishBroker, topic, err)
}
