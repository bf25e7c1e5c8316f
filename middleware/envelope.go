package middleware

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// EnvelopeConfig configures [Envelope].
type EnvelopeConfig struct {
	// DeadLetters stores what cannot be handled.
	DeadLetters schema.DeadLetters
	// BuryTimeout bounds one try to store a dead letter. Defaults to 10 s
	// (DefaultBuryTimeout).
	BuryTimeout time.Duration
}

// Envelope lets through what a handler can be told for: a message of a type,
// with an id and a key that a database can store. Anything else, such as a
// message that was not published by Postbus, becomes one dead letter of the
// consumer, with handler "", and is acked. It works per message: the receiver's
// Handler is ignored.
//
// While the dead letter cannot be stored the message is held; when its context
// ends first, the result is an [InterruptedError].
//
// A message without an id gets one derived from topic, key, payload and headers.
// That is the last resort, and two messages that are alike in all of it become
// one: a broker is to hand out ids, from the position in its log for example.
func Envelope(receiver Receiver, cfg EnvelopeConfig) (message.HandlerMiddleware, error) {
	receiver = receiver.withDefaults()
	receiver.Handler = ""
	digger, err := newGravedigger("envelope", receiver, cfg.DeadLetters, cfg.BuryTimeout, false)
	if err != nil {
		return nil, err
	}
	return (&envelope{receiver, digger}).wrap, nil
}

type envelope struct {
	receiver Receiver
	digger   *gravedigger
}

func (e *envelope) wrap(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		fault := envelopeFault(msg)
		if unusableText(msg.UUID, schema.MaxMessageIDBytes) || msg.UUID == "" {
			msg.UUID = derivedID(e.receiver.topic(msg), msg)
		}
		if fault == "" {
			return h(msg)
		}
		return nil, e.digger.hold(msg.Context(), e.letter(msg, fmt.Errorf("%w: %s", ErrEnvelope, fault)))
	}
}

func (e *envelope) letter(msg *message.Message, err error) schema.DeadLetter {
	d := e.receiver.delivery(msg)
	text := textOf(err, maxErrorBytes)
	return schema.DeadLetter{
		Consumer: d.Consumer, Topic: d.Topic, MessageID: msg.UUID,
		Key:     cleanText(schema.Key(msg), schema.MaxKeyBytes), // a key that cannot be stored is whole in Headers
		Payload: msg.Payload, Headers: msg.Metadata,
		FirstError: text, LastError: text,
	}
}

// envelopeFault says why no handler can be told for msg, or "".
func envelopeFault(msg *message.Message) string {
	switch {
	case unusableText(msg.UUID, schema.MaxMessageIDBytes):
		return fmt.Sprintf("message id %.64q has a NUL, invalid UTF-8 or more than %d bytes", msg.UUID, schema.MaxMessageIDBytes)
	case unusableText(schema.Key(msg), schema.MaxKeyBytes):
		return fmt.Sprintf("key %.64q has a NUL, invalid UTF-8 or more than %d bytes", schema.Key(msg), schema.MaxKeyBytes)
	case schema.IsForeign(msg):
		return fmt.Sprintf("foreign message: no header %s", schema.HeaderType)
	}
	return ""
}

func unusableText(s string, limit int) bool {
	return len(s) > limit || !utf8.ValidString(s) || strings.ContainsRune(s, 0)
}

// derivedID returns the same id for the same message on every delivery.
func derivedID(topic string, msg *message.Message) string {
	h := sha256.New()
	for _, part := range []string{topic, msg.UUID, schema.Key(msg), string(msg.Payload)} {
		writePart(h, part)
	}
	for _, name := range slices.Sorted(maps.Keys(msg.Metadata)) {
		writePart(h, name)
		writePart(h, msg.Metadata[name])
	}
	return "derived-" + hex.EncodeToString(h.Sum(nil))
}

// writePart writes the length first, so that no two rows of parts are alike.
func writePart(h hash.Hash, part string) {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(part)))
	h.Write(length[:]) // never fails
	_, _ = io.WriteString(h, part)
}
