package middleware

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Waits for a database that is away.
const (
	holdInitial = 100 * time.Millisecond
	holdMax     = 5 * time.Second
)

// A ladder is a growing row of waits with jitter: each between half and one and
// a half of a step, no longer than the last one, the next step twice as high.
type ladder struct{ b backoff.ExponentialBackOff }

func newLadder(initial, most time.Duration) *ladder {
	return &ladder{backoff.ExponentialBackOff{
		InitialInterval: initial, MaxInterval: most, Multiplier: 2, RandomizationFactor: 0.5,
	}}
}

func (l *ladder) next() time.Duration { return min(l.b.NextBackOff(), l.b.MaxInterval) }

func (l *ladder) reset() { l.b.Reset() }

// pause waits for d, or until ctx ends and then returns false.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}
