package eventbus_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/postbus-io/postbus/eventbus"
	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/sqlite"
)

type placed struct{ ID string }

func TestSmoke(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	db, err := sql.Open("sqlite", sqlite.DSN(filepath.Join(t.TempDir(), "a.db")))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	cfg := eventbus.DefaultConfig()
	if err := eventbus.Migrate(ctx, db, cfg); err != nil {
		t.Fatal(err)
	}
	bus, err := eventbus.Open(ctx, db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ev := schema.Define[placed]("orders.placed", 1)
	got := make(chan string, 10)
	err = bus.Consume("payments", handlers.On(ev, "charge", func(ctx context.Context, tx *sql.Tx, e schema.Received[placed]) error {
		got <- e.Body.ID
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- bus.Run(run) }()
	<-bus.Ready()
	start := time.Now()
	if err := bus.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return bus.Publish(ctx, tx, ev.New("k", placed{"1"}), ev.New("k", placed{"2"}))
	}); err != nil {
		t.Fatal(err)
	}
	t.Log(<-got, <-got, time.Since(start))
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
