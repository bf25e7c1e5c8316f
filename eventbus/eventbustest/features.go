package eventbustest

import "time"

// The defaults of [Features].
const (
	DefaultWindow   = 32
	DefaultDeadline = 15 * time.Second
)

// Features are what a room declares about its broker. What is not declared is
// not exercised; the zero value declares the least.
type Features struct {
	// Window is the window that services use, for all checks that do not set
	// one. Defaults to 32; at least 4.
	Window int
	// Deadline bounds every single wait. Defaults to 15 s.
	Deadline time.Duration

	// OldMessages: a consumer that nobody knew starts at the oldest message.
	// Without it, every check makes its consumers known, by subscribing once,
	// before it publishes.
	OldMessages bool
	// OneMemberOrder: Watermill's suite checks order with one subscriber of
	// the consumer instead of ten that join at once.
	OneMemberOrder bool
	// NilPayload: a nil payload arrives as nil. Without it, it may arrive
	// empty.
	NilPayload bool

	// PrepareTopicFunc is called once for every topic before it is used, by one
	// goroutine at a time, for a broker on which topics do not come into being
	// by themselves. Defaults to none.
	PrepareTopicFunc func(topic string) error
	// MaxMessageBytes is the largest payload that the broker takes: a message
	// of twice the size is to be refused as the record's fault. Defaults to 0:
	// no bound is known.
	MaxMessageBytes int
	// RefusedTopic is a valid topic that the broker takes nothing for, unknown
	// or unroutable: a message to it is to be refused as the destination's
	// fault. Defaults to none.
	RefusedTopic string
	// RestartCommand restarts the broker while Watermill's suite publishes and
	// subscribes. It is run in the folder of the test. Defaults to none.
	RestartCommand []string
}

func (f Features) withDefaults() Features {
	if f.Window == 0 {
		f.Window = DefaultWindow
	}
	if f.Deadline == 0 {
		f.Deadline = DefaultDeadline
	}
	return f
}
