package forwarder

import (
	"context"
	"slices"

	"github.com/postbus-io/postbus/schema"
)

const (
	// minPerShard is how many records a claim takes of one shard when many
	// shards have some: few, so that a batch has many keys and few waves.
	minPerShard = 16
	// maxDueHolds bounds how many held lanes are tried in one turn.
	maxDueHolds = 200
	// maxPerHold bounds how many records of a held lane are tried in one turn.
	maxPerHold = 50
)

// read reads what is waiting and what is due behind holds, each at most Batch
// records, and tells how many it found. A waiting record of a held lane goes
// behind its hold, once, or along with it when the whole lane is due.
func (r *Relay) read(ctx context.Context, owned map[int]int64) (*batch, int, error) {
	ctx, cancel := r.asking(ctx)
	defer cancel()
	// In this order: a record that begins to wait after the claim is left to
	// the next one, behind all that is held now.
	claimed, err := r.claim(ctx, sortedShards(owned))
	if err != nil {
		return nil, 0, err
	}
	b := newBatch()
	held, err := r.readDue(ctx, b, owned)
	if err != nil {
		return nil, 0, err
	}
	for _, record := range claimed {
		epoch := owned[record.Shard]
		if l := b.index[record.Lane()]; r.holds.has(record.Lane()) && (l == nil || !l.all) {
			s := r.debts.settlement(record.Shard, epoch)
			s.Held = append(s.Held, record.ID)
			if hold, gone := r.holds.revive(record.Lane()); gone {
				s.Holds = append(s.Holds, hold)
			}
			continue
		}
		b.add(record, epoch)
	}
	for _, l := range b.lanes {
		l.sort()
	}
	return b, len(claimed) + held, nil
}

// claim reads waiting records. It begins with the shard at which the last full
// batch ended, so that none starves. When a shard had more than a claim takes
// of each while the batch was not full, the next claim takes more of each.
func (r *Relay) claim(ctx context.Context, shards []int) ([]schema.Record, error) {
	first, _ := slices.BinarySearch(shards, r.first)
	turned := slices.Concat(shards[first:], shards[:first])
	per := min(r.perShard, r.cfg.Batch)
	records, err := r.cfg.Source.Claim(ctx, turned, per, r.cfg.Batch)
	if err != nil {
		return nil, err
	}
	counts := map[int]int{}
	for _, record := range records {
		counts[record.Shard]++
	}
	switch {
	case len(records) >= r.cfg.Batch:
		r.first = records[len(records)-1].Shard
		if len(counts) == 1 {
			r.first++
		}
		r.perShard = max(minPerShard, r.perShard/2)
	case slices.ContainsFunc(shards, func(shard int) bool { return counts[shard] == per }):
		r.perShard = min(r.perShard*2, r.cfg.Batch)
	default:
		r.perShard = minPerShard
	}
	return records, nil
}

// readDue makes a lane of each hold that is due, of its oldest held records.
func (r *Relay) readDue(ctx context.Context, b *batch, owned map[int]int64) (int, error) {
	due := r.holds.takeDue(min(maxDueHolds, r.cfg.Batch))
	if len(due) == 0 {
		return 0, nil
	}
	perHold := min(maxPerHold, r.cfg.Batch/len(due))
	records, err := r.cfg.Source.Held(ctx, due, perHold)
	if err != nil {
		return 0, err
	}
	for _, hold := range due {
		b.addLane(&lane{key: hold.Lane, shard: hold.Shard, epoch: owned[hold.Shard], hold: &hold})
	}
	for _, record := range records {
		if l := b.index[record.Lane()]; l != nil {
			l.records = append(l.records, record)
			l.held++
		}
	}
	for _, l := range b.lanes {
		l.all = l.held < perHold
	}
	return len(records), nil
}
