package rabbitmq

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// A subscription is one topic of a subscriber. One goroutine, run, owns what
// arrived and hands it out; one goroutine for each queue keeps a tap on it; one
// for each message that is handed out waits for its ack.
type subscription struct {
	config *Config
	log    *slog.Logger
	link   *link
	topic  string
	window int
	queues []string

	ctx    context.Context //nolint:containedctx // the subscription's life, parent of its messages'
	cancel context.CancelCauseFunc
	out    chan *message.Message
	begun  chan error     // the first outcome of each queue
	events chan event     // from the taps
	acks   chan ack       // from the waits
	waits  sync.WaitGroup // for acks
	taps   sync.WaitGroup
	done   chan struct{} // closed when nothing is acked any more: taps may close
	ended  chan struct{}

	// Of run alone.
	lanes    *lanes
	items    map[*item]struct{} // all that are not acked, handed out or not
	inFlight int
}

// An ack is how the wait for one message ended.
type ack struct {
	item *item
	outcome
}

type outcome int

const (
	acked outcome = iota
	nacked
	leftAlone // its context ended first
)

func newSubscription(ctx context.Context, s *subscriber, topic string) *subscription {
	config := s.broker.config
	sub := &subscription{
		config: config, log: s.link.log.With("topic", topic), link: s.link, topic: topic, window: s.window,
		out: make(chan *message.Message), begun: make(chan error, config.Queues),
		events: make(chan event), acks: make(chan ack), done: make(chan struct{}), ended: make(chan struct{}),
		lanes: newLanes(), items: map[*item]struct{}{},
	}
	for i := range config.Queues {
		sub.queues = append(sub.queues, QueueName(s.consumer, topic, i))
	}
	sub.ctx, sub.cancel = context.WithCancelCause(ctx)
	return sub
}

// run hands out until the subscription ends, takes the acks that were there
// before the end, and only then lets the channels close: the broker has the
// acks before it gives the rest to somebody else.
func (s *subscription) run(remove func()) {
	defer close(s.ended)
	defer s.cancel(nil)
	for i := range s.queues {
		s.taps.Go(func() { s.tapQueue(i) })
	}
	overdue := time.NewTicker(s.config.ConsumerTimeout / 8)
	defer overdue.Stop()
	for s.ctx.Err() == nil {
		s.step(overdue.C)
	}
	for s.inFlight > 0 {
		s.settle(<-s.acks)
	}
	s.waits.Wait()
	close(s.done)
	s.taps.Wait()
	for item := range s.items {
		item.release(context.Cause(s.ctx))
	}
	remove()
	close(s.out)
}

// step waits for one thing to happen.
func (s *subscription) step(overdue <-chan time.Time) {
	s.lanes.promote(time.Now())
	item := s.next()
	var out chan *message.Message
	var msg *message.Message
	if item != nil {
		out, msg = s.out, item.msg
	}
	due, stop := s.due()
	defer stop()
	select {
	case out <- msg:
		s.handedOut(item)
	case e := <-s.events:
		s.take(e)
	case a := <-s.acks:
		s.settle(a)
	case <-due:
	case <-overdue:
		s.giveBackOverdue()
	case <-s.ctx.Done():
	}
}

// next returns the item to hand out, if there is one and the window has room.
func (s *subscription) next() *item {
	if s.inFlight >= s.window {
		return nil
	}
	item := s.lanes.next()
	if item != nil {
		item.prepare(s.ctx)
	}
	return item
}

// due fires when the backoff of a lane is over.
func (s *subscription) due() (<-chan time.Time, func()) {
	l := s.lanes.waiting.first()
	if l == nil {
		return nil, func() {}
	}
	timer := time.NewTimer(time.Until(l.retryAt))
	return timer.C, func() { timer.Stop() }
}

func (s *subscription) handedOut(i *item) {
	s.lanes.handOut(i)
	s.inFlight++
	msg := i.msg
	s.waits.Go(func() { s.acks <- ack{i, await(msg)} })
}

// await returns how the wait for msg ends. An ack that came before the end of
// its context counts, although both are seen at once.
func await(msg *message.Message) outcome {
	ended := msg.Context().Done()
	select {
	case <-msg.Acked():
		return acked
	case <-msg.Nacked():
		return nacked
	case <-ended:
	}
	select {
	case <-msg.Acked():
		return acked
	default:
		return leftAlone
	}
}

// settle takes the outcome of a message. One whose tap is gone is the broker's
// again, whatever its receiver said too late.
func (s *subscription) settle(a ack) {
	i := a.item
	s.inFlight--
	_, ours := s.items[i]
	switch {
	case ours && a.outcome == nacked:
		// Never basic.nack: what the broker puts back overtakes or is overtaken.
		i.nacks++
		s.lanes.settle(i, time.Now().Add(s.config.backoff(i.nacks)))
	case ours && a.outcome == acked:
		_ = i.delivery.Ack(false) // an error says that the tap is gone: the message will come again
		delete(s.items, i)
		s.lanes.settle(i, time.Time{})
	default:
		s.lanes.settle(i, time.Time{})
	}
	i.release(context.Canceled)
}

// take takes what a tap says.
func (s *subscription) take(e event) {
	if e.lost {
		s.revoke(e.tap)
		return
	}
	i := &item{delivery: e.delivery, tap: e.tap, arrived: time.Now()}
	s.items[i] = struct{}{}
	s.lanes.arrive(i)
}

// revoke ends what came from a tap that is gone: the contexts of messages that
// are handed out, and the wait of the others.
func (s *subscription) revoke(t *tap) {
	for i := range s.items {
		if i.tap != t {
			continue
		}
		delete(s.items, i)
		if i.inHand {
			i.cancel(schema.ErrRevoked)
			continue
		}
		s.lanes.drop(i)
		i.release(schema.ErrRevoked)
	}
}

// giveBackOverdue closes the taps whose oldest message comes near the
// broker's timeout, before the broker does.
func (s *subscription) giveBackOverdue() {
	limit := s.config.ConsumerTimeout * 3 / 4
	for t, i := range s.oldest() {
		if t.expired || time.Since(i.arrived) <= limit {
			continue
		}
		t.expired = true
		s.log.Warn("messages are given back and taken again: one was not acknowledged in time",
			"queue", t.queue, "message_id", unmarshal(&i.delivery).UUID, "limit", limit,
			"consumer_timeout", s.config.ConsumerTimeout)
		s.taps.Go(t.close)
	}
}

// oldest returns each tap's oldest message, which the others wait for.
func (s *subscription) oldest() map[*tap]*item {
	oldest := map[*tap]*item{}
	for i := range s.items {
		if o := oldest[i.tap]; o == nil || i.seq < o.seq {
			oldest[i.tap] = i
		}
	}
	return oldest
}
