package forwarder

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/postbus-io/postbus/schema"
)

// holds are the held lanes of the shards that the relay owns, as they stand in
// the database. Only the relay's one loop touches them.
type holds struct {
	lanes  map[schema.Lane]*held
	epochs map[int]int64 // the shards whose holds are known, and since which epoch
	read   time.Time
}

type held struct {
	hold   schema.Hold
	due    time.Time // by this process's monotonic clock; zero: never
	lifted bool      // the database was asked to lift it
}

func newHolds() *holds {
	return &holds{lanes: map[schema.Lane]*held{}, epochs: map[int]int64{}}
}

// holdsRefresh is how often the holds are read again, so that what a person
// changed in the table is seen.
const holdsRefresh = 10 * time.Second

// sync reads the holds of shards that are new to the relay, and forgets those
// of shards that it has lost. All debts are paid.
func (h *holds) sync(ctx context.Context, source schema.Source, owned map[int]int64) error {
	h.forgetShards(owned)
	var unknown []int
	for shard := range owned {
		if _, ok := h.epochs[shard]; !ok {
			unknown = append(unknown, shard)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	found, err := source.Holds(ctx, unknown)
	if err != nil {
		return err
	}
	for _, hold := range found {
		h.put(hold)
	}
	for _, shard := range unknown {
		h.epochs[shard] = owned[shard]
	}
	return nil
}

// forgetShards forgets the holds of shards that are not owned under the epoch
// of which they are known, and from time to time of all.
func (h *holds) forgetShards(owned map[int]int64) {
	if time.Since(h.read) > holdsRefresh {
		clear(h.epochs)
		h.read = time.Now()
	}
	for shard, epoch := range h.epochs {
		if owned[shard] != epoch {
			delete(h.epochs, shard)
		}
	}
	for lane, entry := range h.lanes {
		if _, ok := h.epochs[entry.hold.Shard]; !ok {
			delete(h.lanes, lane)
		}
	}
}

// leave makes the shard's holds unknown.
func (h *holds) leave(shard int) { delete(h.epochs, shard) }

// put holds a lane or changes when it is due.
func (h *holds) put(hold schema.Hold) {
	entry := &held{hold: hold}
	if hold.Retry != schema.Never {
		entry.due = time.Now().Add(max(hold.Retry, 0))
	}
	h.lanes[hold.Lane] = entry
}

func (h *holds) has(lane schema.Lane) bool { return h.lanes[lane] != nil }

// lift notes that the database is asked to lift the lane's hold.
func (h *holds) lift(lane schema.Lane) { h.lanes[lane].lifted = true }

// revive tells whether the lane's hold was lifted and is to be written again,
// due at once, because a record goes behind it: a held record without its hold
// would never be found again.
func (h *holds) revive(lane schema.Lane) (schema.Hold, bool) {
	entry := h.lanes[lane]
	if !entry.lifted {
		return schema.Hold{}, false
	}
	entry.lifted = false
	hold := entry.hold
	hold.Retry = 0
	return hold, true
}

func (h *holds) lifted(lane schema.Lane) bool { return h.lanes[lane].lifted }

func (h *holds) forget(lane schema.Lane) { delete(h.lanes, lane) }

// takeDue returns up to most holds that are due, those that waited longest
// first, and puts them behind the others that are due: none starves.
func (h *holds) takeDue(most int) []schema.Hold {
	now := time.Now()
	var due []*held
	for _, entry := range h.lanes {
		if !entry.due.IsZero() && !entry.due.After(now) {
			due = append(due, entry)
		}
	}
	slices.SortFunc(due, func(a, b *held) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.hold.Head, b.hold.Head))
	})
	taken := make([]schema.Hold, 0, min(most, len(due)))
	for _, entry := range due[:min(most, len(due))] {
		entry.due = now
		taken = append(taken, entry.hold)
	}
	return taken
}

// next returns how long until a hold is due, at most limit.
func (h *holds) next(limit time.Duration) time.Duration {
	for _, entry := range h.lanes {
		if !entry.due.IsZero() {
			limit = min(limit, time.Until(entry.due))
		}
	}
	return max(limit, 0)
}
