package memory

import "errors"

// Errors of publishing, each inside a *schema.PublishError of class broker.
var (
	// ErrFull is returned when the topic's backlog is at its bound and no
	// consumer has made room before the time to publish was over.
	ErrFull = errors.New("log is full")
	// ErrClosed is returned when the broker, the publisher or the subscriber
	// that is used has been closed. It is also the cause of a message's context
	// when its subscriber is closed.
	ErrClosed = errors.New("closed")
)

// Errors of subscribing.
var (
	// ErrUndeclaredTopic is returned when a topic is subscribed to that
	// NewSubscriber was not told of: real brokers join for all topics at once.
	ErrUndeclaredTopic = errors.New("topic was not declared to NewSubscriber")
	// ErrSubscribed is returned when a subscriber has a subscription of the
	// topic that has not ended.
	ErrSubscribed = errors.New("topic is subscribed to already")
)
