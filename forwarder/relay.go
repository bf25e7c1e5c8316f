package forwarder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// A Relay sends the records of an outbox to a broker. Make it with New, run it
// once. Wake, Expect and Ready may be called from any goroutine at any time.
type Relay struct {
	cfg        Config
	owner      string
	log        *slog.Logger
	complaints *complaints
	publisher  sender

	started   atomic.Bool
	ready     chan struct{}
	readyOnce sync.Once
	wake      chan struct{}
	expect    chan struct{}
	born      time.Time    // what fastUntil counts from, by the monotonic clock
	fastUntil atomic.Int64 // nanoseconds since born

	tenure tenure
	// ownership is full while the database is asked to change who owns what, so
	// that a heartbeat's answer is never older than a release.
	ownership chan struct{}

	// Owned by the loop.
	holds    *holds
	debts    *debts
	perShard int
	first    int // the shard to be served first
}

// lateAnswer is how long a publisher has, after its time is over, to say what
// it knows.
const lateAnswer = time.Second

// New returns a relay. It does no I/O.
func New(cfg Config) (*Relay, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Relay{
		cfg: cfg, owner: cfg.Name + "-" + watermill.NewULID(), log: cfg.Logger,
		complaints: newComplaints(cfg.Logger),
		publisher:  newSender(cfg.Publisher, min(lateAnswer, cfg.StopTimeout/4)),
		ready:      make(chan struct{}), wake: make(chan struct{}, 1), expect: make(chan struct{}, 1),
		born: time.Now(), tenure: tenure{margin: cfg.Lease / 10}, ownership: make(chan struct{}, 1),
		holds: newHolds(), debts: newDebts(), perShard: minPerShard,
	}, nil
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
	now := time.Since(r.born)
	if before := r.fastUntil.Swap(int64(now + fastPolling)); before < int64(now+fastPolling/2) {
		signal(r.expect)
	}
}

// expecting tells whether something is expected.
func (r *Relay) expecting() bool { return int64(time.Since(r.born)) < r.fastUntil.Load() }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run relays until ctx ends. Then it finishes what is in flight, marks it,
// gives its shards back and returns nil, all within StopTimeout. A database or
// broker that cannot be reached is waited for. The error says what could not be
// marked or given back when it stopped: the records will be sent again, the
// shards change hands when the lease is over.
func (r *Relay) Run(ctx context.Context) error {
	if r.started.Swap(true) {
		return ErrRunning
	}
	if ctx.Err() != nil {
		return nil
	}
	l, end := newLife(ctx, r.cfg.StopTimeout)
	defer end()
	var heartbeat sync.WaitGroup
	last := make(chan struct{})
	heartbeat.Go(func() { r.keepTenure(l.work, last) })
	r.loop(l)
	unpaid := r.finish(l)
	close(last)
	heartbeat.Wait()
	if l.abandoned() {
		return nil
	}
	if err := errors.Join(unpaid, r.cfg.Source.Leave(l.work, r.owner)); err != nil {
		return fmt.Errorf("stop relay: %w", err)
	}
	return nil
}

// finish pays what is owed and waits for calls of the publisher that were left
// behind.
func (r *Relay) finish(l life) error {
	if l.abandoned() {
		return nil
	}
	err := r.pay(l.work)
	r.publisher.wait(l.sending)
	return err
}
