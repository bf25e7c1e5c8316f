package middleware_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/postbus-io/postbus/middleware"
	"github.com/postbus-io/postbus/schema"
)

// The chain in a Watermill router made by hand: a message that is delivered
// twice is applied once.
func ExampleStandard() {
	dir, err := os.MkdirTemp("", "postbus")
	check(err)
	defer func() { check(os.RemoveAll(dir)) }()
	toy, err := openToy(filepath.Join(dir, "payments.db")) // a service takes schema/postgres or schema/sqlite
	check(err)
	defer func() { check(toy.db.Close()) }()

	chain, err := middleware.Standard(middleware.Config{
		DB: toy.db, Database: toy, Consumer: "payments",
		Logger: slog.New(slog.DiscardHandler),
		Hooks:  []middleware.Hook{printer{}},
	})
	check(err)
	outer, err := chain.Outer("orders")
	check(err)
	inner, err := chain.Inner("charge", "orders")
	check(err)

	pubSub := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	router.AddConsumerHandler("payments/orders", "orders", pubSub, func(msg *message.Message) error {
		fmt.Println("charging for", schema.Key(msg))
		tx, _ := schema.TxFromContext(msg.Context())
		_, err := tx.ExecContext(msg.Context(), `INSERT INTO effects VALUES ('charge', ?)`, msg.UUID)
		return err
	}).AddMiddleware(outer, inner)

	done := make(chan error, 1)
	go func() { done <- router.Run(context.Background()) }()
	<-router.Running()
	check(pubSub.Publish("orders", order("m1", "o1")))
	check(pubSub.Publish("orders", order("m1", "o1")))
	check(router.Close())
	check(<-done)
	check(pubSub.Close())
	// Output:
	// charging for o1
	// m1 skipped, applied before: true
}

type printer struct{}

func (printer) OnSkip(d schema.Delivery, verdict schema.Verdict) {
	fmt.Printf("%s skipped, applied before: %t\n", d.Message.UUID, verdict == schema.VerdictDuplicate)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
