package forwarder

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// A batch is what one turn of the relay sends: records by lane, each lane in
// the order of ids.
type batch struct {
	lanes []*lane
	index map[schema.Lane]*lane
	// stopped says that the broker takes nothing, and why.
	stopped error
}

// A lane is the records of one key of a batch.
type lane struct {
	key     schema.Lane
	shard   int
	epoch   int64
	records []schema.Record // un-sent, oldest first
	hold    *schema.Hold    // the hold that is being drained, nil if none
	all     bool            // draining: nothing is held beyond these records
	failed  bool            // the first of records could not be sent
}

func newBatch() *batch { return &batch{index: map[schema.Lane]*lane{}} }

// add appends a record to its lane.
func (b *batch) add(r schema.Record, epoch int64) *lane {
	key := r.Lane()
	l := b.index[key]
	if l == nil {
		l = &lane{key: key, shard: r.Shard, epoch: epoch}
		b.index[key] = l
		b.lanes = append(b.lanes, l)
	}
	l.records = append(l.records, r)
	return l
}

// wave returns the lanes that can send their first record now: those with
// something left, nothing failed, and a shard that is still the relay's own.
func (b *batch) wave(owned map[int]int64) []*lane {
	var ready []*lane
	for _, l := range b.lanes {
		if len(l.records) > 0 && !l.failed && owned[l.shard] == l.epoch {
			ready = append(ready, l)
		}
	}
	return ready
}

// send sends the batch in waves of distinct lanes until nothing is left that
// can be sent, the broker takes nothing, or ctx ends.
func (r *Relay) send(ctx context.Context, b *batch) {
	for b.stopped == nil && ctx.Err() == nil {
		wave := b.wave(r.tenure.owned())
		if len(wave) == 0 {
			return
		}
		for i, err := range r.publish(ctx, wave) {
			r.judge(b, wave[i], err)
		}
		if time.Since(r.debts.marked) > markInterval {
			if err := r.markSent(ctx); err != nil {
				b.stopped = err
			}
		}
	}
}

// publish sends the first record of each lane, one call a topic, the topics at
// once, and returns the results by lane.
func (r *Relay) publish(ctx context.Context, wave []*lane) []error {
	deadline := time.Now().Add(r.cfg.PublishTimeout)
	if end := r.tenure.end(); end.Before(deadline) {
		deadline = end
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	results := make([]error, len(wave))
	var topics sync.WaitGroup
	for topic, places := range byTopic(wave) {
		topics.Go(func() {
			msgs := make([]*message.Message, len(places))
			for i, place := range places {
				msgs[i] = wave[place].records[0].Message()
			}
			errs := r.publisher.PublishBatch(ctx, topic, msgs)
			for i, place := range places {
				results[place] = resultOf(errs, i, topic)
			}
		})
	}
	topics.Wait()
	return results
}

func byTopic(wave []*lane) map[string][]int {
	topics := map[string][]int{}
	for i, l := range wave {
		topic := l.key.Topic
		topics[topic] = append(topics[topic], i)
	}
	return topics
}

// resultOf reads a result; one that is missing is no confirmation.
func resultOf(errs []error, i int, topic string) error {
	if i < len(errs) {
		return errs[i]
	}
	return &schema.PublishError{Class: schema.PublishUnknown, Topic: topic, Err: errNoResult}
}

// judge takes the result of a lane's first record into account.
func (r *Relay) judge(b *batch, l *lane, err error) {
	record := l.records[0]
	if err == nil {
		r.debts.sent = append(r.debts.sent, record)
		l.records = l.records[1:]
		return
	}
	l.failed = true
	switch schema.ClassOfPublish(err) {
	case schema.PublishRecord:
		r.quarantine(l, record, err)
	case schema.PublishUnknown:
		if record.Attempts+1 >= r.cfg.MaxAttempts {
			r.quarantine(l, record, err)
			return
		}
		r.holdLane(l, record, err)
	default:
		// The broker's, or a destination's that may take it later: it says
		// nothing about the record.
		b.stopped = err
	}
}

// holdLane keeps the lane back until its first record is tried again.
func (r *Relay) holdLane(l *lane, record schema.Record, err error) {
	attempts := record.Attempts + 1
	wait := delay(attempts, r.cfg.BackoffInitial, r.cfg.BackoffMax)
	reason := bounded(err)
	r.log.Warn("key held: its oldest record could not be sent", "topic", l.key.Topic, "key", l.key.Key,
		"record", record.ID, "attempts", attempts, "retry_in", wait, "error", reason)
	r.fail(l, schema.Failure{Record: record.ID, State: schema.StateHeld, Attempts: attempts, Retry: wait, Error: reason})
	r.hold(l, schema.Hold{Lane: l.key, Shard: l.shard, Head: record.ID, Retry: wait, Reason: reason})
}

// quarantine puts the record aside for a person, and its lane behind it or not.
func (r *Relay) quarantine(l *lane, record schema.Record, err error) {
	reason := bounded(err)
	r.log.Error("record quarantined: it is not sent until a person says so", "topic", l.key.Topic, "key", l.key.Key,
		"record", record.ID, "message_id", record.MessageID, "attempts", record.Attempts+1, "error", reason)
	r.fail(l, schema.Failure{
		Record: record.ID, State: schema.StateQuarantined, Attempts: record.Attempts + 1, Retry: schema.Never, Error: reason,
	})
	skip := l.key.Key == "" || r.cfg.AfterQuarantine == PolicySkip
	switch {
	case !skip:
		r.hold(l, schema.Hold{Lane: l.key, Shard: l.shard, Head: record.ID, Retry: schema.Never, Reason: reason})
	case l.hold != nil:
		r.hold(l, schema.Hold{Lane: l.key, Shard: l.shard, Head: record.ID, Retry: 0, Reason: reason})
	}
}

func (r *Relay) fail(l *lane, f schema.Failure) {
	s := r.debts.settlement(l.shard, l.epoch)
	s.Failed = append(s.Failed, f)
}

// hold writes the hold and moves the lane's later records behind it.
func (r *Relay) hold(l *lane, hold schema.Hold) {
	r.holds.put(hold)
	s := r.debts.settlement(l.shard, l.epoch)
	s.Holds = append(s.Holds, hold)
	for _, record := range l.records {
		if record.ID != hold.Head && record.State == schema.StateWaiting {
			s.Held = append(s.Held, record.ID)
		}
	}
}

// liftDrained ends the holds whose last record was sent.
func (r *Relay) liftDrained(b *batch) {
	for _, l := range b.lanes {
		if l.hold == nil || !l.all || len(l.records) > 0 || r.debts.joined[l.key] {
			continue
		}
		s := r.debts.settlement(l.shard, l.epoch)
		s.Lifted = append(s.Lifted, *l.hold)
		r.holds.lift(l.key)
	}
}
