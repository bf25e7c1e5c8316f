package story

import (
	"sync/atomic"

	"github.com/postbus-io/postbus/middleware"
	"github.com/postbus-io/postbus/schema"
)

// A tally counts what the two buses report, as a service would for its metrics.
// It is a hook of theirs.
type tally struct{ relayed, suppressed, retries, deadLetters atomic.Int64 }

// OnFailure implements [middleware.FailureHook].
func (t *tally) OnFailure(f middleware.Failure) {
	if f.Wait > 0 {
		t.retries.Add(1)
	}
}

// OnSkip implements [middleware.SkipHook].
func (t *tally) OnSkip(schema.Delivery, schema.Verdict) { t.suppressed.Add(1) }

// OnBury implements [middleware.BuryHook].
func (t *tally) OnBury(schema.DeadLetter) { t.deadLetters.Add(1) }

// sent is for [eventbus.WithSentFunc].
func (t *tally) sent(records []schema.Record) { t.relayed.Add(int64(len(records))) }
