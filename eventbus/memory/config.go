package memory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// The defaults of [Config].
const (
	DefaultRetainEntries   = 100_000
	DefaultRetainBytes     = 64 << 20
	DefaultMaxBacklog      = 1_000_000
	DefaultMaxBacklogBytes = 256 << 20
	DefaultPublishTimeout  = 5 * time.Second
	DefaultNackBackoffMin  = 100 * time.Millisecond
	DefaultNackBackoffMax  = time.Second
)

// A Config says what a [Broker] is. The zero value means the defaults.
type Config struct {
	// Logger takes the one line that the broker logs when it is made: that
	// confirmed messages end with the process. Defaults to [slog.Default].
	Logger *slog.Logger

	// RetainEntries is how many messages of a topic are kept, for consumers to
	// come, after all known consumers have acked them. Defaults to 100,000; at
	// least 1.
	RetainEntries int
	// RetainBytes bounds the same messages by the bytes of their ids, headers
	// and payloads. Defaults to 67,108,864 (64 MiB); at least 1.
	RetainBytes int64

	// MaxBacklog bounds the messages of a topic from the oldest one that some
	// known consumer has not acked. Defaults to 1,000,000; at least 1.
	MaxBacklog int
	// MaxBacklogBytes bounds the same messages by bytes; a message that is
	// larger is taken when there is no backlog. Defaults to 268,435,456
	// (256 MiB); at least 1.
	MaxBacklogBytes int64
	// PublishTimeout is how long a plain Publish, which has no context, waits
	// for a place in a full log. Defaults to 5 s; at least 1 ns.
	PublishTimeout time.Duration

	// NackBackoffMin is how long a message waits after its first nack, its key
	// behind it; the wait doubles with every further nack. Defaults to 100 ms;
	// at least 1 ns.
	NackBackoffMin time.Duration
	// NackBackoffMax bounds the wait. Defaults to 1 s, or to NackBackoffMin if
	// that is more; at least NackBackoffMin.
	NackBackoffMax time.Duration

	// PublishFunc stands between publishers and the log, for tests and fault
	// stories. What it returns is the result of the message: it may refuse it,
	// for example with a *schema.PublishError, call next, which appends the
	// message and returns nil once it is confirmed, or call next and lose the
	// answer; calling next twice appends the message twice. It is called on the
	// publishing goroutine, by many at a time, must not change msg, and must
	// return soon after ctx ends. Defaults to nil: every message is appended.
	PublishFunc func(ctx context.Context, topic string, msg *message.Message, next func() error) error
}

func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	setDefault(&c.RetainEntries, DefaultRetainEntries)
	setDefault(&c.RetainBytes, DefaultRetainBytes)
	setDefault(&c.MaxBacklog, DefaultMaxBacklog)
	setDefault(&c.MaxBacklogBytes, DefaultMaxBacklogBytes)
	setDefault(&c.PublishTimeout, DefaultPublishTimeout)
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
		atLeast("RetainEntries", c.RetainEntries, 1),
		atLeast("RetainBytes", c.RetainBytes, 1),
		atLeast("MaxBacklog", c.MaxBacklog, 1),
		atLeast("MaxBacklogBytes", c.MaxBacklogBytes, 1),
		atLeast("PublishTimeout", c.PublishTimeout, 1),
		atLeast("NackBackoffMin", c.NackBackoffMin, 1),
		atLeast("NackBackoffMax", c.NackBackoffMax, max(1, c.NackBackoffMin)),
	)
}

func atLeast[T int | int64 | time.Duration](field string, value, least T) error {
	if value < least {
		return fmt.Errorf("%w: %s is %v, the least is %v", schema.ErrInvalidOption, field, value, least)
	}
	return nil
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
