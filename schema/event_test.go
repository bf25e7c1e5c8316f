package schema_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

type orderPlaced struct {
	OrderID string `json:"order_id"`
	Total   int64  `json:"total"`
}

var placed = schema.Define[orderPlaced]("orders.placed", 1)

func TestDefine(t *testing.T) {
	t.Parallel()
	require.Equal(t, "orders.placed", placed.Name())
	require.Equal(t, 1, placed.Version())
	require.NoError(t, placed.Definition().Err())
	require.Equal(t, "orders.placed v1", placed.Definition().String())
	for _, name := range []string{"a.b", "shop.orders.placed", "orders.placed-twice", "orders_v2.placed_2", "o." + strings.Repeat("x", 198)} {
		require.NoError(t, schema.Define[int](name, 1<<31-1).Definition().Err(), name)
	}
}

func TestDefine_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		name    string
		version int
		says    string
	}{
		"no name":           {"", 1, "no name"},
		"no dot":            {"placed", 1, `"placed" is not of the form nouns.verbed`},
		"dot in front":      {".placed", 1, "not of the form"},
		"dot at the end":    {"orders.", 1, "not of the form"},
		"two dots":          {"orders..placed", 1, "not of the form"},
		"capital":           {"Orders.placed", 1, "not of the form"},
		"space":             {"orders.placed ", 1, "not of the form"},
		"line break":        {"orders.placed\n", 1, "not of the form"},
		"NUL":               {"orders.pl\x00ced", 1, "not of the form"},
		"not ASCII":         {"bestellungen.geändert", 1, "not of the form"},
		"too long":          {"o." + strings.Repeat("x", 199), 1, "has 201 bytes, the limit is 200"},
		"version 0":         {"orders.placed", 0, "version 0, the first is 1"},
		"negative version":  {"orders.placed", -1, "version -1"},
		"version of 32 bit": {"orders.placed", 1 << 31, "version 2147483648, the last is 2147483647"},
	} {
		event := schema.Define[orderPlaced](c.name, c.version)
		err := event.Definition().Err()
		require.ErrorIs(t, err, schema.ErrInvalidEvent, name)
		require.Contains(t, err.Error(), c.says, name)
		require.Less(t, len(err.Error()), 200, name)

		_, err = schema.NewRegistry().Encode(event.New("k", orderPlaced{}))
		require.ErrorIs(t, err, schema.ErrInvalidEvent, name)
	}
}

func TestEvent_ZeroValueIsInvalid(t *testing.T) {
	t.Parallel()
	var zero schema.Event[orderPlaced]
	registry := schema.NewRegistry()
	for _, outgoing := range []schema.Outgoing{zero.New("k", orderPlaced{}), zero.Unordered(orderPlaced{}), {}} {
		_, err := registry.Encode(outgoing)
		require.ErrorIs(t, err, schema.ErrInvalidEvent)
		require.Contains(t, err.Error(), "schema.Define")
	}
	require.ErrorIs(t, registry.Register(schema.Definition{}), schema.ErrInvalidEvent)
	require.ErrorIs(t, registry.Register(schema.Definition{Name: "orders.placed", Version: 1}), schema.ErrInvalidEvent)
}

var ulid = regexp.MustCompile(`^[0-9A-HJKMNP-TV-Z]{26}$`)

func TestEvent_NewHasAnIDOfItsOwn(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		for _, o := range []schema.Outgoing{placed.New("k", orderPlaced{}), placed.Unordered(orderPlaced{})} {
			require.Regexp(t, ulid, o.ID)
			require.False(t, seen[o.ID])
			seen[o.ID] = true
		}
	}
}

func TestOutgoing_SameValueSameMessage(t *testing.T) {
	t.Parallel()
	registry := schema.NewRegistry()
	o := placed.New("o-1", orderPlaced{OrderID: "o-1"}).With(schema.OccurredAt(time.Unix(1, 0)))
	first, err := registry.Encode(o)
	require.NoError(t, err)
	second, err := registry.Encode(o)
	require.NoError(t, err)
	require.True(t, first.Equals(second))
	second.Metadata.Set("x", "y")
	require.Empty(t, first.Metadata.Get("x"))
}

func TestOutgoing_WithCopies(t *testing.T) {
	t.Parallel()
	registry := schema.NewRegistry()
	base := placed.New("k", orderPlaced{}).With(schema.Header("base", "1"))
	left := base.With(schema.Header("side", "left"), schema.MessageID("left"))
	right := base.With(schema.Header("side", "right"), schema.Header("base", "2"))
	for side, o := range map[string]schema.Outgoing{"": base, "left": left, "right": right} {
		msg, err := registry.Encode(o)
		require.NoError(t, err)
		require.Equal(t, side, msg.Metadata.Get("side"))
	}
	msg, err := registry.Encode(left)
	require.NoError(t, err)
	require.Equal(t, "1", msg.Metadata.Get("base"))
	require.Equal(t, "left", msg.UUID)
	require.NotEqual(t, "left", base.ID)
}

// TestOutgoing_WithDoesNotShareFaults grows the list of faults to where append
// has room to spare, then goes on from there in two directions.
func TestOutgoing_WithDoesNotShareFaults(t *testing.T) {
	t.Parallel()
	bad := func(name string) schema.PublishOption { return schema.Header("postbus_"+name, "") }
	registry := schema.NewRegistry()
	base := placed.New("k", orderPlaced{}).With(bad("1"), bad("2"), bad("3"))
	left, right := base.With(bad("left")), base.With(bad("right"))
	_, err := registry.Encode(left)
	require.ErrorContains(t, err, "postbus_left")
	require.NotContains(t, err.Error(), "postbus_right")
	_, err = registry.Encode(right)
	require.ErrorContains(t, err, "postbus_right")
	require.NotContains(t, err.Error(), "postbus_left")
}

func TestOptions_FaultsSurfaceOnEncodeAllAtOnce(t *testing.T) {
	t.Parallel()
	faulty := placed.New("", orderPlaced{}).With(
		schema.Header("postbus_key", "v"), schema.Header("ok", "\x00"), schema.MessageID(""),
		schema.Topic("no topic"), schema.AggregateType("No Name"), schema.OccurredAt(time.Time{}),
	)
	_, err := schema.NewRegistry().Encode(faulty)
	require.ErrorIs(t, err, schema.ErrInvalidOption)
	require.ErrorIs(t, err, schema.ErrEmptyKey)
	for _, says := range []string{
		"orders.placed v1", `"postbus_key"`, `"ok": the value has a NUL`, "message id is empty",
		`topic "no topic"`, `aggregate type: name "No Name"`, "occurred at: zero time", "use Unordered",
	} {
		require.Contains(t, err.Error(), says)
	}
}

func TestMessageID(t *testing.T) {
	t.Parallel()
	registry := schema.NewRegistry()
	for _, id := range []string{"x", "order 1/α", strings.Repeat("i", 255)} {
		msg, err := registry.Encode(placed.New("k", orderPlaced{}).With(schema.MessageID(id)))
		require.NoError(t, err)
		require.Equal(t, id, msg.UUID)
	}
	for id, says := range map[string]string{
		"": "is empty", "a\x00": "NUL", "\xff": "invalid UTF-8", strings.Repeat("i", 256): "256 bytes, the limit is 255",
	} {
		_, err := registry.Encode(placed.New("k", orderPlaced{}).With(schema.MessageID(id)))
		require.ErrorIs(t, err, schema.ErrInvalidOption)
		require.ErrorContains(t, err, says)
	}
}

func ExampleDefine() {
	type invoiceSent struct{ Number string }
	sent := schema.Define[invoiceSent]("invoices.sent", 1)
	fmt.Println(sent.Name(), sent.Version(), sent.Definition().Err())

	nameless := schema.Define[invoiceSent]("sent", 1)
	fmt.Println(nameless.Definition().Err())
	// Output:
	// invoices.sent 1 <nil>
	// invalid event definition: name "sent" is not of the form nouns.verbed (^[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)+$)
}

func ExampleEvent_New() {
	registry := schema.NewRegistry()
	msg, err := registry.Encode(placed.New("o-17", orderPlaced{OrderID: "o-17", Total: 4200}))
	fmt.Println(string(msg.Payload), err)
	fmt.Println(msg.Metadata.Get(schema.HeaderTopic), schema.Key(msg))

	_, err = registry.Encode(placed.New("", orderPlaced{}))
	fmt.Println(err)
	// Output:
	// {"order_id":"o-17","total":4200} <nil>
	// orders o-17
	// event orders.placed v1: empty key: use Unordered when no order is to be kept
}

func ExampleOutgoing_With() {
	event := placed.New("o-17", orderPlaced{OrderID: "o-17"})
	traced := event.With(schema.Header("tenant", "acme"), schema.MessageID("o-17-placed"))
	msg, err := schema.NewRegistry().Encode(traced)
	fmt.Println(msg.UUID, msg.Metadata.Get("tenant"), err)

	_, err = schema.NewRegistry().Encode(event.With(schema.Header("postbus_key", "o-18")))
	fmt.Println(err)
	// Output:
	// o-17-placed acme <nil>
	// event orders.placed v1: invalid option: header "postbus_key": names starting with "postbus_" or "_watermill" are reserved
}
