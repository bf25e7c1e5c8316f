package eventbus

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/middleware"
	"github.com/postbus-io/postbus/schema"
)

// Consume adds handlers to a consumer: a named receiver, which is one consumer
// group at the broker. Several calls for one consumer add up. It may be called
// until RunConsumers or Run; what is wrong with the registration is one error,
// all faults at once, and adds nothing.
func (b *Bus) Consume(consumer string, hs ...handlers.Handler) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.started {
		return fmt.Errorf("consume as %s: %w", consumer, ErrRunning)
	}
	faults := []error{}
	if fault := schema.NameFault(consumer); fault != "" {
		faults = append(faults, fmt.Errorf("%w: consumer: %s", schema.ErrInvalidOption, fault))
	}
	if len(hs) == 0 {
		faults = append(faults, fmt.Errorf("%w: no handlers", schema.ErrInvalidOption))
	}
	known := slices.Clone(b.consumers[consumer])
	for _, h := range hs {
		faults = append(faults, b.handlerFault(known, h))
		known = append(known, h)
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("consume as %s: %w", consumer, err)
	}
	if _, ok := b.consumers[consumer]; !ok {
		b.order = append(b.order, consumer)
	}
	b.consumers[consumer] = known
	return nil
}

func (b *Bus) handlerFault(known []handlers.Handler, h handlers.Handler) error {
	if err := h.Err(); err != nil {
		return err
	}
	if slices.ContainsFunc(known, func(k handlers.Handler) bool { return k.Name() == h.Name() }) {
		return fmt.Errorf("%w: two handlers are named %q", schema.ErrInvalidOption, h.Name())
	}
	return b.registry.Register(h.Definition())
}

// newConsumers builds what RunConsumers runs.
func (b *Bus) newConsumers() ([]*handlers.Consumer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.started {
		return nil, ErrRunning
	}
	b.started = true
	var consumers []*handlers.Consumer
	for _, name := range b.order {
		consumer, err := b.newConsumer(name, b.consumers[name])
		if err != nil {
			return nil, fmt.Errorf("consumer %s: %w", name, err)
		}
		consumers = append(consumers, consumer)
	}
	return consumers, nil
}

func (b *Bus) newConsumer(name string, hs []handlers.Handler) (*handlers.Consumer, error) {
	chain, err := b.chain(name)
	if err != nil {
		return nil, err
	}
	outer, err := chain.Outer("")
	if err != nil {
		return nil, err
	}
	inner, err := innerChains(chain, hs)
	if err != nil {
		return nil, err
	}
	subscriber, err := b.broker.NewSubscriber(name, b.topics(hs), b.cfg.Consumer.Window)
	if err != nil {
		return nil, err
	}
	return handlers.NewConsumer(handlers.ConsumerConfig{
		Name: name, Handlers: hs, Subscriber: subscriber,
		TopicFunc: b.registry.Topic, Codec: b.registry.Codec(),
		Lanes: b.cfg.Consumer.Lanes, Window: b.cfg.Consumer.Window, DrainTimeout: b.cfg.Consumer.DrainTimeout,
		Outer:     []message.HandlerMiddleware{outer},
		InnerFunc: func(_ string, h handlers.Handler) []message.HandlerMiddleware { return inner[h.Name()] },
		Logger:    b.log,
	})
}

// innerChains are the chains by handler; the router says which topic a message
// came from.
func innerChains(chain *middleware.Chain, hs []handlers.Handler) (map[string][]message.HandlerMiddleware, error) {
	chains := map[string][]message.HandlerMiddleware{}
	for _, h := range hs {
		inner, err := chain.Inner(h.Name(), "")
		if err != nil {
			return nil, err
		}
		chains[h.Name()] = []message.HandlerMiddleware{inner}
	}
	return chains, nil
}

func (b *Bus) chain(consumer string) (*middleware.Chain, error) {
	retry := b.cfg.Consumer.Retry
	return middleware.Standard(middleware.Config{
		DB: b.db, Database: b.database, Consumer: consumer, Logger: b.log,
		Retry:           middleware.RetryConfig{Initial: retry.Initial, Max: retry.Max, Budget: retry.Budget},
		AfterCommitFunc: b.Wake,
		Hooks:           b.hooks,
	})
}

func (b *Bus) topics(hs []handlers.Handler) []string {
	var topics []string
	for _, h := range hs {
		topics = append(topics, b.registry.Topic(h.Definition().Name))
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

// DeadLetters returns the dead letters of all consumers whose inbox is in this
// database, oldest first, at most 100 unless the filter says otherwise.
func (b *Bus) DeadLetters(ctx context.Context, filter schema.DeadFilter) ([]schema.DeadLetter, error) {
	return b.database.Dead(ctx, filter)
}

// Redrive gives a dead letter to its handler again, here and now: one attempt,
// in which the letter turns into the inbox row together with the effect. When
// the handler fails, its error is returned and the letter stays, with its
// counts raised. The handler must be registered on this bus ([ErrNoHandler]);
// the consumers need not run. [schema.ErrNotDead] when there is no such letter.
func (b *Bus) Redrive(ctx context.Context, id int64) error {
	letters, err := b.database.Dead(ctx, schema.DeadFilter{ID: id, Most: 1})
	if err != nil {
		return fmt.Errorf("redrive %d: %w", id, err)
	}
	if len(letters) == 0 {
		return fmt.Errorf("redrive: %w: %d", schema.ErrNotDead, id)
	}
	letter := letters[0]
	h, ok := b.handler(letter.Consumer, letter.Handler)
	if !ok {
		return fmt.Errorf("redrive %d: %w: consumer %q, handler %q", id, ErrNoHandler, letter.Consumer, letter.Handler)
	}
	chain, err := b.chain(letter.Consumer)
	if err != nil {
		return fmt.Errorf("redrive %d: %w", id, err)
	}
	inner, err := chain.Inner(letter.Handler, letter.Topic)
	if err != nil {
		return fmt.Errorf("redrive %d: %w", id, err)
	}
	if err := middleware.Redrive(ctx, letter, inner(h.HandlerFunc(b.registry.Codec(), letter.Topic))); err != nil {
		return fmt.Errorf("redrive %d: %w", id, err)
	}
	return nil
}

func (b *Bus) handler(consumer, name string) (handlers.Handler, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, h := range b.consumers[consumer] {
		if h.Name() == name {
			return h, true
		}
	}
	return handlers.Handler{}, false
}
