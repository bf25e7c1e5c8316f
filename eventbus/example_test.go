package eventbus_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/postbus-io/postbus/eventbus"
	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/sqlite"
)

type orderPlaced struct {
	OrderID string `json:"order_id"`
}

var placed = schema.Define[orderPlaced]("orders.placed", 1)

// A service publishes in its transaction, and another function of it, or of any
// other service, applies the event once.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "postbus-example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	db, err := sql.Open("sqlite", sqlite.DSN(filepath.Join(dir, "orders.db")))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close() //nolint:errcheck // the example is over
	if err := exampleRun(context.Background(), db); err != nil {
		fmt.Println(err)
	}
	// Output: charged order-1
}

func exampleRun(ctx context.Context, db *sql.DB) error {
	cfg := eventbus.DefaultConfig() // or eventbus.LoadConfig("postbus.yaml")
	if err := eventbus.Migrate(ctx, db, cfg); err != nil {
		return err
	}
	bus, err := eventbus.Open(ctx, db, cfg, eventbus.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	charge := func(_ context.Context, _ *sql.Tx, e schema.Received[orderPlaced]) error {
		fmt.Println("charged", e.Body.OrderID)
		stop() // one is enough here
		return nil
	}
	if err := bus.Consume("payments", handlers.On(placed, "charge", charge)); err != nil {
		return err
	}
	err = bus.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		// ... your own statements on tx ...
		return bus.Publish(ctx, tx, placed.New("order-1", orderPlaced{OrderID: "order-1"}))
	})
	if err != nil {
		return err
	}
	if err := bus.Run(ctx); err != nil { // until ctx ends; then it drains
		return err
	}
	return bus.Close()
}
