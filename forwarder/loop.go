package forwarder

import (
	"context"
	"time"
)

// databaseTimeout bounds what the loop asks of the database at a time: a
// connection that has gone silent must not stop the relay for good.
const databaseTimeout = 30 * time.Second

// The wait after a fault of the broker or the database.
const (
	minFaultDelay = 100 * time.Millisecond
	maxFaultDelay = 5 * time.Second
)

// loop takes turns until ctx ends.
func (r *Relay) loop(l life) {
	faults := 0
	for !l.over() {
		busy, err := r.turn(l)
		if err == nil || busy {
			faults = 0
		}
		switch {
		case err != nil:
			faults++
			r.complain(l.taking, "send records", err)
			r.pause(l.taking, delay(faults, minFaultDelay, maxFaultDelay), false)
		case !busy:
			r.pause(l.taking, r.holds.next(jittered(r.cfg.PollInterval)), true)
		}
	}
}

// turn pays the debts, reads a batch, sends it and marks it. It tells whether
// there was anything to do and, with an error, whether anything was sent.
func (r *Relay) turn(l life) (bool, error) {
	if err := r.pay(l.work); err != nil {
		return false, err
	}
	owned, err := r.shards(l.work)
	if err != nil || len(owned) == 0 {
		return false, err
	}
	b, found, err := r.read(l.work, owned)
	if err != nil {
		return false, err
	}
	r.send(l, b)
	if l.abandoned() {
		return false, nil
	}
	r.liftDrained(b)
	if err := r.pay(l.work); err != nil {
		return false, err
	}
	if b.fault != nil {
		return b.confirmed > 0, b.fault
	}
	return found > 0, nil
}

// shards returns what the relay owns, after it has given back what is above
// its share and has read the holds of what is new. Nothing is in flight.
func (r *Relay) shards(work context.Context) (map[int]int64, error) {
	if err := r.giveBack(work); err != nil {
		return nil, err
	}
	ctx, cancel := r.asking(work)
	defer cancel()
	owned := r.tenure.owned()
	return owned, r.holds.sync(ctx, r.cfg.Source, owned)
}

func (r *Relay) asking(work context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(work, databaseTimeout)
}

// pause waits for d, for the end of ctx and, if wakeable, for a signal.
func (r *Relay) pause(ctx context.Context, d time.Duration, wakeable bool) {
	end := time.Now().Add(d)
	wake, expect := r.wake, r.expect
	if !wakeable {
		wake, expect = nil, nil
	}
	for {
		wait := time.Until(end)
		if wakeable && r.expecting() {
			wait = min(wait, fastInterval)
		}
		timer := time.NewTimer(wait)
		select {
		case <-expect:
			timer.Stop()
			continue
		case <-timer.C:
		case <-wake:
		case <-ctx.Done():
		}
		timer.Stop()
		return
	}
}

// complain logs a fault that is waited for, unless ctx has ended.
func (r *Relay) complain(ctx context.Context, doing string, err error) {
	if ctx.Err() == nil {
		r.complaints.add(doing, bounded(err))
	}
}
