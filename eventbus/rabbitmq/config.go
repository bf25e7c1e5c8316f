package rabbitmq

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/postbus-io/postbus/schema"
)

// Buckets is the number of slices that keys are divided into; the bucket of a
// message is the first word of its routing key. It never changes.
const Buckets = 64

// A QueueType says how a queue keeps its messages.
type QueueType string

// The types of queues.
const (
	// Quorum queues are replicated and survive the loss of a minority of nodes.
	Quorum QueueType = "quorum"
	// Classic queues live on one node and are lost with its disk.
	Classic QueueType = "classic"
)

// The defaults of [Config].
const (
	DefaultQueues          = 4
	DefaultConsumerTimeout = 30 * time.Minute
	DefaultDialTimeout     = 5 * time.Second
	DefaultHeartbeat       = 10 * time.Second
	DefaultPublishTimeout  = 5 * time.Second
	DefaultPublishWindow   = 1024
	DefaultMaxMessageBytes = 16 << 20
	DefaultConnectionName  = "postbus"
	DefaultNackBackoffMin  = 100 * time.Millisecond
	DefaultNackBackoffMax  = time.Second
	DefaultReconnectMin    = 100 * time.Millisecond
	DefaultReconnectMax    = 5 * time.Second
	DefaultLogInterval     = 30 * time.Second
)

// The bounds of [Config] and of NewSubscriber that no setting lifts.
const (
	// MaxQueues is a queue for each bucket.
	MaxQueues = Buckets
	// MaxMessageBytes is the most that a RabbitMQ can be configured to take;
	// from 4.0 on it takes 16 MiB unless configured.
	MaxMessageBytes = 128 << 20
	// MaxWindow is AMQP's bound of a prefetch count.
	MaxWindow = 65_535
	// MaxPublishWindow bounds what one topic may have unconfirmed.
	MaxPublishWindow = 65_535
	// MinHeartbeat is AMQP's unit of heartbeats.
	MinHeartbeat = time.Second
	// MaxHeartbeat is AMQP's largest heartbeat, in its 16 bits.
	MaxHeartbeat = 65_535 * time.Second
	// MinConsumerTimeout is less than a broker will enforce, which looks once
	// a minute.
	MinConsumerTimeout = time.Second
	// MaxConnectionNameBytes leaves room for what is appended.
	MaxConnectionNameBytes = 128
)

// A Config says what a [Broker] is.
type Config struct {
	// URL is amqp[s]://user:password@host:port/vhost. Parameters of amqps URLs
	// (cacertfile, certfile, keyfile, server_name_indication, auth_mechanism)
	// are obeyed. Required.
	URL URL
	// ConnectionName begins the names of the connections in RabbitMQ's own
	// tools, and is the app_id of messages. Defaults to "postbus"; at most
	// [MaxConnectionNameBytes].
	ConnectionName string
	// Logger is told about connections, once per LogInterval while something
	// fails. Defaults to [slog.Default].
	Logger *slog.Logger

	// Queues is how many queues a consumer has for a topic. They are the unit
	// in which the members of a consumer share work. It is fixed once they
	// exist: see the package's comment. Defaults to 4; from 1 to [MaxQueues].
	Queues int
	// QueueType is the type of queues that are declared. Defaults to [Quorum].
	QueueType QueueType
	// ConsumerTimeout is what the broker's consumer_timeout is: how long a
	// message may stay unacknowledged. It cannot be asked for. At three
	// quarters of it the room gives messages back by itself, with
	// [schema.ErrRevoked], and gets them again. Keep everything that a handler
	// does with one message, its retries included, below half of it. Defaults
	// to 30 min, as RabbitMQ's; at least [MinConsumerTimeout].
	ConsumerTimeout time.Duration

	// DialTimeout bounds connecting, TLS and AMQP handshakes included. Defaults
	// to 5 s; above 0.
	DialTimeout time.Duration
	// Heartbeat is the interval that is proposed to the broker; a silent
	// connection is given up within twice of it. Defaults to 10 s; from
	// [MinHeartbeat] to [MaxHeartbeat], cut to whole seconds.
	Heartbeat time.Duration
	// ReconnectMin and ReconnectMax bound the mean pause between attempts to
	// connect, or to declare, which doubles. Default to 100 ms and 5 s, or to
	// ReconnectMin if that is more; above 0.
	ReconnectMin, ReconnectMax time.Duration
	// LogInterval is how often a fault that lasts is logged. Defaults to 30 s;
	// above 0.
	LogInterval time.Duration

	// PublishTimeout bounds a plain Publish, which has no context, and any
	// single write to the broker's socket: a connection that takes no bytes for
	// so long is dropped. Defaults to 5 s; above 0.
	PublishTimeout time.Duration
	// PublishWindow is how many messages of a topic may be unconfirmed.
	// Defaults to 1,024; from 1 to [MaxPublishWindow].
	PublishWindow int
	// MaxMessageBytes is the largest payload that is sent; no more than the
	// broker's max_message_size. Defaults to 16,777,216 (16 MiB), RabbitMQ's
	// from 4.0 on; from 1 to 134,217,728 (128 MiB).
	MaxMessageBytes int

	// NackBackoffMin is how long a message waits after its first nack, its key
	// behind it; the wait doubles with every further nack. Defaults to 100 ms;
	// above 0.
	NackBackoffMin time.Duration
	// NackBackoffMax bounds the wait. Defaults to 1 s, or to NackBackoffMin if
	// that is more; at least NackBackoffMin.
	NackBackoffMax time.Duration

	addressFunc func() string // the URL with its password; URL is without then
}

// sealed returns the configuration with its password out of reach of whoever
// prints what has it: fmt asks no method of unexported fields.
func (c Config) sealed() *Config {
	secret := string(c.URL)
	c.addressFunc = func() string { return secret }
	c.URL = URL(c.URL.String())
	return &c
}

func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	setDefault(&c.ConnectionName, DefaultConnectionName)
	setDefault(&c.Queues, DefaultQueues)
	setDefault(&c.QueueType, Quorum)
	setDefault(&c.ConsumerTimeout, DefaultConsumerTimeout)
	setDefault(&c.DialTimeout, DefaultDialTimeout)
	setDefault(&c.Heartbeat, DefaultHeartbeat)
	setDefault(&c.ReconnectMin, DefaultReconnectMin)
	setDefault(&c.ReconnectMax, max(DefaultReconnectMax, c.ReconnectMin))
	setDefault(&c.LogInterval, DefaultLogInterval)
	setDefault(&c.PublishTimeout, DefaultPublishTimeout)
	setDefault(&c.PublishWindow, DefaultPublishWindow)
	setDefault(&c.MaxMessageBytes, DefaultMaxMessageBytes)
	setDefault(&c.NackBackoffMin, DefaultNackBackoffMin)
	setDefault(&c.NackBackoffMax, max(DefaultNackBackoffMax, c.NackBackoffMin))
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// validate returns all faults at once.
func (c Config) validate() error {
	return errors.Join(
		c.checkURL(),
		within("ConnectionName's length", len(c.ConnectionName), 1, MaxConnectionNameBytes),
		within("Queues", c.Queues, 1, MaxQueues),
		c.checkQueueType(),
		atLeast("ConsumerTimeout", c.ConsumerTimeout, MinConsumerTimeout),
		atLeast("DialTimeout", c.DialTimeout, 1),
		within("Heartbeat", c.Heartbeat, MinHeartbeat, MaxHeartbeat),
		atLeast("ReconnectMin", c.ReconnectMin, 1),
		atLeast("ReconnectMax", c.ReconnectMax, max(1, c.ReconnectMin)),
		atLeast("LogInterval", c.LogInterval, 1),
		atLeast("PublishTimeout", c.PublishTimeout, 1),
		within("PublishWindow", c.PublishWindow, 1, MaxPublishWindow),
		within("MaxMessageBytes", c.MaxMessageBytes, 1, MaxMessageBytes),
		atLeast("NackBackoffMin", c.NackBackoffMin, 1),
		atLeast("NackBackoffMax", c.NackBackoffMax, max(1, c.NackBackoffMin)),
	)
}

func (c Config) checkURL() error {
	if err := c.URL.check(); err != nil {
		return fmt.Errorf("%w: URL %w", schema.ErrInvalidOption, err)
	}
	return nil
}

func (c Config) checkQueueType() error {
	if c.QueueType != Quorum && c.QueueType != Classic {
		return fmt.Errorf("%w: QueueType is %q, it is to be %q or %q", schema.ErrInvalidOption, c.QueueType, Quorum, Classic)
	}
	return nil
}

func atLeast[T int | time.Duration](field string, value, least T) error {
	if value < least {
		return fmt.Errorf("%w: %s is %v, the least is %v", schema.ErrInvalidOption, field, value, least)
	}
	return nil
}

func within[T int | time.Duration](field string, value, least, most T) error {
	if value > most {
		return fmt.Errorf("%w: %s is %v, the most is %v", schema.ErrInvalidOption, field, value, most)
	}
	return atLeast(field, value, least)
}

// backoff is how long a message waits after its nth nack.
func (c Config) backoff(nacks int) time.Duration {
	wait := c.NackBackoffMin
	for range nacks - 1 {
		if wait >= c.NackBackoffMax/2 {
			return c.NackBackoffMax
		}
		wait *= 2
	}
	return wait
}

// pauses returns the pauses between attempts to reach the broker.
func (c Config) pauses() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: c.ReconnectMin, MaxInterval: c.ReconnectMax, Multiplier: 2, RandomizationFactor: 0.5,
	}
}

// patience is for answers of a broker to what ends something.
const patience = 2 * time.Second

// declareTimeout is for declarations: a busy cluster takes its time for queues.
// A connection that is dead is found so by its heartbeats before that.
const declareTimeout = 30 * time.Second
