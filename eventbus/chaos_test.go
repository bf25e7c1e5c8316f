package eventbus_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus"
	"github.com/postbus-io/postbus/eventbus/memory"
	"github.com/postbus-io/postbus/forwarder"
	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
	"github.com/postbus-io/postbus/schema/schematest"
)

// chaosEvents is how many events a chaos run commits.
const chaosEvents = 20_000

func TestBus_H07_H08_H49_H51_AppliedOnceThroughAbandonedRelaysAndLostConnections(t *testing.T) {
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			url := schematest.PostgresURL(t)
			db := schematest.Open(t, driver, url)
			require.NoError(t, postgres.Migrate(t.Context(), db, schema.Tables{}))
			runChaos(t, db)
		})
	}
}

// chaos runs three relays and a consumer, abandons them at random and ends
// their connections, while the workload goes on.
type chaos struct {
	db     *sql.DB
	broker *memory.Broker
	cfg    eventbus.Config
}

func runChaos(t *testing.T, db *sql.DB) {
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	c := &chaos{db: db, broker: faultyBroker(t), cfg: chaosConfig()}
	w := newWorkload(t, db, 50, chaosEvents)

	faults, heal := context.WithCancel(ctx)
	var parts sync.WaitGroup
	for range 3 {
		parts.Go(func() { c.relays(t, ctx, faults) })
	}
	parts.Go(func() { c.consumers(t, ctx, faults) })
	parts.Go(func() { c.terminations(t, faults) })

	writing, err := c.open(ctx)
	require.NoError(t, err)
	start := time.Now()
	w.run(ctx, writing)
	t.Logf("committed after %s", time.Since(start).Round(time.Second))
	require.NoError(t, ctx.Err(), "the load did not finish in time")
	heal()
	w.settled(t, "count", 2*time.Minute)
	t.Logf("settled after %s", time.Since(start).Round(time.Second))
	cancel()
	parts.Wait()

	w.check(t, "count")
	messages, copies := w.checkBroker(t, c.broker)
	t.Logf("%d events committed, %d messages at the broker, %d of them copies", w.committed.Load(), messages, copies)
}

func chaosConfig() eventbus.Config {
	cfg := eventbus.DefaultConfig()
	cfg.Relay.Lease, cfg.Relay.Heartbeat, cfg.Relay.PublishTimeout = time.Second, 300*time.Millisecond, 500*time.Millisecond
	cfg.Relay.PollInterval = 100 * time.Millisecond
	cfg.Relay.Backoff.Initial, cfg.Relay.Backoff.Max = 20*time.Millisecond, 200*time.Millisecond
	cfg.Relay.MaxAttempts = 1000
	cfg.Consumer.DrainTimeout = time.Millisecond
	return cfg
}

// faultyBroker refuses one message in a hundred, loses the answer for one in
// two hundred, and is away now and then.
func faultyBroker(t *testing.T) *memory.Broker {
	t.Helper()
	broker, err := memory.New(memory.Config{
		Logger: quiet(),
		PublishFunc: func(_ context.Context, topic string, _ *message.Message, next func() error) error {
			switch dice := rand.IntN(2000); {
			case dice < 20:
				return errors.New("refused for no known reason")
			case dice < 30:
				return errors.Join(next(), errors.New("answer lost"))
			case dice < 31:
				return &schema.PublishError{Class: schema.PublishBroker, Topic: topic, Err: errors.New("away")}
			}
			return next()
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	return broker
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func (c *chaos) open(ctx context.Context) (*eventbus.Bus, error) {
	return eventbus.Open(ctx, c.db, c.cfg, eventbus.WithBroker(c.broker), eventbus.WithLogger(quiet()))
}

// relays runs one relay after the other, each abandoned after a random while,
// until the faults are over; the last one runs to the end.
func (c *chaos) relays(t *testing.T, ctx, faults context.Context) {
	for ctx.Err() == nil {
		life, abandon := context.WithCancelCause(ctx)
		stop := c.after(faults, func() { abandon(forwarder.ErrAbandoned) })
		c.runOne(t, ctx, func(bus *eventbus.Bus) error { return bus.RunRelay(life) })
		stop()
		abandon(nil)
	}
}

// consumers does the same with the consumer. Its drain timeout is so short that
// running handlers are cut off.
func (c *chaos) consumers(t *testing.T, ctx, faults context.Context) {
	for ctx.Err() == nil {
		life, end := context.WithCancel(ctx)
		stop := c.after(faults, end)
		c.runOne(t, ctx, func(bus *eventbus.Bus) error {
			if err := bus.Consume("counter", applyStep("count")); err != nil {
				t.Errorf("consume: %v", err)
			}
			return bus.RunConsumers(life)
		})
		stop()
		end()
	}
}

// runOne opens a bus and runs a part of it. A database that cannot be asked
// just now is a part of the chaos.
func (c *chaos) runOne(t *testing.T, ctx context.Context, run func(*eventbus.Bus) error) {
	bus, err := c.open(ctx)
	if err != nil {
		pause(ctx, 20*time.Millisecond)
		return
	}
	if err := run(bus); err != nil {
		t.Logf("ended with %v", err)
	}
}

// after calls f after a random while, unless the faults are over by then. What
// it returns ends the wait.
func (c *chaos) after(faults context.Context, f func()) (stop func()) {
	waiting, cancel := context.WithCancel(faults)
	var timer sync.WaitGroup
	timer.Go(func() {
		pause(waiting, 300*time.Millisecond+time.Duration(rand.Int64N(int64(1500*time.Millisecond))))
		if waiting.Err() == nil {
			f()
		}
	})
	return func() {
		cancel()
		timer.Wait()
	}
}

// terminations ends a quarter of all connections every second.
func (c *chaos) terminations(t *testing.T, faults context.Context) {
	const terminateSQL = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid() AND random() < 0.25`
	ended := 0
	for faults.Err() == nil {
		pause(faults, time.Second)
		var n int
		if err := c.db.QueryRowContext(faults, terminateSQL).Scan(&n); err == nil {
			ended += n
		}
	}
	t.Logf("%d connections ended", ended)
}
