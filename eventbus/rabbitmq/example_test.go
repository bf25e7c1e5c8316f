//go:build slow

package rabbitmq_test

import (
	"fmt"

	"github.com/postbus-io/postbus/eventbus/rabbitmq"
)

// The queue of a key follows from the key alone.
func ExampleRoutingKey() {
	fmt.Println(rabbitmq.RoutingKey("any id", "order-1", "orders.placed"))
	fmt.Println(rabbitmq.QueueName("payments", "orders", rabbitmq.Bucket("any id", "order-1")%rabbitmq.DefaultQueues))
	// Output:
	// 50.orders.placed
	// payments:orders:2
}

// A password is not printed with the configuration that has it.
func ExampleURL() {
	fmt.Printf("%+v\n", rabbitmq.Config{URL: "amqp://shop:secret@broker:5672/"}.URL)
	// Output: amqp://shop:xxxxx@broker:5672/
}
