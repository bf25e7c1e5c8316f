package charging

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"

	"github.com/postbus-io/postbus/eventbus"
	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/schema"
)

//go:embed tables.sql
var tables string

// Migrate creates the tables of the service where they are missing. Those of
// the bus are eventbus.Migrate's.
func Migrate(ctx context.Context, db *sql.DB) error {
	if _, err := db.ExecContext(ctx, tables); err != nil {
		return fmt.Errorf("create tables of payments: %w", err)
	}
	return nil
}

// A Service charges orders.
type Service struct {
	bus  *eventbus.Bus
	db   *sql.DB
	bank Bank
}

// New registers the service's handler on the bus, whose Run does the work. The
// bus and the service use the same database; both stay the caller's to close.
func New(bus *eventbus.Bus, db *sql.DB, bank Bank) (*Service, error) {
	s := &Service{bus: bus, db: db, bank: bank}
	if err := bus.Consume("payments", handlers.On(Placed, "charge", s.charge)); err != nil {
		return nil, fmt.Errorf("payments: %w", err)
	}
	return s, nil
}

// SetLimit sets the most that one order in the currency may cost, in minor
// units.
func (s *Service) SetLimit(ctx context.Context, currency string, most int64) error {
	const query = `
INSERT INTO limits (currency, most) VALUES ($1, $2)
ON CONFLICT (currency) DO UPDATE SET most = excluded.most`
	if _, err := s.db.ExecContext(ctx, query, currency, most); err != nil {
		return fmt.Errorf("set limit for %s: %w", currency, err)
	}
	return nil
}

// charge handles orders.placed. All that it does is in tx, but for the bank.
func (s *Service) charge(ctx context.Context, tx *sql.Tx, e schema.Received[OrderPlaced]) error {
	order := e.Body
	most, err := limit(ctx, tx, order.Currency)
	if err != nil {
		return err
	}
	if order.Amount > most {
		reason := fmt.Sprintf("%d is above the limit of %d", order.Amount, most)
		return s.answer(ctx, tx, order, reason, Declined.New(order.OrderID, PaymentDeclined{order.OrderID, reason}))
	}
	// Outside of tx, so it may happen again when something fails from here on.
	// The key tells the bank that it is the same payment.
	if err := s.bank.Charge(ctx, e.ID, Payment(order)); err != nil {
		return fmt.Errorf("charge %s: %w", order.OrderID, err)
	}
	return s.answer(ctx, tx, order, "", Completed.New(order.OrderID, PaymentCompleted(order)))
}

// limit returns the most that an order may cost. Without one no retry can
// help, so the error is permanent.
func limit(ctx context.Context, tx *sql.Tx, currency string) (int64, error) {
	var most int64
	err := tx.QueryRowContext(ctx, `SELECT most FROM limits WHERE currency = $1`, currency).Scan(&most)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, schema.Permanent(fmt.Errorf("no limit is set for %s", currency))
	case err != nil:
		return 0, fmt.Errorf("read limit for %s: %w", currency, err)
	}
	return most, nil
}

// answer writes down what came of the order and states it, in one transaction.
func (s *Service) answer(ctx context.Context, tx *sql.Tx, order OrderPlaced, declined string, event schema.Outgoing) error {
	const query = `INSERT INTO charges (order_id, amount, currency, declined) VALUES ($1, $2, $3, $4)`
	if _, err := tx.ExecContext(ctx, query, order.OrderID, order.Amount, order.Currency, declined); err != nil {
		return fmt.Errorf("write charge of %s: %w", order.OrderID, err)
	}
	return s.bus.Publish(ctx, tx, event)
}
