package forwarder

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/postbus-io/postbus/schema"
)

// debts are what the relay knows and the database does not yet. They are paid
// before anything else is read, so that nothing is sent twice without a crash
// and nothing passes a record that failed.
type debts struct {
	sent        []schema.Record
	settlements map[schema.Shard]*schema.Settlement
}

func newDebts() *debts {
	return &debts{settlements: map[schema.Shard]*schema.Settlement{}}
}

// settlement returns what there is to write about a shard.
func (d *debts) settlement(shard int, epoch int64) *schema.Settlement {
	key := schema.Shard{ID: shard, Epoch: epoch}
	if d.settlements[key] == nil {
		d.settlements[key] = &schema.Settlement{Shard: key}
	}
	return d.settlements[key]
}

// pay writes all debts. What could not be written stays owed; what another
// relay's epoch forbids is dropped, with the shard.
func (r *Relay) pay(ctx context.Context) error {
	ctx, cancel := r.asking(ctx)
	defer cancel()
	if err := r.markSent(ctx); err != nil {
		return err
	}
	for shard, s := range r.debts.settlements {
		err := r.cfg.Source.Settle(ctx, r.owner, *s)
		if errors.Is(err, schema.ErrFenced) {
			r.log.Warn("lease lost: another relay owns the shard", "shard", shard.ID, "epoch", shard.Epoch)
			r.tenure.lose(shard)
			r.holds.leave(shard.ID)
			err = nil
		}
		if err != nil {
			return err
		}
		delete(r.debts.settlements, shard)
	}
	return nil
}

// markSent tells the database what was sent.
func (r *Relay) markSent(ctx context.Context) error {
	sent := r.debts.sent
	if len(sent) == 0 {
		return nil
	}
	if err := r.cfg.Source.Sent(ctx, sent); err != nil {
		return fmt.Errorf("mark %d sent records: %w", len(sent), err)
	}
	r.debts.sent = nil
	r.tellSent(sent)
	return nil
}

func (r *Relay) tellSent(records []schema.Record) {
	if r.cfg.SentFunc == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("SentFunc panicked", "panic", p)
		}
	}()
	r.cfg.SentFunc(records)
}

// maxReasonBytes bounds the error text that is stored with a record.
const maxReasonBytes = 2048

// bounded is the error's text, cut, without what a text column refuses.
func bounded(err error) string {
	var clean []byte
	for _, c := range err.Error() { // invalid UTF-8 comes as utf8.RuneError
		if c == 0 {
			c = utf8.RuneError
		}
		if len(clean)+utf8.RuneLen(c) > maxReasonBytes {
			break
		}
		clean = utf8.AppendRune(clean, c)
	}
	return string(clean)
}
