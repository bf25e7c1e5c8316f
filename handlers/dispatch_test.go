package handlers_test

import (
	"context"
	"database/sql"
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
				assert.Equal(t, name == "panic", strings.Contains(b.log.String(), "dispatch_test.go"), "the stack is in the log")
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
