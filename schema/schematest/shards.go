package schematest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// MembershipIsCounted checks that a heartbeat tells how many relays live and
// what is owned, by the database's clock, and each Acquire keeps to its bound.
func MembershipIsCounted(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	first := b.beat("first", time.Hour)
	assert.Equal(t, schema.Tenure{Relays: 1, Shards: schema.DefaultShards}, first)

	taken := b.acquire("first", 40)
	require.Len(t, taken, 40)
	assert.Empty(t, b.acquire("first", 0))
	assert.Equal(t, schema.Tenure{Relays: 2, Shards: schema.DefaultShards}, b.beat("second", time.Hour))
	assert.Len(t, b.acquire("second", schema.DefaultShards), schema.DefaultShards-40, "only free shards are given")
	assert.Empty(t, b.acquire("second", 1))

	again := b.beat("first", time.Hour)
	assert.Equal(t, 2, again.Relays)
	assert.Equal(t, sortedShards(taken), again.Owned, "owned by id, with the epochs that Acquire gave")

	b.eventually("a relay whose lease is over is not counted", func() bool {
		b.beat("second", time.Microsecond)
		return b.beat("first", time.Hour).Relays == 1
	})
}

// ShardsHaveOneOwner checks that relays that take shards at the same instant
// never get the same one.
func ShardsHaveOneOwner(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	const relays, rounds = 6, 6
	for round := range rounds {
		owners := make([]string, relays)
		for i := range owners {
			owners[i] = fmt.Sprintf("relay-%d-%d", round, i)
			b.beat(owners[i], time.Hour)
		}
		given := b.acquireAtOnce(owners, 1+round%3)
		seen := map[int]string{}
		for _, owner := range owners {
			for _, s := range given[owner] {
				require.Empty(t, seen[s.ID], "shard %d was given to %s, too", s.ID, owner)
				seen[s.ID] = owner
			}
			assert.Equal(t, sortedShards(given[owner]), b.beat(owner, time.Hour).Owned)
		}
		require.Len(t, seen, schema.DefaultShards, "every shard has an owner")
		for _, owner := range owners {
			require.NoError(t, b.d.Leave(b.ctx, owner))
		}
	}
}

// acquireAtOnce lets all owners take shards, a few a call, until none is left.
func (b testBundle) acquireAtOnce(owners []string, most int) map[string][]schema.Shard {
	b.t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var total atomic.Int64
	given, faults := map[string][]schema.Shard{}, make([]error, len(owners))
	for i, owner := range owners {
		wg.Go(func() {
			for total.Load() < schema.DefaultShards && b.ctx.Err() == nil {
				taken, err := b.d.Acquire(b.ctx, owner, most)
				if err != nil {
					faults[i] = err
					return
				}
				total.Add(int64(len(taken)))
				mu.Lock()
				given[owner] = append(given[owner], taken...)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.NoError(b.t, errors.Join(faults...))
	return given
}

// ShardsAreTakenOverAfterTheLease checks that while its lease lasts a relay
// keeps its shards, silent or not; after it anybody takes them, with higher
// epochs, and the old owner finds out at its next heartbeat.
func ShardsAreTakenOverAfterTheLease(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	old := b.own("old")
	b.beat("new", time.Hour)
	assert.Empty(t, b.acquire("new", schema.DefaultShards), "the lease of old has an hour to go")

	taken := b.takeOver("old", "new")
	for i, s := range sortedShards(taken) {
		assert.Equal(t, old[i].ID, s.ID)
		assert.Greater(t, s.Epoch, old[i].Epoch)
	}
	assert.Empty(t, b.beat("old", time.Hour).Owned)
	assert.Empty(t, b.acquire("old", schema.DefaultShards))

	// The same name after its own lease is another tenure.
	again := b.takeOver("new", "new")
	for i, s := range sortedShards(again) {
		assert.Greater(t, s.Epoch, sortedShards(taken)[i].Epoch)
	}
}

// ShardsAreGivenBack checks that released shards are free at once; what
// somebody else owns by now cannot be released; leaving forgets the relay.
func ShardsAreGivenBack(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	b.own("first")
	b.beat("second", time.Hour)
	for range 2 { // idempotent
		require.NoError(t, b.d.Release(b.ctx, "first", []int{3, 5}))
	}
	require.NoError(t, b.d.Release(b.ctx, "first", nil))
	taken := b.acquire("second", schema.DefaultShards)
	assert.Equal(t, []schema.Shard{{ID: 3, Epoch: 2}, {ID: 5, Epoch: 2}}, sortedShards(taken))

	require.NoError(t, b.d.Release(b.ctx, "first", allShards()[:10]))
	assert.Equal(t, sortedShards(taken), b.beat("second", time.Hour).Owned, "shards of second are not first's to release")
	assert.Len(t, b.beat("first", time.Hour).Owned, schema.DefaultShards-10)

	for range 2 { // idempotent
		require.NoError(t, b.d.Leave(b.ctx, "first"))
	}
	assert.Equal(t, 1, b.beat("second", time.Hour).Relays)
	assert.Len(t, b.acquire("second", schema.DefaultShards), schema.DefaultShards-2)
}

func (b testBundle) beat(owner string, lease time.Duration) schema.Tenure {
	b.t.Helper()
	tenure, err := b.d.Heartbeat(b.ctx, owner, lease)
	require.NoError(b.t, err)
	return tenure
}

func (b testBundle) acquire(owner string, most int) []schema.Shard {
	b.t.Helper()
	taken, err := b.d.Acquire(b.ctx, owner, most)
	require.NoError(b.t, err)
	return taken
}

// own makes owner the owner of all shards, which nobody owns yet, and returns
// them by id.
func (b testBundle) own(owner string) []schema.Shard {
	b.t.Helper()
	b.beat(owner, time.Hour)
	taken := b.acquire(owner, schema.DefaultShards)
	require.Len(b.t, taken, schema.DefaultShards)
	return sortedShards(taken)
}

// takeOver lets the lease of old end and gives all its shards to another, by
// id. The two may have one name.
func (b testBundle) takeOver(old, another string) []schema.Shard {
	b.t.Helper()
	b.beat(another, time.Hour)
	b.beat(old, time.Microsecond)
	var taken []schema.Shard
	b.eventually("the shards of "+old+" are free", func() bool {
		taken = append(taken, b.acquire(another, schema.DefaultShards)...)
		return len(taken) == schema.DefaultShards
	})
	b.beat(another, time.Hour)
	return sortedShards(taken)
}

func sortedShards(shards []schema.Shard) []schema.Shard {
	return slices.SortedFunc(slices.Values(shards), func(x, y schema.Shard) int { return x.ID - y.ID })
}
