package handlers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// A Handler is a named function for one event. It is a value: copy it, put it
// into several consumers. Make it with [On]; the zero Handler is a faulty one.
type Handler struct {
	name       string
	definition schema.Definition
	bindFunc   func(codec schema.Codec, topic string) message.NoPublishHandlerFunc
}

// On returns the handler that calls applyFunc for each message of the event.
//
// The name is stored beside every message that was applied: keep it when the
// code around it is renamed, and do not use it for another function of the same
// consumer.
//
// The function is given the transaction that the chain around it has begun,
// and neither commits nor rolls it back. The context ends when the time to
// finish is over or the broker has given the message to somebody else; see
// [context.Cause]. An error that says Permanent() bool, such as
// [schema.Permanent] makes, is not worth a retry. The function is called from
// several goroutines at once, though never for two messages of one key.
//
// On does not panic. What is wrong with the registration is told by
// [Handler.Err], and by [NewConsumer] for all handlers at once.
func On[T any](
	event schema.Event[T], name string,
	applyFunc func(ctx context.Context, tx *sql.Tx, e schema.Received[T]) error,
) Handler {
	h := Handler{name: name, definition: event.Definition()}
	if applyFunc == nil {
		return h
	}
	h.bindFunc = func(codec schema.Codec, topic string) message.NoPublishHandlerFunc {
		return func(msg *message.Message) error {
			e, err := schema.Decode[T](codec, topic, msg)
			if err != nil {
				return err
			}
			tx, ok := schema.TxFromContext(msg.Context())
			if !ok {
				return schema.Permanent(fmt.Errorf("%w: no middleware of handler %s began one", schema.ErrNoTransaction, name))
			}
			return applyFunc(msg.Context(), tx, e)
		}
	}
	return h
}

// Name returns the handler's stable name.
func (h Handler) Name() string { return h.name }

// Definition returns the event that the handler handles.
func (h Handler) Definition() schema.Definition { return h.definition }

// Err says why the handler cannot be used, all faults at once.
func (h Handler) Err() error {
	var faults []error
	if fault := schema.NameFault(h.name); fault != "" {
		faults = append(faults, fmt.Errorf("%w: handler %s", schema.ErrInvalidOption, fault))
	}
	if err := h.definition.Err(); err != nil {
		faults = append(faults, fmt.Errorf("handler %.64q: %w", h.name, err))
	}
	if h.bindFunc == nil {
		faults = append(faults, fmt.Errorf("%w: handler %.64q has no function", schema.ErrInvalidOption, h.name))
	}
	return errors.Join(faults...)
}

// HandlerFunc returns the handler as a Watermill function for messages of one
// topic, without any chain around it. It returns no messages. The transaction
// is taken from the message's context: without one the error wraps
// [schema.ErrNoTransaction]. That error is permanent, as are the errors for a
// payload that cannot be read ([schema.ErrUndecodable]), for another event
// ([ErrWrongEvent]), for another version ([UnknownVersionError]) and for a
// faulty handler. A nil codec is [schema.JSON].
func (h Handler) HandlerFunc(codec schema.Codec, topic string) message.HandlerFunc {
	return h.handlerFunc(codec, topic, []int{h.definition.Version})
}

// handlerFunc is HandlerFunc with the versions to name when another one comes.
func (h Handler) handlerFunc(codec schema.Codec, topic string, known []int) message.HandlerFunc {
	if err := h.Err(); err != nil {
		return func(*message.Message) ([]*message.Message, error) { return nil, schema.Permanent(err) }
	}
	if codec == nil {
		codec = schema.JSON
	}
	apply := h.bindFunc(codec, topic)
	return func(msg *message.Message) ([]*message.Message, error) {
		if err := h.refusal(msg, known); err != nil {
			return nil, err
		}
		return nil, apply(msg)
	}
}

// refusal says why the message is not one for this handler, or nil.
func (h Handler) refusal(msg *message.Message, known []int) error {
	if name := msg.Metadata.Get(schema.HeaderType); name != h.definition.Name {
		return schema.Permanent(fmt.Errorf("%w: it is %.64q, handler %s handles %s", ErrWrongEvent, name, h.name, h.definition.Name))
	}
	version, err := schema.Version(msg)
	if err != nil {
		return err
	}
	if version != h.definition.Version {
		return &UnknownVersionError{Event: h.definition.Name, Version: version, Known: known}
	}
	return nil
}
