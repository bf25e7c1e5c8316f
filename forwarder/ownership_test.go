package forwarder_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/forwarder"
)

// shares returns how many shards each of the relays has.
func (b *bundle) shares(relays ...*running) []int {
	owners := b.owners()
	var shares []int
	for _, r := range relays {
		shares = append(shares, owners[r.Owner()])
	}
	slices.Sort(shares)
	return shares
}

func (b *bundle) awaitShares(want []int, relays ...*running) {
	b.Helper()
	b.eventually(fmt.Sprint("shares ", want), func() bool { return slices.Equal(want, b.shares(relays...)) })
}

func TestRelay_FairShareAsRelaysComeAndGo(t *testing.T) {
	virtual(t, func(b *bundle) {
		from := time.Now()
		one := b.start()
		require.Equal(b, []int{64}, b.shares(one))
		two := b.start()
		b.awaitShares([]int{32, 32}, one, two)
		three := b.start()
		b.awaitShares([]int{20, 22, 22}, one, two, three)
		require.Less(b, time.Since(from), 30*time.Second, "a few heartbeats a change")
		one.stop()
		three.stop()
		require.Equal(b, 64-b.shares(two)[0], b.owners()[""], "free at once")
		b.awaitShares([]int{64}, two)
	})
}

// A relay that was killed costs its lease; one that was stopped costs nothing.
func TestRelay_TakeoverAfterTheLeaseOnly(t *testing.T) {
	virtual(t, func(b *bundle) {
		r := b.start()
		b.publish(orders, "k", 1)
		b.awaitAll()
		r.abandon()
		from := time.Now()
		b.publish(orders, "k", 1)
		next := b.start()
		b.awaitAll()
		require.Greater(b, time.Since(from), forwarder.DefaultLease-forwarder.DefaultHeartbeat-time.Second)
		require.Less(b, time.Since(from), forwarder.DefaultLease+forwarder.DefaultHeartbeat+time.Second)

		next.stop()
		require.Equal(b, 64, b.owners()[""])
		from = time.Now()
		b.publish(orders, "k", 1)
		b.start()
		b.awaitAll()
		require.Less(b, time.Since(from), time.Second)
	})
}

// Without a fault nothing is sent twice, however many relays there are and
// while shards change hands.
func TestRelay_SeveralRelaysSendNothingTwice(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.broker.decide = func(try) error { pass(20 * time.Millisecond); return nil }
		b.start()
		for round := range 4 {
			for i := range 30 {
				b.publish(orders, fmt.Sprint("k", i), 5)
			}
			b.start()
			pass(time.Duration(round) * 2 * time.Second)
		}
		b.awaitAll()
		require.Zero(b, b.broker.repeated())
	})
}

// A shard changes hands when what is in flight has come to its end.
func TestRelay_GivesBackOnlyWhatIsNotInFlight(t *testing.T) {
	virtual(t, func(b *bundle) {
		for i := range 64 {
			b.publish(orders, keyOfShard(i), 2)
		}
		var quick atomic.Bool
		b.broker.decide = func(try) error {
			if !quick.Load() {
				pass(5 * time.Second)
			}
			return nil
		}
		first := b.start(func(cfg *forwarder.Config) { cfg.PublishTimeout = 6 * time.Second })
		second := b.start()
		pass(4 * time.Second)
		require.Equal(b, []int{0, 64}, b.shares(first, second))
		b.broker.await(64)
		b.awaitShares([]int{32, 32}, first, second)
		quick.Store(true)
		b.awaitAll()
		require.Zero(b, b.broker.repeated())
	})
}

// Two relays and the application share one connection.
func TestRelay_H70_PoolOfOne(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.db.SetMaxOpenConns(1)
		b.broker.decide = func(try try) error {
			if try.nth == 1 && try.is("orders/k1#2") {
				return errRefused
			}
			if try.topic == orders && try.nth == 1 {
				b.publish("payments", try.msg.UUID, 1) // nothing is open while the broker is asked
			}
			return nil
		}
		for i := range 5 {
			b.publish(orders, fmt.Sprint("k", i), 5)
		}
		b.start(swift)
		b.start(swift)
		b.eventually("25 orders and 24 payments are sent", func() bool { return b.broker.distinct() == 49 })
		b.awaitAll()
	})
}
