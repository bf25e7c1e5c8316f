package kafka

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// The pauses between attempts to reach a broker.
const (
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
)

// A pacer makes pauses that grow until reset. It is for one goroutine.
type pacer struct{ next time.Duration }

func (p *pacer) reset() { p.next = 0 }

// pause waits, unless ctx ends or somebody wakes it.
func (p *pacer) pause(ctx context.Context, wake <-chan struct{}) {
	p.next = min(max(2*p.next, minPause), maxPause)
	timer := time.NewTimer(p.next/2 + rand.N(p.next/2)) //nolint:gosec // jitter is no secret
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-timer.C:
	}
}

// maxNotices bounds the texts that a notice remembers.
const maxNotices = 100

// A notice logs what lasts once per interval.
type notice struct {
	log      *slog.Logger
	interval time.Duration

	mu   sync.Mutex
	said map[string]time.Time
}

func newNotice(log *slog.Logger, interval time.Duration) *notice {
	return &notice{log: log, interval: interval, said: map[string]time.Time{}}
}

// say logs the text with its fields unless it was logged less than an interval
// ago.
func (n *notice) say(level slog.Level, text string, fields ...any) {
	if n.due(text) {
		n.log.Log(context.Background(), level, text, fields...)
	}
}

func (n *notice) due(text string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if now.Sub(n.said[text]) < n.interval {
		return false
	}
	if len(n.said) >= maxNotices {
		clear(n.said)
	}
	n.said[text] = now
	return true
}

// over logs the text when one of the others was logged, and forgets them.
func (n *notice) over(text string, others ...string) {
	n.mu.Lock()
	said := false
	for _, other := range others {
		if _, ok := n.said[other]; ok {
			said = true
			delete(n.said, other)
		}
	}
	n.mu.Unlock()
	if said {
		n.log.Info(text)
	}
}
