package forwarder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// Why a message has no result of its own.
var (
	// errLate is the cause when a call was left behind: it has not returned in
	// time, and what it has sent is not known.
	errLate = errors.New("the publisher has not returned in time")
	// errBusy is the cause when a call that was left behind is still not back.
	errBusy = errors.New("the publisher has not returned from an earlier call")
	// errNotTried is the cause when the time was over before the message's turn
	// came.
	errNotTried = errors.New("the message was not tried, the time was over")
	// errPanicked and errNoResult are the causes when the publisher is at fault.
	errPanicked = errors.New("the publisher panicked")
	errNoResult = errors.New("the publisher gave no result for the message")
)

// A sender is a publisher that the relay can rely on: a call returns soon after
// its context has ended, whatever the publisher does, with one result a
// message.
type sender interface {
	schema.BatchPublisher
	// wait returns when the publisher has returned from every call, or ctx
	// ends.
	wait(ctx context.Context)
}

// newSender returns the sender of a publisher. A call of a BatchPublisher gets
// grace, after its context has ended, to say what it knows.
func newSender(publisher message.Publisher, grace time.Duration) sender {
	if batches, ok := publisher.(schema.BatchPublisher); ok {
		return &batchSender{publisher: batches, grace: grace, busy: map[string]bool{}}
	}
	return &singleSender{publisher: publisher, slot: make(chan struct{}, 1)}
}

// calls are those that are under way, left behind or not.
type calls struct{ running sync.WaitGroup }

func (c *calls) wait(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		c.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// within returns what f returns, or false when ctx and the grace after it have
// ended before f. F then goes on alone.
func within[T any](ctx context.Context, c *calls, grace time.Duration, f func() T) (T, bool) {
	answer := make(chan T, 1)
	c.running.Go(func() { answer <- f() })
	select {
	case result := <-answer:
		return result, true
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case result := <-answer:
		return result, true
	case <-timer.C:
	}
	select { // both were ready
	case result := <-answer:
		return result, true
	default:
		var none T
		return none, false
	}
}

// A batchSender calls a BatchPublisher, once at a time for a topic.
type batchSender struct {
	calls
	publisher schema.BatchPublisher
	grace     time.Duration

	mu   sync.Mutex
	busy map[string]bool // topics with a call under way
}

// PublishBatch implements [schema.BatchPublisher].
func (s *batchSender) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	if !s.enter(topic) {
		return repeated(len(msgs), brokerFault(topic, errBusy))
	}
	errs, ok := within(ctx, &s.calls, s.grace, func() []error {
		defer s.exit(topic)
		return s.send(ctx, topic, msgs)
	})
	if !ok {
		return repeated(len(msgs), brokerFault(topic, errors.Join(errLate, context.Cause(ctx))))
	}
	return errs
}

func (s *batchSender) enter(topic string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[topic] {
		return false
	}
	s.busy[topic] = true
	return true
}

func (s *batchSender) exit(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, topic)
}

// send asks once for all messages. When the publisher panics, or its answer
// fits no question, it is asked again for each message alone: the fault then
// belongs to the message that brings it about, and the others have gone.
func (s *batchSender) send(ctx context.Context, topic string, msgs []*message.Message) []error {
	errs, fault := s.ask(ctx, topic, msgs)
	switch {
	case fault == nil:
		return errs
	case len(msgs) == 1:
		return []error{fault}
	}
	errs = nil
	for i := range msgs {
		errs = append(errs, s.send(ctx, topic, msgs[i:i+1])...)
	}
	return errs
}

func (s *batchSender) ask(ctx context.Context, topic string, msgs []*message.Message) (errs []error, fault error) {
	defer func() {
		if p := recover(); p != nil {
			fault = fmt.Errorf("%w: %v", errPanicked, p)
		}
	}()
	errs = s.publisher.PublishBatch(ctx, topic, msgs)
	if len(errs) != len(msgs) {
		return nil, fmt.Errorf("%w: %d results for %d messages", errNoResult, len(errs), len(msgs))
	}
	return errs, nil
}

// A singleSender calls a plain Watermill publisher, which knows no context, for
// one message at a time.
type singleSender struct {
	calls
	publisher message.Publisher
	slot      chan struct{} // full while a call is under way
}

// PublishBatch implements [schema.BatchPublisher].
func (s *singleSender) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	errs := make([]error, len(msgs))
	for i, msg := range msgs {
		errs[i] = s.send(ctx, topic, msg)
	}
	return errs
}

func (s *singleSender) send(ctx context.Context, topic string, msg *message.Message) error {
	if ctx.Err() != nil {
		return brokerFault(topic, errors.Join(errNotTried, context.Cause(ctx)))
	}
	select {
	case s.slot <- struct{}{}:
	case <-ctx.Done():
		return brokerFault(topic, errors.Join(errNotTried, errBusy, context.Cause(ctx)))
	}
	err, ok := within(ctx, &s.calls, 0, func() error {
		defer func() { <-s.slot }()
		return s.publish(topic, msg)
	})
	if !ok {
		return brokerFault(topic, errors.Join(errLate, context.Cause(ctx)))
	}
	return err
}

func (s *singleSender) publish(topic string, msg *message.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errPanicked, p)
		}
	}()
	return s.publisher.Publish(topic, msg)
}

func brokerFault(topic string, err error) error {
	return &schema.PublishError{Class: schema.PublishBroker, Topic: topic, Err: err}
}

func repeated(n int, err error) []error { return slices.Repeat([]error{err}, n) }
