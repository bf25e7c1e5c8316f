package schema_test

import (
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

func TestLimits_DefaultsAndOwn(t *testing.T) {
	t.Parallel()
	small := schema.Limits{MaxPayloadBytes: 10, MaxHeaderBytes: 300, MaxHeaders: 7}
	for name, c := range map[string]struct {
		limits schema.Limits
		change func(*message.Message)
		says   string
	}{
		"payload":               {schema.Limits{}, func(m *message.Message) { m.Payload = make([]byte, 900<<10) }, ""},
		"payload, one more":     {schema.Limits{}, func(m *message.Message) { m.Payload = make([]byte, 900<<10+1) }, "payload has 921601 bytes, the limit is 921600 (outbox.max_payload_bytes)"},
		"own payload":           {small, func(m *message.Message) { m.Payload = make([]byte, 10) }, ""},
		"own payload, one more": {small, func(m *message.Message) { m.Payload = make([]byte, 11) }, "payload has 11 bytes, the limit is 10 (outbox.max_payload_bytes)"},
		"own size":              {small, fillHeaders(300, 7), ""},
		"own size, one more":    {small, fillHeaders(301, 7), "headers have 301 bytes, the limit is 300 (outbox.max_header_bytes)"},
		"own number, one more":  {small, fillHeaders(300, 8), "8 headers, the limit is 7 (outbox.max_headers)"},
		"headers":               {schema.Limits{}, fillHeaders(32<<10, 64), ""},
		"size, one more":        {schema.Limits{}, fillHeaders(32<<10+1, 64), "headers have 32769 bytes, the limit is 32768 (outbox.max_header_bytes)"},
		"number, one more":      {schema.Limits{}, fillHeaders(32<<10, 65), "65 headers, the limit is 64 (outbox.max_headers)"},
		"local ones do not count": {small, func(m *message.Message) {
			fillHeaders(300, 7)(m)
			m.Metadata[schema.HeaderAggregateType] = strings.Repeat("a", 200)
		}, ""},
	} {
		msg := validMessage(t)
		msg.Payload = nil
		c.change(msg)
		err := c.limits.Check(msg)
		if c.says == "" {
			require.NoError(t, err, name)
			continue
		}
		require.EqualError(t, err, `invalid message "m-1": `+c.says, name)
		require.ErrorIs(t, err, schema.ErrInvalidMessage)
		require.True(t, schema.IsPermanent(err))
	}
}

// fillHeaders adds headers until there are number of them with size bytes.
func fillHeaders(size, number int) func(*message.Message) {
	return func(m *message.Message) {
		count, bytes := 0, 0
		for name, value := range m.Metadata {
			if name != schema.HeaderTopic && name != schema.HeaderAggregateType {
				count, bytes = count+1, bytes+len(name)+len(value)
			}
		}
		for ; count < number-1; count++ {
			name := "h" + strconv.Itoa(count)
			m.Metadata[name], bytes = "", bytes+len(name)
		}
		m.Metadata["last"] = strings.Repeat("v", size-bytes-len("last"))
	}
}

func TestLimits_AllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("", make([]byte, 2))
	msg.Metadata = message.Metadata{schema.HeaderKey: "a\x00", "postbus_x": "1", "b\n": "2", "c": "\xff"}
	err := schema.Limits{MaxPayloadBytes: 1, MaxHeaderBytes: 1, MaxHeaders: 1}.Check(msg)
	for _, says := range []string{
		"message id is empty", "topic is empty", `key "a\x00"`, "payload has 2 bytes", `"postbus_x"`, `"b\n"`, `"c"`, "4 headers", "headers have",
	} {
		require.ErrorContains(t, err, says)
	}
	var invalid *schema.InvalidMessageError
	require.ErrorAs(t, err, &invalid)
}

func TestLimits_H80_IDsAndKeys(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ id, key, says string }{
		"plain":              {"m", "k", ""},
		"no key":             {"m", "", ""},
		"longest":            {strings.Repeat("i", 255), strings.Repeat("k", 1024), ""},
		"any text":           {"a b\r\n\t'\"; --", "ключ \U0001F980 cafe\u0301", ""},
		"no id":              {"", "k", "message id is empty"},
		"long id":            {strings.Repeat("i", 256), "k", "256 bytes, the limit is 255"},
		"NUL in the id":      {"a\x00b", "k", "message id \"a\\x00b\" has a NUL"},
		"id no UTF-8":        {"\xff", "k", "invalid UTF-8"},
		"long key":           {"m", strings.Repeat("k", 1025), "1025 bytes, the limit is 1024"},
		"NUL in the key":     {"m", "a\x00b", "key \"a\\x00b\" has a NUL"},
		"key no UTF-8":       {"m", "caf\xe9", "invalid UTF-8"},
		"key, cut off UTF-8": {"m", "日本"[:5], "invalid UTF-8"},
	} {
		msg := validMessage(t)
		msg.UUID = c.id
		msg.Metadata[schema.HeaderKey] = c.key
		err := schema.Limits{}.Check(msg)
		if c.says == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, schema.ErrInvalidMessage, name)
		require.ErrorContains(t, err, c.says, name)
		require.Less(t, len(err.Error()), 300, name)
	}
}

func TestTopicFault_H85(t *testing.T) {
	t.Parallel()
	for name, says := range map[string]string{
		"orders": "", "a.b": "", "a_b": "", "A-1._": "", "...": "", ".x": "", strings.Repeat("t", 249): "",
		"":                       "topic is empty",
		".":                      "reserved by Kafka",
		"..":                     "reserved by Kafka",
		strings.Repeat("t", 250): "has 250 bytes, the limit is 249",
		strings.Repeat("t", 300): "has 300 bytes, the limit is 249",
		"bestellungen-ü":         "a character outside",
		"日本":                     "a character outside",
		"a b":                    "a character outside",
		"a/b":                    "a character outside",
		"a#":                     "a character outside",
		"a\n":                    "a character outside",
		"a\x00":                  "a character outside",
		"\xff":                   "a character outside",
		`a"; DROP TABLE x`:       "a character outside",
	} {
		fault := schema.TopicFault(name)
		if says == "" {
			require.Empty(t, fault, name)
		} else {
			require.Contains(t, fault, says, name)
		}
		msg := validMessage(t)
		msg.Metadata[schema.HeaderTopic] = name
		err := schema.Limits{}.Check(msg)
		require.Equal(t, says != "", err != nil, name)
		_, err = schema.NewRegistry().Encode(placed.New("k", orderPlaced{}).With(schema.Topic(name)))
		require.Equal(t, says != "", err != nil, name)
	}
}

func TestNameFault(t *testing.T) {
	t.Parallel()
	for name, says := range map[string]string{
		"payments": "", "a": "", "0.x_-": "", strings.Repeat("n", 200): "",
		"":                       "name is empty",
		strings.Repeat("n", 201): "has 201 bytes, the limit is 200",
		"Payments":               "is to match",
		"-a":                     "is to match",
		"a b":                    "is to match",
		"a\n":                    "is to match",
		"a\x00":                  "is to match",
		"zahlungsempfänger":      "is to match",
	} {
		fault := schema.NameFault(name)
		if says == "" {
			require.Empty(t, fault, name)
			continue
		}
		require.Contains(t, fault, says, name)
	}
}

// FuzzLimitsCheck: what passes the check can be stored as text by every
// database and be sent by every broker.
func FuzzLimitsCheck(f *testing.F) {
	f.Add("m", "orders", "k", "tenant", "acme", []byte("{}"))
	f.Add("", "..", "\x00", "postbus_key", "\xff", []byte(nil))
	f.Add("m", "a_b", "", "_watermill", "v", []byte("\x00\xff"))
	f.Add("m", "t", "", "Postbus_Key", "v", []byte{})
	f.Add("m", "t", "k", "postbus_key", "\xfe", []byte{})
	f.Fuzz(func(t *testing.T, id, topic, key, name, value string, payload []byte) {
		msg := message.NewMessage(id, payload)
		msg.Metadata = message.Metadata{schema.HeaderTopic: topic, schema.HeaderKey: key}
		msg.Metadata[name] = value
		limits := schema.Limits{MaxPayloadBytes: 100, MaxHeaderBytes: 200, MaxHeaders: 2}
		if err := limits.Check(msg); err != nil {
			require.ErrorIs(t, err, schema.ErrInvalidMessage)
			require.True(t, utf8.ValidString(err.Error()))
			return
		}
		key, topic = schema.Key(msg), msg.Metadata.Get(schema.HeaderTopic) // name may be one of the two
		for _, text := range []string{id, topic, key, name, msg.Metadata[name]} {
			require.True(t, utf8.ValidString(text) && !strings.Contains(text, "\x00"), "%q", text)
		}
		require.True(t, id != "" && len(id) <= 255 && len(topic) <= 249 && len(key) <= 1024 && len(name) <= 255 && len(payload) <= 100)
		require.Regexp(t, `^[a-zA-Z0-9._-]+$`, topic)
		require.False(t, strings.HasPrefix(strings.ToLower(name), "_watermill"))
		require.Equal(t, name, strings.Trim(name, "\r\n"))
	})
}
