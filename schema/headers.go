package schema

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// HeaderPrefix is reserved: a header that starts with it belongs to Postbus.
// Applications cannot set such a header with [Header]; a plain Watermill
// message may carry the ones listed below, so that a received message can be
// published again, and no other.
const HeaderPrefix = "postbus_"

// The headers that Postbus writes on the wire.
const (
	// HeaderKey is the key whose order is kept. Absent or empty: no order.
	HeaderKey = HeaderPrefix + "key"
	// HeaderType is the event's name, for example "orders.placed". A message
	// without it is foreign: it was not published by Postbus.
	HeaderType = HeaderPrefix + "type"
	// HeaderVersion is the event's version, a decimal number from 1.
	HeaderVersion = HeaderPrefix + "version"
	// HeaderTime is when the event was published, RFC 3339 with nanoseconds in
	// UTC, by the publisher's clock. It is for people; nothing is ordered by it.
	HeaderTime = HeaderPrefix + "time"
	// HeaderContentType is the media type of the payload.
	HeaderContentType = HeaderPrefix + "content_type"
)

// The headers that a message carries inside the publishing process only: an
// outbox stores them as columns and takes them off.
const (
	// HeaderTopic is the destination topic.
	HeaderTopic = HeaderPrefix + "topic"
	// HeaderAggregateType names what the key identifies, for example "order".
	HeaderAggregateType = HeaderPrefix + "aggregate_type"
)

// watermillPrefix is reserved by Watermill: a message with such metadata can
// be marshalled by none of its adapters.
const watermillPrefix = "_watermill"

var wireHeaders = map[string]bool{
	HeaderKey: true, HeaderType: true, HeaderVersion: true,
	HeaderTime: true, HeaderContentType: true,
}

var localHeaders = map[string]bool{HeaderTopic: true, HeaderAggregateType: true}

// IsReservedHeader tells whether name belongs to Postbus or to Watermill.
// The comparison ignores case, since brokers and proxies between them may.
func IsReservedHeader(name string) bool {
	lower := strings.ToLower(name)
	return strings.HasPrefix(lower, HeaderPrefix) || strings.HasPrefix(lower, watermillPrefix)
}

// IsForeign tells whether msg was not published by Postbus.
func IsForeign(msg *message.Message) bool { return msg.Metadata.Get(HeaderType) == "" }

// Key returns the key of msg, empty when no order is kept for it.
func Key(msg *message.Message) string { return msg.Metadata.Get(HeaderKey) }

// userHeaderFault says why an application may not set a header, or "".
func userHeaderFault(name, value string) string {
	if IsReservedHeader(name) {
		return fmt.Sprintf("header %.64q: names starting with %q or %q are reserved", name, HeaderPrefix, watermillPrefix)
	}
	return headerTextFault(name, value)
}

// headerTextFault says why a header cannot travel unchanged, or "". NUL and
// invalid UTF-8 are refused because PostgreSQL's text and AMQP's header table
// refuse them later, when the business transaction is long committed.
func headerTextFault(name, value string) string {
	switch {
	case name == "":
		return "header with an empty name"
	case !utf8.ValidString(name) || strings.ContainsAny(name, "\x00\r\n"):
		return fmt.Sprintf("header %.64q: the name has a NUL, a line break or invalid UTF-8", name)
	case len(name) > MaxHeaderNameBytes:
		return fmt.Sprintf("header %.32q...: the name has %d bytes, the limit is %d", name, len(name), MaxHeaderNameBytes)
	case !utf8.ValidString(value):
		return fmt.Sprintf("header %.64q: the value is not valid UTF-8; encode binary values, for example as base64", name)
	case strings.ContainsRune(value, 0):
		return fmt.Sprintf("header %.64q: the value has a NUL byte", name)
	}
	return ""
}
