package forwarder

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// The defaults of [Config].
const (
	DefaultLease          = 10 * time.Second
	DefaultHeartbeat      = 3 * time.Second
	DefaultPublishTimeout = 5 * time.Second
	DefaultPollInterval   = time.Second
	DefaultStopTimeout    = 15 * time.Second
	DefaultBatch          = 1000
	DefaultMaxAttempts    = 10
	DefaultBackoffInitial = time.Second
	DefaultBackoffMax     = 5 * time.Minute
)

// The bounds of [Config].
const (
	// MinLease bounds Lease from below.
	MinLease = time.Millisecond
	// MaxBatch bounds Batch: more is no faster and holds more in memory.
	MaxBatch = 10_000
	// MaxMaxAttempts bounds MaxAttempts.
	MaxMaxAttempts = 1000
	// MaxNameBytes bounds Name.
	MaxNameBytes = 200
)

// A Policy says what becomes of a key after one of its records was
// quarantined.
type Policy string

// The policies.
const (
	// PolicyHold keeps the later records of the key back until a person
	// decides about the quarantined one.
	PolicyHold Policy = "hold"
	// PolicySkip goes on with the later records of the key.
	PolicySkip Policy = "skip"
)

// Config says what a relay is.
type Config struct {
	// Source is the outbox. Required. It stays the caller's.
	Source schema.Source
	// Publisher is the broker. Required; the caller closes it after Run has
	// returned. One that is a [schema.BatchPublisher] is given whole waves,
	// several topics at once; any other is asked one message at a time. A call
	// that does not return in time is left behind, and nothing is sent to its
	// topic, by a plain publisher to none, until it has returned; Run does not
	// wait for it longer than half of StopTimeout.
	Publisher message.Publisher
	// Name starts the name under which the relay owns shards, for people who
	// read the table; at most 200 bytes of UTF-8 without NUL. Defaults to
	// "relay".
	Name string
	// Lease is how long the relay owns its shards after a heartbeat: what a
	// killed relay costs; at least 1 ms. Defaults to 10 s.
	Lease time.Duration
	// Heartbeat is the interval of heartbeats, less than half of Lease.
	// Defaults to 3 s.
	Heartbeat time.Duration
	// PublishTimeout bounds one wave, less than Lease. Defaults to 5 s.
	PublishTimeout time.Duration
	// PollInterval is how often an idle relay looks, give or take a tenth.
	// Defaults to 1 s.
	PollInterval time.Duration
	// StopTimeout bounds what Run still does after its context has ended; the
	// publisher has half of it for what is in flight. Defaults to 15 s.
	StopTimeout time.Duration
	// Batch is how many waiting records are read at a time, and how many held
	// ones, at most 10,000. Defaults to 1000.
	Batch int
	// MaxAttempts is after how many failed sends a record is quarantined, at
	// most 1000. Defaults to 10.
	MaxAttempts int
	// BackoffInitial and BackoffMax bound the wait before attempt n+1 of a
	// record: a random time up to min(BackoffMax, BackoffInitial * 2^(n-1)).
	// Default to 1 s and 5 min.
	BackoffInitial, BackoffMax time.Duration
	// AfterQuarantine is the policy for a key with a quarantined record.
	// Defaults to PolicyHold.
	AfterQuarantine Policy
	// Logger gets what a person may have to act on. Defaults to none.
	Logger *slog.Logger
	// SentFunc, if set, is called from one goroutine with records that the
	// broker has confirmed and the outbox has marked. The relay waits for it;
	// a panic is logged.
	SentFunc func(records []schema.Record)
}

func (c Config) withDefaults() Config {
	durations := []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.Lease, DefaultLease},
		{&c.Heartbeat, DefaultHeartbeat},
		{&c.PublishTimeout, DefaultPublishTimeout},
		{&c.PollInterval, DefaultPollInterval},
		{&c.StopTimeout, DefaultStopTimeout},
		{&c.BackoffInitial, DefaultBackoffInitial},
		{&c.BackoffMax, DefaultBackoffMax},
	}
	for _, d := range durations {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Batch == 0 {
		c.Batch = DefaultBatch
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = DefaultMaxAttempts
	}
	if c.AfterQuarantine == "" {
		c.AfterQuarantine = PolicyHold
	}
	if c.Name == "" {
		c.Name = "relay"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(c.Source != nil, "Source is nil")
	check(c.Publisher != nil, "Publisher is nil")
	check(len(c.Name) <= MaxNameBytes && utf8.ValidString(c.Name) && !strings.ContainsRune(c.Name, 0),
		"Name is %.40q with %d bytes, it must be UTF-8 without NUL and have at most %d bytes", c.Name, len(c.Name), MaxNameBytes)
	check(c.Lease >= MinLease, "Lease is %s, it must not be below %s", c.Lease, MinLease)
	check(c.Heartbeat > 0 && c.Heartbeat*2 < c.Lease, "Heartbeat is %s, it must be above 0 and below half of Lease (%s)", c.Heartbeat, c.Lease)
	check(c.PublishTimeout > 0 && c.PublishTimeout < c.Lease, "PublishTimeout is %s, it must be above 0 and below Lease (%s)", c.PublishTimeout, c.Lease)
	check(c.PollInterval > 0, "PollInterval is %s, it must be above 0", c.PollInterval)
	check(c.StopTimeout > 0, "StopTimeout is %s, it must be above 0", c.StopTimeout)
	check(c.Batch > 0 && c.Batch <= MaxBatch, "Batch is %d, it must be between 1 and %d", c.Batch, MaxBatch)
	check(c.MaxAttempts > 0 && c.MaxAttempts <= MaxMaxAttempts, "MaxAttempts is %d, it must be between 1 and %d", c.MaxAttempts, MaxMaxAttempts)
	check(c.BackoffInitial > 0, "BackoffInitial is %s, it must be above 0", c.BackoffInitial)
	check(c.BackoffMax >= c.BackoffInitial, "BackoffMax is %s, it must not be below BackoffInitial (%s)", c.BackoffMax, c.BackoffInitial)
	check(c.AfterQuarantine == PolicyHold || c.AfterQuarantine == PolicySkip, "AfterQuarantine is %q, it must be %q or %q", c.AfterQuarantine, PolicyHold, PolicySkip)
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrInvalidConfig, errors.Join(faults...))
}
