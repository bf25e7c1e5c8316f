//go:build slow

package rabbitmq

import (
	"testing"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// TestQueueArguments_H42: -1 means unlimited from 4.0 on, and the opposite
// before.
func TestQueueArguments_H42(t *testing.T) {
	t.Parallel()
	for version, limit := range map[string]any{"3.10.8": nil, "3.13.7": nil, "4.0.1": -1, "4.2.0": -1, "": nil, "x": nil} {
		s := &session{conn: &amqp.Connection{Properties: amqp.Table{"version": version}}}
		require.Equal(t, limit, queueArguments(Quorum, s.major())[deliveryLimit], version)
		require.NotContains(t, queueArguments(Classic, s.major()), deliveryLimit, version)
	}
	require.Zero(t, (&session{conn: &amqp.Connection{}}).major())
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	c := Config{NackBackoffMin: 10 * time.Millisecond, NackBackoffMax: 75 * time.Millisecond}
	var waits []time.Duration
	for n := 1; n <= 5; n++ {
		waits = append(waits, c.backoff(n)/time.Millisecond)
	}
	require.Equal(t, []time.Duration{10, 20, 40, 75, 75}, waits)
}

// FuzzUnmarshal: whatever is in a queue becomes a message with an id that is
// the same each time, and texts that a database takes.
func FuzzUnmarshal(f *testing.F) {
	f.Add("id", "", "header", "value", []byte("{}"), int64(1))
	f.Add("", "\xff", "x-death", "\x00", []byte(nil), int64(0))
	f.Fuzz(func(t *testing.T, id, messageID, name, value string, body []byte, n int64) {
		d := amqp.Delivery{MessageId: messageID, Body: body, Headers: amqp.Table{
			headerID: id, name: value, "n": n, "raw": body, "table": amqp.Table{name: []any{value, n}},
		}}
		msg := unmarshal(&d)
		require.True(t, msg.Equals(unmarshal(&d)))
		require.NotEmpty(t, msg.UUID)
		require.LessOrEqual(t, len(msg.UUID), schema.MaxMessageIDBytes)
		require.NotNil(t, msg.Payload)
		for name, value := range msg.Metadata {
			require.True(t, clean(name) && clean(value) && utf8.ValidString(value))
		}
	})
}
