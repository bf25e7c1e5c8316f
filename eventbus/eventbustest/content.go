package eventbustest

import (
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// exercisePayloads: bytes arrive as they were published (H81, H82).
func exercisePayloads(t *testing.T, s *stage) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	payloads := map[string][]byte{
		"nil": nil, "empty": {}, "one zero byte": {0}, "one byte": {'x'}, "all bytes": all,
		"invalid utf-8": {0xff, 0xfe, 0xc0}, "spaced json": []byte("{ \"b\":1.10,\n\"a\" : 12345678901234567890 }\n"),
	}
	_, msgs := s.consume(t)
	for name, payload := range payloads {
		s.publish(t, message.NewMessage(watermill.NewULID(), payload))
		received := s.receive(t, msgs)
		assert.Equal(t, string(payload), string(received.Payload), "payload %s", name)
		if payload != nil || s.features.NilPayload {
			assert.Equal(t, payload == nil, received.Payload == nil, "payload %s: nil", name)
		}
		received.Ack()
	}
}

// exerciseHeaders: headers and the id arrive as they were published, and no
// others.
func exerciseHeaders(t *testing.T, s *stage) {
	headers := message.Metadata{
		"empty": "", "spaces": "  a b\t", "ünï-☃": "naïve 日本 \U0001F69A", "quotes": `"'\`, "long": strings.Repeat("x", 8<<10),
		"Case": "upper", "case": "lower", "number": "0012",
		schema.HeaderKey: "key ☃", schema.HeaderType: "orders.placed", schema.HeaderVersion: "1",
		schema.HeaderTime: "2024-02-29T23:59:59.999999999Z", schema.HeaderContentType: "application/json",
	}
	_, msgs := s.consume(t)
	for id, sent := range map[string]message.Metadata{"a ☃": headers, strings.Repeat("i", schema.MaxMessageIDBytes): {}} {
		msg := message.NewMessage(id, []byte("x"))
		msg.Metadata = sent
		s.publish(t, msg)
		received := s.receive(t, msgs)
		assert.Equal(t, id, received.UUID)
		assert.Equal(t, sent, received.Metadata)
		received.Ack()
	}
}

// exerciseEmptyIDs: a message without an id gets one that is its own (H53).
func exerciseEmptyIDs(t *testing.T, s *stage) {
	first, second := message.NewMessage("", []byte("1")), message.NewMessage("", []byte("2"))
	s.publish(t, first, second)

	sub, msgs := s.consume(t)
	ids := map[string]string{}
	for range 2 {
		msg := s.receive(t, msgs)
		require.NotEmpty(t, msg.UUID)
		assert.LessOrEqual(t, len(msg.UUID), schema.MaxMessageIDBytes)
		ids[string(msg.Payload)] = msg.UUID
	}
	assert.NotEqual(t, ids["1"], ids["2"])
	require.NoError(t, sub.Close())

	_, msgs = s.consume(t)
	for range 2 {
		msg := s.receive(t, msgs)
		assert.Equal(t, ids[string(msg.Payload)], msg.UUID, "the id when handed out again")
		msg.Ack()
	}
}

// exerciseCopies: what a publisher or a receiver does to a message afterwards
// is nobody else's business.
func exerciseCopies(t *testing.T, s *stage) {
	other := freshName("consumer")
	s.introduce(t, other)
	msg := newMessage("key", 1)
	msg.Metadata.Set("header", "sent")
	s.publish(t, msg)
	spoil(msg)

	_, mine := s.consume(t)
	theirs := s.subscribe(t, s.subscriber(t, other, s.features.Window))
	for _, msgs := range []<-chan *message.Message{mine, theirs} {
		received := s.receive(t, msgs)
		assert.Equal(t, "1", string(received.Payload))
		assert.Equal(t, "sent", received.Metadata.Get("header"))
		spoil(received)
		received.Ack()
	}
}

func spoil(msg *message.Message) {
	msg.Payload[0] = '?'
	msg.Metadata.Set("header", "spoiled")
}
