package handlers

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// A lane is the messages of one key that wait for their turn. One goroutine
// serves it, as long as there are any. A message without a key has a lane of
// its own.
type lane struct {
	key   string
	queue []*waiting
}

// A waiting message has its place in the window. It leaves the queue to be
// delivered or because it was revoked.
type waiting struct {
	msg    *message.Message
	unbind func() bool // from the end of the message's context
}

// admit puts a message that has its place in the window into its lane.
func (s *subscription) admit(working context.Context, msg *message.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := schema.Key(msg)
	l, ok := s.lanes[key]
	if !ok {
		l = &lane{key: key}
		s.serving.Go(func() { s.serve(working, l) })
	}
	if key != "" {
		s.lanes[key] = l
	}
	w := &waiting{msg: msg}
	w.unbind = context.AfterFunc(msg.Context(), func() { s.dropRevoked(l, w) })
	l.queue = append(l.queue, w)
}

// serve brings the lane's messages to their end, one after the other. The
// window has their places until then.
func (s *subscription) serve(working context.Context, l *lane) {
	for msg := s.next(l); msg != nil; msg = s.next(l) {
		s.deliver(working, msg)
		<-s.window
	}
}

// next returns the lane's next message, nil when the lane is over.
func (s *subscription) next(l *lane) *message.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(l.queue) == 0 {
		delete(s.lanes, l.key)
		return nil
	}
	first := l.queue[0]
	l.queue = slices.Delete(l.queue, 0, 1)
	first.unbind()
	return first.msg
}

// dropRevoked takes a revoked message that still waits out of its lane, so
// that it does not take up the window behind one that is slow to return.
func (s *subscription) dropRevoked(l *lane, w *waiting) {
	if !isRevoked(w.msg) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(l.queue, w); i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
		<-s.window
	}
}

// deliver hands out copies of a message until one of them is acknowledged. It
// returns without an acknowledgement when the subscription stops or the
// message is revoked.
func (s *subscription) deliver(working context.Context, inner *message.Message) {
	pauses := s.cfg.NackBackoff.start()
	for {
		switch s.attempt(working, inner) {
		case acked:
			inner.Ack()
			return
		case leftAlone:
			return
		case nacked:
			if !s.pause(inner, pauses.NextBackOff()) {
				return
			}
		}
	}
}

// An outcome is what became of one copy of a message.
type outcome int

const (
	leftAlone outcome = iota
	acked
	nacked
)

// attempt hands out one copy of the message and waits until it is settled.
func (s *subscription) attempt(working context.Context, inner *message.Message) outcome {
	if !s.takeSlot(inner) {
		return leftAlone
	}
	defer func() { <-s.slots }()
	outer, end := copyOf(working, inner)
	defer end()
	if !s.handOut(inner, outer) {
		return leftAlone
	}
	return s.await(inner, outer)
}

// await waits until a copy that was handed out is settled, or abandoned. It
// looks once more after the wait: a select with both ready picks at random.
func (s *subscription) await(inner, outer *message.Message) outcome {
	select {
	case <-outer.Acked():
	case <-outer.Nacked():
	case <-s.abandoned:
	}
	switch {
	case isClosed(outer.Acked()) && !isRevoked(inner):
		return acked
	case isClosed(outer.Acked()):
		return leftAlone
	case isClosed(outer.Nacked()):
		return nacked
	}
	s.unfinished.Add(1)
	return leftAlone
}

// copyOf returns the message to hand out, and the function that ends its
// context. Nobody but its receiver touches it, or its context, afterwards.
func copyOf(working context.Context, inner *message.Message) (outer *message.Message, end func()) {
	given := inner.Context()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(given))
	unbindDrain := context.AfterFunc(working, func() { cancel(context.Cause(working)) })
	unbindInner := context.AfterFunc(given, func() {
		if isRevoked(inner) {
			cancel(context.Cause(given))
		}
	})
	outer = inner.Copy()
	outer.SetContext(ctx)
	return outer, func() {
		unbindDrain()
		unbindInner()
		cancel(context.Canceled)
	}
}

// takeSlot waits for one of the lanes that work at once.
func (s *subscription) takeSlot(inner *message.Message) bool {
	for s.wanted(inner) {
		select {
		case s.slots <- struct{}{}:
			return true
		case <-s.stopping:
		case <-endOf(inner):
		}
	}
	return false
}

// handOut waits until somebody takes the copy.
func (s *subscription) handOut(inner, outer *message.Message) bool {
	for s.wanted(inner) {
		select {
		case s.out <- outer:
			return true
		case <-s.stopping:
		case <-endOf(inner):
		}
	}
	return false
}

// pause waits after a nack.
func (s *subscription) pause(inner *message.Message, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for s.wanted(inner) {
		select {
		case <-timer.C:
			return true
		case <-s.stopping:
		case <-endOf(inner):
		}
	}
	return false
}

// wanted tells whether the message is still to be handed out.
func (s *subscription) wanted(inner *message.Message) bool {
	return !isClosed(s.stopping) && !isRevoked(inner)
}

// endOf returns the channel that is closed when the message's context ends,
// nil when it has ended: without a revocation that means nothing here.
func endOf(inner *message.Message) <-chan struct{} {
	ctx := inner.Context()
	if ctx.Err() != nil {
		return nil
	}
	return ctx.Done()
}

// isRevoked tells whether the inner subscriber took the message back.
func isRevoked(inner *message.Message) bool {
	return errors.Is(context.Cause(inner.Context()), schema.ErrRevoked)
}
