package forwarder

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// sendingTime is how long a batch is sent before it is marked and the outbox
// looked at anew, give or take the last wave: a key with a long backlog holds
// up no other for longer, and a kill makes the broker see no more twice.
const sendingTime = 500 * time.Millisecond

// send sends the batch in waves of distinct lanes until nothing is left that
// can be sent, the time is over, or the relay is to stop. What is left stays as
// it is in the outbox.
func (r *Relay) send(l life, b *batch) {
	begun := time.Now()
	for !l.over() && time.Since(begun) < sendingTime {
		wave := b.wave(r.tenure.owned())
		if len(wave) == 0 {
			return
		}
		refused := len(b.refused)
		results := r.publish(l.sending, wave)
		if l.abandoned() {
			return
		}
		r.judgeWave(b, wave, results)
		if len(b.refused) > refused {
			begun = time.Now() // the other topics have waited long enough
		}
	}
}

// publish sends the first record of each lane, one call a topic, the topics at
// once, and returns the results by lane. A record that cannot be read as a
// message is the record's fault without the broker being asked.
func (r *Relay) publish(ctx context.Context, wave []*lane) []error {
	ctx, cancel := context.WithDeadline(ctx, r.deadline())
	defer cancel()
	results := make([]error, len(wave))
	for i, l := range wave {
		results[i] = unreadable(l.records[0])
	}
	var topics sync.WaitGroup
	for topic, places := range byTopic(wave) {
		topics.Go(func() {
			msgs := make([]*message.Message, len(places))
			for i, place := range places {
				msgs[i] = wave[place].records[0].Message()
			}
			for i, err := range r.publisher.PublishBatch(ctx, topic, msgs) {
				results[places[i]] = blameDeadline(ctx, topic, err)
			}
		})
	}
	topics.Wait()
	return results
}

// unreadable says that a record has a fault of its own, or nil.
func unreadable(record schema.Record) error {
	if record.Fault == "" {
		return nil
	}
	return &schema.PublishError{Class: schema.PublishRecord, Topic: record.Topic, Err: errors.New(record.Fault)}
}

// deadline is when a wave that begins now has to be over: with the publish
// timeout, or with the lease if that ends sooner.
func (r *Relay) deadline() time.Time {
	deadline := time.Now().Add(r.cfg.PublishTimeout)
	if end := r.tenure.end(); end.Before(deadline) {
		return end
	}
	return deadline
}

// blameDeadline takes an unknown failure after the end of ctx for what the end
// brought about: clients have errors of their own for it.
func blameDeadline(ctx context.Context, topic string, err error) error {
	if err == nil || ctx.Err() == nil || schema.ClassOfPublish(err) != schema.PublishUnknown {
		return err
	}
	return brokerFault(topic, errors.Join(err, context.Cause(ctx)))
}
