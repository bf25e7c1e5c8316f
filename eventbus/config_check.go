package eventbus

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postbus-io/postbus/schema"
)

// ErrInvalidConfig is wrapped by every error of a configuration.
var ErrInvalidConfig = errors.New("invalid configuration")

// A FieldError says what is wrong with one field of a configuration.
type FieldError struct {
	// Field is the field's path, for example "relay.batch"; of an unknown
	// environment variable and of a file that cannot be read, the name.
	Field string
	// Reason names the value and the bound or the way out. No password is in
	// it.
	Reason string
}

// Error implements error.
func (e *FieldError) Error() string { return e.Field + ": " + e.Reason }

// Unwrap returns [ErrInvalidConfig].
func (e *FieldError) Unwrap() error { return ErrInvalidConfig }

// faults collects what is wrong with a configuration.
type faults struct{ list []*FieldError }

func (f *faults) add(path, format string, args ...any) {
	f.list = append(f.list, &FieldError{Field: RedactURL(path), Reason: RedactURL(fmt.Sprintf(format, args...))})
}

// has tells whether one of the fields has a fault already.
func (f *faults) has(paths ...string) bool {
	return slices.ContainsFunc(f.list, func(e *FieldError) bool { return slices.Contains(paths, e.Field) })
}

func (f *faults) err() error {
	all := make([]error, len(f.list))
	for i, e := range f.list {
		all[i] = e
	}
	return errors.Join(all...)
}

// Validate says what is wrong with the configuration once its zero fields have
// their defaults: all faults at once, each a [*FieldError] that begins a line
// with the field's path and wraps [ErrInvalidConfig].
func (c Config) Validate() error { return c.withDefaults().validate() }

func (c Config) validate() error {
	f := &faults{}
	c.check(f)
	return f.err()
}

func (c Config) check(f *faults) {
	c.Database.check(f)
	c.Broker.check(f)
	c.Outbox.check(f)
	c.Relay.check(f)
	c.Consumer.check(f)
}

func (c DatabaseConfig) check(f *faults) {
	if c.Kind != "" {
		f.oneOf("database.kind", c.Kind, databaseKinds)
	}
	if err := (schema.Tables{Schema: c.Schema}).Validate(); err != nil {
		f.add("database.schema", "%v", err)
	} else if c.Schema != "" && c.Kind == DatabaseSQLite {
		f.add("database.schema", "%q is for PostgreSQL; leave it out when database.kind is sqlite", c.Schema)
	}
	if err := (schema.Tables{Prefix: c.TablePrefix}).Validate(); err != nil {
		f.add("database.table_prefix", "%v", err)
	} else if c.TablePrefix == "" {
		f.add("database.table_prefix", `"" is empty; leave it out for %s`, schema.DefaultTablePrefix)
	}
}

func (c BrokerConfig) check(f *faults) {
	f.oneOf("broker.kind", c.Kind, brokerKinds)
	between(f, "broker.memory.retain_entries", c.Memory.RetainEntries, 1, MaxMemoryEntries)
	between(f, "broker.memory.retain_bytes", c.Memory.RetainBytes, 1, MaxMemoryBytes)
	between(f, "broker.memory.max_backlog", c.Memory.MaxBacklog, 1, MaxMemoryEntries)
	between(f, "broker.memory.max_backlog_bytes", c.Memory.MaxBacklogBytes, 1, MaxMemoryBytes)
	f.backoff("broker.memory.nack_backoff", c.Memory.NackBackoff.Initial, c.Memory.NackBackoff.Max)
}

func (c OutboxConfig) check(f *faults) {
	between(f, "outbox.max_payload_bytes", c.MaxPayloadBytes, MinPayloadBytes, MaxPayloadBytes)
	between(f, "outbox.max_header_bytes", c.MaxHeaderBytes, MinHeaderBytes, MaxHeaderBytes)
	between(f, "outbox.max_headers", c.MaxHeaders, MinHeaders, MaxHeaders)
}

func (c RelayConfig) check(f *faults) {
	between(f, "relay.lease", c.Lease, MinLease, MaxLease)
	between(f, "relay.heartbeat", c.Heartbeat, MinHeartbeat, MaxLease)
	if !f.has("relay.heartbeat", "relay.lease") && c.Heartbeat*2 >= c.Lease {
		f.add("relay.heartbeat", "%v is not less than half of relay.lease, %v", c.Heartbeat, c.Lease)
	}
	between(f, "relay.publish_timeout", c.PublishTimeout, MinPublishTimeout, MaxLease)
	if !f.has("relay.publish_timeout", "relay.lease") && c.PublishTimeout >= c.Lease {
		f.add("relay.publish_timeout", "%v is not less than relay.lease, %v", c.PublishTimeout, c.Lease)
	}
	between(f, "relay.batch", c.Batch, 1, MaxBatch)
	between(f, "relay.poll_interval", c.PollInterval, MinPollInterval, MaxPollInterval)
	between(f, "relay.max_attempts", c.MaxAttempts, 1, MaxAttempts)
	f.backoff("relay.backoff", c.Backoff.Initial, c.Backoff.Max)
	f.oneOf("relay.after_quarantine", c.AfterQuarantine, []string{AfterQuarantineHold, AfterQuarantineSkip})
	between(f, "relay.stop_timeout", c.StopTimeout, MinStopTimeout, MaxStopTimeout)
}

func (c ConsumerConfig) check(f *faults) {
	between(f, "consumer.lanes", c.Lanes, 1, MaxLanes)
	between(f, "consumer.window", c.Window, 1, MaxWindow)
	if !f.has("consumer.lanes", "consumer.window") && c.Window < c.Lanes {
		f.add("consumer.window", "%d is less than consumer.lanes, %d", c.Window, c.Lanes)
	}
	between(f, "consumer.drain_timeout", c.DrainTimeout, MinStopTimeout, MaxStopTimeout)
	f.backoff("consumer.retry", c.Retry.Initial, c.Retry.Max)
	between(f, "consumer.retry.budget", c.Retry.Budget, MinRetryBudget, MaxRetryBudget)
}

func between[T int | time.Duration](f *faults, path string, value, low, high T) {
	if value < low || value > high {
		f.add(path, "%v is not between %v and %v", value, low, high)
	}
}

func (f *faults) oneOf(path, value string, words []string) {
	if !slices.Contains(words, value) {
		f.add(path, "%.64q is not one of %s", RedactURL(value), strings.Join(words, ", "))
	}
}

func (f *faults) backoff(path string, initial, longest time.Duration) {
	between(f, path+".initial", initial, MinBackoff, MaxBackoff)
	between(f, path+".max", longest, MinBackoff, MaxBackoff)
	if !f.has(path+".initial", path+".max") && initial > longest {
		f.add(path+".initial", "%v is more than %s.max, %v", initial, path, longest)
	}
}
