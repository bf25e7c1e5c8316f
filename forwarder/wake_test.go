package forwarder_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/forwarder"
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
			require.Less(b, time.Since(from), 60*time.Millisecond)
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
