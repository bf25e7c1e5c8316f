package schema

import (
	"hash/fnv"
	"maps"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// DefaultShards is the number of shards that migrations create: enough for
// tens of relays, few enough for one heartbeat row and one claim to name all.
const DefaultShards = 64

// ShardOf returns the shard of a key among n: FNV-1a of its exact bytes, with
// the halves folded, modulo n. It is stable for ever, since it decides which
// relay sends a record and which RabbitMQ queue holds it; golden vectors in
// the tests pin it (http://www.isthe.com/chongo/tech/comp/fnv/).
func ShardOf(key string, n int) int {
	h := fnv.New64a()
	h.Write([]byte(key)) // never fails
	sum := h.Sum64()
	return int((sum ^ sum>>32) % uint64(n))
}

// ShardKey returns what the shard of a message is computed from: its key, or
// its id when no order is kept, so that it has an owner like any other.
func ShardKey(messageID, key string) string {
	if key == "" {
		return messageID
	}
	return key
}

// State says where a record of the outbox stands. The values are stored.
type State int16

// The states of a record. Waiting records are in the claim index; the others
// are out of it, so that they cost a claim nothing.
const (
	// StateWaiting: to be sent as soon as a relay comes to it.
	StateWaiting State = 0
	// StateHeld: behind a hold on its key or topic.
	StateHeld State = 1
	// StateQuarantined: nobody sends it until a person says so.
	StateQuarantined State = 3
	// StateSent: confirmed by the broker and kept.
	StateSent State = 4
)

// String returns the word for the state.
func (s State) String() string {
	switch s {
	case StateWaiting:
		return "waiting"
	case StateHeld:
		return "held"
	case StateQuarantined:
		return "quarantined"
	case StateSent:
		return "sent"
	}
	return "state " + strconv.Itoa(int(s))
}

// A Record is one row of the outbox.
type Record struct {
	// ID orders the records; drawn by the database when the row is written.
	ID int64
	// MessageID is the message's id, the same on every send.
	MessageID string
	// Topic is the destination.
	Topic string
	// Key keeps the order; empty: no order is kept.
	Key string
	// Shard is the slice of the keys that the record belongs to.
	Shard int
	// AggregateType names what the key identifies.
	AggregateType string
	// EventType and Version are the event's; empty and 0 for a plain message.
	EventType string
	Version   int
	// Payload is opaque; nil and empty are told apart.
	Payload []byte
	// Headers are all headers but those that have fields here.
	Headers map[string]string
	// CreatedAt is when the row was written, by the database's clock.
	CreatedAt time.Time
	// State says where the record stands.
	State State
	// Attempts counts the sends that failed for a reason of the record's own
	// or an unknown one.
	Attempts int
	// LastError is what the last failed send said.
	LastError string
	// Fault says why the row cannot be read as a message, "" if it can. Such a
	// record is never sent: a relay quarantines it, as it does one that the
	// broker refuses for good.
	Fault string
}

// NewRecord returns the record of a message that carries its destination in
// [HeaderTopic]. The message is not changed; ID and CreatedAt are the
// database's to fill.
func NewRecord(msg *message.Message, shards int) Record {
	headers := maps.Clone(map[string]string(msg.Metadata))
	take := func(name string) string {
		value := headers[name]
		if value != "" || localHeaders[name] {
			delete(headers, name)
		}
		return value
	}
	r := Record{
		MessageID: msg.UUID, Topic: take(HeaderTopic), Key: take(HeaderKey),
		AggregateType: take(HeaderAggregateType), Payload: msg.Payload,
	}
	if version, err := Version(msg); err == nil && headers[HeaderVersion] == strconv.Itoa(version) {
		r.Version = version
		delete(headers, HeaderVersion)
	}
	r.EventType = take(HeaderType)
	r.Headers = headers
	r.Shard = ShardOf(ShardKey(r.MessageID, r.Key), shards)
	return r
}

// Message returns the record as it goes to the broker. Called twice it returns
// equal messages: same id, same bytes, same headers.
func (r Record) Message() *message.Message {
	msg := message.NewMessage(r.MessageID, r.Payload)
	for name, value := range r.Headers {
		msg.Metadata.Set(name, value)
	}
	if r.Key != "" {
		msg.Metadata.Set(HeaderKey, r.Key)
	}
	if r.EventType != "" {
		msg.Metadata.Set(HeaderType, r.EventType)
	}
	if r.Version != 0 {
		msg.Metadata.Set(HeaderVersion, strconv.Itoa(r.Version))
	}
	return msg
}

// A Lane is what order is kept in: one key of one topic, or, without a key,
// one record alone. It can be a map key.
type Lane struct {
	// Topic is the records' topic.
	Topic string
	// Key is the records' key, empty for a record alone.
	Key string
	// Record is the id of a record without a key, 0 for a keyed lane.
	Record int64
}

// Lane returns the lane of the record.
func (r Record) Lane() Lane {
	if r.Key == "" {
		return Lane{Topic: r.Topic, Record: r.ID}
	}
	return Lane{Topic: r.Topic, Key: r.Key}
}
