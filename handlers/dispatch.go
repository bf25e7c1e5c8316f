package handlers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// maxLoggedTypes bounds what is remembered of event types that nobody handles:
// the names come from outside.
const maxLoggedTypes = 1000

// A dispatcher gives the messages of one topic to the handlers of one
// consumer. It is safe for concurrent use.
type dispatcher struct {
	topic     string
	chains    map[string][]chain // by event name, in order of registration
	unhandled *unhandled
	active    *activeHandlers
	logger    *slog.Logger
}

// A chain is one handler with its middlewares around it.
type chain struct {
	handler string
	version int
	runFunc message.HandlerFunc
}

// newDispatcher builds the chains of all handlers of the consumer: an event
// may have been published to another topic than its own.
func newDispatcher(cfg ConsumerConfig, topic string, u *unhandled, a *activeHandlers) (*dispatcher, error) {
	d := &dispatcher{topic: topic, chains: map[string][]chain{}, unhandled: u, active: a, logger: cfg.Logger}
	var faults []error
	for _, h := range cfg.Handlers {
		run := h.handlerFunc(cfg.Codec, topic, versionsOf(cfg.Handlers, h.definition.Name))
		run, err := wrap(run, cfg.InnerFunc(topic, h))
		if err != nil {
			faults = append(faults, fmt.Errorf("InnerFunc: topic %s, handler %s: %w", topic, h.name, err))
			continue
		}
		name := h.definition.Name
		d.chains[name] = append(d.chains[name], chain{h.name, h.definition.Version, run})
	}
	return d, errors.Join(faults...)
}

// versionsOf returns the versions of an event that handlers handle, ascending.
func versionsOf(handlers []Handler, eventName string) []int {
	versions := map[int]bool{}
	for _, h := range handlers {
		if h.definition.Name == eventName {
			versions[h.definition.Version] = true
		}
	}
	return slices.Sorted(maps.Keys(versions))
}

// wrap puts middlewares around run, the first one outermost.
func wrap(run message.HandlerFunc, middlewares []message.HandlerMiddleware) (message.HandlerFunc, error) {
	for i, middleware := range slices.Backward(middlewares) {
		if middleware == nil {
			return nil, fmt.Errorf("%w: middleware %d is nil", schema.ErrInvalidOption, i)
		}
		run = middleware(run)
	}
	return run, nil
}

// handle runs the chain of every handler of the message's event, one after the
// other. It returns nil when all have settled the message, and else the joined
// errors of those that could not: the message is then to come again.
func (d *dispatcher) handle(msg *message.Message) error {
	chains := d.match(msg)
	if len(chains) == 0 {
		d.unhandled.note(d.topic, msg.Metadata.Get(schema.HeaderType))
		return nil
	}
	var faults []error
	for _, c := range chains {
		if err := d.run(c, msg); err != nil {
			faults = append(faults, fmt.Errorf("handler %s: %w", c.handler, err))
		}
	}
	return errors.Join(faults...)
}

// match returns the chains of the message's event and version. When no
// handler has the version, or it cannot be read, it returns the chains of all
// versions: each ends in the permanent error of [Handler.refusal].
func (d *dispatcher) match(msg *message.Message) []chain {
	named := d.chains[msg.Metadata.Get(schema.HeaderType)]
	version, err := schema.Version(msg)
	if err != nil {
		return named
	}
	var matching []chain
	for _, c := range named {
		if c.version == version {
			matching = append(matching, c)
		}
	}
	if len(matching) == 0 {
		return named
	}
	return matching
}

// run gives a copy of the message to one chain, so that what a chain does to
// context and metadata is not seen by the next one. After the end of the
// message's context no further chain is started.
func (d *dispatcher) run(c chain, msg *message.Message) (err error) {
	if ctx := msg.Context(); ctx.Err() != nil {
		return fmt.Errorf("not started: %w: %w", context.Cause(ctx), ctx.Err())
	}
	defer d.active.start(c.handler)()
	defer func() {
		if value := recover(); value != nil {
			d.logger.Error("handler chain panicked", "topic", d.topic, "handler", c.handler,
				"message_id", msg.UUID, "panic", value, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", ErrPanic, value)
		}
	}()
	produced, err := c.runFunc(msg.CopyWithContext())
	if err == nil && len(produced) > 0 {
		return message.ErrOutputInNoPublisherHandler
	}
	return err
}

// unhandled counts the messages whose event nobody handles.
type unhandled struct {
	noteFunc func(topic, eventType string)
	logger   *slog.Logger

	mu   sync.Mutex
	seen map[string]bool
}

func newUnhandled(cfg ConsumerConfig) *unhandled {
	return &unhandled{noteFunc: cfg.UnhandledFunc, logger: cfg.Logger.With("consumer", cfg.Name), seen: map[string]bool{}}
}

func (u *unhandled) note(topic, eventType string) {
	u.noteFunc(topic, eventType)
	if u.first(eventType) {
		u.logger.Info("event type without a handler is acknowledged; said once per type",
			"topic", topic, "event_type", eventType)
	}
}

func (u *unhandled) first(eventType string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.seen[eventType] || len(u.seen) >= maxLoggedTypes {
		return false
	}
	u.seen[eventType] = true
	return true
}

// activeHandlers knows which handlers are being run.
type activeHandlers struct {
	mu    sync.Mutex
	count map[string]int
}

func newActiveHandlers() *activeHandlers { return &activeHandlers{count: map[string]int{}} }

// start counts a run of the handler until the returned function is called.
func (a *activeHandlers) start(handler string) (end func()) {
	a.add(handler, 1)
	return func() { a.add(handler, -1) }
}

func (a *activeHandlers) add(handler string, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.count[handler] += n
	if a.count[handler] == 0 {
		delete(a.count, handler)
	}
}

// names returns the handlers that are being run, sorted.
func (a *activeHandlers) names() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Keys(a.count))
}
