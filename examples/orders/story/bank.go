package story

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/postbus-io/postbus/examples/payments/charging"
)

// A moodyBank refuses an order as often as it was told to.
type moodyBank struct {
	mu    sync.Mutex
	moods map[string]int      // refusals left, by order
	keys  map[string][]string // the keys that it was asked with, by order
}

func newMoodyBank() *moodyBank {
	return &moodyBank{moods: map[string]int{}, keys: map[string][]string{}}
}

// refuse makes the bank refuse the order the next n times.
func (b *moodyBank) refuse(orderID string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.moods[orderID] = n
}

// asked returns how often the bank was asked for the order, and with how many
// different keys.
func (b *moodyBank) asked(orderID string) (times, keys int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	asked := slices.Sorted(slices.Values(b.keys[orderID]))
	return len(asked), len(slices.Compact(asked))
}

// Charge implements [charging.Bank].
func (b *moodyBank) Charge(_ context.Context, key string, p charging.Payment) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keys[p.OrderID] = append(b.keys[p.OrderID], key)
	if b.moods[p.OrderID] > 0 {
		b.moods[p.OrderID]--
		return errors.New("the bank does not answer")
	}
	return nil
}
