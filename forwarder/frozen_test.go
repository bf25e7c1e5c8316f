package forwarder_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/forwarder"
	"github.com/postbus-io/postbus/schema"
)

// A freezer stops a relay as SIGSTOP does: while it is frozen, no call of its
// to the database or the broker goes on, whatever its context says.
type freezer struct {
	schema.Source
	publisher *batchPublisher

	mu    sync.Mutex
	calls int           // of the publisher
	at    int           // the call in which to freeze
	froze chan struct{} // closed when it froze
	ice   chan struct{} // closed by thaw
	thaw  func()
}

// newFreezer freezes inside the nth call of the publisher.
func newFreezer(b *bundle, nth int) *freezer {
	f := &freezer{Source: b.database, publisher: b.broker.batches(), at: nth, froze: make(chan struct{})}
	f.ice, f.thaw = b.gate()
	return f
}

func (f *freezer) into(cfg *forwarder.Config) {
	cfg.Source = f
	cfg.Publisher = struct {
		message.Publisher
		schema.BatchPublisher
	}{f.publisher, f}
}

// pass waits while it is frozen.
func (f *freezer) pass() {
	select {
	case <-f.froze:
		<-f.ice
	default:
	}
}

func (f *freezer) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	f.publisher.broker.calls.Add(1)
	defer f.publisher.broker.calls.Done()
	f.mu.Lock()
	if f.calls++; f.calls == f.at {
		close(f.froze)
	}
	f.mu.Unlock()
	f.pass()
	return f.publisher.PublishBatch(context.WithoutCancel(ctx), topic, msgs)
}

func (f *freezer) Heartbeat(ctx context.Context, owner string, lease time.Duration) (schema.Tenure, error) {
	f.pass()
	return f.Source.Heartbeat(context.WithoutCancel(ctx), owner, lease)
}

func (f *freezer) Claim(ctx context.Context, shards []int, perShard, most int) ([]schema.Record, error) {
	f.pass()
	return f.Source.Claim(context.WithoutCancel(ctx), shards, perShard, most)
}

func (f *freezer) Sent(ctx context.Context, records []schema.Record) error {
	f.pass()
	return f.Source.Sent(context.WithoutCancel(ctx), records)
}

func (f *freezer) Settle(ctx context.Context, owner string, s schema.Settlement) error {
	f.pass()
	return f.Source.Settle(context.WithoutCancel(ctx), owner, s)
}

// One relay freezes inside a publish, beyond its lease; another takes over and
// goes through with everything; then the first one comes back.
func TestRelay_H07_SeveralRelaysKeepOrder(t *testing.T) {
	virtual(t, func(b *bundle) {
		for i := range 20 {
			b.publish(orders, fmt.Sprint("k", i), 4)
		}
		freezer := newFreezer(b, 2)
		first := b.start(freezer.into)
		<-freezer.froze
		second := b.start()
		require.Equal(b, []int{0, 64}, b.shares(first, second), "while the lease lasts")
		b.awaitAll()
		require.Equal(b, map[string]int{second.Owner(): 64}, b.owners())
		freezer.thaw()
		b.awaitShares([]int{32, 32}, first, second)
		for i := range 20 {
			b.publish(orders, fmt.Sprint("k", i), 4)
		}
		b.awaitAll()
		require.LessOrEqual(b, b.broker.repeated(), 40, "the first relay's first wave, not marked, and its second")
		b.eventually("nothing is held", func() bool { return len(b.holds()) == 0 })
	})
}

// As before, but records fail on both sides: the relay that comes back knows
// nothing of what the other one has put behind a hold, and may not pass it.
func TestRelay_H07_ComesBackToHolds(t *testing.T) {
	virtual(t, func(b *bundle) {
		for i := range 20 {
			b.publish(orders, fmt.Sprint("k", i), 4)
		}
		b.broker.decide = func(try try) error {
			if try.nth <= 3 && (try.is("orders/k1#2") || try.is("orders/k2#3") || try.is("orders/k3#5")) {
				return errRefused
			}
			return nil
		}
		freezer := newFreezer(b, 2)
		b.start(freezer.into, brisk)
		<-freezer.froze
		b.start(brisk)
		b.eventually("k1 and k2 are held", func() bool { return len(b.holds()) == 2 })
		for i := range 20 {
			b.publish(orders, fmt.Sprint("k", i), 4)
		}
		freezer.thaw()
		b.awaitAll()
		require.LessOrEqual(b, b.broker.repeated(), 40)
	})
}

// brisk is a backoff of seconds.
func brisk(cfg *forwarder.Config) {
	cfg.BackoffInitial, cfg.BackoffMax = 5*time.Second, 5*time.Second
}

// The shard changes hands, by hand, while its record is with the broker.
func TestRelay_H50_LateSettlementChangesNothing(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "k", 2)
		b.broker.decide = func(try try) error {
			if try.nth > 1 || !try.is("orders/k#1") {
				return nil
			}
			b.exec(`INSERT INTO postbus_relays (owner, started_at, lease_until) VALUES ('other', 0, ?)`, time.Now().Add(time.Minute).UnixMicro())
			b.exec(`UPDATE postbus_shards SET owner = 'other', epoch = epoch + 1`)
			return errRefused
		}
		b.start(func(cfg *forwarder.Config) { cfg.MaxAttempts = 1 })
		b.eventually("it notices", func() bool { return b.log.count("lease lost") == 1 })
		pass(30 * time.Second)
		require.Equal(b, 1, b.broker.tried("orders/k#1"))
		for _, r := range b.records() {
			require.Equal(b, row{ID: r.ID, Message: r.Message}, r, "as it was")
		}
		b.eventually("nothing is held", func() bool { return len(b.holds()) == 0 })
		require.Equal(b, map[string]int{"other": 64}, b.owners())
		b.awaitAll() // once the other's lease is over
	})
}

// A lateSource answers, once, as a server does on which the late heartbeat of a
// relay runs at the same moment as another relay's taking of its shards: it
// still sees the shards as they were.
type lateSource struct {
	schema.Source
	mu    sync.Mutex
	owned []schema.Shard
	mode  string
}

func (s *lateSource) Heartbeat(ctx context.Context, owner string, lease time.Duration) (schema.Tenure, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mode == "silent" {
		return schema.Tenure{}, errors.New("no answer")
	}
	tenure, err := s.Source.Heartbeat(ctx, owner, lease)
	if s.mode == "stale" {
		s.mode, tenure.Owned = "", s.owned
	}
	return tenure, err
}

func (s *lateSource) be(mode string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = mode
}

func TestRelay_H50_LateHeartbeatProvesNothing(t *testing.T) {
	virtual(t, func(b *bundle) {
		source := &lateSource{Source: b.database}
		for i := range schema.DefaultShards {
			source.owned = append(source.owned, schema.Shard{ID: i, Epoch: 1})
		}
		r := b.start(func(cfg *forwarder.Config) { cfg.Source = source })
		source.be("silent")
		pass(15 * time.Second)
		b.exec(`INSERT INTO postbus_relays (owner, started_at, lease_until) VALUES ('other', 0, ?)`, time.Now().Add(time.Minute).UnixMicro())
		b.exec(`UPDATE postbus_shards SET owner = 'other', epoch = epoch + 1`)
		b.publish(orders, "k", 1)
		source.be("stale")
		b.eventually("a heartbeat is answered", func() bool { return b.log.count("taken anew") > 0 })
		pass(20 * time.Second)
		require.Zero(b, b.broker.tried("orders/k#1"), "another relay owns it")
		require.Equal(b, map[string]int{"other": 64}, b.owners())
		b.awaitAll()
		require.Equal(b, map[string]int{r.Owner(): 64}, b.owners())
	})
}

// A shard is lost and owned again, under a new epoch, while its record is with
// the broker. What was learned under the old one is dropped, the shard is not.
func TestRelay_OwnsAShardAgain(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "k", 1)
		var ended, again time.Time
		b.broker.decide = func(try try) error {
			if try.nth > 1 {
				again = time.Now()
				return nil
			}
			b.exec(`UPDATE postbus_shards SET epoch = epoch + 1`)
			pass(forwarder.DefaultHeartbeat + time.Second) // a heartbeat sees it
			ended = time.Now()
			return errRefused
		}
		r := b.start(forYears)
		b.awaitAll()
		r.stop()
		require.Equal(b, 1, b.log.count("lease lost"))
		require.Less(b, again.Sub(ended), time.Second, "before the next heartbeat")
	})
}

// What another owner of the shard has lifted is not held any more.
func TestRelay_ReadsTheHoldsOfANewEpoch(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "k", 1)
		b.broker.decide = func(try try) error {
			if try.is("orders/k#1") {
				return errRefused
			}
			return nil
		}
		b.start(forYears)
		b.eventually("k is held", func() bool { return len(b.holds()) == 1 })
		b.exec(`UPDATE postbus_shards SET epoch = epoch + 2`) // another relay, and this one again
		b.exec(`DELETE FROM postbus_outbox`)
		b.exec(`DELETE FROM postbus_holds`)
		pass(forwarder.DefaultHeartbeat)
		b.publish(orders, "k", 1)
		from := time.Now()
		b.broker.await(1)
		require.Less(b, time.Since(from), 2*time.Second, "sooner than holds are read again anyhow")
	})
}
