package ordering

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
		return fmt.Errorf("create tables of orders: %w", err)
	}
	return nil
}

// A Service takes orders.
type Service struct {
	bus *eventbus.Bus
	db  *sql.DB
}

// New registers the service's handlers on the bus, whose Run does the work. The
// bus and the service use the same database; both stay the caller's to close.
func New(bus *eventbus.Bus, db *sql.DB) (*Service, error) {
	s := &Service{bus: bus, db: db}
	err := bus.Consume("orders",
		handlers.On(Completed, "mark-paid", s.markPaid),
		handlers.On(Declined, "mark-declined", s.markDeclined))
	if err != nil {
		return nil, fmt.Errorf("orders: %w", err)
	}
	return s, nil
}

// Place places an order: its row and its event are one transaction.
func (s *Service) Place(ctx context.Context, o Order) error {
	return s.bus.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error { return s.PlaceIn(ctx, tx, o) })
}

// PlaceIn places an order in the caller's transaction.
func (s *Service) PlaceIn(ctx context.Context, tx *sql.Tx, o Order) error {
	const query = `INSERT INTO orders (id, customer, amount, currency, status) VALUES ($1, $2, $3, $4, $5)`
	if _, err := tx.ExecContext(ctx, query, o.ID, o.Customer, o.Amount, o.Currency, StatusPlaced); err != nil {
		return fmt.Errorf("insert order %s: %w", o.ID, err)
	}
	return s.bus.Publish(ctx, tx, Placed.New(o.ID, OrderPlaced{o.ID, o.Customer, o.Amount, o.Currency}))
}

// Order returns an order; [ErrNotFound] when there is none with this id.
func (s *Service) Order(ctx context.Context, id string) (Order, error) {
	const query = `SELECT customer, amount, currency, status FROM orders WHERE id = $1`
	o := Order{ID: id}
	err := s.db.QueryRowContext(ctx, query, id).Scan(&o.Customer, &o.Amount, &o.Currency, &o.Status)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Order{}, fmt.Errorf("order %s: %w", id, ErrNotFound)
	case err != nil:
		return Order{}, fmt.Errorf("read order %s: %w", id, err)
	}
	return o, nil
}

func (s *Service) markPaid(ctx context.Context, tx *sql.Tx, e schema.Received[PaymentCompleted]) error {
	return mark(ctx, tx, e.Body.OrderID, StatusPaid, "")
}

func (s *Service) markDeclined(ctx context.Context, tx *sql.Tx, e schema.Received[PaymentDeclined]) error {
	return mark(ctx, tx, e.Body.OrderID, StatusDeclined, e.Body.Reason)
}

// mark sets the order's status. That there is no such order is an error that
// no retry mends.
func mark(ctx context.Context, tx *sql.Tx, id string, status Status, reason string) error {
	result, err := tx.ExecContext(ctx, `UPDATE orders SET status = $1 WHERE id = $2`, status, id)
	if err != nil {
		return fmt.Errorf("mark order %s: %w", id, err)
	}
	switch n, err := result.RowsAffected(); {
	case err != nil:
		return fmt.Errorf("mark order %s: %w", id, err)
	case n == 0:
		return schema.Permanent(fmt.Errorf("mark order %s: %w", id, ErrNotFound))
	}
	const query = `INSERT INTO order_log (order_id, status, reason) VALUES ($1, $2, $3)`
	if _, err := tx.ExecContext(ctx, query, id, status, reason); err != nil {
		return fmt.Errorf("log order %s: %w", id, err)
	}
	return nil
}
