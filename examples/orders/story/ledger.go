package story

import (
	"context"
	"errors"
	"maps"

	"github.com/postbus-io/postbus/schema"
)

// A ledger is what the two databases have.
type ledger struct {
	orders  map[string]int // 1 for each order
	charges map[string]int // rows in charges, by order
	marks   map[string]int // rows in order_log, by order

	settled, paid, taken, outbox, dead int
}

// readLedger reads both databases.
func (s *stage) readLedger(ctx context.Context) (ledger, error) {
	var w witness
	l := ledger{
		orders:  w.counts(ctx, s.orders, `SELECT id, 1 FROM orders`),
		charges: w.counts(ctx, s.payments, `SELECT order_id, count(*) FROM charges GROUP BY order_id`),
		marks:   w.counts(ctx, s.orders, `SELECT order_id, count(*) FROM order_log GROUP BY order_id`),
		settled: w.count(ctx, s.orders, `SELECT '', count(*) FROM orders WHERE status IN ('paid', 'declined')`),
		paid:    w.count(ctx, s.orders, `SELECT '', coalesce(sum(amount), 0) FROM orders WHERE status = 'paid'`),
		taken:   w.count(ctx, s.payments, `SELECT '', coalesce(sum(amount), 0) FROM charges WHERE declined = ''`),
		outbox:  w.count(ctx, s.orders, outboxCount) + w.count(ctx, s.payments, outboxCount),
	}
	letters, err := s.payments.bus.DeadLetters(ctx, schema.DeadFilter{})
	l.dead = len(letters)
	return l, errors.Join(w.err, err)
}

// charged returns how many rows payments has written.
func (l ledger) charged() int {
	n := 0
	for rows := range maps.Values(l.charges) {
		n += rows
	}
	return n
}

// judge returns how many orders were not applied on their way through both
// services, and how many more than once.
func (l ledger) judge() (lost, doubled int) {
	for id := range l.orders {
		if l.charges[id] == 0 || l.marks[id] == 0 {
			lost++
		}
		if l.charges[id] > 1 || l.marks[id] > 1 {
			doubled++
		}
	}
	return lost, doubled
}

// phantoms returns how many orders were charged that do not exist.
func (l ledger) phantoms() int {
	n := 0
	for id := range l.charges {
		if l.orders[id] == 0 {
			n++
		}
	}
	return n
}
