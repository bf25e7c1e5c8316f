package rabbitmq

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A tap is one channel that consumes from one queue, from its opening to its
// end. Another one follows.
type tap struct {
	queue   string
	session *session
	channel *amqp.Channel
	closed  chan *amqp.Error
	expired bool // the subscription's: it is being closed because of ConsumerTimeout
}

// An event is a delivery, or the end of a tap: nothing of it follows.
type event struct {
	tap      *tap
	delivery amqp.Delivery
	lost     bool
}

// errCancelled is returned when the broker ended the consumer only, as it does
// when the queue is deleted.
var errCancelled = errors.New("consumer cancelled by the broker")

// tapQueue keeps a tap on the ith queue until the subscription has ended.
func (s *subscription) tapQueue(i int) {
	pauses, notice := s.config.pauses(), newNotice(s.config.LogInterval)
	log := s.log.With("queue", s.queues[i])
	for first := true; s.ctx.Err() == nil; first = false {
		t, deliveries, err := s.openTap(i, first)
		if first {
			s.begun <- err
		}
		if err == nil {
			notice.over(func() { log.Info("queue is consumed again") })
			pauses.Reset()
			err = s.forward(t, deliveries)
		}
		if s.ctx.Err() != nil {
			return
		}
		if t != nil && t.session.alive() { // else the link tells
			notice.tell(func() { log.Warn("queue is not consumed, trying again", "error", err) })
		}
		sleep(s.ctx, pauses.NextBackOff())
	}
}

// openTap waits for a connection, declares everything that the ith queue needs,
// and consumes. After an error on a connection the tap is returned, too.
func (s *subscription) openTap(i int, impatient bool) (*tap, <-chan amqp.Delivery, error) {
	session, err := s.link.get(s.ctx, impatient)
	if err != nil {
		return nil, nil, err
	}
	t := &tap{queue: s.queues[i], session: session}
	var deliveries <-chan amqp.Delivery
	err = session.within(s.ctx, declareTimeout, func() error {
		if t.channel, err = session.conn.Channel(); err != nil {
			return fmt.Errorf("open channel: %w", err)
		}
		t.closed = t.channel.NotifyClose(make(chan *amqp.Error, 1))
		deliveries, err = s.consume(t, i)
		return err
	})
	if err != nil && t.channel != nil {
		t.close()
	}
	return t, deliveries, err
}

// ahead is how many messages of a queue are on their way beyond the window, so
// that a small window does not wait for the broker after each ack. The window
// counts for each queue: it may be that one has all the messages.
const ahead = 8

func (s *subscription) consume(t *tap, i int) (<-chan amqp.Delivery, error) {
	if err := declareExchange(t.channel, s.topic); err != nil {
		return nil, err
	}
	arguments := queueArguments(s.config.QueueType, t.session.major())
	if err := declareQueue(t.channel, t.queue, s.topic, i, len(s.queues), arguments); err != nil {
		return nil, err
	}
	if err := t.channel.Qos(min(s.window+ahead, MaxWindow), 0, false); err != nil {
		return nil, fmt.Errorf("set prefetch of %s: %w", t.queue, err)
	}
	deliveries, err := t.channel.ConsumeWithContext(context.Background(), t.queue, "", false, false, false, false, nil)
	if err != nil {
		return nil, fmt.Errorf("consume %s: %w", t.queue, err)
	}
	return deliveries, nil
}

// forward passes deliveries on until the tap is lost, and says why, or until
// the subscription has ended: then it leaves the channel open for the acks that
// are still to be sent, and cancels nothing before, which would let the broker
// give the next messages to somebody else while these are in hand.
func (s *subscription) forward(t *tap, deliveries <-chan amqp.Delivery) error {
	for {
		select {
		case d, open := <-deliveries:
			if !open {
				s.send(event{tap: t, lost: true})
				return t.end()
			}
			s.send(event{tap: t, delivery: d})
		case <-s.ctx.Done():
			<-s.done
			t.close()
			return nil
		}
	}
}

func (s *subscription) send(e event) {
	select {
	case s.events <- e:
	case <-s.ctx.Done():
	}
}

// end says why the broker ended the tap, and leaves nothing of it: what was
// consumed and not acked goes back to its place in the queue.
func (t *tap) end() error {
	defer t.close()
	select {
	case err := <-t.closed:
		if err != nil {
			return err
		}
		return ErrLost
	default:
		return errCancelled
	}
}

// close closes the channel. Idempotent.
func (t *tap) close() { t.session.goodbye(t.channel.Close) }
