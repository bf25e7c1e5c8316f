package examples_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite"

	"github.com/postbus-io/postbus/eventbus"
	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/sqlite"
)

// What stands between the next two lines is in README.md, word for word.

// README begins
type OrderPlaced struct {
	OrderID string `json:"order_id"`
	Total   int64  `json:"total"` // minor units
}

// Name and version are the contract, the Go type is yours.
var Placed = schema.Define[OrderPlaced]("orders.placed", 1)

// The order and its event are one transaction.
func place(ctx context.Context, bus *eventbus.Bus, id string, total int64) error {
	return bus.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id, total) VALUES ($1, $2)`, id, total); err != nil {
			return err
		}
		return bus.Publish(ctx, tx, Placed.New(id, OrderPlaced{OrderID: id, Total: total}))
	})
}

// What charge writes through tx happens once for each event. Publish here, too,
// and the answer leaves with the same commit.
func charge(ctx context.Context, tx *sql.Tx, e schema.Received[OrderPlaced]) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO charges (order_id, amount) VALUES ($1, $2)`, e.Body.OrderID, e.Body.Total)
	return err
}

// db is yours: SQLite or PostgreSQL.
func run(ctx context.Context, db *sql.DB, cfg eventbus.Config) (err error) {
	bus, err := eventbus.Open(ctx, db, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bus.Close()) }()
	if err := bus.Consume("payments", handlers.On(Placed, "charge", charge)); err != nil {
		return err
	}
	if err := place(ctx, bus, "order-1", 1250); err != nil {
		return err
	}
	return bus.Run(ctx) // the relay and the consumers, until ctx ends; then it drains
}

// README ends

// Example runs the sample of the README until the charge is there.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, cleanUp := openSample(ctx)
	defer cleanUp()

	done := make(chan error, 1)
	go func() { done <- run(ctx, db, eventbus.DefaultConfig()) }()
	fmt.Println("charged:", waitForCharge(ctx, db))
	cancel()
	fmt.Println("stopped:", <-done)
	// Output:
	// charged: 1250
	// stopped: <nil>
}

// openSample returns a database with the tables of the bus and of the sample.
func openSample(ctx context.Context) (*sql.DB, func()) {
	folder, err := os.MkdirTemp("", "postbus-readme-")
	if err != nil {
		panic(err)
	}
	db, err := sql.Open("sqlite", sqlite.DSN(filepath.Join(folder, "sample.db")))
	if err != nil {
		panic(err)
	}
	const tables = `CREATE TABLE orders (id TEXT PRIMARY KEY, total BIGINT); CREATE TABLE charges (order_id TEXT, amount BIGINT)`
	_, err = db.ExecContext(ctx, tables)
	if err := errors.Join(err, eventbus.Migrate(ctx, db, eventbus.DefaultConfig())); err != nil {
		panic(err)
	}
	return db, func() {
		if err := errors.Join(db.Close(), os.RemoveAll(folder)); err != nil {
			panic(err)
		}
	}
}

// waitForCharge looks until there is a charge.
func waitForCharge(ctx context.Context, db *sql.DB) (amount int64) {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := db.QueryRowContext(ctx, `SELECT amount FROM charges`).Scan(&amount)
		if !errors.Is(err, sql.ErrNoRows) {
			if err != nil {
				panic(err)
			}
			return amount
		}
		<-ticker.C
	}
}
