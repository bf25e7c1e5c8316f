package forwarder

import (
	"context"
	"errors"
	"time"
)

// A life is how long the parts of a running relay go on. They end one after the
// other, so that each has time to note what the one before has done; an
// abandoned relay's end all at once.
type life struct {
	taking  context.Context // the one given to Run: nothing is begun after it
	sending context.Context // what is with the publisher, for half of the stop timeout
	work    context.Context // what is with the database, for all of it
}

// newLife returns the life of a relay and what to call after it.
func newLife(taking context.Context, stopTimeout time.Duration) (life, func()) {
	work, endWork := context.WithCancelCause(context.WithoutCancel(taking))
	sending, endSending := context.WithCancelCause(work)
	l := life{taking: taking, sending: sending, work: work}
	unhook := context.AfterFunc(taking, func() {
		if l.abandoned() {
			endWork(ErrAbandoned)
			return
		}
		half := time.AfterFunc(stopTimeout/2, func() { endSending(context.DeadlineExceeded) })
		full := time.AfterFunc(stopTimeout, func() { endWork(context.DeadlineExceeded) })
		context.AfterFunc(work, func() {
			half.Stop()
			full.Stop()
		})
	})
	return l, func() {
		unhook()
		endWork(nil)
	}
}

// over tells whether nothing is to be begun any more.
func (l life) over() bool { return l.taking.Err() != nil }

// abandoned tells whether nothing is to be finished either.
func (l life) abandoned() bool { return errors.Is(context.Cause(l.taking), ErrAbandoned) }
