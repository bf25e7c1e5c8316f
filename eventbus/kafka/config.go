package kafka

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/postbus-io/postbus/schema"
)

// The defaults of [Config].
const (
	DefaultClientID          = "postbus"
	DefaultVersion           = "4.0.0"
	DefaultMaxMessageBytes   = 1 << 20
	DefaultDialTimeout       = 5 * time.Second
	DefaultPublishTimeout    = 5 * time.Second
	DefaultCloseTimeout      = 10 * time.Second
	DefaultSessionTimeout    = 30 * time.Second
	DefaultRebalanceTimeout  = 60 * time.Second
	DefaultHeartbeatInterval = 3 * time.Second
	DefaultCommitInterval    = 500 * time.Millisecond
	DefaultNackBackoffMin    = 100 * time.Millisecond
	DefaultNackBackoffMax    = 10 * time.Second
	DefaultLogInterval       = 10 * time.Second
	DefaultPartitions        = 6
	DefaultReplication       = 3
)

// The bounds of [Config] that no setting lifts.
const (
	// MinVersion is the oldest protocol version that the room works with: it
	// has cooperative rebalancing.
	MinVersion = "2.4.0"
	// MaxMaxMessageBytes is the most that the client library puts into one
	// request.
	MaxMaxMessageBytes = 64 << 20
	// MaxPartitions and MaxReplication bound what is created.
	MaxPartitions  = 100_000
	MaxReplication = 1_000
	// minInterval is the least of every duration: Kafka counts milliseconds.
	minInterval = 10 * time.Millisecond
)

// A Config says what a [Broker] is. There is no field for what would break a
// promise: messages are always confirmed by all in-sync replicas, by an
// idempotent producer, and a new consumer always starts at the oldest message.
type Config struct {
	// Brokers are the addresses, host:port, that the cluster is found by.
	// Required.
	Brokers []string
	// ClientID is the name that the brokers log. Defaults to "postbus".
	ClientID string
	// Version is the newest protocol version to speak, at least "2.4.0"; with
	// older brokers less is spoken. Defaults to "4.0.0".
	Version string
	// Topics says what is done about topics that do not exist.
	Topics Topics

	// MaxMessageBytes bounds a message with key and headers; a larger one is
	// the record's fault. It must not exceed the topics' max.message.bytes by
	// much: what only the broker refuses has travelled for nothing. Defaults to
	// 1,048,576 (1 MiB); at least 1 and at most 67,108,864.
	MaxMessageBytes int
	// DialTimeout bounds the connection to one broker. Defaults to 5 s; at
	// least 10 ms, as are all durations here.
	DialTimeout time.Duration
	// PublishTimeout bounds a plain Publish, which has no context, and how long
	// a broker waits for its replicas. Defaults to 5 s.
	PublishTimeout time.Duration
	// CloseTimeout bounds the Close of a publisher and of a subscriber.
	// Defaults to 10 s.
	CloseTimeout time.Duration

	// SessionTimeout is how long the group waits for a member that gives no
	// sign of life. Defaults to 30 s; the broker has bounds of its own.
	SessionTimeout time.Duration
	// RebalanceTimeout is how long the group waits for its members when
	// partitions move. Half of it is the grace in which messages that are in
	// hand can still be acked. Defaults to 60 s.
	RebalanceTimeout time.Duration
	// HeartbeatInterval is how often a member says that it lives. Defaults to
	// 3 s, or to a third of SessionTimeout if that is less; at most a third of
	// SessionTimeout.
	HeartbeatInterval time.Duration
	// CommitInterval is how often acks are stored in the group. A crash costs
	// the acks of that time: their messages are handed out again. Defaults to
	// 500 ms.
	CommitInterval time.Duration

	// NackBackoffMin is how long a message waits after its first nack, its key
	// behind it; the wait doubles with every further nack. Defaults to 100 ms;
	// at least 1 ns.
	NackBackoffMin time.Duration
	// NackBackoffMax bounds the wait. Defaults to 10 s, or to NackBackoffMin if
	// that is more; at least NackBackoffMin.
	NackBackoffMax time.Duration

	// LogInterval is how often a state that lasts, such as an unreachable
	// broker, is logged. Defaults to 10 s.
	LogInterval time.Duration
	// Logger is told what lasts and what a person is to mend. Defaults to
	// [slog.Default].
	Logger *slog.Logger

	dialer dialer // of tests
}

// A dialer opens connections.
type dialer interface {
	Dial(network, address string) (net.Conn, error)
}

// Topics says what is done about topics that do not exist.
type Topics struct {
	// Create has missing topics created at the first publish or subscription.
	// Without it they are waited for, and publishing to one is the
	// destination's fault. Defaults to false.
	Create bool
	// Partitions of a topic that is created. Defaults to 6.
	Partitions int
	// Replication of a topic that is created. Defaults to 3.
	Replication int
}

func (c Config) withDefaults() Config {
	c.Brokers = slices.Clone(c.Brokers)
	setDefault(&c.ClientID, DefaultClientID)
	setDefault(&c.Version, DefaultVersion)
	setDefault(&c.Topics.Partitions, DefaultPartitions)
	setDefault(&c.Topics.Replication, DefaultReplication)
	setDefault(&c.MaxMessageBytes, DefaultMaxMessageBytes)
	setDefault(&c.DialTimeout, DefaultDialTimeout)
	setDefault(&c.PublishTimeout, DefaultPublishTimeout)
	setDefault(&c.CloseTimeout, DefaultCloseTimeout)
	setDefault(&c.SessionTimeout, DefaultSessionTimeout)
	setDefault(&c.RebalanceTimeout, DefaultRebalanceTimeout)
	setDefault(&c.HeartbeatInterval, min(DefaultHeartbeatInterval, c.SessionTimeout/3))
	setDefault(&c.CommitInterval, DefaultCommitInterval)
	setDefault(&c.NackBackoffMin, DefaultNackBackoffMin)
	setDefault(&c.NackBackoffMax, max(DefaultNackBackoffMax, c.NackBackoffMin))
	setDefault(&c.LogInterval, DefaultLogInterval)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
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
		c.validateBrokers(),
		c.validateVersion(),
		within("Topics.Partitions", c.Topics.Partitions, 1, MaxPartitions),
		within("Topics.Replication", c.Topics.Replication, 1, MaxReplication),
		within("MaxMessageBytes", c.MaxMessageBytes, 1, MaxMaxMessageBytes),
		atLeast("DialTimeout", c.DialTimeout, minInterval),
		atLeast("PublishTimeout", c.PublishTimeout, minInterval),
		atLeast("CloseTimeout", c.CloseTimeout, minInterval),
		atLeast("SessionTimeout", c.SessionTimeout, 3*minInterval),
		atLeast("RebalanceTimeout", c.RebalanceTimeout, minInterval),
		within("HeartbeatInterval", c.HeartbeatInterval, minInterval, max(minInterval, c.SessionTimeout/3)),
		atLeast("CommitInterval", c.CommitInterval, minInterval),
		atLeast("NackBackoffMin", c.NackBackoffMin, 1),
		atLeast("NackBackoffMax", c.NackBackoffMax, max(1, c.NackBackoffMin)),
		atLeast("LogInterval", c.LogInterval, minInterval),
	)
}

func (c Config) validateBrokers() error {
	if len(c.Brokers) == 0 {
		return invalid("Brokers is empty, at least one host:port is required")
	}
	var faults []error
	for i, address := range c.Brokers {
		if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
			faults = append(faults, invalid("Brokers[%d] is %q, it is to be host:port", i, address))
		}
	}
	return errors.Join(faults...)
}

func (c Config) validateVersion() error {
	version, err := sarama.ParseKafkaVersion(c.Version)
	if err != nil || !version.IsAtLeast(sarama.V2_4_0_0) {
		return invalid("Version is %q, it is to be a version of Kafka from %s on", c.Version, MinVersion)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", schema.ErrInvalidOption, fmt.Sprintf(format, args...))
}

func atLeast[T int | time.Duration](field string, value, least T) error {
	if value < least {
		return invalid("%s is %v, the least is %v", field, value, least)
	}
	return nil
}

func within[T int | time.Duration](field string, value, least, most T) error {
	if value > most {
		return invalid("%s is %v, the most is %v", field, value, most)
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

// grace is how long a message in hand may still be acked when its partition is
// to be given away.
func (c Config) grace() time.Duration { return c.RebalanceTimeout / 2 }
