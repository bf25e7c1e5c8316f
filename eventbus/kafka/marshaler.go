package kafka

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// HeaderMessageID is the header that carries the id of a message. It is
// watermill-kafka's: either side reads what the other one writes.
const HeaderMessageID = "_watermill_message_uuid"

// marshal returns the record of a message: its metadata as headers, in a
// stable order, and its key as the record's key, without one if it is empty. A
// nil payload is a tombstone.
func marshal(topic string, msg *message.Message) (*sarama.ProducerMessage, error) {
	if _, taken := msg.Metadata[HeaderMessageID]; taken {
		return nil, fmt.Errorf("header %s is reserved for the id of the message", HeaderMessageID)
	}
	record := &sarama.ProducerMessage{Topic: topic, Headers: make([]sarama.RecordHeader, 0, 1+len(msg.Metadata))}
	add := func(name, value string) {
		record.Headers = append(record.Headers, sarama.RecordHeader{Key: []byte(name), Value: []byte(value)})
	}
	add(HeaderMessageID, msg.UUID)
	for _, name := range slices.Sorted(maps.Keys(msg.Metadata)) {
		add(name, msg.Metadata[name])
	}
	if key := schema.Key(msg); key != "" {
		record.Key = sarama.StringEncoder(key)
	}
	if msg.Payload != nil {
		record.Value = sarama.ByteEncoder(bytes.Clone(msg.Payload))
	}
	return record, nil
}

// unmarshal never fails: whatever lies in a topic becomes a message. Of a
// header that is repeated the last value is kept; values are kept byte for
// byte. A record without an id, or with one that no database keeps, gets one
// that is its own. The key of a record that was not written by this package
// becomes the message's.
func unmarshal(record *sarama.ConsumerMessage) *message.Message {
	headers := make(message.Metadata, len(record.Headers))
	for _, h := range record.Headers {
		if h != nil {
			headers[string(h.Key)] = string(h.Value)
		}
	}
	id := headers[HeaderMessageID]
	delete(headers, HeaderMessageID)
	if !isText(id, schema.MaxMessageIDBytes) {
		id = derivedID(record)
	}
	if _, ours := headers[schema.HeaderKey]; !ours && len(record.Key) > 0 {
		headers[schema.HeaderKey] = foreignKey(record.Key)
	}
	msg := message.NewMessage(id, bytes.Clone(record.Value))
	msg.Metadata = headers
	return msg
}

// keyOf returns the key that unmarshal gives the message.
func keyOf(record *sarama.ConsumerMessage) string {
	key, found := "", false
	for _, h := range record.Headers {
		if h != nil && string(h.Key) == schema.HeaderKey {
			key, found = string(h.Value), true
		}
	}
	if !found && len(record.Key) > 0 {
		return foreignKey(record.Key)
	}
	return key
}

// derivedID names a record by its place: the same each time it is handed out.
func derivedID(record *sarama.ConsumerMessage) string {
	const room = 220 // of MaxMessageIDBytes, for the name of the topic
	topic := record.Topic
	if len(topic) > room {
		topic = digest([]byte(topic))
	}
	return fmt.Sprintf("kafka:%s/%d/%d", topic, record.Partition, record.Offset)
}

// foreignKey returns the record's key, or a name for it if it is not a text
// that can be a key.
func foreignKey(key []byte) string {
	if s := string(key); isText(s, schema.MaxKeyBytes) {
		return s
	}
	return "sha256:" + digest(key)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// isText tells whether s is a text of 1 to most bytes that every store keeps.
func isText(s string, most int) bool {
	return s != "" && len(s) <= most && utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}
