package story

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite"

	"github.com/postbus-io/postbus/eventbus"
	"github.com/postbus-io/postbus/eventbus/memory"
	"github.com/postbus-io/postbus/examples/orders/ordering"
	"github.com/postbus-io/postbus/examples/payments/charging"
	"github.com/postbus-io/postbus/schema/sqlite"
)

// The topics of the two services.
const (
	topicOrders   = "orders"
	topicPayments = "payments"
)

// A stage is the two services, the broker between them, and those who watch.
type stage struct {
	cfg    Config
	say    narrator
	folder string
	broker *memory.Broker
	bank   *moodyBank
	tally  tally

	orders, payments database
	shop             *ordering.Service
	till             *charging.Service

	rolledBack, redriven int

	watcher atomic.Pointer[watcher]
	end     context.CancelCauseFunc // ends the story
	running sync.WaitGroup
	mu      sync.Mutex
	faults  []error // of what was running
}

// A database is one service's, with the bus on it.
type database struct {
	*sql.DB
	bus *eventbus.Bus
}

// busConfig has a short lease, so that nobody waits long for a dead relay.
func busConfig() eventbus.Config {
	cfg := eventbus.DefaultConfig()
	cfg.Relay.Lease = time.Second
	cfg.Relay.Heartbeat = 300 * time.Millisecond
	cfg.Relay.PublishTimeout = 500 * time.Millisecond
	cfg.Relay.StopTimeout = 5 * time.Second
	cfg.Consumer.DrainTimeout = 5 * time.Second
	return cfg
}

// setUp makes all that the story needs; close takes it away.
func setUp(ctx context.Context, cfg Config) (_ *stage, err error) {
	s := &stage{cfg: cfg, say: newNarrator(cfg.Out), bank: newMoodyBank()}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.folder, err = os.MkdirTemp("", "postbus-orders-"); err != nil {
		return nil, err
	}
	if s.broker, err = memory.New(memory.Config{Logger: cfg.Logger, PublishFunc: s.publish}); err != nil {
		return nil, err
	}
	if s.orders, err = s.open(ctx, "orders.db", ordering.Migrate); err != nil {
		return nil, fmt.Errorf("orders: %w", err)
	}
	if s.payments, err = s.open(ctx, "payments.db", charging.Migrate); err != nil {
		return nil, fmt.Errorf("payments: %w", err)
	}
	if s.shop, err = ordering.New(s.orders.bus, s.orders.DB); err != nil {
		return nil, err
	}
	s.till, err = charging.New(s.payments.bus, s.payments.DB, s.bank)
	return s, err
}

// open opens a new database with its tables and a bus on it. What it returns
// is to be closed even after an error.
func (s *stage) open(ctx context.Context, name string, migrate func(context.Context, *sql.DB) error) (d database, err error) {
	cfg := busConfig()
	if d.DB, err = sql.Open("sqlite", sqlite.DSN(filepath.Join(s.folder, name))); err != nil {
		return d, err
	}
	if err := errors.Join(eventbus.Migrate(ctx, d.DB, cfg), migrate(ctx, d.DB)); err != nil {
		return d, err
	}
	d.bus, err = eventbus.Open(ctx, d.DB, cfg,
		eventbus.WithBroker(s.broker), eventbus.WithLogger(s.cfg.Logger),
		eventbus.WithHook(&s.tally), eventbus.WithSentFunc(s.tally.sent))
	return d, err
}

func (d database) close() error {
	var errs []error
	if d.bus != nil {
		errs = append(errs, d.bus.Close())
	}
	if d.DB != nil {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// close takes the stage down. Nothing is left of it.
func (s *stage) close() error {
	errs := []error{s.orders.close(), s.payments.close()}
	if s.broker != nil {
		errs = append(errs, s.broker.Close())
	}
	if s.folder != "" {
		errs = append(errs, os.RemoveAll(s.folder))
	}
	return errors.Join(errs...)
}

// start runs a part of a service until ctx ends. A fault of it ends the story.
func (s *stage) start(ctx context.Context, name string, run func(context.Context) error) {
	s.running.Go(func() {
		if err := run(ctx); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.faults = append(s.faults, fmt.Errorf("%s: %w", name, err))
			s.end(errFault)
		}
	})
}

// publish stands in front of the broker, for the watcher.
func (s *stage) publish(ctx context.Context, topic string, _ *message.Message, next func() error) error {
	err := next()
	if watch := s.watcher.Load(); watch != nil && err == nil {
		(*watch)(ctx, topic)
	}
	return err
}
