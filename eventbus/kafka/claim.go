package kafka

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// A claim is one partition for as long as this member has it. One goroutine
// hands out, and one a message in hand waits for its ack.
type claim struct {
	feeds   *subscriber
	config  Config
	session sarama.ConsumerGroupSession
	part    partition
	source  <-chan *sarama.ConsumerMessage

	revoked chan struct{} // closed: the group has given the partition away
	revoke  func()
	over    chan struct{} // closed: the grace has passed, too
	wake    chan struct{} // something was settled

	inHand sync.WaitGroup
	dry    bool // the source has ended

	mu     sync.Mutex
	ledger ledger
}

// A partition is a partition's name.
type partition struct {
	topic  string
	number int32
}

func newClaim(s *subscriber, session sarama.ConsumerGroupSession, source sarama.ConsumerGroupClaim) *claim {
	c := &claim{
		feeds: s, config: s.config, session: session, source: source.Messages(),
		part:    partition{source.Topic(), source.Partition()},
		revoked: make(chan struct{}), over: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	c.revoke = sync.OnceFunc(func() { close(c.revoked) })
	return c
}

// run hands out until the partition is no longer this member's, and returns
// when nothing of it is in hand: nothing can be marked afterwards.
func (c *claim) run() {
	for !c.ending() {
		sub, changed := c.feeds.current(c.part.topic)
		if sub != nil && sub.join() {
			c.serve(sub)
			sub.leave()
		}
		if c.ending() {
			break
		}
		select {
		case <-changed:
		case <-c.revoked:
		case <-c.session.Context().Done():
		}
	}
	c.finish()
}

func (c *claim) ending() bool {
	return c.dry || isClosed(c.revoked) || isClosed(c.session.Context().Done())
}

func isClosed(closing <-chan struct{}) bool {
	select {
	case <-closing:
		return true
	default:
		return false
	}
}

// serve hands out to a subscription until it or the claim ends.
func (c *claim) serve(sub *subscription) {
	for !c.ending() && sub.ctx.Err() == nil {
		t, room := c.turn(sub)
		if t.deliver != nil {
			c.deliver(sub, t.deliver)
		} else {
			c.await(sub, t, room)
		}
	}
}

// turn returns what to do next, and whether more may be read.
func (c *claim) turn(sub *subscription) (t turn, room bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ledger.turn(sub, time.Now()), c.ledger.room(cap(sub.places))
}

// await waits until there is something to do: a record is read only when
// nothing waits for a place.
func (c *claim) await(sub *subscription, t turn, room bool) {
	var due <-chan time.Time
	if t.retry != forever {
		timer := time.NewTimer(t.retry)
		defer timer.Stop()
		due = timer.C
	}
	var places chan<- struct{}
	var source <-chan *sarama.ConsumerMessage
	if t.place != nil {
		places = sub.places
	} else if room {
		source = c.source
	}
	select {
	case places <- struct{}{}:
		c.change(func() { t.place.place = sub })
	case record, open := <-source:
		c.read(record, open)
	case <-due:
	case <-c.wake:
	case <-sub.ctx.Done():
	case <-c.revoked:
	case <-c.session.Context().Done():
	}
}

func (c *claim) read(record *sarama.ConsumerMessage, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !open {
		c.dry = true
		return
	}
	c.ledger.add(record)
}

// deliver hands a record out and leaves a goroutine behind that waits for what
// becomes of it.
func (c *claim) deliver(sub *subscription, e *entry) {
	msg := unmarshal(e.record)
	ctx, cancel := context.WithCancelCause(sub.ctx)
	msg.SetContext(ctx)
	c.change(func() { c.ledger.take(e) })
	select {
	case sub.out <- msg:
		sub.users.Add(1)
		c.inHand.Go(func() {
			defer sub.leave()
			c.settle(sub, e, msg, cancel)
		})
		return
	case <-sub.ctx.Done():
	case <-c.revoked:
	case <-c.session.Context().Done():
	}
	cancel(nil)
	c.change(func() { c.ledger.giveBack(e) })
}

func (c *claim) change(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// settle waits for the message's ack or nack, or the end of its delivery, and
// ends its context when that has been recorded. An ack that came before the end
// counts, although both are seen at once.
func (c *claim) settle(sub *subscription, e *entry, msg *message.Message, cancel context.CancelCauseFunc) {
	var cause error
	select {
	case <-msg.Acked():
	case <-msg.Nacked():
	case <-sub.ctx.Done():
	case <-c.over:
		cause = schema.ErrRevoked
	}
	switch {
	case isClosed(msg.Acked()):
		c.ack(e)
		cause = nil
	case isClosed(msg.Nacked()):
		c.change(func() { c.ledger.nack(e, time.Now().Add(c.config.backoff(e.nacks+1))) })
	default:
		c.change(func() { c.ledger.giveBack(e) })
	}
	cancel(cause)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// ack takes an ack and marks the partition up to the oldest record that is not
// acked. The group stores the mark within the commit interval, and before it
// gives the partition away.
func (c *claim) ack(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.leave()
	if next, moved := c.ledger.ack(e); moved {
		c.session.MarkOffset(c.part.topic, c.part.number, next, "")
	}
}

// finish lets what is in hand be acked, as long as the partition is still ours
// to mark, then ends its contexts.
func (c *claim) finish() {
	idle := make(chan struct{})
	go func() {
		c.inHand.Wait()
		close(idle)
	}()
	c.waitFor(idle)
	close(c.over)
	<-idle
	for _, e := range c.ledger.entries {
		e.leave()
	}
}

func (c *claim) waitFor(idle <-chan struct{}) {
	grace := time.NewTimer(c.config.grace())
	defer grace.Stop()
	lost := c.session.Context().Done()
	for {
		select {
		case <-idle:
			return
		case <-grace.C:
			return
		case <-lost:
			lost = nil
			if left := c.graceAfter(context.Cause(c.session.Context())); left < c.config.grace() {
				grace.Reset(left)
			}
		}
	}
}

// graceAfter says how long a partition is still ours to mark after the session
// ended for this cause. The group keeps it for a member that leaves or joins
// anew; it may have gone already from one that the group has forgotten. After a
// broken connection the group waits for the session timeout.
func (c *claim) graceAfter(cause error) time.Duration {
	var transport net.Error
	switch {
	case errors.Is(cause, errLeaving), errors.Is(cause, errRejoin),
		errors.Is(cause, sarama.ErrSessionConsumeClaimExited), errors.Is(cause, sarama.ErrSessionPartitionCountChanged):
		return c.config.grace()
	case errors.As(cause, &transport) && transport.Timeout():
		return 0
	case isAny(cause, brokerFaults) && !errors.Is(cause, context.Canceled), transport != nil:
		return min(c.config.SessionTimeout, c.config.RebalanceTimeout) / 2
	}
	return 0
}
