package handlers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// routerCloseTimeout is how long the router waits for goroutines whose
// messages are settled already: it is closed after the Intake, which has waited
// for the rest. Waiting for stuck functions a second time would only delay the
// report of them.
const routerCloseTimeout = 2 * time.Second

// ConsumerConfig configures a [Consumer].
type ConsumerConfig struct {
	// Name is the consumer's stable name, for example "payments".
	Name string
	// Handlers are run in this order. Their names are distinct.
	Handlers []Handler
	// TopicFunc is the rule from an event's name to its topic. Defaults to
	// [schema.TopicOf].
	TopicFunc func(eventName string) string
	// Codec reads the payloads. Defaults to [schema.JSON].
	Codec schema.Codec
	// Subscriber is subscribed to each topic once. Run closes it; a consumer
	// that was never run leaves it to whoever made it.
	Subscriber message.Subscriber
	// Lanes is how many messages of one topic are worked on at once, each of
	// another key or without one. Defaults to 16, or to Window if that is less.
	Lanes int
	// Window is how many messages of one topic are taken from the subscriber
	// and not acknowledged. Defaults to 64.
	Window int
	// DrainTimeout is how long functions have to finish after the end of Run's
	// context before their own ends. Defaults to 20 s.
	DrainTimeout time.Duration
	// DrainGrace is how long they have to return after that. Defaults to 2 s.
	DrainGrace time.Duration
	// NackBackoff is the pause before a message comes again that some handler
	// could not settle.
	NackBackoff Backoff
	// Outer runs once per message, around all handlers, the first one
	// outermost. It is to keep foreign messages, which have no event type, from
	// the handlers; one that comes through counts as unhandled.
	Outer []message.HandlerMiddleware
	// InnerFunc returns what runs once per handler and message, the first one
	// outermost: what settles failures, and brings the transaction. It is
	// called once per topic and handler by NewConsumer. Defaults to none.
	InnerFunc func(topic string, h Handler) []message.HandlerMiddleware
	// UnhandledFunc is called for each message whose event type has no handler,
	// from several goroutines at once. Defaults to nothing.
	UnhandledFunc func(topic, eventType string)
	// Logger gets what nobody returns: the router's errors, panics, event types
	// without a handler. Defaults to [slog.Default].
	Logger *slog.Logger
}

func (c ConsumerConfig) withDefaults() ConsumerConfig {
	if c.TopicFunc == nil {
		c.TopicFunc = schema.TopicOf
	}
	if c.Codec == nil {
		c.Codec = schema.JSON
	}
	if c.InnerFunc == nil {
		c.InnerFunc = func(string, Handler) []message.HandlerMiddleware { return nil }
	}
	if c.UnhandledFunc == nil {
		c.UnhandledFunc = func(string, string) {}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Handlers = slices.Clone(c.Handlers)
	c.Outer = slices.Clone(c.Outer)
	return c
}

func (c ConsumerConfig) intake() IntakeConfig {
	return IntakeConfig{
		Lanes: c.Lanes, Window: c.Window, DrainTimeout: c.DrainTimeout, DrainGrace: c.DrainGrace,
		NackBackoff: c.NackBackoff, Logger: c.Logger.With("consumer", c.Name),
	}.withDefaults()
}

// faults returns what is wrong with a configuration that has its defaults.
func (c ConsumerConfig) faults() []error {
	var faults []error
	if fault := schema.NameFault(c.Name); fault != "" {
		faults = append(faults, fmt.Errorf("Name: %s", fault))
	}
	if c.Subscriber == nil {
		faults = append(faults, errors.New("Subscriber is nil"))
	}
	for i, middleware := range c.Outer {
		if middleware == nil {
			faults = append(faults, fmt.Errorf("Outer: middleware %d is nil", i))
		}
	}
	faults = append(faults, c.handlerFaults()...)
	return append(faults, c.intake().faults()...)
}

func (c ConsumerConfig) handlerFaults() []error {
	if len(c.Handlers) == 0 {
		return []error{errors.New("Handlers has no handler, it is to have at least 1")}
	}
	var faults []error
	names := map[string]bool{}
	for i, h := range c.Handlers {
		if err := h.Err(); err != nil {
			faults = append(faults, fmt.Errorf("Handlers[%d]: %w", i, err))
			continue
		}
		if names[h.name] {
			faults = append(faults, fmt.Errorf("Handlers[%d]: name %q is taken by an earlier handler", i, h.name))
		}
		names[h.name] = true
		if fault := schema.TopicFault(c.TopicFunc(h.definition.Name)); fault != "" {
			faults = append(faults, fmt.Errorf("TopicFunc: event %s: %s", h.definition.Name, fault))
		}
	}
	return faults
}

// topics returns the topics of the handlers' events, sorted, each once.
func (c ConsumerConfig) topics() []string {
	var topics []string
	for _, h := range c.Handlers {
		topics = append(topics, c.TopicFunc(h.definition.Name))
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

// A Consumer is a named receiver: its handlers on a Watermill router, one
// subscription per topic, an [Intake] in front.
type Consumer struct {
	cfg         ConsumerConfig
	intake      *Intake
	dispatchers []*dispatcher // one a topic
	active      *activeHandlers

	ran     atomic.Bool
	running chan struct{}
}

// NewConsumer returns a consumer that waits for Run. It does no I/O. What is
// wrong with the configuration and its handlers is one error, all faults at
// once.
func NewConsumer(cfg ConsumerConfig) (*Consumer, error) {
	cfg = cfg.withDefaults()
	if err := invalid("consumer", cfg.faults()); err != nil {
		return nil, err
	}
	intake, err := NewIntake(cfg.Subscriber, cfg.intake())
	if err != nil {
		return nil, err
	}
	c := &Consumer{cfg: cfg, intake: intake, active: newActiveHandlers(), running: make(chan struct{})}
	u := newUnhandled(cfg)
	var faults []error
	for _, topic := range cfg.topics() {
		d, err := newDispatcher(cfg, topic, u, c.active)
		if err != nil {
			faults = append(faults, err)
		}
		c.dispatchers = append(c.dispatchers, d)
	}
	if err := invalid("consumer", faults); err != nil {
		return nil, err
	}
	return c, nil
}

// Name returns the consumer's name.
func (c *Consumer) Name() string { return c.cfg.Name }

// Topics returns the topics that the consumer subscribes to, sorted.
func (c *Consumer) Topics() []string { return c.cfg.topics() }

// Running returns a channel that is closed when the consumer is subscribed to
// all topics. It stays open when that fails.
func (c *Consumer) Running() <-chan struct{} { return c.running }

// Run subscribes to all topics and runs the handlers until ctx ends. Then it
// stops taking messages, waits up to DrainTimeout for the functions that run,
// ends their contexts with cause [schema.ErrDraining], waits DrainGrace for
// them to return, and closes the subscriber. Nothing is cancelled before that
// deadline, and nothing is acknowledged that was not finished.
//
// It returns nil after a clean stop. It returns [ErrDrainTimeout], with the
// names of the handlers, when a function had not returned by then; an error of
// the subscriber; and [ErrSubscriptionEnded] when the subscriber ended any of
// the subscriptions by itself, since a consumer that has gone deaf on one topic
// is to be noticed. A consumer runs once: after that it returns [ErrRunTwice].
func (c *Consumer) Run(ctx context.Context) error {
	if !c.ran.CompareAndSwap(false, true) {
		return fmt.Errorf("consumer %s: %w", c.cfg.Name, ErrRunTwice)
	}
	subscriptions, err := c.subscribe(ctx)
	if err != nil {
		err = errors.Join(err, c.intake.Close())
	} else {
		err = c.work(ctx, subscriptions)
	}
	if err != nil {
		return fmt.Errorf("consumer %s: %w", c.cfg.Name, err)
	}
	return nil
}

// subscribe subscribes to all topics before a router exists: one that fails to
// subscribe leaves goroutines behind. A context that ends meanwhile interrupts
// it and is no fault. Later its end does not touch the subscriptions: stop does.
func (c *Consumer) subscribe(ctx context.Context) ([]*subscription, error) {
	own, interrupt := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, interrupt)()
	var subscriptions []*subscription
	for _, d := range c.dispatchers {
		s, err := c.intake.subscribe(own, d.topic)
		switch {
		case err == nil:
			subscriptions = append(subscriptions, s)
		case ctx.Err() != nil && errors.Is(err, context.Canceled):
			return nil, nil
		default:
			return nil, err
		}
	}
	return subscriptions, nil
}

// work runs the handlers until ctx or a subscription ends, then stops.
func (c *Consumer) work(ctx context.Context, subscriptions []*subscription) error {
	if ctx.Err() != nil {
		return c.intake.Close()
	}
	router, err := c.router(subscriptions)
	if err != nil {
		return errors.Join(err, c.intake.Close())
	}
	// The router's context ends no message's: those are the Intake's.
	routerCtx, endRouter := context.WithCancel(context.WithoutCancel(ctx))
	defer endRouter()
	routed := make(chan error, 1)
	go func() { routed <- router.Run(routerCtx) }()
	<-router.Running()
	close(c.running)

	var fault error
	select {
	case <-ctx.Done():
	case topic := <-lostOf(subscriptions):
		fault = fmt.Errorf("%w: topic %s", ErrSubscriptionEnded, topic)
	}
	endRouter() // before the subscriptions end, or the router calls that an error
	return errors.Join(fault, c.stop(router), <-routed)
}

// lostOf returns a channel that gets the topic of each subscription that the
// subscriber ends by itself.
func lostOf(subscriptions []*subscription) <-chan string {
	lost := make(chan string, len(subscriptions))
	for _, s := range subscriptions {
		go func() {
			<-s.done
			if s.lost {
				lost <- s.topic
			}
		}()
	}
	return lost
}

// stop drains the Intake, which closes the subscriber, and then closes the
// router, which has nothing left to wait for unless a function is stuck. The
// router cannot close the Intake: it knows the open subscriptions only.
func (c *Consumer) stop(router *message.Router) error {
	err := c.intake.Close()
	if errors.Is(err, ErrDrainTimeout) {
		err = fmt.Errorf("%w; handlers still running: %s", err, strings.Join(c.active.names(), ", "))
	}
	return errors.Join(err, router.Close())
}

// router returns a router with one handler per topic.
func (c *Consumer) router(subscriptions []*subscription) (*message.Router, error) {
	logger := watermill.NewSlogLoggerWithLevelMapping(c.cfg.Logger.With("consumer", c.cfg.Name),
		map[slog.Level]slog.Level{slog.LevelInfo: slog.LevelDebug})
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: routerCloseTimeout}, logger)
	if err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	for i, d := range c.dispatchers {
		name := c.cfg.Name + "/" + d.topic
		router.AddConsumerHandler(name, d.topic, opened{subscriptions[i].out}, d.handle).AddMiddleware(c.cfg.Outer...)
	}
	return router, nil
}

// opened gives a subscription that exists to a router, which is to end with
// it and not to close it.
type opened struct{ out <-chan *message.Message }

func (o opened) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return o.out, nil
}

func (opened) Close() error { return nil }
