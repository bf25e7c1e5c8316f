package story

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/postbus-io/postbus/examples/orders/ordering"
	"github.com/postbus-io/postbus/schema"
)

// play tells the chapters, then stops what they have started.
func (s *stage) play(ctx context.Context) error {
	ctx, s.end = context.WithCancelCause(ctx)
	err := s.tellChapters(ctx)
	s.end(errOver)
	s.running.Wait()
	return errors.Join(append([]error{err}, s.faults...)...)
}

func (s *stage) tellChapters(ctx context.Context) error {
	s.say.line("Two services, orders and payments, each with a SQLite database of its own, and a broker in memory.")
	s.say.line("Orders states that an order was placed, payments charges it and answers, orders notes the answer.")
	for _, chapter := range []struct {
		title    string
		tellFunc func(context.Context) error
	}{
		{"Orders are placed: each is one transaction, its row and its event", s.placeOrders},
		{"A transaction is rolled back: no row, no event", s.rollBack},
		{"A relay dies in mid-stream, another one takes over", s.killRelay},
		{"A message is delivered twice", s.deliverTwice},
		{"A handler fails twice, then passes", s.failTwice},
		{"A poison order becomes a dead letter; its cause is repaired, it is redriven", s.poison},
	} {
		s.say.chapter(chapter.title)
		if err := chapter.tellFunc(ctx); err != nil {
			return fmt.Errorf("chapter %d: %w", s.say.chapters, err)
		}
	}
	return nil
}

// specials are the orders that have a chapter of their own; bulk are the others.
const specials = 2

func (s *stage) bulk() int { return s.cfg.Orders - specials }

// order returns the nth order. Every fifth is above the limit of payments.
func order(n int) ordering.Order {
	o := ordering.Order{
		ID: fmt.Sprintf("order-%04d", n), Customer: fmt.Sprintf("customer-%d", n%7),
		Amount: int64(1999 + n%50*100), Currency: "EUR",
	}
	if n%5 == 3 {
		o.Amount = 150_000
	}
	return o
}

func (s *stage) placeOrders(ctx context.Context) error {
	for n := 1; n <= s.bulk(); n++ {
		if err := s.shop.Place(ctx, order(n)); err != nil {
			return err
		}
	}
	s.say.done("%d orders placed; no relay and no consumer is running yet", s.bulk())
	var w witness
	s.say.observed("orders in the database: %d, events in its outbox: %d, messages at the broker: %d",
		w.count(ctx, s.orders, orderCount), w.count(ctx, s.orders, outboxCount), len(s.broker.Messages(topicOrders)))
	return w.err
}

// errSecondThoughts rolls a transaction back.
var errSecondThoughts = errors.New("the customer had second thoughts")

func (s *stage) rollBack(ctx context.Context) error {
	o := order(0)
	var w witness
	inside := 0
	err := s.orders.bus.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if err := s.shop.PlaceIn(ctx, tx, o); err != nil {
			return err
		}
		inside = w.count(ctx, tx, outboxCount)
		return errSecondThoughts
	})
	if !errors.Is(err, errSecondThoughts) {
		return err
	}
	s.rolledBack++
	s.say.done("%s placed, events in the outbox as seen from its transaction: %d; rolled back", o.ID, inside)
	s.say.observed("orders of that id: %d, events in the outbox: %d",
		w.count(ctx, s.orders, orderExists, o.ID), w.count(ctx, s.orders, outboxCount))
	return w.err
}

func (s *stage) deliverTwice(ctx context.Context) error {
	messages := s.broker.Messages(topicOrders)
	twin := messages[len(messages)-1]
	publisher, err := s.broker.NewPublisher()
	if err != nil {
		return err
	}
	before := s.tally.suppressed.Load()
	if err := errors.Join(publisher.Publish(topicOrders, twin), publisher.Close()); err != nil {
		return err
	}
	id := schema.Key(twin)
	s.say.done("the message of %s is put on the broker once more, with the same id", id)
	if err := s.quiet(ctx); err != nil {
		return err
	}
	var w witness
	s.say.observed("duplicates suppressed: %d, charges of %s: %d",
		s.tally.suppressed.Load()-before, id, w.count(ctx, s.payments, chargesOf, id))
	return w.err
}

func (s *stage) failTwice(ctx context.Context) error {
	o := order(s.bulk() + 1)
	o.Amount = 2500
	s.bank.refuse(o.ID, 2)
	if err := s.shop.Place(ctx, o); err != nil {
		return err
	}
	s.say.done("%s is placed; the bank that payments asks does not answer twice", o.ID)
	if err := s.quiet(ctx); err != nil {
		return err
	}
	var w witness
	times, keys := s.bank.asked(o.ID)
	s.say.observed("retries: %d; the bank was asked %d times, different idempotency keys: %d", s.tally.retries.Load(), times, keys)
	s.say.observed("charges of %s: %d, its status: %s", o.ID, w.count(ctx, s.payments, chargesOf, o.ID), s.status(ctx, &w, o.ID))
	return w.err
}

func (s *stage) poison(ctx context.Context) error {
	o := order(s.bulk() + 2)
	o.Amount, o.Currency = 4200, "CHF"
	if err := s.shop.Place(ctx, o); err != nil {
		return err
	}
	s.say.done("%s is placed in CHF, for which payments has no limit", o.ID)
	if err := s.quiet(ctx); err != nil {
		return err
	}
	letters, err := s.payments.bus.DeadLetters(ctx, schema.DeadFilter{})
	if err != nil {
		return err
	}
	for _, l := range letters {
		s.say.observed("dead letter %d, of %s, handler %s: %s", l.ID, l.Key, l.Handler, l.LastError)
	}
	var w witness
	s.say.observed("charges of %s: %d, its status: %s", o.ID, w.count(ctx, s.payments, chargesOf, o.ID), s.status(ctx, &w, o.ID))
	if err := s.redrive(ctx, letters); err != nil {
		return err
	}
	s.say.observed("charges of %s: %d, its status: %s", o.ID, w.count(ctx, s.payments, chargesOf, o.ID), s.status(ctx, &w, o.ID))
	return w.err
}

// redrive repairs the cause, not the message.
func (s *stage) redrive(ctx context.Context, letters []schema.DeadLetter) error {
	if err := s.till.SetLimit(ctx, "CHF", 100_000); err != nil {
		return err
	}
	for _, l := range letters {
		if err := s.payments.bus.Redrive(ctx, l.ID); err != nil {
			return err
		}
		s.redriven++
	}
	s.say.done("a limit for CHF is set; dead letters redriven: %d", s.redriven)
	return s.quiet(ctx)
}

// status returns the status of an order.
func (s *stage) status(ctx context.Context, w *witness, id string) string {
	for status := range w.counts(ctx, s.orders, statusOf, id) {
		return status
	}
	return "unknown"
}
