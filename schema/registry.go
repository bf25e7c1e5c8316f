package schema

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// A Registry knows the events of one bus: which Go type belongs to a name and
// version, which topic an event goes to, and how a body becomes bytes. It is
// safe for concurrent use.
type Registry struct {
	codec     Codec
	topicFunc func(eventName string) string

	mu     sync.RWMutex
	types  map[identity]reflect.Type
	topics map[string]string // topic as Kafka's metrics fold it -> topic
}

type identity struct {
	name    string
	version int
}

// A RegistryOption configures a [Registry].
type RegistryOption func(*Registry)

// WithCodec sets the codec. Defaults to [JSON].
func WithCodec(codec Codec) RegistryOption { return func(r *Registry) { r.codec = codec } }

// WithTopicFunc sets the rule from an event's name to its topic. Defaults to
// [TopicOf].
func WithTopicFunc(rule func(eventName string) string) RegistryOption {
	return func(r *Registry) { r.topicFunc = rule }
}

// NewRegistry returns a registry without events.
func NewRegistry(options ...RegistryOption) *Registry {
	r := &Registry{codec: JSON, topicFunc: TopicOf, types: map[identity]reflect.Type{}, topics: map[string]string{}}
	for _, option := range options {
		option(r)
	}
	return r
}

// TopicOf returns the event's name up to its last dot: several event types
// share the stream of their aggregate, so that their order is kept.
func TopicOf(eventName string) string {
	if i := strings.LastIndexByte(eventName, '.'); i > 0 {
		return eventName[:i]
	}
	return eventName
}

// Register adds a definition. The same definition may come again; another Go
// type under the same name and version is [ErrEventConflict], a topic that
// Kafka would take for another one (a.b and a_b) likewise.
func (r *Registry) Register(d Definition) error {
	if err := d.Err(); err != nil {
		return err
	}
	if r.knows(d) {
		return nil
	}
	if err := r.registerTopic(r.topicFunc(d.Name)); err != nil {
		return fmt.Errorf("event %s: %w", d, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	id := identity{d.Name, d.Version}
	if known, ok := r.types[id]; ok && known != d.Type {
		return fmt.Errorf("%w: %s is both %s and %s", ErrEventConflict, d, known, d.Type)
	}
	r.types[id] = d.Type
	return nil
}

func (r *Registry) knows(d Definition) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.types[identity{d.Name, d.Version}] == d.Type
}

func (r *Registry) registerTopic(topic string) error {
	if fault := TopicFault(topic); fault != "" {
		return fmt.Errorf("%w: %s", ErrInvalidEvent, fault)
	}
	folded := strings.ReplaceAll(topic, ".", "_")
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.topics[folded]
	if !ok {
		r.topics[folded] = topic
		return nil
	}
	if known != topic {
		return fmt.Errorf("%w: topics %q and %q are one to Kafka, which folds '.' and '_'", ErrEventConflict, known, topic)
	}
	return nil
}

// Topic returns the topic of an event by its name.
func (r *Registry) Topic(eventName string) string { return r.topicFunc(eventName) }

// Codec returns the registry's codec.
func (r *Registry) Codec() Codec { return r.codec }

// Encode turns an event into a message that carries its destination in
// [HeaderTopic]. Whatever is wrong with the event is one error, all faults at
// once.
func (r *Registry) Encode(o Outgoing) (*message.Message, error) {
	if err := r.Register(o.Definition); err != nil {
		return nil, err
	}
	if err := r.check(o); err != nil {
		return nil, fmt.Errorf("event %s: %w", o.Definition, err)
	}
	payload, err := r.codec.Marshal(o.Body)
	if err != nil {
		return nil, fmt.Errorf("event %s: encoding body: %w", o.Definition, err)
	}
	msg := message.NewMessage(o.ID, payload)
	for name, value := range o.headers {
		msg.Metadata.Set(name, value)
	}
	r.envelope(msg, o)
	return msg, nil
}

func (r *Registry) check(o Outgoing) error {
	faults := slices.Clip(o.faults) // o is a copy, what it points to is not
	if o.ordered && o.Key == "" {
		faults = append(faults, fmt.Errorf("%w: use Unordered when no order is to be kept", ErrEmptyKey))
	}
	if t := reflect.TypeOf(o.Body); t != o.Definition.Type && o.Definition.Type.Kind() != reflect.Interface {
		faults = append(faults, fmt.Errorf("%w: body is a %v, not a %v", ErrInvalidEvent, t, o.Definition.Type))
	}
	if o.topic != "" {
		faults = append(faults, r.registerTopic(o.topic))
	}
	return errors.Join(faults...)
}

func (r *Registry) envelope(msg *message.Message, o Outgoing) {
	topic, aggregateType, at := o.topic, o.aggregateType, o.time
	if topic == "" {
		topic = r.topicFunc(o.Definition.Name)
	}
	if aggregateType == "" {
		aggregateType = o.Definition.aggregateType()
	}
	if at.IsZero() {
		at = time.Now()
	}
	msg.Metadata.Set(HeaderTopic, topic)
	msg.Metadata.Set(HeaderAggregateType, aggregateType)
	msg.Metadata.Set(HeaderType, o.Definition.Name)
	msg.Metadata.Set(HeaderVersion, strconv.Itoa(o.Definition.Version))
	msg.Metadata.Set(HeaderTime, at.UTC().Format(time.RFC3339Nano))
	msg.Metadata.Set(HeaderContentType, r.codec.ContentType())
	if o.Key != "" {
		msg.Metadata.Set(HeaderKey, o.Key)
	}
}

// Received is an event as a handler gets it.
type Received[T any] struct {
	// Body is the decoded payload.
	Body T
	// ID is the message id, the idempotency key for effects outside the
	// transaction.
	ID string
	// Topic is where the event was received from.
	Topic string
	// Key is the event's key, empty when unordered.
	Key string
	// Type and Version are the event's name and version.
	Type    string
	Version int
	// Time is when the event was published, zero when the header is unreadable.
	Time time.Time
	// Headers are the application's headers, without Postbus's own.
	Headers map[string]string
}

// Decode reads a message that was received from topic. A payload that the
// codec cannot read is [ErrUndecodable], which is permanent.
func Decode[T any](codec Codec, topic string, msg *message.Message) (Received[T], error) {
	var body T
	if err := codec.Unmarshal(msg.Payload, &body); err != nil {
		return Received[T]{}, undecodable(codec.ContentType(), err)
	}
	version, _ := Version(msg)
	at, _ := time.Parse(time.RFC3339Nano, msg.Metadata.Get(HeaderTime))
	headers := map[string]string{}
	for name, value := range msg.Metadata {
		if !IsReservedHeader(name) {
			headers[name] = value
		}
	}
	return Received[T]{
		Body: body, ID: msg.UUID, Topic: topic, Key: Key(msg), Headers: headers,
		Type: msg.Metadata.Get(HeaderType), Version: version, Time: at,
	}, nil
}

// Version returns the version of msg, an error when the header is no number.
func Version(msg *message.Message) (int, error) {
	text := msg.Metadata.Get(HeaderVersion)
	version, err := strconv.ParseInt(text, 10, 32)
	if err != nil || version < 1 {
		return 0, Permanent(fmt.Errorf("%w: header %s is %.32q, not a number from 1 to %d", ErrUndecodable, HeaderVersion, text, MaxVersion))
	}
	return int(version), nil
}
