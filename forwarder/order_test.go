package forwarder_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/forwarder"
	"github.com/postbus-io/postbus/schema"
)

// forYears is a backoff of years, which no test waits for.
func forYears(cfg *forwarder.Config) {
	cfg.BackoffInitial, cfg.BackoffMax = 100_000*time.Hour, 100_000*time.Hour
}

func TestRelay_H02_OrderIsOfIdsNotOfTimes(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "a", 50)
		b.exec(`UPDATE postbus_outbox SET created_at = created_at - id * 1000000`) // the last one looks oldest
		b.start()
		b.awaitAll()
	})
}

func TestRelay_H08_FailedRecordHoldsItsKeyOnly(t *testing.T) {
	virtual(t, func(b *bundle) {
		for i := range 10 {
			b.publish(orders, fmt.Sprint("k", i), 20)
		}
		b.broker.decide = func(try try) error {
			if try.nth == 1 && (try.is("orders/k3#5") || try.is("orders/k7#1")) {
				return errRefused
			}
			return nil
		}
		relay := b.start(forYears)
		b.broker.await(8*20 + 4)
		pass(time.Minute)
		require.Equal(b, 8*20+4, b.broker.distinct(), "all of the other keys, of the held ones what is before the failure")
		require.Len(b, b.broker.of(orders, "k3"), 4)
		require.Empty(b, b.broker.of(orders, "k7"))
		require.Equal(b, row{ID: b.record("orders/k3#5").ID, Message: "orders/k3#5", State: schema.StateHeld, Attempts: 1, Error: "refused"}, b.record("orders/k3#5"))
		relay.stop()
		b.exec(`UPDATE postbus_holds SET next_attempt_at = 0`)
		b.start()
		b.awaitAll()
		b.eventually("nothing is held", func() bool { return len(b.holds()) == 0 })
		require.Zero(b, b.broker.repeated())
	})
}

// Every tenth message is refused once, over a long run.
func TestRelay_H08_OrderThroughManyFailures(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.broker.decide = func(try try) error {
			if try.nth == 1 && len(try.msg.UUID)%2 == 0 && try.msg.UUID[len(try.msg.UUID)-1] == '7' {
				return errRefused
			}
			return nil
		}
		b.start(func(cfg *forwarder.Config) { cfg.BackoffInitial, cfg.BackoffMax = 200*time.Millisecond, time.Second })
		for i := range 20 {
			b.publish(orders, fmt.Sprint("k", i%5), 25)
			pass(time.Duration(i%4) * 50 * time.Millisecond)
		}
		b.awaitAll()
		require.Zero(b, b.broker.repeated())
	})
}

func TestRelay_H09_OneUnconfirmedPublishPerKey(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "a", 10)
		b.publish(orders, "b", 10)
		b.broker.decide = func(try try) error {
			if try.is("orders/a#3") && try.nth == 1 {
				return errRefused
			}
			if try.msg.Metadata.Get(schema.HeaderKey) == "a" {
				pass(20 * time.Millisecond) // b's are confirmed before a's that were sent earlier
			}
			return nil
		}
		b.start() // the publisher checks that none of a key is sent beside another
		b.awaitAll()
	})
}

func TestRelay_S07_PartialBatchFailure(t *testing.T) {
	virtual(t, func(b *bundle) {
		for _, key := range []string{"a", "b", "a", "c", "a"} {
			b.publish(orders, key, 1)
		}
		b.broker.decide = func(try try) error {
			if try.is("orders/a#1") && try.nth == 1 {
				return errRefused
			}
			return nil
		}
		b.start(forYears)
		b.eventually("a is held", func() bool { return len(b.holds()) == 1 })
		require.ElementsMatch(b, []string{"orders/b#1", "orders/c#1"}, b.broker.ids())
		require.Equal(b, []string{"orders/a#1", "orders/a#2", "orders/a#3"}, b.messages(), "what was confirmed is marked")
		for _, r := range b.records() {
			require.Equal(b, schema.StateHeld, r.State, "%s is out of the claim index", r.Message)
		}
		b.exec(`UPDATE postbus_holds SET next_attempt_at = 0`)
		b.awaitAll()
		require.Equal(b, []string{"orders/a#1", "orders/a#2", "orders/a#3"}, b.broker.of(orders, "a"))
		require.Zero(b, b.broker.repeated())
	})
}

// While a long backlog of a held key drains, new records arrive between any two
// of its sends.
func TestRelay_NewRecordsQueueBehindAHoldThatDrains(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "a", 130)
		arrivals := 0
		b.broker.decide = func(try try) error {
			if try.is("orders/a#1") && try.nth < 3 || try.is("orders/a#100") && try.nth == 1 {
				return errRefused
			}
			if try.nth == 1 && arrivals < 120 {
				arrivals++
				b.publish(orders, "a", 1)
			}
			return nil
		}
		b.start()
		b.broker.await(250)
		b.awaitAll()
		b.eventually("the hold is lifted", func() bool { return len(b.holds()) == 0 })
	})
}

// A key that never comes to rest leaves its hold all the same: its records are
// not moved aside for ever.
func TestRelay_BusyKeyLeavesItsHold(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "a", 1)
		b.broker.decide = func(try try) error {
			if try.is("orders/a#1") && try.nth == 1 {
				return errRefused
			}
			if len(b.messages()) < 3 {
				b.publish(orders, "a", 1)
			}
			return nil
		}
		r := b.start()
		b.eventually("the hold is lifted", func() bool { return b.broker.distinct() > 0 && len(b.holds()) == 0 })
		r.stop()
		b.checkOrder()
	})
}

func TestRelay_KeylessRecordHoldsOnlyItself(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "", 20)
		b.broker.decide = func(try try) error {
			if try.is("orders/#7") && try.nth <= 2 || try.is("orders/#9") {
				return errRefused
			}
			return nil
		}
		b.start(func(cfg *forwarder.Config) { cfg.MaxAttempts = 4 })
		b.broker.await(19)
		b.eventually("one is left, quarantined, and nothing is held", func() bool {
			return len(b.records()) == 1 && b.record("orders/#9").State == schema.StateQuarantined && len(b.holds()) == 0
		})
		b.checkOrder()
	})
}

// More keys are held than one turn tries, and the first of them have backlogs
// that take many turns: the last ones are served all the same.
func TestRelay_NoHeldKeyStarves(t *testing.T) {
	virtual(t, func(b *bundle) {
		const keys, long = 12, 8
		var down atomic.Bool
		down.Store(true)
		b.broker.decide = func(try) error {
			if down.Load() {
				return errRefused
			}
			return nil
		}
		for i := range keys {
			b.publish(orders, fmt.Sprint("k", i), long)
		}
		r := b.start(forYears)
		b.eventually("all are held", func() bool { return len(b.holds()) == keys })
		r.stop()
		down.Store(false)
		b.exec(`UPDATE postbus_holds SET next_attempt_at = head`) // in the order of their heads
		b.start(func(cfg *forwarder.Config) { cfg.Batch = 4 })    // four keys, one record of each, a turn
		b.broker.await(keys * 2)
		for i := range keys {
			require.NotEmpty(b, b.broker.of(orders, fmt.Sprint("k", i)))
		}
		b.awaitAll()
	})
}

// A few shards with backlogs that fill every batch do not keep the others back.
func TestRelay_NoShardStarves(t *testing.T) {
	virtual(t, func(b *bundle) {
		last := keyOfShard(schema.DefaultShards - 1)
		for _, shard := range []int{0, 1, 2} {
			b.publish(orders, keyOfShard(shard), 400)
		}
		b.publish(orders, last, 1)
		b.start(func(cfg *forwarder.Config) { cfg.Batch = 32 })
		b.awaitAll()
		place := slices.Index(b.broker.ids(), "orders/"+last+"#1")
		require.Less(b, place, 200, "it waits for a few batches, not for the backlog")
	})
}

// keyOfShard returns a key in the shard.
func keyOfShard(shard int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("key", i); schema.ShardOf(key, schema.DefaultShards) == shard {
			return key
		}
	}
}

// A key with a long backlog at a slow broker does not hold up a record that is
// committed meanwhile.
func TestRelay_LongBacklogOfAKeyDelaysNoOther(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "hot", 500)
		b.broker.decide = func(try) error { pass(10 * time.Millisecond); return nil }
		b.start()
		b.broker.await(250)
		from := time.Now()
		b.publish(orders, "cold", 1)
		b.eventually("the other key is sent", func() bool { return len(b.broker.of(orders, "cold")) == 1 })
		require.Less(b, time.Since(from), 1200*time.Millisecond)
		b.awaitAll()
		require.Zero(b, b.broker.repeated())
	})
}

// A liftWitness runs a function before the first settlement that lifts a hold.
type liftWitness struct {
	schema.Source
	before func()
	once   sync.Once
}

func (s *liftWitness) Settle(ctx context.Context, owner string, settlement schema.Settlement) error {
	if len(settlement.Lifted) > 0 {
		s.once.Do(s.before)
	}
	return s.Source.Settle(ctx, owner, settlement)
}

// A person releases a quarantined record at the very moment at which the hold
// that it goes behind is lifted: the database refuses to lift it, and the relay
// sends the record before any later one.
func TestRelay_RecordIsReleasedWhileItsHoldIsLifted(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "k", 3)
		var repaired atomic.Bool
		b.broker.decide = func(try try) error {
			if try.is("orders/k#1") && !repaired.Load() {
				return invalid(try.topic)
			}
			return nil
		}
		source := &liftWitness{Source: b.database, before: func() {
			repaired.Store(true)
			b.exec(`UPDATE postbus_outbox SET state = 1 WHERE state = 3`)
			b.publish(orders, "k", 1)
		}}
		b.start(func(cfg *forwarder.Config) { cfg.Source = source })
		b.eventually("k is held", func() bool { return len(b.holds()) == 1 })
		b.exec(`UPDATE postbus_holds SET next_attempt_at = 0`)
		b.eventually("all are sent", func() bool { return len(b.records())+len(b.holds()) == 0 })
		require.Equal(b, []string{"orders/k#2", "orders/k#3", "orders/k#1", "orders/k#4"}, b.broker.of(orders, "k"))
	})
}

// An orphanWitness looks, after each settlement, for held records that no hold
// leads to, and tells of the lanes that were lifted.
type orphanWitness struct {
	schema.Source
	b          *bundle
	liftedFunc func(schema.Lane)
	orphans    atomic.Int64
}

func (s *orphanWitness) Settle(ctx context.Context, owner string, settlement schema.Settlement) error {
	if err := s.Source.Settle(ctx, owner, settlement); err != nil {
		return err
	}
	const orphansSQL = `SELECT count(*) FROM postbus_outbox o WHERE o.state = 1
AND NOT EXISTS (SELECT 1 FROM postbus_holds h WHERE h.shard = o.shard AND h.topic = o.topic AND h.key = o.key)`
	var n int64
	require.NoError(s.b, s.b.db.QueryRow(orphansSQL).Scan(&n))
	s.orphans.Add(n)
	for _, hold := range settlement.Lifted {
		s.liftedFunc(hold.Lane)
	}
	return nil
}

// More keys are due than one turn takes. A record that comes just after its
// key's hold was lifted, and before the relay has come back to the key, goes
// behind a hold that is in the database.
func TestRelay_H08_RecordBehindALiftedHoldHasAHoldAgain(t *testing.T) {
	virtual(t, func(b *bundle) {
		var down atomic.Bool
		down.Store(true)
		b.broker.decide = func(try) error {
			if down.Load() {
				return errRefused
			}
			return nil
		}
		b.publish(orders, "a", 1)
		b.publish(orders, "b", 1)
		var once sync.Once
		source := &orphanWitness{Source: b.database, b: b, liftedFunc: func(lane schema.Lane) {
			once.Do(func() { b.publish(orders, lane.Key, 1) })
		}}
		b.start(func(cfg *forwarder.Config) {
			cfg.Source, cfg.Batch, cfg.MaxAttempts = source, 1, forwarder.MaxMaxAttempts
			cfg.BackoffInitial, cfg.BackoffMax = time.Millisecond, time.Millisecond
		})
		b.eventually("both are held", func() bool { return len(b.holds()) == 2 })
		down.Store(false)
		b.publish(orders, "b", 10)
		b.publish(orders, "a", 10)
		b.awaitAll()
		require.Zero(b, source.orphans.Load(), "held records without a hold")
		require.Zero(b, b.broker.repeated())
	})
}
