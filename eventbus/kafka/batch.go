package kafka

import (
	"context"
	"slices"
	"sync"
)

// A batch collects the results of messages that are sent together.
type batch struct {
	mu      sync.Mutex
	results []error
	open    []bool
	left    int
	done    chan struct{} // closed: all have a result
}

func newBatch(n int) *batch {
	b := &batch{results: make([]error, n), open: make([]bool, n), left: n, done: make(chan struct{})}
	for i := range b.open {
		b.open[i] = true
	}
	return b
}

// A delivery is one message of a batch on its way.
type delivery struct {
	batch *batch
	index int
}

func (d *delivery) settle(err error) { d.batch.settle(d.index, err) }

// settle takes the result of a message, the first one if there are several.
func (b *batch) settle(i int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open[i] {
		return
	}
	b.open[i], b.results[i] = false, err
	if b.left--; b.left == 0 {
		close(b.done)
	}
}

// wait returns the results. When ctx ends first, its cause is the result of
// what has none.
func (b *batch) wait(ctx context.Context) []error {
	select {
	case <-b.done:
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	results := slices.Clone(b.results)
	for i, open := range b.open {
		if open {
			results[i] = context.Cause(ctx)
		}
	}
	return results
}
