package forwarder_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/forwarder"
	"github.com/postbus-io/postbus/schema"
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
		b.broker.decide = func(try) error { pass(8 * time.Second); return nil }
		first := b.start(func(cfg *forwarder.Config) { cfg.PublishTimeout = 9 * time.Second })
		pass(time.Second)
		second := b.start()
		pass(6 * time.Second)
		require.Equal(b, []int{0, 64}, b.shares(first, second))
		b.broker.await(64)
		b.awaitShares([]int{32, 32}, first, second)
		b.broker.decide = nil
		b.awaitAll()
		require.Zero(b, b.broker.repeated())
	})
}

// A freezer stops a relay as SIGSTOP does: while it is closed, no call to the
// database or the broker goes on.
type freezer struct {
	schema.Source
	*batchPublisher
	mu   sync.Mutex
	door chan struct{} // closed: open
}

func newFreezer(b *bundle) *freezer {
	f := &freezer{Source: b.database, batchPublisher: b.broker.batches(), door: make(chan struct{})}
	close(f.door)
	return f
}

func (f *freezer) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.door = make(chan struct{})
}

func (f *freezer) thaw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.door)
}

func (f *freezer) wait() {
	f.mu.Lock()
	door := f.door
	f.mu.Unlock()
	<-door
}

func (f *freezer) Heartbeat(ctx context.Context, owner string, lease time.Duration) (schema.Tenure, error) {
	f.wait()
	return f.Source.Heartbeat(ctx, owner, lease)
}

func (f *freezer) Claim(ctx context.Context, shards []int, perShard, most int) ([]schema.Record, error) {
	f.wait()
	return f.Source.Claim(ctx, shards, perShard, most)
}

func (f *freezer) Sent(ctx context.Context, records []schema.Record) error {
	f.wait()
	return f.Source.Sent(ctx, records)
}

func (f *freezer) Settle(ctx context.Context, owner string, s schema.Settlement) error {
	f.wait()
	return f.Source.Settle(ctx, owner, s)
}

func (f *freezer) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	f.wait()
	return f.batchPublisher.PublishBatch(context.WithoutCancel(ctx), topic, msgs)
}

func (f *freezer) into(cfg *forwarder.Config) { cfg.Source, cfg.Publisher = f, f }

func TestRelay_H07_SeveralRelaysKeepOrder(t *testing.T) {
	virtual(t, func(b *bundle) {
		for i := range 20 {
			b.publish(orders, fmt.Sprint("k", i), 4)
		}
		frozen := newFreezer(b)
		stuck := make(chan struct{})
		var once sync.Once
		b.broker.decide = func(try try) error {
			if try.is("orders/k0#2") {
				once.Do(func() {
					frozen.freeze()
					close(stuck)
				})
				frozen.wait() // the second relay's try comes when it is over
			}
			return nil
		}
		first := b.start(frozen.into)
		<-stuck
		second := b.start()
		b.broker.await(20)
		require.Equal(b, []int{0, 64}, b.shares(first, second), "as long as the lease lasts")
		b.awaitShares([]int{0, 64}, second, first)
	})
}
