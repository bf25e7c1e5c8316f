package eventbus

import (
	"reflect"
	"time"

	"github.com/postbus-io/postbus/eventbus/memory"
	"github.com/postbus-io/postbus/forwarder"
	"github.com/postbus-io/postbus/schema"
)

// The kinds of databases and brokers that a configuration may name.
const (
	DatabasePostgres = "postgres"
	DatabaseSQLite   = "sqlite"
	BrokerMemory     = "memory"
)

var (
	databaseKinds = []string{DatabasePostgres, DatabaseSQLite}
	brokerKinds   = []string{BrokerMemory}
)

// What happens to the later records of a key whose record was quarantined.
const (
	// AfterQuarantineHold keeps them until a person decides.
	AfterQuarantineHold = "hold"
	// AfterQuarantineSkip sends them; the key's order has a gap from then on.
	AfterQuarantineSkip = "skip"
)

// The bounds of the fields of [Config].
const (
	// MinPayloadBytes and MaxPayloadBytes bound outbox.max_payload_bytes.
	MinPayloadBytes = 1
	MaxPayloadBytes = 64 << 20
	// MinHeaderBytes and MaxHeaderBytes bound outbox.max_header_bytes: the
	// headers of Postbus itself have room, and all of them fit into the one
	// frame (128 KiB by default) that RabbitMQ takes them in.
	MinHeaderBytes = 1 << 10
	MaxHeaderBytes = 96 << 10
	// MinHeaders and MaxHeaders bound outbox.max_headers.
	MinHeaders = 8
	MaxHeaders = 512
	// MinLease and MaxLease bound relay.lease.
	MinLease = 100 * time.Millisecond
	MaxLease = 10 * time.Minute
	// MinHeartbeat bounds relay.heartbeat from below, half of relay.lease from
	// above.
	MinHeartbeat = 10 * time.Millisecond
	// MinPublishTimeout bounds relay.publish_timeout from below, relay.lease
	// from above.
	MinPublishTimeout = 10 * time.Millisecond
	// MaxBatch bounds relay.batch: 10,000 rows.
	MaxBatch = forwarder.MaxBatch
	// MinPollInterval and MaxPollInterval bound relay.poll_interval.
	MinPollInterval = time.Millisecond
	MaxPollInterval = time.Minute
	// MaxAttempts bounds relay.max_attempts: 1,000 sends.
	MaxAttempts = forwarder.MaxMaxAttempts
	// MinBackoff and MaxBackoff bound the waits of relay.backoff, consumer.retry
	// and broker.memory.nack_backoff.
	MinBackoff = time.Millisecond
	MaxBackoff = 24 * time.Hour
	// MinStopTimeout and MaxStopTimeout bound relay.stop_timeout and
	// consumer.drain_timeout.
	MinStopTimeout = time.Millisecond
	MaxStopTimeout = 10 * time.Minute
	// MaxLanes bounds consumer.lanes.
	MaxLanes = 1_024
	// MaxWindow bounds consumer.window.
	MaxWindow = 10_000
	// MinRetryBudget and MaxRetryBudget bound consumer.retry.budget.
	MinRetryBudget = time.Millisecond
	MaxRetryBudget = time.Hour
	// MaxMemoryEntries bounds broker.memory.retain_entries and
	// broker.memory.max_backlog.
	MaxMemoryEntries = 100_000_000
	// MaxMemoryBytes bounds broker.memory.retain_bytes and
	// broker.memory.max_backlog_bytes: 1 GiB.
	MaxMemoryBytes = 1 << 30
)

// Config says what a bus is. A field that is zero in a Config built in Go takes
// its default; none has a zero that means something else. What a file or the
// environment says is taken as it is: a written 0 is a 0, and out of bounds.
//
// The tags name the fields in a YAML file; an environment variable has the
// field's path in capitals: POSTBUS_RELAY_POLL_INTERVAL is relay.poll_interval.
type Config struct {
	// Database says where the tables are.
	Database DatabaseConfig `yaml:"database"`
	// Broker says where events go and come from.
	Broker BrokerConfig `yaml:"broker"`
	// Outbox says what may be published.
	Outbox OutboxConfig `yaml:"outbox"`
	// Relay says how the outbox is sent.
	Relay RelayConfig `yaml:"relay"`
	// Consumer says how handlers are run.
	Consumer ConsumerConfig `yaml:"consumer"`
}

// DatabaseConfig says where the tables are.
type DatabaseConfig struct {
	// Kind is postgres or sqlite; "" asks the server what it is. Defaults to "".
	Kind string `yaml:"kind"`
	// Schema is the database schema of the tables, PostgreSQL only; "" is the
	// first one of the search path. Defaults to "".
	Schema string `yaml:"schema"`
	// TablePrefix starts the name of every table, at most 32 bytes. Defaults to
	// "postbus_".
	TablePrefix string `yaml:"table_prefix"`
}

// Tables returns the names for migrations and for a database room.
func (c DatabaseConfig) Tables() schema.Tables {
	return schema.Tables{Schema: c.Schema, Prefix: c.TablePrefix}
}

// BrokerConfig says where events go and come from.
type BrokerConfig struct {
	// Kind is memory. Defaults to memory.
	Kind string `yaml:"kind"`
	// Memory configures the broker of kind memory.
	Memory MemoryConfig `yaml:"memory"`
}

// MemoryConfig configures the broker that lives in this process.
type MemoryConfig struct {
	// RetainEntries is how many messages of a topic are kept, for consumers to
	// come, after all known consumers have settled them. Defaults to 100,000.
	RetainEntries int `yaml:"retain_entries"`
	// RetainBytes bounds the same messages, in bytes. Defaults to 67,108,864
	// (64 MiB).
	RetainBytes int `yaml:"retain_bytes"`
	// MaxBacklog is how many messages of a topic may wait for a known consumer;
	// then publishing waits. Defaults to 1,000,000.
	MaxBacklog int `yaml:"max_backlog"`
	// MaxBacklogBytes bounds the same messages, in bytes. Defaults to
	// 268,435,456 (256 MiB).
	MaxBacklogBytes int `yaml:"max_backlog_bytes"`
	// NackBackoff is the wait before a message that was given back is handed
	// out again, its key behind it.
	NackBackoff BackoffConfig `yaml:"nack_backoff"`
}

// OutboxConfig says what may be published.
type OutboxConfig struct {
	// MaxPayloadBytes bounds the payload of a message, in bytes. Defaults to
	// 921,600 (900 KiB).
	MaxPayloadBytes int `yaml:"max_payload_bytes"`
	// MaxHeaderBytes bounds names and values of all headers of a message
	// together, in bytes. Defaults to 32,768 (32 KiB).
	MaxHeaderBytes int `yaml:"max_header_bytes"`
	// MaxHeaders bounds the number of headers of a message, Postbus's own
	// included. Defaults to 64.
	MaxHeaders int `yaml:"max_headers"`
	// KeyLock takes a lock of each key, to the end of the transaction, before
	// the ids of its events are drawn: order per key is kept even when
	// transactions do not lock the aggregate first. PostgreSQL only; on SQLite,
	// with its one writer, it changes nothing. Defaults to false.
	KeyLock bool `yaml:"key_lock"`
}

// Limits returns the bounds for the check of a message.
func (c OutboxConfig) Limits() schema.Limits {
	return schema.Limits{
		MaxPayloadBytes: c.MaxPayloadBytes,
		MaxHeaderBytes:  c.MaxHeaderBytes,
		MaxHeaders:      c.MaxHeaders,
	}
}

// RelayConfig says how the outbox is sent.
type RelayConfig struct {
	// Lease is how long a relay owns its shards after its last heartbeat: when
	// its process dies, others wait this long. Defaults to 10s.
	Lease time.Duration `yaml:"lease"`
	// Heartbeat is the time between two heartbeats, less than half of Lease.
	// Defaults to 3s.
	Heartbeat time.Duration `yaml:"heartbeat"`
	// PublishTimeout is how long the broker may take to confirm, less than
	// Lease. Defaults to 5s.
	PublishTimeout time.Duration `yaml:"publish_timeout"`
	// Batch is the most records that are read at once, in rows. Defaults to
	// 1,000.
	Batch int `yaml:"batch"`
	// PollInterval is the time between two looks at an idle outbox. Defaults to
	// 1s.
	PollInterval time.Duration `yaml:"poll_interval"`
	// MaxAttempts is how many sends of a record may fail before it is
	// quarantined. Defaults to 10.
	MaxAttempts int `yaml:"max_attempts"`
	// Backoff is the wait between two sends of a record.
	Backoff BackoffConfig `yaml:"backoff"`
	// AfterQuarantine says what happens to the later records of the key: hold
	// or skip. Defaults to hold.
	AfterQuarantine string `yaml:"after_quarantine"`
	// StopTimeout is how long a stopping relay waits for what is in flight.
	// Defaults to 15s.
	StopTimeout time.Duration `yaml:"stop_timeout"`
}

// BackoffConfig is a wait that doubles with every failure.
type BackoffConfig struct {
	// Initial is the first wait, at most Max. Defaults to 1s in relay.backoff,
	// to 100ms in broker.memory.nack_backoff.
	Initial time.Duration `yaml:"initial"`
	// Max is the longest wait. Defaults to 5m in relay.backoff, to 1s in
	// broker.memory.nack_backoff.
	Max time.Duration `yaml:"max"`
}

// ConsumerConfig says how handlers are run.
type ConsumerConfig struct {
	// Lanes is how many keys of a topic are handled at the same time. Defaults
	// to 16.
	Lanes int `yaml:"lanes"`
	// Window is how many messages of a topic are taken from the broker and not
	// yet settled, at least Lanes. Defaults to 64.
	Window int `yaml:"window"`
	// DrainTimeout is how long running handlers may take to finish when the
	// process stops. Defaults to 20s.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	// Retry is the retry of a handler that failed.
	Retry RetryConfig `yaml:"retry"`
}

// RetryConfig is the retry of a handler, in place: its key waits.
type RetryConfig struct {
	// Initial is the wait before the first retry, at most Max. It doubles with
	// every failure. Defaults to 100ms.
	Initial time.Duration `yaml:"initial"`
	// Max is the longest wait. Defaults to 5s.
	Max time.Duration `yaml:"max"`
	// Budget is how long a message is tried in all before it becomes a dead
	// letter; less than half of Initial is no retry. Defaults to 30s.
	Budget time.Duration `yaml:"budget"`
}

// DefaultConfig returns the configuration with every field at its default.
func DefaultConfig() Config {
	return Config{
		Database: DatabaseConfig{TablePrefix: schema.DefaultTablePrefix},
		Broker: BrokerConfig{Kind: BrokerMemory, Memory: MemoryConfig{
			RetainEntries: memory.DefaultRetainEntries, RetainBytes: memory.DefaultRetainBytes,
			MaxBacklog: memory.DefaultMaxBacklog, MaxBacklogBytes: memory.DefaultMaxBacklogBytes,
			NackBackoff: BackoffConfig{Initial: memory.DefaultNackBackoffMin, Max: memory.DefaultNackBackoffMax},
		}},
		Outbox: OutboxConfig{
			MaxPayloadBytes: schema.DefaultMaxPayloadBytes,
			MaxHeaderBytes:  schema.DefaultMaxHeaderBytes,
			MaxHeaders:      schema.DefaultMaxHeaders,
		},
		Relay: RelayConfig{
			Lease: 10 * time.Second, Heartbeat: 3 * time.Second, PublishTimeout: 5 * time.Second,
			Batch: 1_000, PollInterval: time.Second, MaxAttempts: 10,
			Backoff:         BackoffConfig{Initial: time.Second, Max: 5 * time.Minute},
			AfterQuarantine: AfterQuarantineHold, StopTimeout: 15 * time.Second,
		},
		Consumer: ConsumerConfig{
			Lanes: 16, Window: 64, DrainTimeout: 20 * time.Second,
			Retry: RetryConfig{Initial: 100 * time.Millisecond, Max: 5 * time.Second, Budget: 30 * time.Second},
		},
	}
}

// withDefaults returns a copy in which every field that is zero has its
// default.
func (c Config) withDefaults() Config {
	defaults := reflect.ValueOf(DefaultConfig())
	own := reflect.ValueOf(&c).Elem()
	for _, f := range fieldsOf(own.Type()) {
		if v := own.FieldByIndex(f.index); v.IsZero() {
			v.Set(defaults.FieldByIndex(f.index))
		}
	}
	return c
}
