package forwarder_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/forwarder"
	"github.com/postbus-io/postbus/schema"
)

// The database goes away after a publish: what was confirmed is not sent again,
// and nothing passes what failed, however long it takes.
func TestRelay_DebtsArePaidFirst(t *testing.T) {
	for name, away := range map[string]func(s *faultySource){
		"mark":         func(s *faultySource) { s.sent.Store(5) },
		"settle":       func(s *faultySource) { s.settle.Store(5) },
		"mark, settle": func(s *faultySource) { s.sent.Store(3); s.settle.Store(4) },
		"whole database": func(s *faultySource) {
			s.sent.Store(4)
			s.heartbeat.Store(2)
			s.claim.Store(3)
			s.held.Store(3)
			s.holds.Store(3)
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(b *bundle) {
				source := &faultySource{Source: b.database}
				b.publish(orders, "bad", 5)
				b.publish(orders, "good", 5)
				b.broker.decide = func(try try) error {
					if try.is("orders/bad#2") && try.nth <= 2 {
						away(source)
						return errRefused
					}
					if try.is("orders/bad#2") && b.record("orders/bad#2").Attempts != 2 {
						b.Error("the attempts are not in the database")
					}
					return nil
				}
				b.start(func(cfg *forwarder.Config) { cfg.Source = source })
				b.awaitAll()
				b.eventually("nothing is held", func() bool { return len(b.holds()) == 0 })
				require.Zero(b, b.broker.repeated())
				require.Equal(b, 3, b.broker.tried("orders/bad#2"))
				require.Equal(b, 2, b.log.count("key held"))
				require.Positive(b, b.log.count("connection refused"))
			})
		})
	}
}

// Every call fails now and then.
func TestRelay_DatabaseComesAndGoes(t *testing.T) {
	virtual(t, func(b *bundle) {
		source := &faultySource{Source: b.database}
		var n atomic.Int64
		b.broker.decide = func(try try) error {
			calls := []*atomic.Int64{
				&source.claim, &source.settle, &source.heartbeat, &source.sent, &source.acquire, &source.held, &source.holds, &source.release,
			}
			i := n.Add(1)
			calls[i%int64(len(calls))].Store(2)
			if i%9 == 0 {
				return errRefused
			}
			return nil
		}
		b.start(func(cfg *forwarder.Config) { cfg.Source = source }, swift)
		for range 10 {
			b.publish(orders, "a", 10)
			b.publish(orders, "b", 10)
			pass(time.Second)
		}
		b.start(func(cfg *forwarder.Config) { cfg.Source = source }, swift)
		b.awaitAll()
	})
}

// swift is a backoff that hardly holds up a test.
func swift(cfg *forwarder.Config) {
	cfg.BackoffInitial, cfg.BackoffMax, cfg.MaxAttempts = 100*time.Millisecond, time.Second, forwarder.MaxMaxAttempts
}

// A silentSource does not answer a claim, once, as over a dead connection.
type silentSource struct {
	schema.Source
	silent atomic.Bool
}

func (s *silentSource) Claim(ctx context.Context, shards []int, perShard, most int) ([]schema.Record, error) {
	if s.silent.Swap(false) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return s.Source.Claim(ctx, shards, perShard, most)
}

func TestRelay_SilentDatabaseIsLeft(t *testing.T) {
	virtual(t, func(b *bundle) {
		source := &silentSource{Source: b.database}
		b.start(func(cfg *forwarder.Config) { cfg.Source = source })
		source.silent.Store(true)
		pass(2 * time.Second)
		b.publish(orders, "k", 1)
		from := time.Now()
		b.awaitAll()
		require.Less(b, time.Since(from), time.Minute)
		require.Equal(b, 1, b.log.count("deadline exceeded"))
	})
}

// A fault that goes on is logged now and then, another one at once.
func TestRelay_Complaints(t *testing.T) {
	virtual(t, func(b *bundle) {
		source := &faultySource{Source: b.database}
		b.publish(orders, "k", 1)
		var down atomic.Bool
		down.Store(true)
		b.broker.decide = func(try try) error {
			if down.Load() {
				return &schema.PublishError{Class: schema.PublishBroker, Topic: try.topic, Err: errRefused}
			}
			return nil
		}
		b.start(func(cfg *forwarder.Config) { cfg.Source = source })
		pass(30 * time.Second)
		require.InDelta(b, 5, b.log.count("publish to orders (broker): refused"), 2)
		source.heartbeat.Store(1)
		pass(4 * time.Second)
		require.Equal(b, 1, b.log.count(`doing=keep shards error=connection refused`))
		source.claim.Store(1)
		pass(6 * time.Second)
		require.Equal(b, 1, b.log.count(`doing=send records error=connection refused`))
		down.Store(false)
		b.awaitAll()
	})
}
