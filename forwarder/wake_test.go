package forwarder_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/forwarder"
	"github.com/postbus-io/postbus/schema"
)

// rarely makes a relay look so seldom that only a signal can be the reason.
func rarely(cfg *forwarder.Config) {
	cfg.PollInterval, cfg.Lease, cfg.Heartbeat = time.Minute, time.Hour, 20*time.Minute
}

func TestRelay_Wake(t *testing.T) {
	virtual(t, func(b *bundle) {
		r := b.start(rarely)
		pass(10 * time.Second)
		from := time.Now()
		b.publish(orders, "k", 1)
		pass(5 * time.Second)
		require.Empty(b, b.broker.ids())
		r.Wake()
		r.Wake() // one look, or one more
		b.broker.await(1)
		require.Less(b, time.Since(from), 6*time.Second)
		pass(time.Second)
		b.publish(orders, "k", 1)
		b.awaitAll()
		require.Greater(b, time.Since(from), 40*time.Second, "it looks when nobody wakes it")
		require.Less(b, time.Since(from), 80*time.Second)
	})
}

func TestRelay_Expect(t *testing.T) {
	virtual(t, func(b *bundle) {
		source := &countingSource{Source: b.database}
		r := b.start(rarely, func(cfg *forwarder.Config) { cfg.Source = source })
		pass(10 * time.Second)
		for range 3 { // and again, long after the last time
			r.Expect()
			pass(500 * time.Millisecond)
			r.Expect() // goes on
			pass(900 * time.Millisecond)
			from := time.Now()
			b.publish(orders, "k", 1)
			b.awaitAll()
			require.Less(b, time.Since(from), 150*time.Millisecond)
			before := source.claims.Load()
			pass(10 * time.Second)
			require.Less(b, source.claims.Load()-before, int64(10), "it comes to rest")
		}
	})
}

func TestRelay_PollsWhenNobodyTellsIt(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.start()
		for range 10 {
			pass(2500 * time.Millisecond)
			from := time.Now()
			b.publish(orders, "k", 1)
			b.awaitAll()
			require.Less(b, time.Since(from), 1200*time.Millisecond)
		}
	})
}

// An idle relay asks little.
func TestRelay_IdleRelayRests(t *testing.T) {
	virtual(t, func(b *bundle) {
		source := &countingSource{Source: b.database}
		b.publish(orders, "k", 3)
		b.broker.decide = func(try) error { return errRefused }
		b.start(forYears, func(cfg *forwarder.Config) { cfg.Source = source })
		b.eventually("k is held", func() bool { return len(b.holds()) == 1 })
		before := source.calls.Load()
		pass(time.Minute)
		require.Less(b, source.calls.Load()-before, int64(60+20+6+15), "claims, heartbeats, holds")
		require.Equal(b, 1, b.broker.tried("orders/k#1"))
	})
}

// Heartbeats are no looks.
func TestRelay_LooksAsOftenAsItIsTold(t *testing.T) {
	virtual(t, func(b *bundle) {
		source := &countingSource{Source: b.database}
		b.start(func(cfg *forwarder.Config) { cfg.Source, cfg.PollInterval = source, time.Minute })
		pass(10 * time.Second)
		before := source.claims.Load()
		pass(5 * time.Minute)
		require.Less(b, source.claims.Load()-before, int64(8))
	})
}

// A claimWitness runs a function when a claim has found nothing.
type claimWitness struct {
	schema.Source
	after func()
}

func (s *claimWitness) Claim(ctx context.Context, shards []int, perShard, most int) ([]schema.Record, error) {
	records, err := s.Source.Claim(ctx, shards, perShard, most)
	if err == nil && len(records) == 0 {
		s.after()
	}
	return records, err
}

// A signal that comes while the relay looks is not lost.
func TestRelay_WakeWhileItLooks(t *testing.T) {
	virtual(t, func(b *bundle) {
		relay := make(chan *running, 1)
		var once sync.Once
		source := &claimWitness{Source: b.database, after: func() {
			once.Do(func() {
				b.publish(orders, "k", 1)
				r := <-relay
				r.Wake()
			})
		}}
		from := time.Now()
		relay <- b.launch(rarely, func(cfg *forwarder.Config) { cfg.Source = source })
		b.broker.await(1)
		require.Less(b, time.Since(from), time.Second)
	})
}

// Heartbeats fail until the lease is all but over, and the relay rests. When one
// is answered in time after all, it goes on at once.
func TestRelay_GoesOnWhenItsLeaseComesBack(t *testing.T) {
	virtual(t, func(b *bundle) {
		source := &faultySource{Source: b.database}
		r := b.start(func(cfg *forwarder.Config) {
			cfg.Source, cfg.Heartbeat, cfg.PollInterval = source, 3100*time.Millisecond, time.Minute
		})
		source.heartbeat.Store(2)
		pass(9100 * time.Millisecond) // the next one is at 9.3 s of 10 s
		b.publish(orders, "k", 1)
		r.Wake()
		pass(100 * time.Millisecond)
		require.Empty(b, b.broker.ids(), "nothing is begun so shortly before the end of the lease")
		from := time.Now()
		b.broker.await(1)
		require.Less(b, time.Since(from), time.Second)
		require.Zero(b, b.log.count("lease"))
	})
}
