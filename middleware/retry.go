package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// The defaults and bounds of [RetryConfig].
const (
	DefaultRetryInitial = 100 * time.Millisecond
	DefaultRetryMax     = 5 * time.Second
	DefaultRetryBudget  = 30 * time.Second
	DefaultFreeTries    = 20
	// MinRetryInitial is the shortest first wait.
	MinRetryInitial = time.Millisecond
)

// Waits between free tries.
const (
	freeInitial = 10 * time.Millisecond
	freeMax     = 500 * time.Millisecond
)

// RetryConfig configures [Retry]. The zero value means the defaults.
type RetryConfig struct {
	// Initial is the first wait, give or take half; each later one is twice as
	// long. At least 1 ms (MinRetryInitial). Defaults to 100 ms
	// (DefaultRetryInitial).
	Initial time.Duration
	// Max is the longest wait. Defaults to 5 s (DefaultRetryMax).
	Max time.Duration
	// Budget is the time from the first failed attempt to the start of the last
	// one; what is spent on waiting for the database does not count. Defaults to
	// 30 s (DefaultRetryBudget).
	Budget time.Duration
	// MaxAttempts bounds the attempts of one delivery; 1 means no retry.
	// Defaults to 0: no bound but the budget.
	MaxAttempts int
	// FreeTries is how many conflicts between transactions, and connections
	// lost while the handler ran, are no attempts, for one delivery. Defaults to
	// 20 (DefaultFreeTries).
	FreeTries int
}

func (c RetryConfig) withDefaults() RetryConfig {
	if c.Initial == 0 {
		c.Initial = DefaultRetryInitial
	}
	if c.Max == 0 {
		c.Max = DefaultRetryMax
	}
	if c.Budget == 0 {
		c.Budget = DefaultRetryBudget
	}
	if c.FreeTries == 0 {
		c.FreeTries = DefaultFreeTries
	}
	return c
}

func (c RetryConfig) faults() []error {
	var faults []error
	add := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.Initial < MinRetryInitial {
		add("Initial: %s is below %s", c.Initial, MinRetryInitial)
	}
	if c.Max < c.Initial {
		add("Max: %s is below Initial, %s", c.Max, c.Initial)
	}
	if c.Budget < 0 {
		add("Budget: %s is negative", c.Budget)
	}
	if c.MaxAttempts < 0 {
		add("MaxAttempts: %d is negative", c.MaxAttempts)
	}
	if c.FreeTries < 0 {
		add("FreeTries: %d is negative", c.FreeTries)
	}
	return faults
}

// Retry runs the work inside until it succeeds, its attempts are used up
// ([ExhaustedError]) or the message's context ends ([InterruptedError]). Each try
// is given the message as it was received, in copies of payload and metadata, and
// it is that message again when Retry returns. What a failure means:
//
//   - The context is done: a shutdown or a revoked delivery. Returned at once,
//     nothing is counted.
//   - The handler was not reached ([AttemptError].Ran is false): the database is
//     away. No attempt: tried again for as long as the context lives, with waits
//     up to 5 s and a log line for each.
//   - A conflict, or the inbox's connection lost under the handler: no attempt
//     either, and tried again soon, but only FreeTries times. A statement that
//     kills its connection each time is to end somewhere.
//   - Permanent ([schema.IsPermanent]): the last attempt.
//   - Everything else, a panic included: an attempt. Hooks are told.
//
// A [Redrive] has one attempt and does not wait for the database.
func Retry(receiver Receiver, cfg RetryConfig) (message.HandlerMiddleware, error) {
	receiver = receiver.withDefaults()
	cfg = cfg.withDefaults()
	if err := configError("retry", append(hookFaults(receiver.Hooks), cfg.faults()...)); err != nil {
		return nil, err
	}
	return (&retry{receiver, cfg, receiver.log()}).wrap, nil
}

type retry struct {
	receiver Receiver
	cfg      RetryConfig
	log      *slog.Logger
}

func (r *retry) wrap(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		received := originalOf(msg)
		t := r.newTries(msg)
		for received.ctx.Err() == nil {
			began := time.Now()
			produced, err := received.lend(h, msg)
			if err == nil {
				return produced, nil
			}
			wait, err := t.judge(err, time.Since(began))
			if err != nil {
				return nil, err
			}
			pause(received.ctx, wait)
		}
		return nil, interrupted(received.ctx, t.last)
	}
}

// tries is what is known about one delivery.
type tries struct {
	*retry
	msg      *message.Message
	redrive  bool
	attempts int
	free     int           // free tries left
	budget   time.Duration // left
	first    error         // of the attempts
	last     error         // of all tries

	waits, freeWaits, holdWaits *ladder
}

func (r *retry) newTries(msg *message.Message) *tries {
	_, redrive := redriven(msg.Context())
	return &tries{
		retry: r, msg: msg, redrive: redrive, free: r.cfg.FreeTries, budget: r.cfg.Budget,
		waits:     newLadder(r.cfg.Initial, r.cfg.Max),
		freeWaits: newLadder(freeInitial, freeMax),
		holdWaits: newLadder(holdInitial, holdMax),
	}
}

// judge returns how long to wait until the next try, or the error that ends
// them. took is how long the try that failed has taken.
func (t *tries) judge(err error, took time.Duration) (time.Duration, error) {
	t.last = err
	ctx := t.msg.Context()
	var a *AttemptError
	if !errors.As(err, &a) {
		a = &AttemptError{Ran: true, Err: err}
	}
	if a.Ran {
		t.holdWaits.reset()
	}
	lost := a.Ran && a.Class == schema.ErrorUnavailable
	switch {
	case ctx.Err() != nil:
		return 0, interrupted(ctx, err)
	case t.redrive && lost:
		return 0, err
	case t.takeFree(lost || isConflict(a)):
		return t.again(ctx, lost, err), nil
	case !a.Ran:
		return t.hold(ctx, err)
	}
	return t.count(err, took)
}

// isConflict tells whether a fresh transaction is expected to pass. A handler
// that calls a conflict permanent is believed.
func isConflict(a *AttemptError) bool {
	return a.Class == schema.ErrorConflict && !schema.IsPermanent(a)
}

// takeFree takes one of the free tries, if the try is to be free and one is left.
func (t *tries) takeFree(free bool) bool {
	if !free || t.free == 0 {
		return false
	}
	t.free--
	return true
}

// again is for a try that was free.
func (t *tries) again(ctx context.Context, lost bool, err error) time.Duration {
	wait := t.freeWaits.next()
	if lost {
		t.log.WarnContext(ctx, "database connection lost while handling a message", "message_id", t.msg.UUID,
			"wait", wait, "error", textOf(err, maxLineBytes))
	}
	return wait
}

// hold is for a try that did not reach the handler.
func (t *tries) hold(ctx context.Context, err error) (time.Duration, error) {
	if t.redrive {
		return 0, err
	}
	wait := t.holdWaits.next()
	t.log.WarnContext(ctx, "database unavailable, message held", "message_id", t.msg.UUID,
		"wait", wait, "error", textOf(err, maxLineBytes))
	return wait, nil
}

// count is for a try that was an attempt.
func (t *tries) count(err error, took time.Duration) (time.Duration, error) {
	t.attempts++
	if t.attempts == 1 {
		t.first, took = err, 0
	}
	wait := t.waits.next()
	t.budget -= took + wait
	last := t.redrive || t.attempts == t.cfg.MaxAttempts || t.budget < 0 || schema.IsPermanent(err)
	if last {
		wait = 0
	}
	failure := Failure{Delivery: t.receiver.delivery(t.msg), Attempt: t.attempts, Wait: wait, Err: err}
	notify(t.receiver.Hooks, func(h FailureHook) { h.OnFailure(failure) })
	if last {
		return 0, &ExhaustedError{Attempts: t.attempts, First: t.first, Last: err}
	}
	return wait, nil
}
