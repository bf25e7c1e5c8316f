package handlers_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/schema"
)

type OrderPlaced struct {
	OrderID string `json:"order_id"`
	Total   int64  `json:"total"`
}

var Placed = schema.Define[OrderPlaced]("orders.placed", 1)

// begin stands for the middleware that opens the transaction of an attempt.
func begin(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		msg.SetContext(schema.ContextWithTx(msg.Context(), new(sql.Tx)))
		return next(msg)
	}
}

func ExampleOn() {
	charge := handlers.On(Placed, "charge",
		func(ctx context.Context, tx *sql.Tx, e schema.Received[OrderPlaced]) error {
			fmt.Printf("charge %d for order %s, idempotency key %s\n", e.Body.Total, e.Body.OrderID, e.ID)
			return nil
		})
	fmt.Println(charge.Name(), charge.Definition(), charge.Err())

	msg := message.NewMessage("01J", []byte(`{"order_id":"o-1","total":4200}`))
	msg.Metadata.Set(schema.HeaderType, "orders.placed")
	msg.Metadata.Set(schema.HeaderVersion, "1")
	_, err := begin(charge.HandlerFunc(schema.JSON, "orders"))(msg)
	fmt.Println(err)
	// Output:
	// charge orders.placed v1 <nil>
	// charge 4200 for order o-1, idempotency key 01J
	// <nil>
}

func ExampleNewConsumer() {
	broker := newScripted() // any message.Subscriber
	applied := make(chan struct{})
	consumer, err := handlers.NewConsumer(handlers.ConsumerConfig{
		Name:       "payments",
		Subscriber: broker,
		Handlers: []handlers.Handler{
			handlers.On(Placed, "charge",
				func(ctx context.Context, tx *sql.Tx, e schema.Received[OrderPlaced]) error {
					fmt.Println("charge order", e.Body.OrderID)
					close(applied)
					return nil
				}),
		},
		InnerFunc: func(topic string, h handlers.Handler) []message.HandlerMiddleware {
			return []message.HandlerMiddleware{begin}
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(consumer.Topics())

	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	stopped := make(chan error)
	go func() { stopped <- consumer.Run(ctx) }()
	<-consumer.Running()

	msg := message.NewMessage("01J", []byte(`{"order_id":"o-1","total":4200}`))
	msg.Metadata.Set(schema.HeaderType, "orders.placed")
	msg.Metadata.Set(schema.HeaderVersion, "1")
	broker.send("orders", msg)
	<-applied
	stop()
	fmt.Println(<-stopped)
	// Output:
	// [orders]
	// charge order o-1
	// <nil>
}

// An Intake needs no consumer: it stands in front of any Watermill router. The
// router's CloseTimeout is to exceed DrainTimeout and DrainGrace together, and
// Close comes before the router's, whose own stop does not wait for it.
func ExampleIntake() {
	broker := newScripted() // any message.Subscriber
	intake, err := handlers.NewIntake(broker, handlers.IntakeConfig{
		Lanes: 8, Window: 32, DrainTimeout: 10 * time.Second, DrainGrace: time.Second,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 15 * time.Second}, watermill.NopLogger{})
	if err != nil {
		fmt.Println(err)
		return
	}
	third := make(chan struct{})
	router.AddConsumerHandler("charge", "orders", intake, func(msg *message.Message) error {
		fmt.Println(msg.UUID)
		if msg.UUID == "o-1 cancelled" {
			close(third)
		}
		return nil
	})
	stopped := make(chan error)
	go func() { stopped <- router.Run(context.Background()) }()
	<-router.Running()

	broker.push("orders", "o-1", "o-1 placed", "o-1 paid", "o-1 cancelled")
	<-third
	fmt.Println(intake.Close(), router.Close(), intake.Close(), <-stopped)
	// Output:
	// o-1 placed
	// o-1 paid
	// o-1 cancelled
	// <nil> <nil> <nil> <nil>
}
