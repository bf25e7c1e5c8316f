package rabbitmq

import (
	"errors"
	"fmt"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postbus-io/postbus/schema"
)

// RoutingKey returns the key that a message is published with:
// <bucket>.<event type>, or <bucket>._ without a type.
func RoutingKey(messageID, key, eventType string) string {
	if eventType == "" || len(eventType) > schema.MaxNameBytes {
		eventType = "_"
	}
	return strconv.Itoa(Bucket(messageID, key)) + "." + eventType
}

// Bucket returns the slice of the keys that a message belongs to, from 0 to 63.
func Bucket(messageID, key string) int {
	return schema.ShardOf(schema.ShardKey(messageID, key), Buckets)
}

// QueueName returns the name of a consumer's ith queue of a topic. Its parts
// are joined by colons, which no name has: with dots, consumer "a.b" of topic
// "c" and consumer "a" of topic "b.c" would share queues.
func QueueName(consumer, topic string, i int) string {
	return consumer + ":" + topic + ":" + strconv.Itoa(i)
}

// maxShortBytes bounds names and routing keys in AMQP.
const maxShortBytes = 255

// queueArguments are those of every queue. What is not listed is left to the
// broker's policies: there is no TTL, and when a policy bounds the length, a
// full queue refuses instead of dropping what it has.
func queueArguments(queueType QueueType, major int) amqp.Table {
	arguments := amqp.Table{
		amqp.QueueTypeArg:            string(queueType),
		amqp.SingleActiveConsumerArg: true,
		amqp.QueueOverflowArg:        amqp.QueueOverflowRejectPublish,
	}
	if queueType == Quorum && major >= unlimitedFrom {
		arguments[deliveryLimit] = -1
	}
	return arguments
}

// From RabbitMQ 4.0 on a quorum queue drops a message that was delivered 20
// times, unless its limit is -1. Before that there is no limit unless one is
// set, and -1 drops a message that is delivered again once.
const (
	deliveryLimit = "x-delivery-limit"
	unlimitedFrom = 4
)

func declareExchange(ch *amqp.Channel, topic string) error {
	err := ch.ExchangeDeclare(topic, amqp.ExchangeTopic, true, false, false, false, nil)
	return declared("exchange", topic, err)
}

// declareQueue declares the ith of n queues and binds it to its buckets.
// Bindings are sent without waiting for each one's answer: what is called on
// the channel next returns when they are there.
func declareQueue(ch *amqp.Channel, name, topic string, i, n int, arguments amqp.Table) error {
	if _, err := ch.QueueDeclare(name, true, false, false, false, arguments); err != nil {
		return declared("queue", name, err)
	}
	for bucket := i; bucket < Buckets; bucket += n {
		if err := ch.QueueBind(name, strconv.Itoa(bucket)+".#", topic, true, nil); err != nil {
			return declared("binding of queue", name, err)
		}
	}
	return nil
}

// declared says what could not be declared. The broker's own text names the
// setting, and what it is and was to be.
func declared(what, name string, err error) error {
	var refused *amqp.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused) && refused.Code == amqp.PreconditionFailed:
		return fmt.Errorf("%s %s %w; delete it once it is empty, or change the configuration: %w", what, name, ErrMismatch, err)
	}
	return fmt.Errorf("declare %s %s: %w", what, name, err)
}
