package schema

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// The defaults of [Limits], and the bounds that no setting lifts.
const (
	// DefaultMaxPayloadBytes leaves room for headers and framing below the
	// 1 MiB that Kafka takes by default (message.max.bytes 1,048,588).
	DefaultMaxPayloadBytes = 900 << 10
	// DefaultMaxHeaderBytes bounds names and values of all headers together.
	DefaultMaxHeaderBytes = 32 << 10
	// DefaultMaxHeaders bounds the number of headers, Postbus's own included.
	DefaultMaxHeaders = 64
	// MaxHeaderNameBytes is the longest header name: AMQP 0-9-1 field names
	// are short strings of at most 255 bytes.
	MaxHeaderNameBytes = 255
	// MaxTopicBytes is Kafka's bound on topic names; AMQP's is 255.
	MaxTopicBytes = 249
	// MaxKeyBytes is the longest key.
	MaxKeyBytes = 1024
	// MaxMessageIDBytes is the longest message id: an AMQP short string.
	MaxMessageIDBytes = 255
	// MaxNameBytes is the longest name of an event, a consumer and a handler.
	// 200 bytes leave room for an event's version and a consumer's bucket in
	// what brokers derive from them.
	MaxNameBytes = 200
	// MaxVersion is the highest version of an event: a PostgreSQL integer.
	MaxVersion = 1<<31 - 1
)

// Limits bound what may be published. The zero value means the defaults.
type Limits struct {
	// MaxPayloadBytes bounds the payload. Defaults to 921,600 (900 KiB).
	MaxPayloadBytes int
	// MaxHeaderBytes bounds names and values of all headers together.
	// Defaults to 32,768 (32 KiB).
	MaxHeaderBytes int
	// MaxHeaders bounds the number of headers. Defaults to 64.
	MaxHeaders int
}

func (l Limits) withDefaults() Limits {
	if l.MaxPayloadBytes == 0 {
		l.MaxPayloadBytes = DefaultMaxPayloadBytes
	}
	if l.MaxHeaderBytes == 0 {
		l.MaxHeaderBytes = DefaultMaxHeaderBytes
	}
	if l.MaxHeaders == 0 {
		l.MaxHeaders = DefaultMaxHeaders
	}
	return l
}

// Check says what of msg could not travel to either broker unchanged, all
// faults at once, each wrapping [ErrInvalidMessage]. The message is to carry
// its destination in [HeaderTopic].
func (l Limits) Check(msg *message.Message) error {
	l = l.withDefaults()
	var faults []error
	add := func(format string, args ...any) {
		faults = append(faults, &InvalidMessageError{MessageID: msg.UUID, Reason: fmt.Sprintf(format, args...)})
	}
	if fault := messageIDFault(msg.UUID); fault != "" {
		add("%s", fault)
	}
	if fault := TopicFault(msg.Metadata.Get(HeaderTopic)); fault != "" {
		add("%s", fault)
	}
	if fault := keyFault(Key(msg)); fault != "" {
		add("%s", fault)
	}
	if n := len(msg.Payload); n > l.MaxPayloadBytes {
		add("payload has %d bytes, the limit is %d (outbox.max_payload_bytes)", n, l.MaxPayloadBytes)
	}
	l.checkHeaders(msg.Metadata, add)
	return errors.Join(faults...)
}

func (l Limits) checkHeaders(headers message.Metadata, add func(string, ...any)) {
	count, size := 0, 0
	for name, value := range headers {
		if localHeaders[name] {
			continue
		}
		count++
		size += len(name) + len(value)
		if IsReservedHeader(name) && !wireHeaders[name] {
			add("header %.64q: names starting with %q or %q are reserved", name, HeaderPrefix, watermillPrefix)
		}
		if fault := headerTextFault(name, value); fault != "" {
			add("%s", fault)
		}
	}
	if count > l.MaxHeaders {
		add("%d headers, the limit is %d (outbox.max_headers)", count, l.MaxHeaders)
	}
	if size > l.MaxHeaderBytes {
		add("headers have %d bytes, the limit is %d (outbox.max_header_bytes)", size, l.MaxHeaderBytes)
	}
}

var topicPattern = regexp.MustCompile(`^[a-zA-Z0-9._-]+$`)

// TopicFault says why name cannot be a topic on both brokers, or "".
// Kafka takes [a-zA-Z0-9._-]{1,249} but "." and ".."; RabbitMQ takes more.
func TopicFault(name string) string {
	switch {
	case name == "":
		return "topic is empty"
	case len(name) > MaxTopicBytes:
		return fmt.Sprintf("topic %.32q... has %d bytes, the limit is %d", name, len(name), MaxTopicBytes)
	case !topicPattern.MatchString(name):
		return fmt.Sprintf("topic %q has a character outside a-z A-Z 0-9 . _ -", name)
	case name == "." || name == "..":
		return fmt.Sprintf("topic %q is reserved by Kafka", name)
	}
	return ""
}

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)

// NameFault says why name cannot name a consumer or a handler, or "". Such a
// name is stored beside every message that was applied, and is part of queue
// and group names.
func NameFault(name string) string {
	switch {
	case name == "":
		return "name is empty"
	case len(name) > MaxNameBytes:
		return fmt.Sprintf("name %.32q... has %d bytes, the limit is %d", name, len(name), MaxNameBytes)
	case !namePattern.MatchString(name):
		return fmt.Sprintf("name %q is to match %s", name, namePattern)
	}
	return ""
}

func messageIDFault(id string) string {
	return shortTextFault("message id", id, MaxMessageIDBytes, true)
}

func keyFault(key string) string { return shortTextFault("key", key, MaxKeyBytes, false) }

func shortTextFault(what, s string, most int, required bool) string {
	switch {
	case s == "" && required:
		return what + " is empty"
	case len(s) > most:
		return fmt.Sprintf("%s %.32q... has %d bytes, the limit is %d", what, s, len(s), most)
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return fmt.Sprintf("%s %q has a NUL or invalid UTF-8", what, s)
	}
	return ""
}
