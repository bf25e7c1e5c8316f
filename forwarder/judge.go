package forwarder

import (
	"context"
	"errors"

	"github.com/postbus-io/postbus/schema"
)

// judgeWave takes the results of a wave into account.
func (r *Relay) judgeWave(b *batch, wave []*lane, results []error) {
	tried := false
	for i, err := range results {
		if !errors.Is(err, errNotTried) {
			tried = true
			r.judge(b, wave[i], err)
		}
	}
	if !tried {
		b.stop(results[0])
	}
}

// judge takes the result of a lane's first record into account.
func (r *Relay) judge(b *batch, l *lane, err error) {
	record := l.records[0]
	if err == nil {
		b.confirmed++
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
	case schema.PublishDestination:
		b.refuse(l.key.Topic, err)
	default:
		if errors.Is(err, context.DeadlineExceeded) {
			// The topic's while others confirm; when none does, none is left.
			b.refuse(l.key.Topic, err)
			return
		}
		b.stop(err)
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
		// What is behind the hold is due at once.
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

// liftDrained ends the holds whose last record was sent. The relay itself
// forgets a hold a turn later, when it has seen that nothing was put behind it
// meanwhile: the database refuses to lift such a hold.
func (r *Relay) liftDrained(b *batch) {
	for _, l := range b.lanes {
		switch {
		case l.hold == nil || !l.all || len(l.records) > 0:
		case l.held == 0 && r.holds.lifted(l.key):
			r.holds.forget(l.key)
		default:
			r.holds.lift(l.key)
			s := r.debts.settlement(l.shard, l.epoch)
			s.Lifted = append(s.Lifted, *l.hold)
		}
	}
}
