package handlers_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/schema"
)

func TestConsumer_H41_StoppedInMidStream(t *testing.T) {
	t.Parallel()
	for round := range 50 {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			cut := 0
			slow := func(j *journal, name string) func(context.Context, *sql.Tx, schema.Received[orderPlaced]) error {
				return func(ctx context.Context, _ *sql.Tx, e schema.Received[orderPlaced]) error {
					select {
					case <-time.After(100*time.Millisecond + rand.N(1500*time.Millisecond)):
						j.add("%s %s", name, e.ID)
						return nil
					case <-ctx.Done():
						mu.Lock()
						defer mu.Unlock()
						cut++
						return ctx.Err()
					}
				}
			}
			runConsumer(t, func(b *consumerBundle) handlers.ConsumerConfig {
				cfg := b.config(
					handlers.On(placed, "charge", slow(b.journal, "charge")),
					handlers.On(placed, "audit", slow(b.journal, "audit")),
					handlers.On(charged, "ship", slow(b.journal, "ship")),
				)
				cfg.Lanes, cfg.Window = 50, 100
				return cfg
			}, func(t *testing.T, b *consumerBundle) {
				for _, id := range ids("", 300) {
					b.inner.send("orders", event("o"+id, id[len(id)-1:], "orders.placed", "1", `{}`))
					b.inner.send("payments", event("p"+id, "", "payments.charged", "1", `{}`))
				}
				<-time.After(rand.N(6 * time.Second))
				b.expectCleanStop(t)

				report := b.inner.report()
				applied := countByID(b.journal.all())
				assert.NotEmpty(t, applied)
				assert.Zero(t, cut, "nothing was cancelled")
				assert.Empty(t, b.journal.letters(), "nothing is dead")
				assert.Empty(t, report.nacked)
				assert.ElementsMatch(t, keysOf(applied), report.acked, "what was applied was acked, and nothing else")
				for id, n := range applied {
					assert.Equal(t, map[byte]int{'o': 2, 'p': 1}[id[0]], n, id)
				}
			})
		})
	}
}

// countByID counts the rows of a journal by their last word.
func countByID(rows []string) map[string]int {
	count := map[string]int{}
	for _, row := range rows {
		count[row[strings.LastIndexByte(row, ' ')+1:]]++
	}
	return count
}

func keysOf(m map[string]int) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	return keys
}

// The router calls it an error when its subscriptions end before it was told
// to stop; a slow Close gives it the time to.
func TestConsumer_CleanStopLogsNothing(t *testing.T) {
	t.Parallel()
	runConsumer(t, func(b *consumerBundle) handlers.ConsumerConfig {
		b.inner.closeTakes = time.Second
		return b.config(handlers.On(placed, "charge", note[orderPlaced](b.journal, "charge")))
	}, func(t *testing.T, b *consumerBundle) {
		b.expectCleanStop(t)
		assert.Empty(t, b.log.String())
	})
}

func TestConsumer_PassesItsSettingsOn(t *testing.T) {
	t.Parallel()
	var runs []time.Time
	runConsumer(t, func(b *consumerBundle) handlers.ConsumerConfig {
		cfg := b.config(handlers.On(placed, "charge", func(ctx context.Context, _ *sql.Tx, _ schema.Received[orderPlaced]) error {
			runs = append(runs, time.Now())
			if len(runs) > 1 {
				<-ctx.Done()
			}
			return errBroker
		}))
		cfg.Lanes, cfg.Window = 1, 2
		cfg.NackBackoff = handlers.Backoff{Initial: time.Minute, Max: time.Minute}
		return cfg
	}, func(t *testing.T, b *consumerBundle) {
		b.inner.send("orders", event("1", "k", "orders.placed", "1", `{}`))
		<-time.After(2 * time.Minute) // the second run is going on
		synctest.Wait()
		require.Len(t, runs, 2)
		assert.GreaterOrEqual(t, runs[1].Sub(runs[0]), 30*time.Second)
		for _, id := range ids("x", 9) {
			b.inner.send("orders", event(id, "", "orders.placed", "1", `{}`))
		}
		synctest.Wait()
		assert.Equal(t, 2, b.inner.report().taken, "the window")
		assert.Len(t, runs, 2, "the lanes")
	})
}

func TestConsumer_DrainDeadlineIsNoFailureOfTheMessage(t *testing.T) {
	t.Parallel()
	var cause error
	runConsumer(t, func(b *consumerBundle) handlers.ConsumerConfig {
		return b.config(
			handlers.On(placed, "charge", func(ctx context.Context, _ *sql.Tx, _ schema.Received[orderPlaced]) error {
				<-ctx.Done()
				cause = context.Cause(ctx)
				return ctx.Err()
			}),
			handlers.On(placed, "audit", note[orderPlaced](b.journal, "audit")),
		)
	}, func(t *testing.T, b *consumerBundle) {
		b.inner.send("orders", event("1", "k", "orders.placed", "1", `{}`))
		synctest.Wait()
		begun := time.Now()
		b.expectCleanStop(t)
		assert.Equal(t, handlers.DefaultDrainTimeout, time.Since(begun))
		require.ErrorIs(t, cause, schema.ErrDraining)
		assert.Empty(t, b.journal.all(), "no handler is started after the end")
		assert.Empty(t, b.journal.letters())
		assert.Equal(t, []string{"1"}, b.inner.report().left)
	})
}

// In real time: the router waits under a lock, which stops a bubble's clock.
func TestConsumer_NamesTheHandlersThatDoNotReturn(t *testing.T) {
	t.Parallel()
	release, entered := make(chan struct{}), make(chan string, 2)
	stuck := func(ctx context.Context, _ *sql.Tx, e schema.Received[orderPlaced]) error {
		entered <- e.ID
		<-ctx.Done()
		<-release
		return nil
	}
	withConsumer(t, func(b *consumerBundle) handlers.ConsumerConfig {
		cfg := b.config(
			handlers.On(charged, "ship", stuck),
			handlers.On(placed, "audit", note[orderPlaced](b.journal, "audit")),
			handlers.On(placed, "charge", stuck),
		)
		cfg.DrainTimeout, cfg.DrainGrace = 50*time.Millisecond, 50*time.Millisecond
		return cfg
	}, func(t *testing.T, b *consumerBundle) {
		b.inner.send("orders", event("1", "k", "orders.placed", "1", `{}`))
		b.inner.send("payments", event("2", "k", "payments.charged", "1", `{}`))
		await(t, entered, "handler to run")
		await(t, entered, "handler to run")
		b.stop()
		err := await(t, b.run, "Run")
		close(release)
		require.ErrorIs(t, err, handlers.ErrDrainTimeout)
		assert.ErrorContains(t, err, "consumer payments: ")
		assert.ErrorContains(t, err, "after 50ms and a grace of 50ms")
		assert.ErrorContains(t, err, "handlers still running: charge, ship")
		assert.Empty(t, b.inner.report().acked)
		assert.ElementsMatch(t, []string{"1", "2"}, b.inner.report().left)
	})
}

func TestConsumer_SubscriptionThatEndsByItselfIsAnError(t *testing.T) {
	t.Parallel()
	for _, ended := range [][]string{{"orders"}, {"orders", "payments"}} {
		t.Run(strings.Join(ended, "+"), func(t *testing.T) {
			runConsumer(t, func(b *consumerBundle) handlers.ConsumerConfig {
				return b.config(
					handlers.On(placed, "charge", note[orderPlaced](b.journal, "charge")),
					handlers.On(charged, "ship", note[orderPlaced](b.journal, "ship")),
				)
			}, func(t *testing.T, b *consumerBundle) {
				for _, topic := range ended {
					b.inner.endBySelf(topic)
				}
				err := await(t, b.run, "Run")
				require.ErrorIs(t, err, handlers.ErrSubscriptionEnded)
				assert.ErrorContains(t, err, "consumer payments: subscription ended by itself: topic ")
				assert.Equal(t, 1, b.inner.report().closes)
			})
		})
	}
}

func TestConsumer_Run(t *testing.T) {
	t.Parallel()
	setup := func(t *testing.T) (*scripted, *handlers.Consumer) {
		inner := newScripted()
		j := &journal{}
		c, err := handlers.NewConsumer(handlers.ConsumerConfig{
			Name: "payments", Subscriber: inner, Logger: slog.New(slog.DiscardHandler), Handlers: []handlers.Handler{
				handlers.On(placed, "charge", note[orderPlaced](j, "charge")),
				handlers.On(charged, "ship", note[orderPlaced](j, "ship")),
				handlers.On(cancelled, "refund", note[orderPlaced](j, "refund")),
			},
		})
		require.NoError(t, err)
		assert.Equal(t, []string{"orders", "payments"}, c.Topics())
		assert.Equal(t, "payments", c.Name())
		return inner, c
	}
	t.Run("stopped before it began", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			inner, c := setup(t)
			ctx, stop := context.WithCancel(t.Context())
			stop()
			require.NoError(t, c.Run(ctx))
			assert.Equal(t, 1, inner.report().closes)
			assert.False(t, closed(c.Running()))
			assert.ErrorIs(t, c.Run(ctx), handlers.ErrRunTwice)
		})
	})
	t.Run("stopped while it subscribes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			inner, c := setup(t)
			inner.hangs = true
			ctx, stop := context.WithCancel(t.Context())
			run := inBackground(func() error { return c.Run(ctx) })
			synctest.Wait()
			require.Empty(t, run)
			stop()
			require.NoError(t, await(t, run, "Run"))
		})
	})
	t.Run("cannot subscribe", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			inner, c := setup(t)
			inner.failWith = errBroker
			err := c.Run(t.Context())
			require.ErrorIs(t, err, errBroker)
			assert.ErrorContains(t, err, "consumer payments: subscribe to orders: ")
			assert.Equal(t, 1, inner.report().closes)
			assert.False(t, closed(c.Running()))
		})
	})
	t.Run("subscriber that closes with an error", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			inner, c := setup(t)
			inner.closeWith = errBroker
			ctx, stop := context.WithCancel(t.Context())
			run := inBackground(func() error { return c.Run(ctx) })
			await(t, c.Running(), "consumer to run")
			stop()
			require.ErrorIs(t, await(t, run, "Run"), errBroker)
		})
	})
}

func TestNewConsumer_TellsAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	noop := note[orderPlaced](&journal{}, "")
	_, err := handlers.NewConsumer(handlers.ConsumerConfig{
		Name: "Payments", Window: -1, Outer: []message.HandlerMiddleware{nil},
		TopicFunc: func(name string) string { return strings.ReplaceAll(name, "cancelled", "?") },
		Handlers: []handlers.Handler{
			handlers.On(placed, "charge", noop),
			handlers.On(cancelled, "refund", noop),
			handlers.On(placed, "charge", noop),
			handlers.On(placed, "Charge", noop),
			handlers.On(schema.Define[orderPlaced]("nodot", 1), "nodot", noop),
			handlers.On[orderPlaced](placed, "nothing", nil),
			{},
		},
	})
	require.ErrorIs(t, err, schema.ErrInvalidOption)
	require.ErrorIs(t, err, schema.ErrInvalidEvent)
	for _, fault := range []string{
		`Name: name "Payments" is to match`, "Subscriber is nil", "Outer: middleware 0 is nil", "Window is -1",
		`TopicFunc: event orders.cancelled: topic "orders.?"`, `Handlers[2]: name "charge" is taken by an earlier handler`,
		`Handlers[3]: invalid option: handler name "Charge" is to match`, `Handlers[4]: handler "nodot": invalid event definition`,
		`Handlers[5]: invalid option: handler "nothing" has no function`, "Handlers[6]: invalid option: handler name is empty",
	} {
		assert.ErrorContains(t, err, fault)
	}

	cfg := handlers.ConsumerConfig{Name: "payments", Subscriber: newScripted()}
	_, err = handlers.NewConsumer(cfg)
	assert.ErrorContains(t, err, "Handlers has no handler")

	cfg.Handlers = []handlers.Handler{handlers.On(placed, "charge", noop)}
	cfg.InnerFunc = func(string, handlers.Handler) []message.HandlerMiddleware {
		return []message.HandlerMiddleware{withTx, nil}
	}
	_, err = handlers.NewConsumer(cfg)
	require.ErrorIs(t, err, schema.ErrInvalidOption)
	assert.ErrorContains(t, err, "InnerFunc: topic orders, handler charge: invalid option: middleware 1 is nil")
	assert.False(t, errors.Is(err, schema.ErrInvalidEvent))
}
