package forwarder

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// errBusy is the cause when a plain publisher has not returned from an earlier
// call.
var errBusy = errors.New("the publisher has not returned from an earlier call")

// oneByOne makes a BatchPublisher of a plain Watermill publisher, which knows
// no context: a call that outlasts its context is left behind, and nothing is
// sent until it has returned.
type oneByOne struct {
	publisher message.Publisher
	slot      chan struct{}
	calls     sync.WaitGroup
}

func newOneByOne(publisher message.Publisher) *oneByOne {
	return &oneByOne{publisher: publisher, slot: make(chan struct{}, 1)}
}

// PublishBatch implements [schema.BatchPublisher].
func (p *oneByOne) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	errs := make([]error, len(msgs))
	for i, msg := range msgs {
		errs[i] = p.publish(ctx, topic, msg)
	}
	return errs
}

func (p *oneByOne) publish(ctx context.Context, topic string, msg *message.Message) error {
	select {
	case p.slot <- struct{}{}:
	case <-ctx.Done():
		return &schema.PublishError{Class: schema.PublishBroker, Topic: topic, Err: errors.Join(errBusy, context.Cause(ctx))}
	}
	done := make(chan error, 1)
	p.calls.Go(func() {
		defer func() { <-p.slot }()
		done <- publishRecovered(p.publisher, topic, msg)
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return &schema.PublishError{Class: schema.PublishBroker, Topic: topic, Err: context.Cause(ctx)}
	}
}

func publishRecovered(publisher message.Publisher, topic string, msg *message.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("publisher panicked: %v", p)
		}
	}()
	return publisher.Publish(topic, msg)
}

// wait returns when every call has returned or ctx ends.
func (p *oneByOne) wait(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		p.calls.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
