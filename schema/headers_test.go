package schema_test

import (
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// headerCase is one header that somebody sets: with the option on an event, or
// on a plain Watermill message.
type headerCase struct {
	name, value string
	event       string // what the option says, "" when it is taken
	plain       string // what the check of a plain message says
}

var headerCases = map[string]headerCase{
	"plain":                   {"tenant", "acme", "", ""},
	"empty value":             {"tenant", "", "", ""},
	"any text in the value":   {"tenant", "a\r\nb\t=:;\"'", "", ""},
	"unicode":                 {"mandant-ß", "日本 \U0001F980", "", ""},
	"name of 255 bytes":       {strings.Repeat("n", 255), "v", "", ""},
	"mixed case":              {"X-Request-Id", "1", "", ""},
	"looks reserved":          {"postbus-key", "v", "", ""},
	"reserved inside":         {"x_postbus_key", "v", "", ""},
	"empty name":              {"", "v", "empty name", "empty name"},
	"name of 256 bytes":       {strings.Repeat("n", 256), "v", "256 bytes, the limit is 255", "256 bytes, the limit is 255"},
	"NUL in the name":         {"ten\x00ant", "v", "the name has a NUL", "the name has a NUL"},
	"CR in the name":          {"ten\rant", "v", "a line break", "a line break"},
	"LF in the name":          {"ten\nant: x", "v", "a line break", "a line break"},
	"invalid UTF-8, name":     {"ten\xffant", "v", "invalid UTF-8", "invalid UTF-8"},
	"NUL in the value":        {"tenant", "ac\x00me", "the value has a NUL", "the value has a NUL"},
	"invalid UTF-8, value":    {"tenant", "ac\xff", "not valid UTF-8; encode binary values", "not valid UTF-8"},
	"lone surrogate":          {"tenant", "\xed\xa0\x80", "not valid UTF-8", "not valid UTF-8"},
	"overlong NUL":            {"tenant", "\xc0\x80", "not valid UTF-8", "not valid UTF-8"},
	"own wire header":         {"postbus_key", "v", "are reserved", ""},
	"own local header":        {"postbus_aggregate_type", "order", "are reserved", ""},
	"own header, other case":  {"Postbus_Key", "v", "are reserved", "are reserved"},
	"own prefix, unknown":     {"postbus_later", "v", "are reserved", "are reserved"},
	"the prefix alone":        {"postbus_", "v", "are reserved", "are reserved"},
	"Watermill's":             {"_watermill_message_uuid", "v", "are reserved", "are reserved"},
	"Watermill's, other case": {"_Watermill_Message_UUID", "v", "are reserved", "are reserved"},
	"Watermill's, unknown":    {"_watermillish", "v", "are reserved", "are reserved"},
}

func TestHeader_H80_H86_Option(t *testing.T) {
	t.Parallel()
	registry := schema.NewRegistry()
	for name, c := range headerCases {
		msg, err := registry.Encode(placed.New("k", orderPlaced{}).With(schema.Header(c.name, c.value)))
		if c.event != "" {
			require.ErrorIs(t, err, schema.ErrInvalidOption, name)
			require.ErrorContains(t, err, c.event, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, c.value, msg.Metadata[c.name], name)
		require.NoError(t, schema.Limits{}.Check(msg), name)
	}
}

func TestHeader_H80_H86_PlainMessage(t *testing.T) {
	t.Parallel()
	for name, c := range headerCases {
		msg := validMessage(t)
		msg.Metadata[c.name] = c.value
		err := schema.Limits{}.Check(msg)
		if c.plain == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, schema.ErrInvalidMessage, name)
		require.ErrorContains(t, err, c.plain, name)
	}
}

func TestHeader_MessagesStayShort(t *testing.T) {
	t.Parallel()
	for _, header := range [][2]string{{strings.Repeat("\xff", 1<<20), "v"}, {strings.Repeat("n", 1<<20), "v"}, {"postbus_" + strings.Repeat("n", 1<<20), "v"}, {"tenant", strings.Repeat("\xff", 1<<20)}} {
		_, err := schema.NewRegistry().Encode(placed.New("k", orderPlaced{}).With(schema.Header(header[0], header[1])))
		require.Error(t, err)
		require.Less(t, len(err.Error()), 1000)
	}
}

func TestIsReservedHeader(t *testing.T) {
	t.Parallel()
	for _, name := range []string{schema.HeaderKey, schema.HeaderType, schema.HeaderVersion, schema.HeaderTime, schema.HeaderContentType, schema.HeaderTopic, schema.HeaderAggregateType, "POSTBUS_X", "_watermill", "_WATERMILL_requeue"} {
		require.True(t, schema.IsReservedHeader(name), name)
	}
	for _, name := range []string{"", "postbus", "postbus-x", "watermill", "xpostbus_", " postbus_key"} {
		require.False(t, schema.IsReservedHeader(name), name)
	}
}

func TestIsForeign(t *testing.T) {
	t.Parallel()
	require.True(t, schema.IsForeign(message.NewMessage("m", nil)))
	require.False(t, schema.IsForeign(validMessage(t)))
	require.True(t, schema.IsForeign(&message.Message{}))
	require.Empty(t, schema.Key(&message.Message{}))
}

// validMessage returns what Encode makes of an event.
func validMessage(t testing.TB) *message.Message {
	t.Helper()
	msg, err := schema.NewRegistry().Encode(placed.New("o-1", orderPlaced{"o-1", 5}).With(schema.MessageID("m-1")))
	require.NoError(t, err)
	return msg
}
