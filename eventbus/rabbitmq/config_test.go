//go:build slow

package rabbitmq_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus/rabbitmq"
	"github.com/postbus-io/postbus/schema"
)

const password = "s3cr3t%2Fpw"

var secretURL = rabbitmq.URL("amqp://shop:" + password + "@127.0.0.1:1/host")

func TestNew_TellsAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	_, err := rabbitmq.New(rabbitmq.Config{
		URL: "http://shop:" + password + "@broker", ConnectionName: strings.Repeat("x", 129), Queues: 65, QueueType: "stream",
		ConsumerTimeout: 1, DialTimeout: -1, Heartbeat: time.Millisecond, ReconnectMin: 2, ReconnectMax: 1, LogInterval: -1,
		PublishTimeout: -1, PublishWindow: -1, MaxMessageBytes: 1 << 30, NackBackoffMin: 2, NackBackoffMax: 1,
	})
	require.ErrorIs(t, err, schema.ErrInvalidOption)
	require.NotContains(t, err.Error(), "s3cr3t")
	for _, text := range []string{
		"URL is not an AMQP URL", "ConnectionName's length is 129, the most is 128", "Queues is 65, the most is 64",
		`QueueType is "stream", it is to be "quorum" or "classic"`, "ConsumerTimeout is 1ns, the least is 1s",
		"DialTimeout is -1ns, the least is 1ns", "Heartbeat is 1ms, the least is 1s", "ReconnectMax is 1ns, the least is 2ns",
		"LogInterval is -1ns, the least is 1ns", "PublishTimeout is -1ns, the least is 1ns", "PublishWindow is -1, the least is 1",
		"MaxMessageBytes is 1073741824, the most is 134217728", "NackBackoffMax is 1ns, the least is 2ns",
	} {
		require.ErrorContains(t, err, text)
	}
}

func TestNew_URLs(t *testing.T) {
	t.Parallel()
	for url, fault := range map[rabbitmq.URL]string{
		"":                                   "URL is empty",
		"amqp://shop:s3c r3t@broker":         "does not parse",
		"amqp://shop:s3cr3t/x@broker":        "does not parse",
		"amqp:s3cr3t":                        "is not an AMQP URL",
		"amqp://u:s3cr3t@broker?heartbeat=0": "set Heartbeat",
		"amqp://u:s3cr3t@broker:5672?connection_timeout=5": "DialTimeout",
	} {
		_, err := rabbitmq.New(rabbitmq.Config{URL: url})
		require.ErrorIs(t, err, schema.ErrInvalidOption, "%s", url)
		require.ErrorContains(t, err, fault)
		require.NotContains(t, err.Error(), "3cr3t")
		require.NotContains(t, err.Error(), "r3t@")
	}
	for _, url := range []rabbitmq.URL{secretURL, "amqps://broker", "amqp://u@broker/%2Fvhost", "amqps://broker?cacertfile=/etc/ca.pem"} {
		broker, err := rabbitmq.New(rabbitmq.Config{URL: url})
		require.NoError(t, err)
		require.NoError(t, broker.Close())
	}
}

func TestNew_WarnsOfClassicQueues(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	newBroker(t, rabbitmq.Config{URL: secretURL, QueueType: rabbitmq.Classic, Logger: log.logger()})
	require.Contains(t, log.String(), "classic queues")
}

// TestRabbitMQ_H108_CredentialsAreNeverPrinted: nowhere, and least of all when
// the broker cannot be reached.
func TestRabbitMQ_H108_CredentialsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	config := rabbitmq.Config{URL: secretURL, Logger: log.logger(), LogInterval: time.Millisecond, ReconnectMin: time.Millisecond}
	broker := newBroker(t, config)
	pub, sub := newPublisher(t, broker), newSubscriber(t, broker, "payments", "orders", 1)
	subscribe(t, sub, "orders")
	printed := []string{}
	for range 3 {
		printed = append(printed, publishAll(t, pub, "orders", 100*time.Millisecond, newMessage("1", ""))[0].Error())
	}
	still := newBroker(t, config)
	for _, v := range []any{config, &config, config.URL, still, newPublisher(t, still), newSubscriber(t, still, "payments", "orders", 1)} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
			printed = append(printed, fmt.Sprintf(verb, v))
		}
	}
	encoded, err := json.Marshal(map[string]any{"url": config.URL})
	require.NoError(t, err)
	require.JSONEq(t, `{"url":"amqp://shop:xxxxx@127.0.0.1:1/host"}`, string(encoded))
	slog.New(slog.NewJSONHandler(log, nil)).Info("config", "url", config.URL)
	printed = append(printed, string(encoded), log.String())
	require.Contains(t, log.String(), "amqp://shop:xxxxx@127.0.0.1:1/host")
	for _, text := range printed {
		require.NotContains(t, text, "s3cr3t")
		require.NotContains(t, text, fmt.Sprintf("%x", "s3cr3t"))
	}
	require.Equal(t, "xxxxx", rabbitmq.URL("amqp://shop:s3cr3t/x@broker").String())
}

func TestNewSubscriber_Faults(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, rabbitmq.Config{URL: secretURL})
	long := strings.Repeat("t", 240)
	_, err := broker.NewSubscriber("A", []string{"a b", "x", "x", long}, 65_536)
	require.ErrorIs(t, err, schema.ErrInvalidOption)
	for _, text := range []string{`name "A"`, `topic "a b"`, `topic "x" is there twice`, "window is 65536"} {
		require.ErrorContains(t, err, text)
	}
	_, err = broker.NewSubscriber("payments-of-the-shop", []string{long}, 1)
	require.ErrorContains(t, err, "the limit is 255")
	_, err = broker.NewSubscriber("payments", nil, 0)
	require.ErrorContains(t, err, "no topics")

	sub := newSubscriber(t, broker, "payments", "orders", 1)
	_, err = sub.Subscribe(context.Background(), "others")
	require.ErrorIs(t, err, rabbitmq.ErrUndeclaredTopic)
	subscribe(t, sub, "orders")
	_, err = sub.Subscribe(context.Background(), "orders")
	require.ErrorIs(t, err, rabbitmq.ErrSubscribed)
	require.NoError(t, broker.Close())
	_, err = sub.Subscribe(context.Background(), "orders")
	require.ErrorIs(t, err, rabbitmq.ErrClosed)
	_, err = broker.NewPublisher()
	require.ErrorIs(t, err, rabbitmq.ErrClosed)
	_, err = broker.NewSubscriber("payments", []string{"orders"}, 1)
	require.ErrorIs(t, err, rabbitmq.ErrClosed)
}

// TestRoutingKey pins the keys: queues are bound to them.
func TestRoutingKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ id, key, eventType, want string }{
		{"id", "order-1", "orders.placed", "50.orders.placed"},
		{"other", "order-1", "", "50._"},
		{"order-1", "", strings.Repeat("x", 201), "50._"},
	} {
		require.Equal(t, c.want, rabbitmq.RoutingKey(c.id, c.key, c.eventType))
	}
}
