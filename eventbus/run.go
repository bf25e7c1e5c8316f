package eventbus

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/postbus-io/postbus/forwarder"
	"github.com/postbus-io/postbus/handlers"
)

// Run runs a relay and all consumers until ctx ends. Then it drains: the
// consumers finish what they work on, after them the relay what it has in
// flight. It returns nil after a clean stop. When a consumer fails, everything
// is stopped and the error returned.
func (b *Bus) Run(ctx context.Context) error {
	consumers, err := b.newConsumers()
	if err != nil {
		return fmt.Errorf("run: %w", err)
	}
	relay, closeRelay, err := b.newRelay()
	if err != nil {
		return fmt.Errorf("run: %w", err)
	}
	defer closeRelay()
	defer b.announce([]*forwarder.Relay{relay}, consumers)()

	// The relay outlives the consumers, so that what they publish while they
	// drain leaves with this process.
	relayCtx, stopRelay := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRelay()
	var relaying sync.WaitGroup
	var relayErr error
	relaying.Go(func() { relayErr = relay.Run(relayCtx) })
	consumerErr := runConsumers(ctx, consumers)
	stopRelay()
	relaying.Wait()
	return errors.Join(consumerErr, relayErr)
}

// RunRelay runs a relay until ctx ends, then finishes what is in flight and
// gives its shards back. It may be called several times at once, here and in
// other processes: the relays share the work.
func (b *Bus) RunRelay(ctx context.Context) error {
	relay, closeRelay, err := b.newRelay()
	if err != nil {
		return fmt.Errorf("run relay: %w", err)
	}
	defer closeRelay()
	defer b.announce([]*forwarder.Relay{relay}, nil)()
	return relay.Run(ctx)
}

// RunConsumers runs all consumers until ctx ends, then drains them. It returns
// nil after a clean stop. It can be called once. A bus without consumers waits
// for the end of ctx.
func (b *Bus) RunConsumers(ctx context.Context) error {
	consumers, err := b.newConsumers()
	if err != nil {
		return fmt.Errorf("run consumers: %w", err)
	}
	defer b.announce(nil, consumers)()
	return runConsumers(ctx, consumers)
}

// runConsumers ends all when one fails.
func runConsumers(ctx context.Context, consumers []*handlers.Consumer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	errs := make([]error, len(consumers))
	for i, consumer := range consumers {
		running.Go(func() {
			if err := consumer.Run(ctx); err != nil {
				errs[i] = fmt.Errorf("consumer %s: %w", consumer.Name(), err)
				stop()
			}
		})
	}
	<-ctx.Done()
	running.Wait()
	return errors.Join(errs...)
}

// newRelay returns a relay that is known to Wake, and what to call after its
// Run.
func (b *Bus) newRelay() (*forwarder.Relay, func(), error) {
	publisher, err := b.broker.NewPublisher()
	if err != nil {
		return nil, nil, err
	}
	c := b.cfg.Relay
	relay, err := forwarder.New(forwarder.Config{
		Source: b.database, Publisher: publisher,
		Lease: c.Lease, Heartbeat: c.Heartbeat, PublishTimeout: c.PublishTimeout,
		PollInterval: c.PollInterval, StopTimeout: c.StopTimeout,
		Batch: c.Batch, MaxAttempts: c.MaxAttempts,
		BackoffInitial: c.Backoff.Initial, BackoffMax: c.Backoff.Max,
		AfterQuarantine: forwarder.Policy(c.AfterQuarantine),
		Logger:          b.log, SentFunc: b.sentFunc,
	})
	if err != nil {
		return nil, nil, errors.Join(err, publisher.Close())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.relays[relay] = struct{}{}
	return relay, func() {
		b.mu.Lock()
		delete(b.relays, relay)
		b.mu.Unlock()
		if err := publisher.Close(); err != nil {
			b.log.Warn("publisher did not close", "error", err)
		}
	}, nil
}

func (b *Bus) runningRelays() []*forwarder.Relay {
	b.mu.Lock()
	defer b.mu.Unlock()
	relays := make([]*forwarder.Relay, 0, len(b.relays))
	for relay := range b.relays {
		relays = append(relays, relay)
	}
	return relays
}

// announce closes Ready once the given parts are up. The function that it
// returns ends the watch.
func (b *Bus) announce(relays []*forwarder.Relay, consumers []*handlers.Consumer) func() {
	var up []<-chan struct{}
	for _, relay := range relays {
		up = append(up, relay.Ready())
	}
	for _, consumer := range consumers {
		up = append(up, consumer.Running())
	}
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for _, part := range up {
			select {
			case <-part:
			case <-over:
				return
			}
		}
		b.readyOnce.Do(func() { close(b.ready) })
	})
	return func() {
		close(over)
		watching.Wait()
	}
}
