package handlers_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
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

type orderPlaced struct {
	OrderID string `json:"order_id"`
}

type orderPlaced2 struct {
	ID string `json:"id"`
}

var (
	placed    = schema.Define[orderPlaced]("orders.placed", 1)
	placed2   = schema.Define[orderPlaced2]("orders.placed", 2)
	cancelled = schema.Define[orderPlaced]("orders.cancelled", 1)
	charged   = schema.Define[orderPlaced]("payments.charged", 1)
)

// event returns a message as it comes from a broker.
func event(id, key, eventType, version, payload string) *message.Message {
	msg := message.NewMessage(id, message.Payload(payload))
	msg.Metadata = message.Metadata{schema.HeaderType: eventType, schema.HeaderVersion: version}
	if key != "" {
		msg.Metadata.Set(schema.HeaderKey, key)
	}
	return msg
}

// journal is what handlers and the chain around them wrote down.
type journal struct {
	mu   sync.Mutex
	rows []string
	dead map[string]error // "handler id" -> the permanent error
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.rows = append(j.rows, fmt.Sprintf(format, args...))
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.rows)
}

func (j *journal) letters() map[string]error {
	j.mu.Lock()
	defer j.mu.Unlock()
	letters := map[string]error{}
	for name, err := range j.dead {
		letters[name] = err
	}
	return letters
}

// note returns a function that writes down what it was called for.
func note[T any](j *journal, name string) func(context.Context, *sql.Tx, schema.Received[T]) error {
	return func(_ context.Context, _ *sql.Tx, e schema.Received[T]) error {
		j.add("%s %s", name, e.ID)
		return nil
	}
}

// inner settles permanent errors as a dead letter would, and brings a
// transaction.
func (j *journal) inner(_ string, h handlers.Handler) []message.HandlerMiddleware {
	bury := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			if !schema.IsPermanent(err) {
				return produced, err
			}
			j.mu.Lock()
			defer j.mu.Unlock()
			if j.dead == nil {
				j.dead = map[string]error{}
			}
			j.dead[h.Name()+" "+msg.UUID] = err
			return nil, nil
		}
	}
	return []message.HandlerMiddleware{bury, withTx}
}

func withTx(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		msg.SetContext(schema.ContextWithTx(msg.Context(), new(sql.Tx)))
		return next(msg)
	}
}

// consumerBundle is a running consumer in a bubble of fake time.
type consumerBundle struct {
	inner   *scripted
	journal *journal
	run     <-chan error
	stop    context.CancelFunc
	log     *bytes.Buffer
}

func (b *consumerBundle) config(hs ...handlers.Handler) handlers.ConsumerConfig {
	return handlers.ConsumerConfig{
		Name: "payments", Handlers: hs, Subscriber: b.inner, InnerFunc: b.journal.inner,
		Logger: slog.New(slog.NewTextHandler(b.log, nil)),
	}
}

// runConsumer starts a consumer in a bubble of fake time, gives it to the test
// and stops it.
func runConsumer(
	t *testing.T, config func(b *consumerBundle) handlers.ConsumerConfig, test func(t *testing.T, b *consumerBundle),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		withConsumer(t, config, test)
		synctest.Wait()
	})
}

func withConsumer(
	t *testing.T, config func(b *consumerBundle) handlers.ConsumerConfig, test func(t *testing.T, b *consumerBundle),
) {
	t.Helper()
	b := &consumerBundle{inner: newScripted(), journal: &journal{}, log: &bytes.Buffer{}}
	c, err := handlers.NewConsumer(config(b))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	b.run, b.stop = inBackground(func() error { return c.Run(ctx) }), stop
	await(t, c.Running(), "consumer to run")
	test(t, b)
}

func (b *consumerBundle) expectCleanStop(t *testing.T) {
	t.Helper()
	b.stop()
	require.NoError(t, await(t, b.run, "Run"))
	assert.NotContains(t, b.log.String(), "level=ERROR")
}

func TestConsumer_GivesAnEventToEachOfItsHandlersOnce(t *testing.T) {
	t.Parallel()
	runConsumer(t, func(b *consumerBundle) handlers.ConsumerConfig {
		return b.config(
			handlers.On(placed, "charge", note[orderPlaced](b.journal, "charge")),
			handlers.On(cancelled, "refund", note[orderPlaced](b.journal, "refund")),
			handlers.On(placed, "audit", note[orderPlaced](b.journal, "audit")),
			handlers.On(placed2, "charge-2", note[orderPlaced2](b.journal, "charge-2")),
			handlers.On(charged, "ship", note[orderPlaced](b.journal, "ship")),
		)
	}, func(t *testing.T, b *consumerBundle) {
		b.inner.send("orders", event("1", "k", "orders.placed", "1", `{}`))
		b.inner.send("orders", event("2", "k", "orders.placed", "2", `{}`))
		b.inner.send("orders", event("3", "k", "orders.cancelled", "1", `{}`))
		synctest.Wait()
		assert.Equal(t, []string{"charge 1", "audit 1", "charge-2 2", "refund 3"}, b.journal.all())
		assert.ElementsMatch(t, []string{"1", "2", "3"}, b.inner.report().acked)

		b.inner.send("payments", event("4", "", "payments.charged", "1", `{}`))
		b.inner.send("payments", event("5", "", "orders.placed", "2", `{}`)) // published to another topic
		synctest.Wait()
		assert.ElementsMatch(t, []string{"ship 4", "charge-2 5"}, b.journal.all()[4:])
		b.expectCleanStop(t)
		assert.Equal(t, 1, b.inner.report().closes)
	})
}

func TestConsumer_HandlersSeeTheEventAndTheTransaction(t *testing.T) {
	t.Parallel()
	tx := new(sql.Tx)
	var got schema.Received[orderPlaced]
	var gotTx *sql.Tx
	handler := handlers.On(placed, "charge", func(_ context.Context, tx *sql.Tx, e schema.Received[orderPlaced]) error {
		got, gotTx = e, tx
		return nil
	})
	msg := event("id", "k", "orders.placed", "1", `{"order_id":"o1"}`)
	msg.SetContext(schema.ContextWithTx(t.Context(), tx))
	produced, err := handler.HandlerFunc(nil, "orders")(msg)
	require.NoError(t, err)
	assert.Empty(t, produced)
	assert.Same(t, tx, gotTx)
	assert.Equal(t, "o1", got.Body.OrderID)
	assert.Equal(t, "orders", got.Topic)
	assert.Equal(t, "id", got.ID)
	assert.Equal(t, "charge", handler.Name())
	assert.Equal(t, placed.Definition(), handler.Definition())
}

func TestHandler_RefusesForGood(t *testing.T) {
	t.Parallel()
	handler := handlers.On(placed, "charge", note[orderPlaced](&journal{}, "charge"))
	broken := handlers.On(placed, "Charge", note[orderPlaced](&journal{}, "charge"))
	tx := schema.ContextWithTx(t.Context(), new(sql.Tx))
	for _, test := range []struct {
		name    string
		handler handlers.Handler
		msg     *message.Message
		ctx     context.Context
		is      error
		text    string
	}{
		{"payload", handler, event("1", "", "orders.placed", "1", `{"order`), tx, schema.ErrUndecodable, "undecodable payload"},
		{"transaction", handler, event("1", "", "orders.placed", "1", `{}`), t.Context(), schema.ErrNoTransaction, "handler charge"},
		{"event", handler, event("1", "", "orders.cancelled", "1", `{}`), tx, handlers.ErrWrongEvent, `"orders.cancelled", handler charge handles orders.placed`},
		{"version", handler, event("1", "", "orders.placed", "3", `{}`), tx, nil, "orders.placed: version 3 is not known, this consumer handles 1"},
		{"no version", handler, event("1", "", "orders.placed", "x", `{}`), tx, schema.ErrUndecodable, "not a number"},
		{"faulty", broken, event("1", "", "orders.placed", "1", `{}`), tx, schema.ErrInvalidOption, `"Charge"`},
		{"zero", handlers.Handler{}, event("1", "", "orders.placed", "1", `{}`), tx, schema.ErrInvalidEvent, "no function"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.msg.SetContext(test.ctx)
			_, err := test.handler.HandlerFunc(schema.JSON, "orders")(test.msg)
			require.Error(t, err)
			assert.True(t, schema.IsPermanent(err))
			assert.ErrorContains(t, err, test.text)
			if test.is != nil {
				assert.ErrorIs(t, err, test.is)
			}
		})
	}
}

func FuzzHandler(f *testing.F) {
	f.Add("orders.placed", "1", []byte(`{"order_id":"o1"}`))
	f.Add("orders.placed", "-0x1", []byte("\x00\xff"))
	f.Add("", "", []byte(nil))
	handler := handlers.On(placed, "charge", note[orderPlaced](&journal{}, "charge"))
	apply := handler.HandlerFunc(schema.JSON, "orders")
	f.Fuzz(func(t *testing.T, eventType, version string, payload []byte) {
		msg := event("1", "", eventType, version, string(payload))
		msg.SetContext(schema.ContextWithTx(t.Context(), new(sql.Tx)))
		if _, err := apply(msg); err != nil && !schema.IsPermanent(err) {
			t.Fatalf("it would be tried for ever: %v", err)
		}
	})
}

func TestConsumer_AcksAndCountsWhatNobodyHandles(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	counted := map[string]int{}
	runConsumer(t, func(b *consumerBundle) handlers.ConsumerConfig {
		cfg := b.config(handlers.On(placed, "charge", note[orderPlaced](b.journal, "charge")))
		cfg.UnhandledFunc = func(topic, eventType string) {
			mu.Lock()
			defer mu.Unlock()
			counted[topic+" "+eventType]++
		}
		return cfg
	}, func(t *testing.T, b *consumerBundle) {
		b.inner.send("orders", event("1", "k", "orders.shipped", "1", `?`))
		b.inner.send("orders", event("2", "k", "orders.shipped", "7", `?`))
		b.inner.send("orders", event("3", "k", "orders.packed", "x", `?`))
		synctest.Wait()
		assert.ElementsMatch(t, []string{"1", "2", "3"}, b.inner.report().acked)
		assert.Equal(t, map[string]int{"orders orders.shipped": 2, "orders orders.packed": 1}, counted)
		assert.Equal(t, 1, strings.Count(b.log.String(), "event_type=orders.shipped"))
		assert.Equal(t, 2, strings.Count(b.log.String(), "level=INFO"))
		b.expectCleanStop(t)
	})
}

func TestConsumer_UnreadableMessagesBecomeOneDeadLetterPerHandler(t *testing.T) {
	t.Parallel()
	runConsumer(t, func(b *consumerBundle) handlers.ConsumerConfig {
		return b.config(
			handlers.On(placed, "charge", note[orderPlaced](b.journal, "charge")),
			handlers.On(placed2, "charge-2", note[orderPlaced2](b.journal, "charge-2")),
			handlers.On(cancelled, "refund", note[orderPlaced](b.journal, "refund")),
		)
	}, func(t *testing.T, b *consumerBundle) {
		b.inner.send("orders", event("1", "k", "orders.placed", "3", `{}`))
		b.inner.send("orders", event("2", "k", "orders.placed", "one", `{}`))
		b.inner.send("orders", event("3", "k", "orders.placed", "1", "\xff"))
		b.inner.send("orders", event("4", "k", "orders.placed", "1", `{}`))
		synctest.Wait()
		assert.ElementsMatch(t, []string{"1", "2", "3", "4"}, b.inner.report().acked)
		assert.Equal(t, []string{"charge 4"}, b.journal.all())
		letters := b.journal.letters()
		require.Len(t, letters, 5)
		for _, handler := range []string{"charge", "charge-2"} {
			var unknown *handlers.UnknownVersionError
			require.ErrorAs(t, letters[handler+" 1"], &unknown)
			assert.EqualError(t, unknown, "orders.placed: version 3 is not known, this consumer handles 1, 2")
			assert.ErrorIs(t, letters[handler+" 2"], schema.ErrUndecodable)
		}
		assert.ErrorIs(t, letters["charge 3"], schema.ErrUndecodable)
		b.expectCleanStop(t)
	})
}

func TestConsumer_MissingTransactionIsADeadLetter(t *testing.T) {
	t.Parallel()
	runConsumer(t, func(b *consumerBundle) handlers.ConsumerConfig {
		cfg := b.config(handlers.On(placed, "charge", note[orderPlaced](b.journal, "charge")))
		cfg.InnerFunc = func(topic string, h handlers.Handler) []message.HandlerMiddleware {
			return b.journal.inner(topic, h)[:1]
		}
		return cfg
	}, func(t *testing.T, b *consumerBundle) {
		b.inner.send("orders", event("1", "k", "orders.placed", "1", `{}`))
		synctest.Wait()
		assert.ErrorIs(t, b.journal.letters()["charge 1"], schema.ErrNoTransaction)
		assert.Empty(t, b.journal.all())
		b.expectCleanStop(t)
	})
}

// failing returns a function that fails a number of times.
func failing(j *journal, name string, times int, failFunc func() error) func(context.Context, *sql.Tx, schema.Received[orderPlaced]) error {
	return func(_ context.Context, _ *sql.Tx, e schema.Received[orderPlaced]) error {
		j.add("%s %s", name, e.ID)
		if times--; times >= 0 {
			return failFunc()
		}
		return nil
	}
}

func TestConsumer_WhatCannotBeSettledComesAgain(t *testing.T) {
	t.Parallel()
	fails := map[string]func() error{
		"error": func() error { return errBroker },
		"panic": func() error { panic(errBroker) },
	}
	for name, fail := range fails {
		t.Run(name, func(t *testing.T) {
			runConsumer(t, func(b *consumerBundle) handlers.ConsumerConfig {
				return b.config(
					handlers.On(placed, "charge", failing(b.journal, "charge", 1, fail)),
					handlers.On(placed, "audit", note[orderPlaced](b.journal, "audit")),
				)
			}, func(t *testing.T, b *consumerBundle) {
				b.inner.send("orders", event("1", "k", "orders.placed", "1", `{}`))
				b.inner.send("orders", event("2", "k", "orders.placed", "1", `{}`))
				synctest.Wait()
				assert.Equal(t, []string{"charge 1", "audit 1"}, b.journal.all(), "the others still run")
				<-time.After(time.Second)
				synctest.Wait()
				assert.Equal(t, []string{"charge 1", "audit 1", "charge 1", "audit 1", "charge 2", "audit 2"}, b.journal.all())
				assert.ElementsMatch(t, []string{"1", "2"}, b.inner.report().acked)
				assert.Empty(t, b.inner.report().nacked)
				assert.Contains(t, b.log.String(), "handler charge: ")
				assert.Contains(t, b.log.String(), "broker says no")
				assert.Equal(t, name == "panic", strings.Contains(b.log.String(), "consumer_test.go"), "the stack is in the log")
			})
		})
	}
}

func TestConsumer_PanicAroundTheHandlersDoesNotEndTheProcess(t *testing.T) {
	t.Parallel()
	runConsumer(t, func(b *consumerBundle) handlers.ConsumerConfig {
		cfg := b.config(handlers.On(placed, "charge", note[orderPlaced](b.journal, "charge")))
		panics := 1
		cfg.Outer = []message.HandlerMiddleware{func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				if panics--; panics >= 0 {
					panic("outer")
				}
				return next(msg)
			}
		}}
		return cfg
	}, func(t *testing.T, b *consumerBundle) {
		b.inner.send("orders", event("1", "k", "orders.placed", "1", `{}`))
		<-time.After(time.Second)
		synctest.Wait()
		assert.Equal(t, []string{"charge 1"}, b.journal.all())
	})
}

func TestConsumer_ChainsAreInOrderAndApart(t *testing.T) {
	t.Parallel()
	step := func(j *journal, name string) message.HandlerMiddleware {
		return func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				seen := msg.Metadata.Get("seen")
				j.add("%s after%s", name, seen)
				msg.Metadata.Set("seen", seen+" "+name)
				msg.SetContext(context.WithValue(msg.Context(), contextKey{}, name))
				return next(msg)
			}
		}
	}
	runConsumer(t, func(b *consumerBundle) handlers.ConsumerConfig {
		cfg := b.config(
			handlers.On(placed, "charge", note[orderPlaced](b.journal, "charge")),
			handlers.On(placed, "audit", func(ctx context.Context, _ *sql.Tx, e schema.Received[orderPlaced]) error {
				b.journal.add("audit %s %v %s", e.ID, ctx.Value(contextKey{}), message.SubscribeTopicFromCtx(ctx))
				return nil
			}),
		)
		cfg.Outer = []message.HandlerMiddleware{step(b.journal, "outer1"), step(b.journal, "outer2")}
		cfg.InnerFunc = func(topic string, h handlers.Handler) []message.HandlerMiddleware {
			name := topic + "/" + h.Name()
			return []message.HandlerMiddleware{step(b.journal, name+"/1"), step(b.journal, name+"/2"), withTx}
		}
		return cfg
	}, func(t *testing.T, b *consumerBundle) {
		msg := event("1", "k", "orders.placed", "1", `{}`)
		b.inner.send("orders", msg)
		synctest.Wait()
		assert.Equal(t, []string{
			"outer1 after", "outer2 after outer1",
			"orders/charge/1 after outer1 outer2", "orders/charge/2 after outer1 outer2 orders/charge/1", "charge 1",
			"orders/audit/1 after outer1 outer2", "orders/audit/2 after outer1 outer2 orders/audit/1",
			"audit 1 orders/audit/2 orders",
		}, b.journal.all())
		assert.Empty(t, msg.Metadata.Get("seen"), "the broker's message is not touched")
		b.expectCleanStop(t)
	})
}

func TestConsumer_MiddlewareThatProducesMessagesIsAFault(t *testing.T) {
	t.Parallel()
	runConsumer(t, func(b *consumerBundle) handlers.ConsumerConfig {
		cfg := b.config(handlers.On(placed, "charge", note[orderPlaced](b.journal, "charge")))
		cfg.InnerFunc = func(string, handlers.Handler) []message.HandlerMiddleware {
			return []message.HandlerMiddleware{func(message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) { return []*message.Message{msg}, nil }
			}}
		}
		return cfg
	}, func(t *testing.T, b *consumerBundle) {
		b.inner.send("orders", event("1", "k", "orders.placed", "1", `{}`))
		synctest.Wait()
		assert.Empty(t, b.inner.report().acked)
		assert.Contains(t, b.log.String(), message.ErrOutputInNoPublisherHandler.Error())
	})
}

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
