package story

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postbus-io/postbus/forwarder"
)

func (s *stage) killRelay(ctx context.Context) error {
	s.start(ctx, "payments", s.payments.bus.Run)
	s.start(ctx, "consumers of orders", s.orders.bus.RunConsumers)
	if err := s.runRelayA(ctx); err != nil {
		return err
	}
	var w witness
	unmarked := w.count(ctx, s.orders, outboxCount)
	s.say.observed("events at the broker: %d, marked as sent: %d, shards that A still owns: %d",
		len(s.broker.Messages(topicOrders)), s.bulk()-unmarked, w.count(ctx, s.orders, ownedShards))
	if err := s.startRelayB(ctx); err != nil {
		return err
	}
	if err := s.quiet(ctx); err != nil {
		return err
	}
	s.say.observed("events that the broker got a second time: %d; orders: %d, charges: %d",
		len(s.broker.Messages(topicOrders))-s.bulk(), w.count(ctx, s.orders, orderCount), w.count(ctx, s.payments, chargeCount))
	return w.err
}

// runRelayA runs a relay that dies when the broker has taken half of the events,
// before it hears of the last one. As in a crash, it marks nothing any more and
// releases nothing.
func (s *stage) runRelayA(ctx context.Context) error {
	half := int64(s.bulk()+1) / 2
	relayCtx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	var taken atomic.Int64
	defer s.watchBroker(func(ctx context.Context, topic string) {
		if topic == topicOrders && taken.Add(1) == half {
			kill(forwarder.ErrAbandoned)
			<-ctx.Done()
		}
	})()
	s.say.done("payments starts, and relay A, which dies when the broker has taken %d events", half)
	return s.orders.bus.RunRelay(relayCtx)
}

// startRelayB starts the relay that takes over, and waits for its first event.
func (s *stage) startRelayB(ctx context.Context) error {
	first := make(chan struct{})
	var once sync.Once
	defer s.watchBroker(func(_ context.Context, topic string) {
		if topic == topicOrders {
			once.Do(func() { close(first) })
		}
	})()
	s.say.done("relay B starts; before it may send, the lease of A has to end (%s here, 10s by default)", busConfig().Relay.Lease)
	began := time.Now()
	s.start(ctx, "relay of orders", s.orders.bus.RunRelay)
	select {
	case <-first:
		s.say.observed("the first event of B after %s", time.Since(began).Round(10*time.Millisecond))
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for relay B: %w", context.Cause(ctx))
	}
}

// A watcher is told of every message that the broker has taken, before its
// sender is. The context is the sender's.
type watcher func(ctx context.Context, topic string)

// watchBroker sets the watcher, and returns what takes it away.
func (s *stage) watchBroker(watch watcher) (stop func()) {
	s.watcher.Store(&watch)
	return func() { s.watcher.Store(nil) }
}
