package kafka

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"

	"github.com/IBM/sarama"
	"github.com/eapache/go-resiliency/breaker"

	"github.com/postbus-io/postbus/schema"
)

// Errors of publishers and subscribers.
var (
	// ErrClosed is returned when the broker, the publisher or the subscriber
	// that is used has been closed. It is also the cause of a message's context
	// when its subscriber is closed.
	ErrClosed = errors.New("closed")
	// ErrCloseTimeout is returned when Close gave up waiting for the broker:
	// what it was to confirm may or may not have been.
	ErrCloseTimeout = errors.New("close timeout passed")
)

// Errors of subscribing.
var (
	// ErrUndeclaredTopic is returned when a topic is subscribed to that
	// NewSubscriber was not told of: the group is joined once, for all topics.
	ErrUndeclaredTopic = errors.New("topic was not declared to NewSubscriber")
	// ErrSubscribed is returned when a subscriber has a subscription of the
	// topic that has not ended.
	ErrSubscribed = errors.New("topic is subscribed to already")
)

// The causes with which a session in the group is ended from this side.
var (
	errLeaving = errors.New("leaving the group")
	errRejoin  = errors.New("joining the group for other topics")
)

// failure wraps what a broker or its client said about a message.
func failure(topic string, err error) error {
	var classed *schema.PublishError
	if err == nil || errors.As(err, &classed) {
		return err
	}
	return &schema.PublishError{Class: classify(err), Topic: topic, Err: err}
}

func failureOf(class schema.PublishClass, topic string, err error) error {
	return &schema.PublishError{Class: class, Topic: topic, Err: err}
}

// recordFaults can never be mended by sending the same record again.
var recordFaults = []error{
	sarama.ErrMessageSizeTooLarge, sarama.ErrMessageSetSizeTooLarge, sarama.ErrInvalidMessageSize,
	sarama.ErrInvalidRecord, sarama.ErrInvalidTimestamp, sarama.ErrUnsupportedForMessageFormat,
}

// destinationFaults are a topic's own, or of some of its partitions.
var destinationFaults = []error{
	sarama.ErrUnknownTopicOrPartition, sarama.ErrInvalidTopic, sarama.ErrTopicAuthorizationFailed,
	sarama.ErrLeaderNotAvailable, sarama.ErrNotLeaderForPartition, sarama.ErrReplicaNotAvailable,
	sarama.ErrNotEnoughReplicas, sarama.ErrNotEnoughReplicasAfterAppend, sarama.ErrKafkaStorageError,
	sarama.ErrInvalidPartition, sarama.ErrInvalidPartitions, sarama.ErrInvalidReplicationFactor,
	sarama.ErrInvalidConfig, sarama.ErrPolicyViolation, sarama.ErrFencedLeaderEpoch, sarama.ErrUnknownLeaderEpoch,
}

// producerFaults end the life of a producer: a new one has to be made.
var producerFaults = []error{
	breaker.ErrBreakerOpen, sarama.ErrShuttingDown, sarama.ErrClosedClient,
	sarama.ErrOutOfOrderSequenceNumber, sarama.ErrUnknownProducerID, sarama.ErrInvalidProducerEpoch,
	sarama.ErrInvalidProducerIDMapping, sarama.ErrProducerFenced, sarama.ErrInvalidTxnState,
	sarama.ErrClusterAuthorizationFailed,
}

// brokerFaults say nothing about a record or a topic.
var brokerFaults = []error{
	sarama.ErrOutOfBrokers, sarama.ErrBrokerNotFound, sarama.ErrNotConnected, sarama.ErrBrokerNotAvailable,
	sarama.ErrNetworkException, sarama.ErrRequestTimedOut, sarama.ErrControllerNotAvailable,
	sarama.ErrNotController, sarama.ErrSASLAuthenticationFailed, sarama.ErrThrottlingQuotaExceeded,
	sarama.ErrProducerRetryBufferOverflow, sarama.ErrIncompleteResponse,
	io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed, ErrClosed,
	context.DeadlineExceeded, context.Canceled,
}

// classify says whose fault an error is.
func classify(err error) schema.PublishClass {
	var (
		encoding  sarama.PacketEncodingError
		config    sarama.ConfigurationError // a message that the client itself finds too large
		transport net.Error
	)
	switch {
	case errors.As(err, &encoding), errors.As(err, &config), isAny(err, recordFaults):
		return schema.PublishRecord
	case isAny(err, destinationFaults):
		return schema.PublishDestination
	case isAny(err, brokerFaults), isAny(err, producerFaults), errors.As(err, &transport):
		return schema.PublishBroker
	}
	return schema.PublishUnknown
}

func isAny(err error, targets []error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}
