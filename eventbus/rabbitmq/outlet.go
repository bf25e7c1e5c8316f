package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postbus-io/postbus/schema"
)

// An outlet is one topic's channel in confirm mode, from its opening to its
// death. A channel of its own keeps what one topic does wrong, for which the
// broker ends channels, from others.
//
//	take --> queue --> writer --> socket ... broker ... --> judge --> await
//
// The writer is one goroutine, since a write may block; the judge another,
// which alone reads what the broker returns, confirms and refuses: a return
// comes before the confirmation of the same message, and counts only if one
// goroutine looks at both in that order.
type outlet struct {
	config *Config
	topic  string

	slots  chan struct{} // one entry a parcel from take to its confirmation
	queue  chan *parcel  // as many as there are slots
	opened chan struct{} // closed when the outlet takes parcels
	dead   chan struct{} // closed when it no longer does

	session *session      // set before opened is closed
	channel *amqp.Channel // likewise

	mu       sync.Mutex
	failure  error              // why it died, set before dead is closed
	inFlight map[uint64]*parcel // by delivery tag
	sent     uint64             // the last delivery tag
}

// A parcel is one message on its way through an outlet.
type parcel struct {
	key        string
	publishing amqp.Publishing // emptied when it is written or forsaken
	id         string
	size       int // of the payload
	state      atomic.Int32
	returned   error      // what the broker said; the judge's
	result     chan error // takes one
}

// The states of a parcel. Only one of writer and caller moves it on.
const (
	parcelWaits int32 = iota
	parcelWritten
	parcelForsaken // by its caller: it is not to be written any more
)

func newParcel(key string, publishing amqp.Publishing) *parcel {
	return &parcel{
		key: key, publishing: publishing, id: publishing.MessageId, size: len(publishing.Body), result: make(chan error, 1),
	}
}

func newOutlet(config *Config, topic string) *outlet {
	return &outlet{
		config: config, topic: topic,
		slots: make(chan struct{}, config.PublishWindow), queue: make(chan *parcel, config.PublishWindow),
		opened: make(chan struct{}), dead: make(chan struct{}), inFlight: map[uint64]*parcel{},
	}
}

// run opens the outlet and serves it until the channel ends, or life.
func (o *outlet) run(life context.Context, link *link) {
	session, err := link.get(life, false)
	if err != nil {
		o.die(brokerFault(o.topic, err), nil)
		return
	}
	o.session = session
	returns, confirms, closed, err := o.declare(life)
	if err != nil {
		o.die(classed(o.topic, err), nil)
		return
	}
	close(o.opened)
	var writing sync.WaitGroup
	writing.Go(o.write)
	o.judge(returns, confirms)
	o.end(<-closed)
	writing.Wait()
}

// declare opens the channel and the exchange.
func (o *outlet) declare(life context.Context) (returns chan amqp.Return, confirms chan amqp.Confirmation, closed chan *amqp.Error, err error) {
	err = o.session.within(life, declareTimeout, func() error {
		channel, err := o.session.conn.Channel()
		if err != nil {
			return fmt.Errorf("open channel: %w", err)
		}
		o.channel = channel
		if err := declareExchange(channel, o.topic); err != nil {
			return err
		}
		// As many as can be under way: the client library drops what it cannot
		// hand over within seconds.
		returns = channel.NotifyReturn(make(chan amqp.Return, o.config.PublishWindow))
		confirms = channel.NotifyPublish(make(chan amqp.Confirmation, o.config.PublishWindow))
		closed = channel.NotifyClose(make(chan *amqp.Error, 1))
		return channel.Confirm(false)
	})
	return returns, confirms, closed, err
}

// classed returns the error of what could not be declared.
func classed(topic string, err error) error {
	if class, ok := classOf(err); ok {
		return publishError(class, topic, err)
	}
	return brokerFault(topic, fmt.Errorf("%w: %w", ErrLost, err))
}

// classOf tells whether the broker ended a channel because of its topic.
func classOf(err error) (schema.PublishClass, bool) {
	var refused *amqp.Error
	if !errors.As(err, &refused) || !refused.Server {
		return 0, false
	}
	switch refused.Code {
	case amqp.AccessRefused, amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed:
		return schema.PublishDestination, true
	}
	return 0, false
}

// open waits until the outlet takes parcels.
func (o *outlet) open(ctx context.Context, link *link) error {
	select {
	case <-o.opened:
		return nil
	case <-o.dead:
		return o.reason()
	case <-ctx.Done():
	}
	if errors.Is(context.Cause(ctx), ErrClosed) {
		return brokerFault(o.topic, ErrClosed)
	}
	// Not with the deadline as its cause: it is no topic's that is too slow.
	return brokerFault(o.topic, fmt.Errorf("%w, until the deadline", link.lastFailure()))
}

// take gives a parcel to the writer; await tells what became of it.
func (o *outlet) take(ctx context.Context, p *parcel) error {
	if size, limit := contentHeaderBytes(p.publishing), o.session.frameSize(); limit > 0 && size > limit {
		return publishError(schema.PublishRecord, o.topic,
			fmt.Errorf("%w: headers and properties have %d bytes, the limit is %d (frame_max)", ErrMessage, size, limit))
	}
	select {
	case o.slots <- struct{}{}:
		o.queue <- p
		return nil
	case <-o.dead:
		return o.reason()
	case <-ctx.Done():
		return o.late(ctx)
	}
}

// await returns what became of a parcel that was taken.
func (o *outlet) await(ctx context.Context, p *parcel) error {
	select {
	case err := <-p.result:
		return err
	case <-o.dead:
	case <-ctx.Done():
	}
	forsaken := p.state.CompareAndSwap(parcelWaits, parcelForsaken)
	if forsaken {
		p.publishing = amqp.Publishing{} // it may stay in the queue for as long as the broker is blocked
	}
	select {
	case err := <-p.result: // it was there, too
		return err
	default:
	}
	switch {
	case o.isDead() && forsaken:
		return o.reason()
	case o.isDead():
		return <-p.result // whoever wrote it has died with the outlet and says so
	}
	return o.late(ctx)
}

// late is the error of a call whose time is over. Only when the broker takes
// messages is it a matter of the topic, and its cause the deadline.
func (o *outlet) late(ctx context.Context) error {
	cause := context.Cause(ctx)
	if why, _ := o.session.blocking(); why != "" && !errors.Is(cause, ErrClosed) {
		return brokerFault(o.topic, fmt.Errorf("%w: %s", ErrBlocked, why))
	}
	return brokerFault(o.topic, fmt.Errorf("not confirmed: %w", cause))
}

// write is the writer.
func (o *outlet) write() {
	for {
		select {
		case p := <-o.queue:
			o.writeParcel(p)
		case <-o.dead:
			return
		}
	}
}

func (o *outlet) writeParcel(p *parcel) {
	if !o.awaitUnblocked() || !p.state.CompareAndSwap(parcelWaits, parcelWritten) {
		<-o.slots
		return
	}
	if !o.register(p) {
		return
	}
	if err := o.channel.Publish(o.topic, p.key, true, false, p.publishing); err != nil {
		// Nothing can be said any more about what was sent: the broker counts
		// otherwise than we do. The judge sees the channel end.
		o.session.goodbye(o.channel.Close)
	}
	p.publishing = amqp.Publishing{}
}

// awaitUnblocked waits while the broker takes nothing. What is written then
// stays in the socket, and the socket stays full.
func (o *outlet) awaitUnblocked() bool {
	for {
		why, freed := o.session.blocking()
		if why == "" {
			return true
		}
		select {
		case <-freed:
		case <-o.dead:
			return false
		}
	}
}

// register gives the parcel the delivery tag that the broker will count. A
// dead outlet's are lost.
func (o *outlet) register(p *parcel) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failure != nil {
		p.result <- o.failure
		return false
	}
	o.sent++
	o.inFlight[o.sent] = p
	return true
}

// judge reads what the broker says about messages until the channel ends.
func (o *outlet) judge(returns <-chan amqp.Return, confirms <-chan amqp.Confirmation) {
	for {
		select {
		case r, open := <-returns:
			if !open {
				returns = nil
				continue
			}
			o.giveBack(r)
		case c, open := <-confirms:
			if !open {
				return
			}
			o.emptyReturns(returns)
			o.confirm(c)
		}
	}
}

// emptyReturns reads all returns that have come: the one of a message came
// before its confirmation.
func (o *outlet) emptyReturns(returns <-chan amqp.Return) {
	for {
		select {
		case r, open := <-returns:
			if !open {
				return
			}
			o.giveBack(r)
		default:
			return
		}
	}
}

// giveBack notes a return. It does not say which delivery it was of: all that
// look like it count as returned, which sends one too many again, if any.
func (o *outlet) giveBack(r amqp.Return) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.inFlight {
		if p.key == r.RoutingKey && p.id == r.MessageId {
			p.returned = fmt.Errorf("%w: %s (%d), routing key %s", ErrUnroutable, r.ReplyText, r.ReplyCode, r.RoutingKey)
		}
	}
}

// confirm settles one parcel. Its caller may have gone; its slot is free now.
func (o *outlet) confirm(c amqp.Confirmation) {
	o.mu.Lock()
	p := o.inFlight[c.DeliveryTag]
	delete(o.inFlight, c.DeliveryTag)
	o.mu.Unlock()
	if p == nil {
		return
	}
	switch {
	case !c.Ack:
		p.result <- publishError(schema.PublishDestination, o.topic, ErrRejected)
	case p.returned != nil:
		p.result <- publishError(schema.PublishDestination, o.topic, p.returned)
	default:
		p.result <- nil
	}
	<-o.slots
}

// end says of all parcels under way that the channel has ended, and why.
func (o *outlet) end(closed *amqp.Error) {
	if closed == nil {
		o.die(brokerFault(o.topic, ErrLost), nil)
		return
	}
	err := fmt.Errorf("%w: %w", ErrLost, closed)
	class, ok := classOf(closed)
	switch {
	case !ok:
		o.die(brokerFault(o.topic, err), nil)
	case closed.Code == amqp.PreconditionFailed:
		o.die(brokerFault(o.topic, err), publishError(schema.PublishRecord, o.topic, fmt.Errorf("%w: %w", ErrMessage, closed)))
	default:
		o.die(publishError(class, o.topic, err), nil)
	}
}

// die ends the outlet. tooLarge, if any, is the result of the largest message
// under way: the one that the broker found too large was not larger.
func (o *outlet) die(failure, tooLarge error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var largest *parcel
	for _, p := range o.inFlight {
		if tooLarge != nil && (largest == nil || p.size > largest.size) {
			largest = p
		}
	}
	for _, p := range o.inFlight {
		if p == largest {
			p.result <- tooLarge
		} else {
			p.result <- failure
		}
	}
	o.failure, o.inFlight = failure, nil
	close(o.dead)
}

func (o *outlet) reason() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failure
}

func (o *outlet) isDead() bool {
	select {
	case <-o.dead:
		return true
	default:
		return false
	}
}
