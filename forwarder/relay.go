package forwarder

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/postbus-io/postbus/schema"
)

// A Relay sends the records of an outbox to a broker. Make it with New, run it
// once. Wake, Expect and Ready may be called from any goroutine at any time.
type Relay struct {
	cfg       Config
	owner     string
	log       *slog.Logger
	publisher schema.BatchPublisher
	single    *oneByOne // set when publisher is one

	started   atomic.Bool
	ready     chan struct{}
	readyOnce sync.Once
	wake      chan struct{}
	expect    chan struct{}
	fastUntil atomic.Int64 // unix nanoseconds
	complaint atomic.Int64 // when the last fault was logged, unix nanoseconds

	tenure tenure
	// ownership is held while the database is asked to change who owns what,
	// so that a heartbeat's answer is never older than a release.
	ownership sync.Mutex

	// Owned by the loop.
	holds    *holds
	debts    *debts
	perShard int
	first    int // the shard to be served first
}

// New returns a relay. It does no I/O.
func New(cfg Config) (*Relay, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := &Relay{
		cfg: cfg, owner: cfg.Name + "-" + watermill.NewULID(), log: cfg.Logger,
		ready: make(chan struct{}), wake: make(chan struct{}, 1), expect: make(chan struct{}, 1),
		holds: newHolds(), debts: newDebts(), perShard: minPerShard,
	}
	if batches, ok := cfg.Publisher.(schema.BatchPublisher); ok {
		r.publisher = batches
	} else {
		r.single = newOneByOne(cfg.Publisher)
		r.publisher = r.single
	}
	return r, nil
}

// Owner is the name under which the relay owns shards. No other relay, past or
// future, has it.
func (r *Relay) Owner() string { return r.owner }

// Ready is closed when the relay has joined: it has had its first heartbeat
// and taken the shards that were free.
func (r *Relay) Ready() <-chan struct{} { return r.ready }

// Wake makes the relay look at once: something was committed. It never blocks.
func (r *Relay) Wake() { signal(r.wake) }

// fastPolling is how long a relay polls fast after it was told to expect
// records, and fastInterval how fast.
const (
	fastPolling  = time.Second
	fastInterval = 25 * time.Millisecond
)

// Expect makes the relay poll fast for about a second: something was published
// in a transaction whose commit nobody will report. It never blocks.
func (r *Relay) Expect() {
	now := time.Now()
	if r.fastUntil.Swap(now.Add(fastPolling).UnixNano()) < now.UnixNano() {
		signal(r.expect)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run relays until ctx ends. Then it finishes what is in flight, marks it,
// gives its shards back and returns nil, all within StopTimeout. A database or
// broker that cannot be reached is waited for.
func (r *Relay) Run(ctx context.Context) error {
	if r.started.Swap(true) {
		return ErrRunning
	}
	work, stop := r.workContext(ctx)
	defer stop()
	var heartbeat sync.WaitGroup
	beats, stopBeats := context.WithCancel(work)
	heartbeat.Go(func() { r.keepTenure(beats) })
	r.loop(ctx, work)
	stopBeats()
	heartbeat.Wait()
	if errors.Is(context.Cause(ctx), ErrAbandoned) {
		return nil
	}
	return r.leave(work)
}

// workContext outlives ctx by StopTimeout, or not at all when the relay is
// abandoned.
func (r *Relay) workContext(ctx context.Context) (context.Context, func()) {
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), ErrAbandoned) {
			cancel(ErrAbandoned)
			return
		}
		timer := time.AfterFunc(r.cfg.StopTimeout, func() { cancel(context.DeadlineExceeded) })
		context.AfterFunc(work, func() { timer.Stop() })
	})
	return work, func() {
		unhook()
		cancel(nil)
	}
}

func (r *Relay) leave(ctx context.Context) error {
	if r.single != nil {
		r.single.wait(ctx)
	}
	if err := r.pay(ctx); err != nil {
		r.complain(ctx, "mark records before leaving", err)
	}
	return r.cfg.Source.Leave(ctx, r.owner)
}

// loop takes turns until ctx ends.
func (r *Relay) loop(ctx, work context.Context) {
	faults := 0
	for ctx.Err() == nil {
		busy, err := r.turn(ctx, work)
		switch {
		case err != nil:
			faults++
			r.complain(ctx, "relay", err)
			r.pause(ctx, delay(faults, 100*time.Millisecond, 5*time.Second), false)
		case busy:
			faults = 0
		default:
			faults = 0
			r.pause(ctx, r.holds.next(jittered(r.cfg.PollInterval)), true)
		}
	}
}

// turn pays the debts, reads a batch and sends it. It tells whether there was
// anything to do.
func (r *Relay) turn(ctx, work context.Context) (bool, error) {
	if err := r.pay(work); err != nil {
		return false, err
	}
	owned, err := r.shards(work)
	if err != nil || len(owned) == 0 {
		return false, err
	}
	b, found, err := r.read(work, owned)
	if err != nil || ctx.Err() != nil {
		return false, err
	}
	r.send(work, b)
	r.liftDrained(b)
	if err := r.pay(work); err != nil {
		return false, err
	}
	return found > 0, b.stopped
}

// shards returns what the relay owns, after it has given back what is above
// its share and has read the holds of what is new. Nothing is in flight.
func (r *Relay) shards(ctx context.Context) (map[int]int64, error) {
	if err := r.giveBack(ctx); err != nil {
		return nil, err
	}
	owned := r.tenure.owned()
	return owned, r.holds.sync(ctx, r.cfg.Source, owned)
}

func (r *Relay) giveBack(ctx context.Context) error {
	r.ownership.Lock()
	defer r.ownership.Unlock()
	owned := r.tenure.owned()
	n := min(r.tenure.tooMany(), len(owned))
	if n <= 0 {
		return nil
	}
	back := sortedShards(owned)[len(owned)-n:]
	if err := r.cfg.Source.Release(ctx, r.owner, back); err != nil {
		return err
	}
	r.tenure.drop(back...)
	return nil
}

func sortedShards(owned map[int]int64) []int {
	shards := make([]int, 0, len(owned))
	for shard := range owned {
		shards = append(shards, shard)
	}
	slices.Sort(shards)
	return shards
}

// pause waits for d, for the end of ctx and, if wakeable, for a signal.
func (r *Relay) pause(ctx context.Context, d time.Duration, wakeable bool) {
	end := time.Now().Add(d)
	for {
		wait := time.Until(end)
		wake, expect := r.wake, r.expect
		if !wakeable {
			wake, expect = nil, nil
		} else if time.Now().UnixNano() < r.fastUntil.Load() {
			wait = min(wait, fastInterval)
		}
		timer := time.NewTimer(wait)
		select {
		case <-expect:
			timer.Stop()
			continue
		case <-timer.C:
		case <-wake:
		case <-ctx.Done():
		}
		timer.Stop()
		return
	}
}

// complaintInterval is how often a fault that goes on is logged.
const complaintInterval = 5 * time.Second

// complain logs a fault, at most once an interval.
func (r *Relay) complain(ctx context.Context, doing string, err error) {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return
	}
	now := time.Now().UnixNano()
	last := r.complaint.Load()
	if now-last > int64(complaintInterval) && r.complaint.CompareAndSwap(last, now) {
		r.log.Warn("relay waits and tries again", "doing", doing, "error", bounded(err))
	}
}
