package handlers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cenkalti/backoff/v5"

	"github.com/postbus-io/postbus/schema"
)

// The defaults of [IntakeConfig] and [Backoff], and the bound that no setting
// lifts.
const (
	// DefaultLanes is how many messages of a topic are worked on at once.
	DefaultLanes = 16
	// DefaultWindow is how many messages of a topic are taken from the broker
	// and not acknowledged yet.
	DefaultWindow = 64
	// DefaultDrainTimeout fits, with the grace, below the 30 s after which
	// most platforms kill a process that was asked to stop.
	DefaultDrainTimeout = 20 * time.Second
	// DefaultDrainGrace is how long functions have to return after their
	// context ended.
	DefaultDrainGrace = 2 * time.Second
	// DefaultBackoffInitial is the mean pause after the first nack.
	DefaultBackoffInitial = 100 * time.Millisecond
	// DefaultBackoffMax bounds the mean pause.
	DefaultBackoffMax = 10 * time.Second
	// MaxWindow is the largest window: AMQP's prefetch count has 16 bits.
	MaxWindow = 65_535
)

// The pauses between nacks grow by this factor, each moved by up to half of
// itself at random.
const (
	backoffMultiplier = 2
	backoffJitter     = 0.5
)

// Backoff says how long a message that was nacked waits before it is handed
// out again: exponentially longer, with jitter. It is never given up.
type Backoff struct {
	// Initial is the mean of the first pause. Defaults to 100 ms.
	Initial time.Duration
	// Max bounds the mean of a pause. Defaults to 10 s.
	Max time.Duration
}

func (b Backoff) start() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: b.Initial, MaxInterval: b.Max,
		Multiplier: backoffMultiplier, RandomizationFactor: backoffJitter,
	}
}

// IntakeConfig configures an [Intake].
type IntakeConfig struct {
	// Lanes is how many messages of one subscription are handed out and not
	// settled at once, each of another key or without one. Defaults to 16, or
	// to Window if that is less.
	Lanes int
	// Window is how many messages of one subscription are taken from the inner
	// subscriber and not acknowledged, the handed-out ones included. It is at
	// least Lanes and at most [MaxWindow]. Defaults to 64.
	Window int
	// DrainTimeout is how long handed-out messages have to be acknowledged
	// after a stop before their contexts end. Defaults to 20 s.
	DrainTimeout time.Duration
	// DrainGrace is how long functions have to return after that. Defaults to
	// 2 s.
	DrainGrace time.Duration
	// NackBackoff is the pause after a nack.
	NackBackoff Backoff
	// Logger is told when a drain deadline passes. Defaults to
	// [slog.Default].
	Logger *slog.Logger
}

func (c IntakeConfig) withDefaults() IntakeConfig {
	c.Window = orDefault(c.Window, DefaultWindow)
	c.Lanes = orDefault(c.Lanes, min(DefaultLanes, c.Window))
	c.DrainTimeout = orDefault(c.DrainTimeout, DefaultDrainTimeout)
	c.DrainGrace = orDefault(c.DrainGrace, DefaultDrainGrace)
	c.NackBackoff.Initial = orDefault(c.NackBackoff.Initial, DefaultBackoffInitial)
	c.NackBackoff.Max = orDefault(c.NackBackoff.Max, DefaultBackoffMax)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func orDefault[T comparable](value, fallback T) T {
	if value == *new(T) {
		return fallback
	}
	return value
}

// faults returns what is wrong with a configuration that has its defaults.
func (c IntakeConfig) faults() []error {
	var faults []error
	add := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.Window < 1 || c.Window > MaxWindow {
		add("Window is %d, it is to be from 1 to %d", c.Window, MaxWindow)
	}
	if c.Lanes < 1 || c.Lanes > c.Window {
		add("Lanes is %d, it is to be from 1 to Window, %d", c.Lanes, c.Window)
	}
	if c.DrainTimeout < 0 {
		add("DrainTimeout is %s, it is to be above 0", c.DrainTimeout)
	}
	if c.DrainGrace < 0 {
		add("DrainGrace is %s, it is to be above 0", c.DrainGrace)
	}
	if c.NackBackoff.Initial < 0 {
		add("NackBackoff.Initial is %s, it is to be above 0", c.NackBackoff.Initial)
	}
	if c.NackBackoff.Max < c.NackBackoff.Initial {
		add("NackBackoff.Max is %s, it is to be at least NackBackoff.Initial, %s", c.NackBackoff.Max, c.NackBackoff.Initial)
	}
	return faults
}

// invalid returns one error for all faults, or nil.
func invalid(what string, faults []error) error {
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s: %w", schema.ErrInvalidOption, what, errors.Join(faults...))
}

// An Intake is a [message.Subscriber] that stands in front of a Watermill
// router, where each message runs in a goroutine of its own. It keeps the order
// of keys and brings messages to their end when the process stops:
//
//   - Lanes. Up to Window messages of a subscription are taken from the inner
//     subscriber and not acknowledged; up to Lanes of them are handed out, never
//     two of one key. Keys that wait are served in turn, one message each.
//   - Nack. The message is handed out again, as a new copy, after a pause. Its
//     key waits meanwhile, other keys go on. The inner subscriber does not see
//     the nack.
//   - Drain. Close stops taking and handing out, waits until the handed-out
//     messages are acknowledged, and closes the inner subscriber afterwards.
//     Whatever is not acknowledged is left alone, neither acknowledged nor
//     rejected.
//   - Revocation. A message whose inner context ends with cause
//     [schema.ErrRevoked] is dropped when it waits. When it is being worked on
//     its context ends, and its acknowledgement is not passed on.
//
// A message that is handed out has the id, the metadata (its own copy) and the
// payload (shared, not to be changed) of the inner one. Its context has the
// values of the inner message's, and survives the end of Subscribe's and of the
// inner message's. It ends when the message is settled, with cause
// [schema.ErrDraining] at the drain deadline, and with the inner cause on a
// revocation.
//
// The window is a part of one stream: messages of a hot key take up room in it
// while they wait. When a window is full of one key, other keys get in only as
// that one goes on; a larger Window is the remedy.
//
// In a router made by hand, CloseTimeout is to exceed DrainTimeout and
// DrainGrace together. Stop in this order: the Intake's Close, the router's, and
// the Intake's again if the router may have been first, since it does not wait
// for its subscribers. Give the router one handler per topic: the order of keys
// is kept within one subscription.
//
// All methods are safe for concurrent use.
type Intake struct {
	inner message.Subscriber
	cfg   IntakeConfig

	mu            sync.Mutex
	closed        bool
	subscriptions map[*subscription]bool
	failures      []error // of subscriptions that have ended

	shut     chan struct{} // closed: closeErr is set
	closeErr error
}

var _ message.Subscriber = (*Intake)(nil)

// NewIntake returns an Intake in front of inner, which is to keep the order of
// keys, to take acknowledgements in any order and to hand out further messages
// before the earlier ones are acknowledged. It does no I/O.
func NewIntake(inner message.Subscriber, cfg IntakeConfig) (*Intake, error) {
	var faults []error
	if inner == nil {
		faults = append(faults, errors.New("inner subscriber is nil"))
	}
	cfg = cfg.withDefaults()
	if err := invalid("intake", append(faults, cfg.faults()...)); err != nil {
		return nil, err
	}
	return &Intake{inner: inner, cfg: cfg, subscriptions: map[*subscription]bool{}, shut: make(chan struct{})}, nil
}

// Subscribe returns the messages of a topic. When ctx ends, the subscription
// drains as in Close, and its channel closes after the inner one has; the inner
// subscriber stays open. When the inner channel closes by itself, the messages
// taken before are brought to their end, then the channel closes. After Close
// it returns [ErrClosed].
func (i *Intake) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s, err := i.subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	return s.out, nil
}

func (i *Intake) subscribe(ctx context.Context, topic string) (*subscription, error) {
	stopping, stop := context.WithCancel(ctx)
	working, cutShort := context.WithCancelCause(context.Background())
	s := newSubscription(topic, i.cfg, stopping.Done(), stop, cutShort)
	err := i.remember(s)
	if err == nil {
		err = s.open(ctx, stopping, i.inner)
	}
	if err != nil {
		i.forget(s)
		s.end()
		return nil, fmt.Errorf("subscribe to %s: %w", topic, err)
	}
	go func() {
		s.run(working)
		i.forget(s)
		s.end()
	}()
	return s, nil
}

func (i *Intake) remember(s *subscription) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return ErrClosed
	}
	i.subscriptions[s] = true
	return nil
}

func (i *Intake) forget(s *subscription) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.subscriptions, s)
	if err := s.failure(); err != nil {
		i.failures = append(i.failures, err)
	}
}

// Close stops taking and handing out messages, waits up to DrainTimeout for
// the handed-out ones, ends their contexts, waits DrainGrace for what is still
// worked on, then ends the inner subscriptions and closes the inner
// subscriber. It returns [ErrDrainTimeout] when something was still worked on,
// joined with what the inner subscriber's Close said. Idempotent: a second call
// waits for the first one and returns the same.
func (i *Intake) Close() error {
	if i.refuse() {
		i.closeErr = i.close()
		close(i.shut)
	}
	<-i.shut
	return i.closeErr
}

// refuse refuses new subscriptions. It returns true the first time.
func (i *Intake) refuse() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	first := !i.closed
	i.closed = true
	return first
}

func (i *Intake) close() error {
	subscriptions := i.open()
	for _, s := range subscriptions {
		s.stop()
	}
	for _, s := range subscriptions {
		<-s.settled
	}
	err := i.inner.Close()
	err = errors.Join(err, i.await(subscriptions))
	i.mu.Lock()
	defer i.mu.Unlock()
	return errors.Join(append(i.failures, err)...)
}

// open returns the subscriptions that have not ended.
func (i *Intake) open() []*subscription {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Collect(maps.Keys(i.subscriptions))
}

// await waits for the end of subscriptions whose inner subscriber is closed.
func (i *Intake) await(subscriptions []*subscription) error {
	deadline, cancel := context.WithTimeout(context.Background(), i.cfg.DrainGrace)
	defer cancel()
	var faults []error
	for _, s := range subscriptions {
		select {
		case <-s.done:
		case <-deadline.Done():
			s.forsake()
			faults = append(faults, fmt.Errorf("%w: topic %s, %s after Close", ErrStuckSubscriber, s.topic, i.cfg.DrainGrace))
		}
	}
	return errors.Join(faults...)
}
