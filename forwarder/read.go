package forwarder

import (
	"context"

	"github.com/postbus-io/postbus/schema"
)

const (
	// minPerShard is how many records a claim takes of one shard when many
	// shards have some: few, so that a batch has many keys and few waves.
	minPerShard = 16
	// maxDueHolds bounds how many held lanes are tried in one turn.
	maxDueHolds = 200
	// perHold bounds how many records of a held lane are tried in one turn.
	perHold = 50
)

// read reads what is waiting and what is due behind holds. Waiting records of
// a held lane go behind its hold: each is met once.
func (r *Relay) read(ctx context.Context, owned map[int]int64) (*batch, int, error) {
	b := newBatch()
	claimed, err := r.claim(ctx, sortedShards(owned))
	if err != nil {
		return nil, 0, err
	}
	for _, record := range claimed {
		if lane := record.Lane(); r.holds.has(lane) {
			s := r.debts.settlement(record.Shard, owned[record.Shard])
			s.Held = append(s.Held, record.ID)
			r.debts.joined[lane] = true
			continue
		}
		b.add(record, owned[record.Shard])
	}
	found, err := r.readDue(ctx, b, owned)
	return b, len(claimed) + found, err
}

// claim reads waiting records. Shards take turns in being first. When shards
// had more than a claim takes of each while the batch was not full, the next
// claim takes more of each.
func (r *Relay) claim(ctx context.Context, shards []int) ([]schema.Record, error) {
	r.first %= len(shards)
	turned := append(append([]int{}, shards[r.first:]...), shards[:r.first]...)
	per := min(r.perShard, r.cfg.Batch)
	records, err := r.cfg.Source.Claim(ctx, turned, per, r.cfg.Batch)
	if err != nil {
		return nil, err
	}
	counts := map[int]int{}
	full := false
	for _, record := range records {
		counts[record.Shard]++
		full = full || counts[record.Shard] == per
	}
	switch {
	case len(records) >= r.cfg.Batch:
		r.first = max(r.first+len(counts)-1, r.first+1)
	case full:
		r.perShard = min(r.perShard*2, r.cfg.Batch)
	default:
		r.perShard = minPerShard
	}
	return records, nil
}

// readDue adds the held records of lanes that are due.
func (r *Relay) readDue(ctx context.Context, b *batch, owned map[int]int64) (int, error) {
	due := r.holds.dueHolds(maxDueHolds)
	if len(due) == 0 {
		return 0, nil
	}
	records, err := r.cfg.Source.Held(ctx, due, perHold)
	if err != nil {
		return 0, err
	}
	for _, hold := range due {
		epoch, ok := owned[hold.Shard]
		if !ok {
			continue
		}
		l := &lane{key: hold.Lane, shard: hold.Shard, epoch: epoch, hold: &hold}
		b.lanes = append(b.lanes, l)
		b.index[hold.Lane] = l
	}
	for _, record := range records {
		if l := b.index[record.Lane()]; l != nil {
			l.records = append(l.records, record)
		}
	}
	for _, l := range b.lanes {
		l.all = len(l.records) < perHold
	}
	return len(records), nil
}
