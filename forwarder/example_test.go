package forwarder_test

import (
	"context"
	"database/sql"
	"errors"
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
	check(err)
	db, outbox := openOutbox(ctx, filepath.Join(dir, "orders.db"))
	broker, err := memory.New(memory.Config{Logger: slog.New(slog.DiscardHandler)})
	check(err)
	defer func() { check(errors.Join(broker.Close(), db.Close(), os.RemoveAll(dir))) }()
	publisher, err := broker.NewPublisher() // or any other message.Publisher
	check(err)

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
	check(err)
	check(relay.Run(ctx))
	// Output:
	// sent 1 to orders: placed
}

// openOutbox returns an outbox in which one message waits.
func openOutbox(ctx context.Context, path string) (*sql.DB, *sqlite.Database) {
	db, err := sql.Open("sqlite", sqlite.DSN(path))
	check(err)
	check(sqlite.Migrate(ctx, db, schema.Tables{}))
	outbox, err := sqlite.New(db, sqlite.Config{})
	check(err)
	tx, err := db.BeginTx(ctx, nil)
	check(err)
	msg := message.NewMessage("1", []byte("placed"))
	msg.Metadata.Set(schema.HeaderTopic, "orders")
	msg.Metadata.Set(schema.HeaderKey, "order-1")
	check(outbox.Insert(ctx, tx, []*message.Message{msg}))
	check(tx.Commit())
	return db, outbox
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
