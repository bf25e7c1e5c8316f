package handlers

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// A subscription is one topic of an [Intake]: it takes messages from the inner
// subscriber within the window, gives them to lanes, and drains.
type subscription struct {
	topic string
	cfg   IntakeConfig

	in  <-chan *message.Message
	out chan *message.Message

	window chan struct{} // one entry a message taken and not settled
	slots  chan struct{} // one entry a message handed out and not settled

	stopping <-chan struct{} // closed: nothing more is taken or handed out
	stop     context.CancelFunc
	cutShort context.CancelCauseFunc // ends the contexts of the handed-out messages
	endInner context.CancelFunc      // ends the context of the inner Subscribe
	settle   func()                  // closes settled, once
	forsake  func()                  // closes forsaken, once

	abandoned chan struct{} // closed: the grace is over, lanes no longer wait
	settled   chan struct{} // closed: no lane works any more
	forsaken  chan struct{} // closed: the inner channel is not waited for
	done      chan struct{} // closed: all is over

	mu         sync.Mutex
	lanes      map[string]*lane // by key
	serving    sync.WaitGroup   // of lanes
	unfinished atomic.Int64     // messages still worked on when abandoned
	lost       bool             // the inner channel closed by itself; read after done
}

func newSubscription(
	topic string, cfg IntakeConfig, stopping <-chan struct{}, stop context.CancelFunc, cutShort context.CancelCauseFunc,
) *subscription {
	s := &subscription{
		topic: topic, cfg: cfg, stopping: stopping, stop: stop, cutShort: cutShort, endInner: func() {},
		out:    make(chan *message.Message),
		window: make(chan struct{}, cfg.Window), slots: make(chan struct{}, cfg.Lanes),
		abandoned: make(chan struct{}), settled: make(chan struct{}),
		forsaken: make(chan struct{}), done: make(chan struct{}),
		lanes: map[string]*lane{},
	}
	s.settle = sync.OnceFunc(func() { close(s.settled) })
	s.forsake = sync.OnceFunc(func() { close(s.forsaken) })
	return s
}

// open subscribes to the inner subscriber, on a context that has the values
// of ctx and ends with this subscription. A stop interrupts it.
func (s *subscription) open(ctx, stopping context.Context, inner message.Subscriber) error {
	innerCtx, endInner := context.WithCancel(context.WithoutCancel(ctx))
	s.endInner = endInner
	arrived := context.AfterFunc(stopping, func() {
		endInner()
		s.settle() // no lane has begun, and none will
	})
	defer arrived()
	in, err := inner.Subscribe(innerCtx, s.topic)
	s.in = in
	return err
}

// run returns when the inner channel has closed and all lanes are done.
// Contexts of handed-out messages end with working.
func (s *subscription) run(working context.Context) {
	s.lost = s.take(working)
	idle := make(chan struct{})
	go func() {
		s.serving.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-s.stopping:
		s.drain(idle)
	}
	s.endInner()
	s.settle()
	s.discard()
	close(s.out)
}

// take gives messages to their lanes until the subscription stops. It returns
// true when the inner channel has closed before.
func (s *subscription) take(working context.Context) bool {
	for !isClosed(s.stopping) {
		select {
		case s.window <- struct{}{}:
		case <-s.stopping:
			return false
		}
		select {
		case msg, open := <-s.in:
			if !open {
				return true
			}
			s.admit(working, msg)
		case <-s.stopping:
		}
	}
	return false
}

// drain waits for the lanes: first for their messages to be settled, then,
// after their contexts ended, for the functions to return.
func (s *subscription) drain(idle <-chan struct{}) {
	if closesWithin(idle, s.cfg.DrainTimeout) {
		return
	}
	s.cfg.Logger.Warn("drain deadline passed: contexts of messages still worked on end now",
		"topic", s.topic, "drain_timeout", s.cfg.DrainTimeout, "messages", len(s.slots))
	s.cutShort(schema.ErrDraining)
	if closesWithin(idle, s.cfg.DrainGrace) {
		return
	}
	close(s.abandoned)
	<-idle
}

// discard reads what the inner subscriber still sends, so that it can end.
func (s *subscription) discard() {
	for {
		select {
		case _, open := <-s.in:
			if !open {
				return
			}
		case <-s.forsaken:
			return
		}
	}
}

// end says that all is over, whether the subscription ever ran or not.
func (s *subscription) end() {
	s.stop()
	s.endInner()
	s.cutShort(context.Canceled)
	s.settle()
	close(s.done)
}

// failure says what of a drain did not finish, or nil.
func (s *subscription) failure() error {
	n := s.unfinished.Load()
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%w: topic %s: %d messages still worked on after %s and a grace of %s",
		ErrDrainTimeout, s.topic, n, s.cfg.DrainTimeout, s.cfg.DrainGrace)
}

// closesWithin tells whether the channel closes in time.
func closesWithin(closing <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-closing:
	case <-timer.C:
	}
	return isClosed(closing)
}

func isClosed(closing <-chan struct{}) bool {
	select {
	case <-closing:
		return true
	default:
		return false
	}
}
