package forwarder

import (
	"context"
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
	surplus int           // shards above the fair share
}

// renew takes over what the database says. The lease is counted from before
// the question was asked, so it ends here before it ends there.
func (t *tenure) renew(owned []schema.Shard, surplus int, until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.epochs = map[int]int64{}
	for _, s := range owned {
		t.epochs[s.ID] = s.Epoch
	}
	t.until, t.surplus = until, surplus
}

// drop forgets shards that were given back or lost.
func (t *tenure) drop(shards ...int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range shards {
		delete(t.epochs, s)
	}
	t.surplus = 0
}

// owned returns the shards that are owned now.
func (t *tenure) owned() map[int]int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	owned := map[int]int64{}
	if time.Now().Before(t.until) {
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

func (t *tenure) tooMany() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.surplus
}

// keepTenure sends heartbeats until ctx ends.
func (r *Relay) keepTenure(ctx context.Context) {
	ticker := time.NewTicker(r.cfg.Heartbeat)
	defer ticker.Stop()
	for {
		r.beat(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// beat renews the lease and takes shards up to the fair share. It is bounded
// by the lease: a server that does not answer must not stop the next beat.
func (r *Relay) beat(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Lease/2)
	defer cancel()
	r.ownership.Lock()
	defer r.ownership.Unlock()
	asked := time.Now()
	seen, err := r.cfg.Source.Heartbeat(ctx, r.owner, r.cfg.Lease)
	if err != nil {
		r.complain(ctx, "heartbeat", err)
		return
	}
	share := (seen.Shards + seen.Relays - 1) / seen.Relays
	if missing := share - len(seen.Owned); missing > 0 {
		taken, err := r.cfg.Source.Acquire(ctx, r.owner, missing)
		if err != nil {
			r.complain(ctx, "acquire shards", err)
		}
		seen.Owned = append(seen.Owned, taken...)
	}
	r.tenure.renew(seen.Owned, len(seen.Owned)-share, asked.Add(r.cfg.Lease))
	r.readyOnce.Do(func() { close(r.ready) })
	r.Wake()
}
