package forwarder

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/postbus-io/postbus/schema"
)

// tenure is what the relay owns and until when. The heartbeat writes it, the
// relay's one loop reads it before each wave.
type tenure struct {
	mu      sync.Mutex
	epochs  map[int]int64 // shard -> epoch
	until   time.Time     // by this process's monotonic clock
	margin  time.Duration // nothing is begun so shortly before until
	surplus int           // shards above the fair share
}

// renew takes over what the database says, and tells whether it gives the loop
// something to do. The lease is counted from before the question was asked, so
// it ends here before it ends there.
func (t *tenure) renew(owned []schema.Shard, surplus int, until time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, idle := t.epochs, time.Until(t.until) <= t.margin
	t.epochs = map[int]int64{}
	for _, s := range owned {
		t.epochs[s.ID] = s.Epoch
	}
	t.until, t.surplus = until, surplus
	return idle || surplus > 0 || !maps.Equal(before, t.epochs)
}

// release forgets shards that were given back.
func (t *tenure) release(shards []int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, shard := range shards {
		delete(t.epochs, shard)
	}
	t.surplus = 0
}

// lose forgets a shard that another relay has taken, unless it is owned again.
func (t *tenure) lose(s schema.Shard) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.epochs[s.ID] == s.Epoch {
		delete(t.epochs, s.ID)
	}
}

// owned returns the shards that are owned now, and for a while yet, with their
// epochs.
func (t *tenure) owned() map[int]int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	owned := map[int]int64{}
	if time.Until(t.until) > t.margin {
		for shard, epoch := range t.epochs {
			owned[shard] = epoch
		}
	}
	return owned
}

// end returns when the lease is over.
func (t *tenure) end() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.until
}

// lapsed tells whether there was a lease and it is over.
func (t *tenure) lapsed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.until.IsZero() && !time.Now().Before(t.until)
}

// tooMany returns the shards above the fair share, those with the highest ids.
func (t *tenure) tooMany() []int {
	owned := sortedShards(t.owned())
	t.mu.Lock()
	defer t.mu.Unlock()
	return owned[len(owned)-max(0, min(t.surplus, len(owned))):]
}

func sortedShards(owned map[int]int64) []int {
	shards := make([]int, 0, len(owned))
	for shard := range owned {
		shards = append(shards, shard)
	}
	slices.Sort(shards)
	return shards
}

// keepTenure sends heartbeats until stop is closed. One that is under way then
// comes to its end, so that none arrives after the relay has left.
func (r *Relay) keepTenure(work context.Context, stop <-chan struct{}) {
	ticker := time.NewTicker(r.cfg.Heartbeat)
	defer ticker.Stop()
	for {
		r.beat(work)
		select {
		case <-stop:
			return
		case <-work.Done():
			return
		case <-ticker.C:
		}
	}
}

// beat renews the lease and takes shards up to the fair share. It is bounded
// by the lease: a server that does not answer must not stop the next beat.
func (r *Relay) beat(work context.Context) {
	ctx, done, err := r.askOwnership(work)
	if err != nil {
		r.complain(work, "keep shards", err)
		return
	}
	defer done()
	until := time.Now().Add(r.cfg.Lease)
	seen, err := r.cfg.Source.Heartbeat(ctx, r.owner, r.cfg.Lease)
	if err == nil && r.tenure.lapsed() {
		seen.Owned, err = nil, r.startAnew(ctx, seen.Owned)
	}
	if err != nil {
		r.complain(work, "keep shards", err)
		return
	}
	share := (seen.Shards + seen.Relays - 1) / max(seen.Relays, 1)
	owned, err := r.takeShare(ctx, seen.Owned, share)
	if r.tenure.renew(owned, len(owned)-share, until) {
		r.Wake()
	}
	if err != nil {
		r.complain(work, "take shards", err)
		return
	}
	r.readyOnce.Do(func() { close(r.ready) })
}

// startAnew gives back what the relay still owned when its lease was over: at
// the very moment of a late heartbeat another relay may be taking it, unseen.
func (r *Relay) startAnew(ctx context.Context, owned []schema.Shard) error {
	r.log.Warn("lease was over before a heartbeat was answered: shards are taken anew", "shards", len(owned))
	shards := make([]int, len(owned))
	for i, s := range owned {
		shards[i] = s.ID
	}
	return r.cfg.Source.Release(ctx, r.owner, shards)
}

// takeShare adds free shards to what is owned, up to the share.
func (r *Relay) takeShare(ctx context.Context, owned []schema.Shard, share int) ([]schema.Shard, error) {
	if len(owned) >= share {
		return owned, nil
	}
	taken, err := r.cfg.Source.Acquire(ctx, r.owner, share-len(owned))
	return append(owned, taken...), err
}

// giveBack releases what is above the fair share. Nothing is in flight.
func (r *Relay) giveBack(work context.Context) error {
	if len(r.tenure.tooMany()) == 0 {
		return nil // without a wait for the heartbeat
	}
	ctx, done, err := r.askOwnership(work)
	if err != nil {
		return err
	}
	defer done()
	back := r.tenure.tooMany()
	if err := r.cfg.Source.Release(ctx, r.owner, back); err != nil {
		return err
	}
	r.tenure.release(back)
	return nil
}

// askOwnership waits for its turn to ask the database about who owns what, and
// returns the context to ask with and what to call afterwards.
func (r *Relay) askOwnership(work context.Context) (context.Context, func(), error) {
	ctx, cancel := context.WithTimeout(work, r.cfg.Lease/2)
	select {
	case r.ownership <- struct{}{}:
		return ctx, func() { cancel(); <-r.ownership }, nil
	case <-ctx.Done():
		cancel()
		return nil, nil, context.Cause(ctx)
	}
}
