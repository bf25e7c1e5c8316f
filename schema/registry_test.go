package schema_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

func TestTopicOf(t *testing.T) {
	t.Parallel()
	for name, topic := range map[string]string{
		"orders.placed": "orders", "shop.orders.placed": "shop.orders", "orders": "orders", "": "", ".x": ".x", "a.": "a",
	} {
		require.Equal(t, topic, schema.TopicOf(name), name)
	}
}

func TestRegistry_ConflictOfTypes(t *testing.T) {
	t.Parallel()
	type other struct{ ID int }
	registry := schema.NewRegistry()
	require.NoError(t, registry.Register(placed.Definition()))
	require.NoError(t, registry.Register(placed.Definition()))
	require.NoError(t, registry.Register(schema.Define[other]("orders.placed", 2).Definition()))

	err := registry.Register(schema.Define[other]("orders.placed", 1).Definition())
	require.ErrorIs(t, err, schema.ErrEventConflict)
	for _, says := range []string{"orders.placed v1", "schema_test.orderPlaced", "schema_test.other"} {
		require.Contains(t, err.Error(), says)
	}
	_, err = registry.Encode(schema.Define[other]("orders.placed", 1).New("k", other{}))
	require.ErrorIs(t, err, schema.ErrEventConflict)
}

// TestRegistry_H85_TopicsThatAreOneToKafka: Kafka's metrics fold . and _, so
// that it refuses or warns of the second topic, long after the commit.
func TestRegistry_H85_TopicsThatAreOneToKafka(t *testing.T) {
	t.Parallel()
	registry := schema.NewRegistry()
	require.NoError(t, registry.Register(schema.Define[int]("shop.orders.placed", 1).Definition()))
	require.NoError(t, registry.Register(schema.Define[int]("shop.orders.cancelled", 1).Definition()))
	require.NoError(t, registry.Register(schema.Define[int]("shop-orders.placed", 1).Definition()))

	err := registry.Register(schema.Define[int]("shop_orders.placed", 1).Definition())
	require.ErrorIs(t, err, schema.ErrEventConflict)
	require.ErrorContains(t, err, `"shop.orders" and "shop_orders"`)

	_, err = registry.Encode(placed.New("k", orderPlaced{}).With(schema.Topic("shop_orders")))
	require.ErrorIs(t, err, schema.ErrEventConflict)
	_, err = registry.Encode(placed.New("k", orderPlaced{}).With(schema.Topic("shop.orders")))
	require.NoError(t, err)
}

func TestRegistry_TopicRule(t *testing.T) {
	t.Parallel()
	registry := schema.NewRegistry(schema.WithTopicFunc(func(name string) string { return "all-" + schema.TopicOf(name) }))
	require.Equal(t, "all-orders", registry.Topic("orders.placed"))
	msg, err := registry.Encode(placed.New("k", orderPlaced{}))
	require.NoError(t, err)
	require.Equal(t, "all-orders", msg.Metadata.Get(schema.HeaderTopic))
	msg, err = registry.Encode(placed.New("k", orderPlaced{}).With(schema.Topic("elsewhere")))
	require.NoError(t, err)
	require.Equal(t, "elsewhere", msg.Metadata.Get(schema.HeaderTopic))

	bad := schema.NewRegistry(schema.WithTopicFunc(func(string) string { return "no topic" }))
	require.ErrorIs(t, bad.Register(placed.Definition()), schema.ErrInvalidEvent)
}

func TestRegistry_EncodeWritesTheEnvelope(t *testing.T) {
	t.Parallel()
	before := time.Now()
	msg, err := schema.NewRegistry().Encode(placed.New("o-1", orderPlaced{"o-1", 5}).With(schema.Header("tenant", "acme")))
	require.NoError(t, err)
	at, err := time.Parse(time.RFC3339Nano, msg.Metadata.Get(schema.HeaderTime))
	require.NoError(t, err)
	require.WithinRange(t, at, before, time.Now())
	require.Equal(t, time.UTC, at.Location())
	delete(msg.Metadata, schema.HeaderTime)
	require.Equal(t, map[string]string{
		"tenant": "acme", schema.HeaderTopic: "orders", schema.HeaderAggregateType: "orders", schema.HeaderKey: "o-1",
		schema.HeaderType: "orders.placed", schema.HeaderVersion: "1", schema.HeaderContentType: "application/json",
	}, map[string]string(msg.Metadata))
	require.Equal(t, `{"order_id":"o-1","total":5}`, string(msg.Payload))
	require.NoError(t, schema.Limits{}.Check(msg))
}

func TestRegistry_EncodeTakesOptions(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("", -7*3600)
	msg, err := schema.NewRegistry().Encode(placed.New("o-1", orderPlaced{}).With(
		schema.AggregateType("order"), schema.OccurredAt(time.Date(2026, 1, 2, 3, 4, 5, 6, zone))))
	require.NoError(t, err)
	require.Equal(t, "order", msg.Metadata.Get(schema.HeaderAggregateType))
	require.Equal(t, "2026-01-02T10:04:05.000000006Z", msg.Metadata.Get(schema.HeaderTime))
}

func TestRegistry_EmptyKey(t *testing.T) {
	t.Parallel()
	registry := schema.NewRegistry()
	_, err := registry.Encode(placed.New("", orderPlaced{}))
	require.ErrorIs(t, err, schema.ErrEmptyKey)
	msg, err := registry.Encode(placed.Unordered(orderPlaced{}))
	require.NoError(t, err)
	require.NotContains(t, msg.Metadata, schema.HeaderKey)
}

func TestRegistry_BodyOfAnotherType(t *testing.T) {
	t.Parallel()
	registry := schema.NewRegistry()
	for _, body := range []any{nil, 1, &orderPlaced{}} {
		o := placed.New("k", orderPlaced{})
		o.Body = body
		_, err := registry.Encode(o)
		require.ErrorIs(t, err, schema.ErrInvalidEvent)
		require.ErrorContains(t, err, "not a schema_test.orderPlaced")
	}
	_, err := registry.Encode(schema.Define[any]("orders.noted", 1).New("k", map[string]int{"a": 1}))
	require.NoError(t, err)
	_, err = registry.Encode(schema.Define[chan int]("orders.piped", 1).New("k", nil))
	require.ErrorContains(t, err, "event orders.piped v1: encoding body: json: unsupported type")
}

// TestRegistry_IsSafeForConcurrentUse encodes one value with faults, whose list
// has room to grow in place, on many goroutines: for the race detector.
func TestRegistry_IsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	registry := schema.NewRegistry()
	faulty := placed.New("", orderPlaced{}).With(schema.MessageID(""), schema.Topic(""), schema.Header("", ""))
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			event := schema.Define[int](fmt.Sprintf("t%d.x", i%4), 1+i%3)
			for range 100 {
				if _, err := registry.Encode(faulty); !errors.Is(err, schema.ErrEmptyKey) {
					t.Error(err)
				}
				if _, err := registry.Encode(event.Unordered(i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestDecode(t *testing.T) {
	t.Parallel()
	registry := schema.NewRegistry()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	msg, err := registry.Encode(placed.New("o-1", orderPlaced{"o-1", 5}).With(
		schema.Header("tenant", "acme"), schema.MessageID("m-1"), schema.OccurredAt(at)))
	require.NoError(t, err)
	got, err := schema.Decode[orderPlaced](registry.Codec(), "orders", msg)
	require.NoError(t, err)
	require.Equal(t, schema.Received[orderPlaced]{
		Body: orderPlaced{"o-1", 5}, ID: "m-1", Topic: "orders", Key: "o-1", Type: "orders.placed", Version: 1,
		Time: at, Headers: map[string]string{"tenant": "acme"},
	}, got)
}

func TestDecode_Undecodable(t *testing.T) {
	t.Parallel()
	for name, payload := range map[string][]byte{
		"nil": nil, "empty": {}, "garbage": {0xff, 0x00}, "cut off": []byte(`{"order_id":"o-`), "other type": []byte(`{"total":"5"}`),
		"two values": []byte(`{}{}`), "number beyond": []byte(`{"total":9223372036854775808}`), "deep": []byte(strings.Repeat("[", 100_000)),
	} {
		msg := schema.Record{MessageID: "m", Payload: payload}.Message()
		got, err := schema.Decode[orderPlaced](schema.JSON, "orders", msg)
		require.ErrorIs(t, err, schema.ErrUndecodable, name)
		require.True(t, schema.IsPermanent(err), name)
		require.ErrorContains(t, err, "application/json")
		require.Zero(t, got)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"1": 1, "42": 42, "2147483647": 1<<31 - 1} {
		got, err := schema.Version(schema.Record{Headers: map[string]string{schema.HeaderVersion: text}}.Message())
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"", "0", "-1", "1.0", "one", "2147483648", "99999999999999999999", strings.Repeat("9", 1000)} {
		_, err := schema.Version(schema.Record{Headers: map[string]string{schema.HeaderVersion: text}}.Message())
		require.ErrorIs(t, err, schema.ErrUndecodable, text)
		require.True(t, schema.IsPermanent(err))
		require.Less(t, len(err.Error()), 200)
	}
}

func ExampleRegistry() {
	registry := schema.NewRegistry()
	fmt.Println(registry.Register(placed.Definition()), registry.Topic("orders.placed"))

	type anotherOrder struct{ Number int }
	fmt.Println(registry.Register(schema.Define[anotherOrder]("orders.placed", 1).Definition()))
	// Output:
	// <nil> orders
	// conflicting event definitions: orders.placed v1 is both schema_test.orderPlaced and schema_test.anotherOrder
}

func ExampleDecode() {
	registry := schema.NewRegistry()
	msg, _ := registry.Encode(placed.New("o-17", orderPlaced{OrderID: "o-17", Total: 4200}))
	received, err := schema.Decode[orderPlaced](registry.Codec(), "orders", msg)
	fmt.Println(received.Type, received.Version, received.Key, received.Body.Total, err)
	// Output:
	// orders.placed 1 o-17 4200 <nil>
}
