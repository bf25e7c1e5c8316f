package story

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// A Summary is what the story comes to. Lost and Doubled are counted from the
// two databases.
type Summary struct {
	// OrdersPlaced counts the rows in the database of orders.
	OrdersPlaced int `json:"orders_placed"`
	// OrdersRolledBack counts the transactions that were rolled back.
	OrdersRolledBack int `json:"orders_rolled_back"`
	// EventsRelayed counts the records that the relays have marked as sent.
	EventsRelayed int `json:"events_relayed"`
	// PaymentsApplied counts the rows in the database of payments.
	PaymentsApplied int `json:"payments_applied"`
	// DuplicatesSuppressed counts messages that were acked without running the
	// handler again.
	DuplicatesSuppressed int `json:"duplicates_suppressed"`
	// Retries counts failed attempts that were followed by another one.
	Retries int `json:"retries"`
	// DeadLetters counts the messages that became one.
	DeadLetters int `json:"dead_letters"`
	// Redriven counts the dead letters that were redriven and applied.
	Redriven int `json:"redriven"`
	// Lost counts the orders that payments or, after it, orders has not
	// applied.
	Lost int `json:"lost"`
	// Doubled counts the orders that one of the two has applied more than
	// once.
	Doubled int `json:"doubled"`
}

// A sum is a line of the final table.
type sum struct {
	what              string
	counted, expected int
}

// finish counts, prints the table and compares.
func (s *stage) finish(ctx context.Context) (*Summary, error) {
	if s.cfg.beforeSums != nil {
		if err := s.cfg.beforeSums(s); err != nil {
			return nil, err
		}
	}
	summary, sums, err := s.sumUp(ctx)
	if err != nil {
		return nil, err
	}
	s.say.chapter("The sums, counted after everything has stopped")
	s.say.line("   %-58s%9s%10s", "", "counted", "expected")
	var errs []error
	for _, line := range sums {
		verdict := "ok"
		if line.counted != line.expected {
			verdict = "DIFFERS"
			errs = append(errs, fmt.Errorf("%w: %s: %d, expected %d", ErrSums, line.what, line.counted, line.expected))
		}
		s.say.line("   %-58s%9d%10d  %s", line.what, line.counted, line.expected, verdict)
	}
	if len(errs) == 0 {
		s.say.line("\nAll sums agree.")
	}
	return &summary, errors.Join(errs...)
}

func (s *stage) sumUp(ctx context.Context) (Summary, []sum, error) {
	ledger, err := s.readLedger(ctx)
	if err != nil {
		return Summary{}, nil, err
	}
	summary := Summary{
		OrdersPlaced: len(ledger.orders), OrdersRolledBack: s.rolledBack,
		EventsRelayed:        int(s.tally.relayed.Load()),
		PaymentsApplied:      ledger.charged(),
		DuplicatesSuppressed: int(s.tally.suppressed.Load()),
		Retries:              int(s.tally.retries.Load()), DeadLetters: int(s.tally.deadLetters.Load()), Redriven: s.redriven,
	}
	summary.Lost, summary.Doubled = ledger.judge()
	events, copies := s.atBroker()
	all := s.cfg.Orders
	return summary, []sum{
		{"orders in the database of orders", summary.OrdersPlaced, all},
		{"orders that nobody placed, in the database of payments", ledger.phantoms(), 0},
		{"events relayed: one for each order, one for each answer", summary.EventsRelayed, 2 * all},
		{"different events at the broker", events, 2 * all},
		{"events left in the outboxes", ledger.outbox, 0},
		{"orders charged or declined in the database of payments", summary.PaymentsApplied, all},
		{"orders paid or declined in the database of orders", ledger.settled, all},
		{"money of the paid orders, in cents", ledger.paid, ledger.taken},
		{"duplicates suppressed, for second copies at the broker", summary.DuplicatesSuppressed, copies},
		{"retries, for the handler that failed twice", summary.Retries, 2},
		{"dead letters", summary.DeadLetters, 1},
		{"dead letters redriven", summary.Redriven, 1},
		{"dead letters left", ledger.dead, 0},
		{"orders lost", summary.Lost, 0},
		{"orders doubled", summary.Doubled, 0},
	}, nil
}

// atBroker returns how many different events the broker has, and how many
// messages beyond those.
func (s *stage) atBroker() (events, copies int) {
	messages := slices.Concat(s.broker.Messages(topicOrders), s.broker.Messages(topicPayments))
	ids := map[string]bool{}
	for _, msg := range messages {
		ids[msg.UUID] = true
	}
	return len(ids), len(messages) - len(ids)
}
