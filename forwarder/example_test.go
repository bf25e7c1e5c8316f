package forwarder_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/eventbus/memory"
	"github.com/postbus-io/postbus/forwarder"
	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/sqlite"
)

// A relay needs an outbox and a Watermill publisher, and nothing else of
// Postbus.
func ExampleRelay() {
	ctx, stop := context.WithCancel(context.Background())
	dir, err := os.MkdirTemp("", "postbus")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, outbox := openOutbox(ctx, filepath.Join(dir, "orders.db"))
	defer db.Close()
	broker, err := memory.New(memory.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	publisher, err := broker.NewPublisher() // or any other message.Publisher
	if err != nil {
		log.Fatal(err)
	}

	relay, err := forwarder.New(forwarder.Config{
		Source:    outbox,
		Publisher: publisher,
		SentFunc: func(records []schema.Record) {
			for _, r := range records {
				fmt.Printf("sent %s to %s: %s\n", r.MessageID, r.Topic, r.Payload)
			}
			stop()
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := relay.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// sent 1 to orders: placed
}

// openOutbox returns an outbox in which one message waits.
func openOutbox(ctx context.Context, path string) (*sql.DB, *sqlite.Database) {
	db, err := sql.Open("sqlite", sqlite.DSN(path))
	if err != nil {
		log.Fatal(err)
	}
	if err := sqlite.Migrate(ctx, db, schema.Tables{}); err != nil {
		log.Fatal(err)
	}
	outbox, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		log.Fatal(err)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	msg := message.NewMessage("1", []byte("placed"))
	msg.Metadata.Set(schema.HeaderTopic, "orders")
	msg.Metadata.Set(schema.HeaderKey, "order-1")
	if err := outbox.Insert(ctx, tx, []*message.Message{msg}); err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}
	return db, outbox
}
