package eventbus_test

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus"
	"github.com/postbus-io/postbus/eventbus/memory"
	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/schematest"
	"github.com/postbus-io/postbus/schema/sqlite"
)

const (
	drainRounds   = 5
	drainPerRound = 100
)

// TestBus_H41_DrainCancelsNothing stops two services five times in mid-stream.
// goleak looks for what is left when the package's tests are done.
func TestBus_H41_DrainCancelsNothing(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) *sql.DB{
		"sqlite": func(t *testing.T) *sql.DB { return schematest.SQLite(t, sqlite.DSN, sqlite.Migrate) },
		"libpq":  func(t *testing.T) *sql.DB { return schematest.Postgres(t, "postgres", migratePostgres) },
		"pgx":    func(t *testing.T) *sql.DB { return schematest.Postgres(t, "pgx", migratePostgres) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker, err := memory.New(memory.Config{Logger: quiet()})
			require.NoError(t, err)
			defer broker.Close() //nolint:errcheck // a second Close; the first one is checked below
			asks, answers := open(t), open(t)
			createEffects(t, asks)
			createEffects(t, answers)
			d := &drained{broker: broker, asks: asks, answers: answers}
			for range drainRounds {
				d.round(t)
			}
			d.finish(t)
			require.Zero(t, d.cancelled.Load(), "handlers whose context ended")
			require.NoError(t, broker.Close())
		})
	}
}

// drained are two services: asks publishes notes, answers applies them and
// publishes an answer, which asks applies.
type drained struct {
	broker        *memory.Broker
	asks, answers *sql.DB
	cancelled     atomic.Int32
	published     int
}

var answered = schema.Define[note]("answers.answered", 1)

func (d *drained) open(t *testing.T) (asks, answers *bundle) {
	asks = setupWith(t, d.asks, d.broker, d.broker)
	answers = setupWith(t, d.answers, d.broker, d.broker)
	watch := func(ctx context.Context) error {
		pause(ctx, time.Millisecond) // the work
		if ctx.Err() != nil {
			d.cancelled.Add(1)
		}
		return ctx.Err()
	}
	require.NoError(t, answers.bus.Consume("answers", onNote("answer", func(ctx context.Context, tx *sql.Tx, e schema.Received[note]) error {
		if err := answers.bus.Publish(ctx, tx, answered.New(e.Key, e.Body)); err != nil {
			return err
		}
		return watch(ctx)
	})))
	require.NoError(t, asks.bus.Consume("asks", onAnswer(func(ctx context.Context) error { return watch(ctx) })))
	return asks, answers
}

// round starts both, publishes, and stops both while messages are on the way.
func (d *drained) round(t *testing.T) {
	asks, answers := d.open(t)
	stopAsks, stopAnswers := asks.run(t), answers.run(t)
	for range drainPerRound / 10 {
		var events []schema.Outgoing
		for i := range 10 {
			events = append(events, noted.New(string(rune('a'+i)), note{"x"}))
		}
		asks.publish(t, events...)
		d.published += len(events)
	}
	var stopping sync.WaitGroup
	stopping.Go(stopAsks)
	stopping.Go(stopAnswers)
	stopping.Wait()
	d.nothingDead(t, asks, answers)
}

// finish lets everything arrive and counts.
func (d *drained) finish(t *testing.T) {
	asks, answers := d.open(t)
	stopAsks, stopAnswers := asks.run(t), answers.run(t)
	eventually(t, "all answers applied", func() bool { return asks.count(t, `SELECT count(*) FROM effects`) >= d.published })
	stopAsks()
	stopAnswers()
	for _, b := range []*bundle{asks, answers} {
		require.Equal(t, d.published, b.count(t, `SELECT count(*) FROM effects`))
		require.Equal(t, d.published, b.count(t, `SELECT count(DISTINCT message_id) FROM effects`))
		require.Zero(t, b.count(t, outboxCount))
	}
	d.nothingDead(t, asks, answers)
}

func (d *drained) nothingDead(t *testing.T, bundles ...*bundle) {
	for _, b := range bundles {
		require.Empty(t, b.dead(t))
		failures, _, buried := b.seen.counts()
		require.Zero(t, failures, "a shutdown was counted as an attempt")
		require.Zero(t, buried)
	}
}

// TestBus_StopsWithinItsTimeoutsAndLeavesTheRest has a handler that never ends.
func TestBus_StopsWithinItsTimeoutsAndLeavesTheRest(t *testing.T) {
	db := schematest.SQLite(t, sqlite.DSN, sqlite.Migrate)
	createEffects(t, db)
	b := setup(t, db, func(cfg *eventbus.Config) { cfg.Consumer.DrainTimeout = 50 * time.Millisecond })
	inside := make(chan struct{}, 10)
	require.NoError(t, b.bus.Consume("c", onNote("h", func(ctx context.Context, _ *sql.Tx, _ schema.Received[note]) error {
		inside <- struct{}{}
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), schema.ErrDraining)
		return ctx.Err()
	})))
	stop := b.run(t)
	b.publish(t, noted.New("k", note{"x"}))
	await(t, inside, "handler")
	stop()
	require.Equal(t, 1, b.broker.Backlog("c", "notes"), "acked although it was not applied")
	require.Zero(t, b.count(t, `SELECT count(*) FROM effects`))
	require.Empty(t, b.dead(t))
	failures, _, _ := b.seen.counts()
	require.Zero(t, failures)
}
