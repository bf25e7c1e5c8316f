package rabbitmq

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postbus-io/postbus/schema"
)

// headerID is where watermill-amqp has a message's id.
const headerID = "_watermill_message_uuid"

// marshal returns msg as it travels; the error is [ErrMessage]. A message
// without an id gets one.
func marshal(config *Config, msg *message.Message) (amqp.Publishing, error) {
	id := msg.UUID
	if id == "" {
		id = Kind + ":" + watermill.NewULID()
	}
	if fault := messageFault(config, id, msg); fault != "" {
		return amqp.Publishing{}, fmt.Errorf("%w: %s", ErrMessage, fault)
	}
	headers := make(amqp.Table, len(msg.Metadata)+1)
	for name, value := range msg.Metadata {
		headers[name] = value
	}
	headers[headerID] = id
	return amqp.Publishing{
		Headers: headers, Body: slices.Clone(msg.Payload), DeliveryMode: amqp.Persistent,
		MessageId: id, AppId: config.ConnectionName, Timestamp: time.Now(),
		Type:        short(msg.Metadata.Get(schema.HeaderType)),
		ContentType: short(msg.Metadata.Get(schema.HeaderContentType)),
	}, nil
}

// short returns text if a property can hold it.
func short(text string) string {
	if len(text) > maxShortBytes {
		return ""
	}
	return text
}

// messageFault says why a message cannot travel, or "". No broker refuses text
// that is not UTF-8, but databases behind it do.
func messageFault(config *Config, id string, msg *message.Message) string {
	if n := len(msg.Payload); n > config.MaxMessageBytes {
		return fmt.Sprintf("payload has %d bytes, the limit is %d (MaxMessageBytes)", n, config.MaxMessageBytes)
	}
	if len(id) > schema.MaxMessageIDBytes || !clean(id) {
		return fmt.Sprintf("message id %.32q is longer than %d bytes, or not text", id, schema.MaxMessageIDBytes)
	}
	for name, value := range msg.Metadata {
		switch {
		case name == headerID:
			return fmt.Sprintf("header %q is Watermill's own", name)
		case name == "" || len(name) > schema.MaxHeaderNameBytes || !clean(name):
			return fmt.Sprintf("header name %.32q is empty, longer than %d bytes, or not text", name, schema.MaxHeaderNameBytes)
		case !clean(value):
			return fmt.Sprintf("value of header %.64q is not text", name)
		}
	}
	return ""
}

func clean(text string) bool { return utf8.ValidString(text) && !strings.ContainsRune(text, 0) }

// contentHeaderBytes is how large the frame is that has a message's headers
// and properties. It cannot be split: the broker ends the connection when it is
// larger than what was agreed upon.
func contentHeaderBytes(p amqp.Publishing) int {
	const frame, fixed, table, deliveryMode, timestamp = 8, 14, 4, 1, 8
	size := frame + fixed + table + deliveryMode + timestamp
	for _, property := range []string{p.MessageId, p.AppId, p.Type, p.ContentType} {
		if property != "" {
			size += 1 + len(property)
		}
	}
	for name, value := range p.Headers {
		text, _ := value.(string)
		size += 1 + len(name) + 1 + 4 + len(text)
	}
	return size
}

// brokersOwn are headers that brokers add on the way, those of dead-lettering
// as text, too; they are not part of the message.
var brokersOwn = map[string]bool{
	"x-delivery-count": true, "x-acquired-count": true, "x-death": true,
	"x-first-death-exchange": true, "x-first-death-queue": true, "x-first-death-reason": true,
	"x-last-death-exchange": true, "x-last-death-queue": true, "x-last-death-reason": true,
}

// unmarshal returns the message that a delivery carries. It takes everything:
// what other publishers send must not come again for ever.
func unmarshal(d *amqp.Delivery) *message.Message {
	headers := message.Metadata{}
	_, deadLettered := d.Headers["x-death"].([]any)
	id := ""
	for name, value := range d.Headers {
		text, isText := value.(string)
		switch {
		case name == headerID:
			id = text
		case brokersOwn[name] && (deadLettered || !isText):
		default:
			headers.Set(cleaned(name), headerText(value))
		}
	}
	msg := message.NewMessage(identify(d, id), append([]byte{}, d.Body...)) // nil does not travel
	msg.Metadata = headers
	return msg
}

// headerText returns a header that need not be text as text.
func headerText(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return cleaned(v)
	case []byte:
		return cleaned(string(v))
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case amqp.Table, []any:
		if text, err := json.Marshal(v); err == nil {
			return cleaned(string(text))
		}
	}
	return cleaned(fmt.Sprint(value))
}

// cleaned returns text without what databases refuse; text that was published
// by this room is returned as it is.
func cleaned(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

// identify returns the id of a message: Watermill's, else the message_id, else
// one that is derived from all that the publisher sent. AMQP has no position
// that would tell two equal messages of a publisher without ids apart, and
// stay the same when they come again: such two count as one.
func identify(d *amqp.Delivery, watermillID string) string {
	for _, id := range []string{watermillID, d.MessageId} {
		if id != "" && len(id) <= schema.MaxMessageIDBytes && clean(id) {
			return id
		}
	}
	hash := sha256.New()
	write := func(values ...any) {
		for _, value := range values {
			text := headerText(value)
			fmt.Fprintf(hash, "%d:%s,", len(text), text)
		}
	}
	write(d.Exchange, d.RoutingKey, watermillID, d.MessageId, d.AppId, d.CorrelationId, d.ReplyTo, d.Type, d.UserId,
		d.ContentType, d.ContentEncoding, d.Timestamp)
	for _, name := range slices.Sorted(maps.Keys(d.Headers)) {
		if !brokersOwn[name] {
			write(name, d.Headers[name])
		}
	}
	fmt.Fprintf(hash, "%d:", len(d.Body))
	hash.Write(d.Body)
	return Kind + ":" + hex.EncodeToString(hash.Sum(nil)[:16])
}
