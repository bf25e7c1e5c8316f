package story

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// What the story looks at: a name and a number, "" where there is one number.
const (
	orderCount   = `SELECT '', count(*) FROM orders`
	orderExists  = `SELECT '', count(*) FROM orders WHERE id = $1`
	statusCounts = `SELECT status, count(*) FROM orders GROUP BY status`
	statusOf     = `SELECT status, 1 FROM orders WHERE id = $1`
	chargeCount  = `SELECT '', count(*) FROM charges`
	chargesOf    = `SELECT '', count(*) FROM charges WHERE order_id = $1`
	outboxCount  = `SELECT '', count(*) FROM postbus_outbox`
	outboxBusy   = `SELECT '', EXISTS (SELECT 1 FROM postbus_outbox)`
	ownedShards  = `SELECT '', count(*) FROM postbus_shards WHERE owner IS NOT NULL`
)

// A witness looks into the databases, past the services. After the first error
// it sees nothing any more: ask for err in the end.
type witness struct{ err error }

// A querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// count returns the one number that a query answers.
func (w *witness) count(ctx context.Context, q querier, query string, args ...any) int {
	return w.counts(ctx, q, query, args...)[""]
}

// counts returns numbers by name.
func (w *witness) counts(ctx context.Context, q querier, query string, args ...any) map[string]int {
	counts := map[string]int{}
	if w.err != nil {
		return counts
	}
	if err := scanCounts(ctx, counts, q, query, args); err != nil {
		w.err = fmt.Errorf("look into the database: %w", err)
	}
	return counts
}

func scanCounts(ctx context.Context, counts map[string]int, q querier, query string, args []any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var n int
		if err := rows.Scan(&name, &n); err != nil {
			return err
		}
		counts[name] = n
	}
	return rows.Err()
}

// lookInterval is how often quiet looks.
const lookInterval = 20 * time.Millisecond

// quiet waits until no message is on its way.
func (s *stage) quiet(ctx context.Context) error {
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	for {
		busy, err := s.busy(ctx)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("wait for the messages to arrive: %w", context.Cause(ctx))
		case err != nil || !busy:
			return err
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// busy looks at each place where messages wait, in the order of their way, so
// that none can pass the look.
func (s *stage) busy(ctx context.Context) (bool, error) {
	var w witness
	busy := w.count(ctx, s.orders, outboxBusy) > 0
	busy = s.broker.Backlog("payments", topicOrders) > 0 || busy
	busy = w.count(ctx, s.payments, outboxBusy) > 0 || busy
	busy = s.broker.Backlog("orders", topicPayments) > 0 || busy
	return busy, w.err
}
