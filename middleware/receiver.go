package middleware

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// A Receiver says for whom a middleware works and who is told about it.
type Receiver struct {
	// Consumer names the consumer, for example "payments". The name is stored
	// beside every message: another name is another receiver.
	Consumer string
	// Handler names the handler within the consumer. Stored likewise.
	Handler string
	// Topic is where messages come from. Defaults to the topic that Watermill's
	// router says it has subscribed to.
	Topic string
	// Logger gets one line for each thing that somebody should look at, never
	// a payload. Defaults to slog.Default().
	Logger *slog.Logger
	// Hooks are told what happens.
	Hooks []Hook
}

// A Hook implements one or more of [FailureHook], [SkipHook] and [BuryHook].
// One that implements none is an error at construction. Hooks are called by
// many goroutines at once, each time in the message's own, which waits.
type Hook any

// A FailureHook is told of every attempt that failed.
type FailureHook interface {
	OnFailure(Failure)
}

// A Failure is one attempt that failed.
type Failure struct {
	// Delivery is the message and its receiver. It is not to be changed.
	Delivery schema.Delivery
	// Attempt counts from 1.
	Attempt int
	// Wait is the time until the next attempt, 0 when there is none.
	Wait time.Duration
	// Err is what the attempt returned.
	Err error
}

// A SkipHook is told of every message that was acked without running the
// handler, because it was applied before or is a dead letter.
type SkipHook interface {
	OnSkip(d schema.Delivery, verdict schema.Verdict)
}

// A BuryHook is told of every dead letter, after it was stored. Attempts and
// Redriven are as they were given to the database; the letter's id and times
// are the database's and not set.
type BuryHook interface {
	OnBury(letter schema.DeadLetter)
}

// notify calls every hook that is a T.
func notify[T any](hooks []Hook, call func(T)) {
	for _, hook := range hooks {
		if h, ok := hook.(T); ok {
			call(h)
		}
	}
}

func (r Receiver) withDefaults() Receiver {
	if r.Logger == nil {
		r.Logger = slog.Default()
	}
	return r
}

// faults are the faults of the names and hooks. A handler is asked for only
// where the middleware works for one.
func (r Receiver) faults(withHandler bool) []error {
	var faults []error
	if fault := schema.NameFault(r.Consumer); fault != "" {
		faults = append(faults, fmt.Errorf("Consumer: %s", fault))
	}
	if fault := schema.NameFault(r.Handler); withHandler && fault != "" {
		faults = append(faults, fmt.Errorf("Handler: %s", fault))
	}
	return append(faults, hookFaults(r.Hooks)...)
}

func hookFaults(hooks []Hook) []error {
	var faults []error
	for i, hook := range hooks {
		switch hook.(type) {
		case FailureHook, SkipHook, BuryHook:
		default:
			faults = append(faults, fmt.Errorf("Hooks: number %d, a %T, implements no hook", i, hook))
		}
	}
	return faults
}

// configError joins the faults, or returns nil when there are none.
func configError(what string, faults []error) error {
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s: %w", ErrInvalidConfig, what, errors.Join(faults...))
}

func (r Receiver) delivery(msg *message.Message) schema.Delivery {
	return schema.Delivery{Consumer: r.Consumer, Handler: r.Handler, Topic: r.topic(msg), Message: msg}
}

func (r Receiver) topic(msg *message.Message) string {
	if r.Topic != "" {
		return r.Topic
	}
	return message.SubscribeTopicFromCtx(msg.Context())
}

// log returns the logger with the names of the receiver.
func (r Receiver) log() *slog.Logger {
	log := r.Logger.With("consumer", r.Consumer)
	if r.Handler != "" {
		log = log.With("handler", r.Handler)
	}
	if r.Topic != "" {
		log = log.With("topic", r.Topic)
	}
	return log
}
