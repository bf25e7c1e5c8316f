package forwarder_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/forwarder"
	"github.com/postbus-io/postbus/schema"
)

// dice is a source of chance for many goroutines.
type dice struct {
	lock sync.Mutex
	rng  *rand.Rand
}

// newDice logs the seed; chance has no more than a part in what happens, so a
// seed brings a run back only roughly.
func newDice(b *bundle) *dice {
	seed := rand.Uint64()
	b.Logf("seed %d", seed)
	return &dice{rng: rand.New(rand.NewPCG(seed, 0))}
}

func (d *dice) n(n int) int {
	d.lock.Lock()
	defer d.lock.Unlock()
	return d.rng.IntN(n)
}

func (d *dice) between(low, high time.Duration) time.Duration {
	return low + time.Duration(d.n(int(high-low)))
}

// chaos keeps relays running and takes care that none of them lives long.
type chaos struct {
	*bundle
	*dice
	batch      int
	abandoned  atomic.Int64
	frozen     atomic.Int64
	lost       atomic.Int64 // answers
	background sync.WaitGroup
}

// fault is what the broker does: some records are refused, some answers lost.
func (c *chaos) fault(try try) error {
	pass(c.between(0, 4*time.Millisecond))
	switch n := c.n(1000); {
	case n < 10:
		return errRefused
	case n < 13:
		c.lost.Add(1)
		try.accept()
		return errRefused
	case n < 15:
		c.lost.Add(1)
		try.accept()
		return &schema.PublishError{Class: schema.PublishBroker, Topic: try.topic, Err: errors.New("connection reset")}
	}
	return nil
}

// relay starts a relay which freezes, every other time, for longer than its
// lease.
func (c *chaos) relay() *running {
	freezer := newFreezer(c.bundle, (1+c.n(30))*c.n(2))
	r := c.start(freezer.into, swift, func(cfg *forwarder.Config) {
		cfg.Lease, cfg.Heartbeat, cfg.PublishTimeout = 2*time.Second, 500*time.Millisecond, time.Second
		cfg.Batch, cfg.PollInterval = c.batch, 200*time.Millisecond
	})
	c.background.Go(func() {
		select {
		case <-freezer.froze:
			c.frozen.Add(1)
			pass(c.between(time.Second, 5*time.Second))
			freezer.thaw()
		case <-r.done:
		}
	})
	return r
}

// run replaces a relay from time to time until done is closed, and returns
// those that live then.
func (c *chaos) run(done <-chan struct{}) []*running {
	relays := []*running{c.relay(), c.relay(), c.relay()}
	for {
		select {
		case <-done:
			return relays
		case <-time.After(c.between(200*time.Millisecond, 1200*time.Millisecond)):
		}
		i := c.n(len(relays))
		if c.n(4) == 0 {
			relays[i].stop()
		} else {
			c.abandoned.Add(1)
			relays[i].abandon()
		}
		relays[i] = c.relay()
	}
}

func TestRelay_H07_ThreeRelaysAbandonedAtRandom(t *testing.T) {
	virtual(t, func(b *bundle) {
		const events, keys, call = 10_000, 100, 20
		c := &chaos{bundle: b, dice: newDice(b), batch: 200}
		b.broker.decide = c.fault
		done := make(chan struct{})
		c.background.Go(func() {
			defer close(done)
			for range events / call {
				b.publish(orders, fmt.Sprint("k", c.n(keys)), call)
				pass(c.between(0, 80*time.Millisecond))
			}
		})
		relays := c.run(done)
		b.awaitAll()
		for _, r := range relays {
			r.stop()
		}
		c.background.Wait()
		b.Logf("%d relays abandoned, %d frozen, %d answers lost, %d repetitions, %d holds",
			c.abandoned.Load(), c.frozen.Load(), c.lost.Load(), b.broker.repeated(), b.log.count("key held"))
		require.Equal(b, events, b.broker.distinct())
		bound := (c.abandoned.Load()+2*c.frozen.Load())*int64(c.batch) + 2*c.lost.Load()
		require.LessOrEqual(b, int64(b.broker.repeated()), bound, "a batch for a relay that ended badly")
	})
}
