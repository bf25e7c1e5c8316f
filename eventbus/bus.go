package eventbus

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/postbus-io/postbus/forwarder"
	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/middleware"
	"github.com/postbus-io/postbus/schema"
)

// A Bus publishes to the outbox of one database, relays it, and runs the
// consumers whose inbox is in the same database. All methods are safe for
// concurrent use.
type Bus struct {
	cfg        Config
	db         *sql.DB
	database   schema.Database
	broker     schema.Broker
	ownsBroker bool
	registry   *schema.Registry
	log        *slog.Logger
	hooks      []middleware.Hook
	sentFunc   func([]schema.Record)

	ready     chan struct{}
	readyOnce sync.Once

	mu        sync.Mutex
	consumers map[string][]handlers.Handler
	order     []string // names of the consumers as they came
	started   bool     // RunConsumers was called
	relays    map[*forwarder.Relay]struct{}
	closed    bool
}

// An Option of Open. Its error wraps [schema.ErrInvalidOption].
type Option func(*Bus) error

// WithLogger sets where the bus logs. Defaults to slog.Default().
func WithLogger(logger *slog.Logger) Option {
	return func(b *Bus) error {
		if logger == nil {
			return fmt.Errorf("%w: WithLogger: nil", schema.ErrInvalidOption)
		}
		b.log = logger
		return nil
	}
}

// WithBroker uses a broker that somebody else has made and closes, so that two
// buses of one process can share a broker of kind memory. The configuration's
// broker is ignored.
func WithBroker(broker schema.Broker) Option {
	return func(b *Bus) error {
		if broker == nil {
			return fmt.Errorf("%w: WithBroker: nil", schema.ErrInvalidOption)
		}
		b.broker = broker
		return nil
	}
}

// WithRegistry sets the codec and the topic rule. Defaults to a registry with
// neither changed.
func WithRegistry(registry *schema.Registry) Option {
	return func(b *Bus) error {
		if registry == nil {
			return fmt.Errorf("%w: WithRegistry: nil", schema.ErrInvalidOption)
		}
		b.registry = registry
		return nil
	}
}

// WithHook adds a hook that is told what becomes of received messages; see
// [middleware.Hook] for what it may implement.
func WithHook(hook middleware.Hook) Option {
	return func(b *Bus) error {
		b.hooks = append(b.hooks, hook)
		return nil
	}
}

// WithSentFunc sets a function that the relays of this bus call with records
// that are sent and marked, from one goroutine a relay.
func WithSentFunc(sentFunc func(records []schema.Record)) Option {
	return func(b *Bus) error {
		b.sentFunc = sentFunc
		return nil
	}
}

// Open returns the bus on db, which stays the caller's to close. It asks the
// database what it is and whether it is fit; it does not wait for the broker.
// Errors wrap [ErrInvalidConfig], [schema.ErrInvalidOption] or [ErrDatabase];
// a database without tables is [schema.ErrNotMigrated].
func Open(ctx context.Context, db *sql.DB, cfg Config, options ...Option) (*Bus, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	b := &Bus{
		cfg: cfg.withDefaults(), db: db, log: slog.Default(), registry: schema.NewRegistry(),
		ready:     make(chan struct{}),
		consumers: map[string][]handlers.Handler{}, relays: map[*forwarder.Relay]struct{}{},
	}
	var faults []error
	for _, option := range options {
		faults = append(faults, option(b))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	var err error
	if b.database, err = openDatabase(ctx, db, b.cfg); err != nil {
		return nil, err
	}
	if b.broker == nil {
		b.ownsBroker = true
		if b.broker, err = openBroker(b.cfg.Broker, b.log); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// Close closes the broker, unless WithBroker brought it. Call it after Run has
// returned. Idempotent.
func (b *Bus) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	if b.ownsBroker {
		return b.broker.Close()
	}
	return nil
}

// Broker returns the broker of the bus, to be shared with another bus of the
// process by WithBroker.
func (b *Bus) Broker() schema.Broker { return b.broker }

// Ready is closed when everything that was first started by Run, RunRelay or
// RunConsumers is up: the relay has joined, the consumers have subscribed.
func (b *Bus) Ready() <-chan struct{} { return b.ready }
