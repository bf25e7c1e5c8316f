package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Recover turns a panic into a [PanicError]. Outermost it keeps a fault of the
// framework from ending the process; around the handler it makes a panic one
// failed attempt, with the transaction rolled back. The stack goes to the log
// and nowhere else: an error's text ends up in tables and headers. A nil logger
// means slog.Default().
//
// It cannot catch a panic in a goroutine that the handler has started, nor what
// the runtime ends the process for, such as concurrent map writes.
func Recover(logger *slog.Logger) message.HandlerMiddleware {
	if logger == nil {
		logger = slog.Default()
	}
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (produced []*message.Message, err error) {
			defer func() {
				if value := recover(); value != nil {
					produced, err = nil, caught(logger, msg, value)
				}
			}()
			produced, err = h(msg)
			probe(err)
			return produced, err
		}
	}
}

func caught(logger *slog.Logger, msg *message.Message, value any) error {
	err := &PanicError{Value: value, Stack: debug.Stack()}
	logger.LogAttrs(context.WithoutCancel(msg.Context()), slog.LevelError, "panic while handling a message",
		slog.String("message_id", cleanText(msg.UUID, maxLineBytes)),
		slog.String("panic", cleanText(fmt.Sprint(value), maxLineBytes)),
		slog.String("stack", string(err.Stack)))
	return err
}

var errProbe = errors.New("probe")

// probe walks err here, where a panic is caught. A nil pointer in an error
// interface whose Unwrap reads a field would panic in whoever asks what the error
// means, and the message would never be settled.
func probe(err error) { _ = errors.Is(err, errProbe) }

// A PanicError is a panic that was caught.
type PanicError struct {
	// Value is what panic was called with.
	Value any
	// Stack is the goroutine's stack at the panic. It is not in the text.
	Stack []byte
}

// Error names the value in at most 1 KiB.
func (e *PanicError) Error() string {
	return cleanText(fmt.Sprintf("panic: %v", e.Value), maxLineBytes)
}

// Unwrap returns Value if it is an error, and nil otherwise.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
