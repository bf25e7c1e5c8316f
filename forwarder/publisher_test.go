package forwarder_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/forwarder"
	"github.com/postbus-io/postbus/schema"
)

// A crooked publisher does to a batch that contains a message of key "bad" what
// no publisher should.
type crooked struct {
	*batchPublisher
	how func(errs []error) []error
}

func (p *crooked) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	errs := p.batchPublisher.PublishBatch(ctx, topic, msgs)
	for _, msg := range msgs {
		if msg.Metadata.Get(schema.HeaderKey) == "bad" {
			return p.how(errs)
		}
	}
	return errs
}

func TestRelay_CrookedPublisher(t *testing.T) {
	for name, how := range map[string]func(errs []error) []error{
		"no results":       func([]error) []error { return nil },
		"too few results":  func(errs []error) []error { return errs[1:] },
		"too many results": func(errs []error) []error { return append(errs, nil) },
		"panic":            func([]error) []error { panic("index out of range") },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(b *bundle) {
				for i := range 20 {
					b.publish(orders, fmt.Sprint("k", i), 2)
				}
				b.publish(orders, "bad", 2)
				b.start(swift, func(cfg *forwarder.Config) {
					cfg.MaxAttempts = 3
					cfg.Publisher = &crooked{batchPublisher: b.broker.batches(), how: how}
				})
				b.eventually("only the bad ones are left", func() bool { return len(b.records()) == 2 })
				b.eventually("it is quarantined", func() bool { return b.record("orders/bad#1").State == schema.StateQuarantined })
				require.Zero(b, b.broker.tried("orders/bad#2"))
				require.Equal(b, 2, b.log.count("key held"), "no other key was")
				require.Equal(b, 3, b.record("orders/bad#1").Attempts)
			})
		})
	}
}

// A call of a BatchPublisher that ignores its context is left behind. Other
// topics go on; its own gets no second call beside it.
func TestRelay_PublisherThatDoesNotComeBack(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish("stuck", "k", 3)
		b.publish(orders, "k", 3)
		hangs, release := b.gate()
		b.broker.decide = func(try try) error {
			if try.is("stuck/k#1") && try.nth == 1 {
				<-hangs
			}
			return nil
		}
		b.start()
		b.broker.await(3)
		b.publish(orders, "k", 3)
		b.broker.await(6)
		pass(time.Minute)
		require.Equal(b, 1, b.broker.tried("stuck/k#1"))
		require.Empty(b, b.broker.of("stuck", "k"))
		require.Positive(b, b.log.count("has not returned in time"))
		require.Positive(b, b.log.count("has not returned from an earlier call"))
		release()
		b.awaitAll()
		require.Equal(b, 1, b.broker.repeated(), "what it sent after all is sent again")
		b.eventually("nothing is held", func() bool { return len(b.holds()) == 0 })
	})
}

// What the publisher says shortly after its time is over still counts.
func TestRelay_LateAnswerCounts(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "a", 1)
		b.publish(orders, "b", 1)
		b.broker.decide = func(try try) error {
			if try.is("orders/a#1") && try.nth == 1 {
				<-try.ctx.Done()
				pass(100 * time.Millisecond)
				return context.Cause(try.ctx)
			}
			return nil
		}
		b.start()
		b.awaitAll()
		require.Equal(b, 1, b.broker.tried("orders/b#1"))
	})
}

func TestRelay_PlainPublisher(t *testing.T) {
	virtual(t, func(b *bundle) {
		for i := range 10 {
			b.publish(orders, fmt.Sprint("k", i), 5)
			b.publish("payments", fmt.Sprint("k", i), 5)
		}
		b.broker.decide = func(try try) error {
			if try.is("orders/k3#2") && try.nth == 1 {
				return errRefused
			}
			if try.is("payments/k3#2") && try.nth == 1 {
				panic("nil pointer")
			}
			return nil
		}
		b.start(b.plain, swift)
		b.awaitAll()
		require.Zero(b, b.broker.repeated())
		require.Equal(b, 2, b.log.count("key held"))
		require.Equal(b, 1, b.log.count("the publisher panicked: nil pointer"))
	})
}

// A plain publisher knows no context. One that hangs gets no second call, and
// goes on when it has come back.
func TestRelay_PlainPublisherHangs(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "a", 3)
		b.publish("payments", "b", 3)
		hangs, release := b.gate()
		b.broker.decide = func(try try) error {
			if try.is("orders/a#2") && try.nth == 1 {
				<-hangs
			}
			return nil
		}
		b.start(b.plain)
		b.eventually("the others are sent", func() bool { return len(b.broker.ids()) >= 2 })
		pass(time.Minute)
		tries := len(b.broker.ids())
		pass(time.Minute)
		require.Len(b, b.broker.ids(), tries, "nothing is sent beside it")
		require.Equal(b, 1, b.broker.tried("orders/a#2"))
		release()
		b.awaitAll()
		require.LessOrEqual(b, b.broker.repeated(), 1)
		require.Empty(b, b.holds(), "it was no attempt")
	})
}

// A plain publisher that needs longer for a wave than PublishTimeout is slow,
// not broken.
func TestRelay_SlowPlainPublisher(t *testing.T) {
	virtual(t, func(b *bundle) {
		for i := range 100 {
			b.publish(orders, fmt.Sprint("k", i), 2)
		}
		b.broker.decide = func(try) error { pass(99 * time.Millisecond); return nil }
		from := time.Now()
		b.start(b.plain)
		b.awaitAll()
		require.Less(b, time.Since(from), 30*time.Second, "200 sends of a tenth of a second, and hardly a pause")
		require.LessOrEqual(b, b.broker.repeated(), 8, "at most one a wave")
	})
}

// SentFunc gets what is marked, each record once, and may panic.
func TestRelay_SentFunc(t *testing.T) {
	virtual(t, func(b *bundle) {
		var got []string
		b.publish(orders, "a", 20)
		r := b.start(func(cfg *forwarder.Config) {
			cfg.SentFunc = func(records []schema.Record) {
				for _, record := range records {
					got = append(got, record.MessageID)
				}
				panic(errors.New("hook"))
			}
		})
		b.awaitAll()
		r.stop()
		require.Equal(b, b.broker.of(orders, "a"), got)
		require.Positive(b, b.log.count("SentFunc panicked panic=hook"))
	})
}

// The publisher is left alone once Run has returned.
func TestRelay_PublisherIsNotUsedAfterRun(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "a", 30)
		b.broker.decide = func(try) error { pass(10 * time.Millisecond); return nil }
		r := b.start()
		b.broker.await(3)
		r.stop()
		n := len(b.broker.ids())
		b.publish(orders, "b", 1)
		pass(time.Minute)
		synctest.Wait()
		require.Len(b, b.broker.ids(), n)
	})
}
