package schema

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// An Event is the definition of a fact that a service states: a stable name,
// a version and the Go type of its body. Make it once, with [Define], and keep
// it in a package variable; it is immutable and safe for concurrent use.
type Event[T any] struct {
	name    string
	version int
	err     error
}

// eventNamePattern is nouns.verbed, with more parts in front if wanted: what
// stands before the last dot is the default topic.
var eventNamePattern = regexp.MustCompile(`^[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)+$`)

// Define returns the definition of an event. The name is of the form
// "orders.placed", the version counts from 1. It does not panic: a definition
// that cannot be used, and the zero Event, say so with [ErrInvalidEvent] when
// they are published or registered.
func Define[T any](name string, version int) Event[T] {
	return Event[T]{name: name, version: version, err: definitionFault(name, version)}
}

func definitionFault(name string, version int) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: no name; define events with schema.Define", ErrInvalidEvent)
	case len(name) > MaxNameBytes:
		return fmt.Errorf("%w: name %.32q... has %d bytes, the limit is %d", ErrInvalidEvent, name, len(name), MaxNameBytes)
	case !eventNamePattern.MatchString(name):
		return fmt.Errorf("%w: name %q is not of the form nouns.verbed (%s)", ErrInvalidEvent, name, eventNamePattern)
	case version < 1:
		return fmt.Errorf("%w: %s has version %d, the first is 1", ErrInvalidEvent, name, version)
	case version > MaxVersion:
		return fmt.Errorf("%w: %s has version %d, the last is %d", ErrInvalidEvent, name, version, MaxVersion)
	}
	return nil
}

// Name returns the event's name, for example "orders.placed".
func (e Event[T]) Name() string { return e.name }

// Version returns the event's version.
func (e Event[T]) Version() int { return e.version }

// Definition returns what a [Registry] needs to know about the event.
func (e Event[T]) Definition() Definition {
	err := e.err
	if err == nil {
		err = definitionFault(e.name, e.version)
	}
	return Definition{Name: e.name, Version: e.version, Type: reflect.TypeFor[T](), err: err}
}

// New returns the event for one body, ready to be published. Events of one
// topic and key are delivered in the order in which they were published. An
// empty key is [ErrEmptyKey] when the event is published.
func (e Event[T]) New(key string, body T) Outgoing {
	return Outgoing{Definition: e.Definition(), ID: watermill.NewULID(), Key: key, Body: body, ordered: true}
}

// Unordered returns the event for one body without a key: no order is kept.
func (e Event[T]) Unordered(body T) Outgoing {
	return Outgoing{Definition: e.Definition(), ID: watermill.NewULID(), Body: body}
}

// A Definition is an event's name, version and Go type.
type Definition struct {
	// Name is the event's stable name, for example "orders.placed".
	Name string
	// Version counts from 1.
	Version int
	// Type is the Go type of the body.
	Type reflect.Type

	err error
}

// Err says why the definition cannot be used, wrapping [ErrInvalidEvent].
func (d Definition) Err() error {
	if d.err == nil && d.Type == nil {
		return fmt.Errorf("%w: no name; define events with schema.Define", ErrInvalidEvent)
	}
	return d.err
}

// String returns "name v1".
func (d Definition) String() string { return fmt.Sprintf("%s v%d", d.Name, d.Version) }

// aggregateType is the name up to its last dot.
func (d Definition) aggregateType() string { return d.Name[:strings.LastIndexByte(d.Name, '.')] }

// Outgoing is an event on its way into the outbox. It is a value: With returns
// a changed copy. Publishing the same value again publishes the same message
// id, which consumers apply once.
type Outgoing struct {
	// Definition is the event's.
	Definition Definition
	// ID is the message id, a fresh ULID unless [MessageID] sets it.
	ID string
	// Key keeps the order; empty for an unordered event.
	Key string
	// Body is the event's body, a value of the definition's type.
	Body any

	topic         string
	aggregateType string
	headers       map[string]string
	time          time.Time
	ordered       bool
	faults        []error
}

// With returns a copy of the event with the options applied. What an option
// finds wrong is an error when the event is published.
func (o Outgoing) With(options ...PublishOption) Outgoing {
	o.headers = maps.Clone(o.headers)
	o.faults = o.faults[:len(o.faults):len(o.faults)]
	for _, option := range options {
		if err := option(&o); err != nil {
			o.faults = append(o.faults, err)
		}
	}
	return o
}

// A PublishOption changes one event; its error wraps [ErrInvalidOption].
type PublishOption func(*Outgoing) error

// Header sets a header that travels with the event. Reserved names, NUL, line
// breaks in the name and invalid UTF-8 are refused.
func Header(name, value string) PublishOption {
	return func(o *Outgoing) error {
		if fault := userHeaderFault(name, value); fault != "" {
			return fmt.Errorf("%w: %s", ErrInvalidOption, fault)
		}
		if o.headers == nil {
			o.headers = map[string]string{}
		}
		o.headers[name] = value
		return nil
	}
}

// MessageID sets the message id, so that a caller that repeats its whole unit
// of work after an unknown commit publishes the same message again.
func MessageID(id string) PublishOption {
	return func(o *Outgoing) error {
		if fault := messageIDFault(id); fault != "" {
			return fmt.Errorf("%w: %s", ErrInvalidOption, fault)
		}
		o.ID = id
		return nil
	}
}

// Topic sets the destination instead of the registry's topic rule.
func Topic(name string) PublishOption {
	return func(o *Outgoing) error {
		if fault := TopicFault(name); fault != "" {
			return fmt.Errorf("%w: %s", ErrInvalidOption, fault)
		}
		o.topic = name
		return nil
	}
}

// AggregateType names what the key identifies, for people and tools that read
// the outbox. Defaults to the event's name up to its last dot.
func AggregateType(name string) PublishOption {
	return func(o *Outgoing) error {
		if fault := NameFault(name); fault != "" {
			return fmt.Errorf("%w: aggregate type: %s", ErrInvalidOption, fault)
		}
		o.aggregateType = name
		return nil
	}
}

// OccurredAt sets [HeaderTime]. Defaults to the time of publishing.
func OccurredAt(t time.Time) PublishOption {
	return func(o *Outgoing) error {
		if t.IsZero() {
			return fmt.Errorf("%w: occurred at: zero time", ErrInvalidOption)
		}
		o.time = t
		return nil
	}
}
