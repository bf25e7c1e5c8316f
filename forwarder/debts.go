package forwarder

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/postbus-io/postbus/schema"
)

// markInterval is how long confirmed records wait for their mark while a batch
// goes on: what a kill makes the broker see twice.
const markInterval = 500 * time.Millisecond

// errNoResult is the cause when a publisher returns fewer results than it got
// messages.
var errNoResult = errors.New("the publisher gave no result for the message")

// debts are what the relay knows and the database does not yet. They are paid
// before anything else is read, so that nothing is sent twice without a crash
// and nothing passes a record that failed.
type debts struct {
	sent        []schema.Record
	marked      time.Time // when sent was last paid
	settlements map[int]*schema.Settlement
	// joined are the lanes that records of this turn were put behind.
	joined map[schema.Lane]bool
}

func newDebts() *debts {
	return &debts{marked: time.Now(), settlements: map[int]*schema.Settlement{}, joined: map[schema.Lane]bool{}}
}

// settlement returns what there is to write about a shard.
func (d *debts) settlement(shard int, epoch int64) *schema.Settlement {
	s := d.settlements[shard]
	if s == nil || s.Shard.Epoch != epoch {
		s = &schema.Settlement{Shard: schema.Shard{ID: shard, Epoch: epoch}}
		d.settlements[shard] = s
	}
	return s
}

// markSent tells the database what was sent.
func (r *Relay) markSent(ctx context.Context) error {
	r.debts.marked = time.Now()
	if len(r.debts.sent) == 0 {
		return nil
	}
	if err := r.cfg.Source.Sent(ctx, r.debts.sent); err != nil {
		return fmt.Errorf("mark %d sent records: %w", len(r.debts.sent), err)
	}
	if r.cfg.SentFunc != nil {
		r.cfg.SentFunc(r.debts.sent)
	}
	r.debts.sent = nil
	return nil
}

// pay writes all debts. What could not be written stays owed; what another
// relay's epoch forbids is dropped, with the shard.
func (r *Relay) pay(ctx context.Context) error {
	if err := r.markSent(ctx); err != nil {
		return err
	}
	for shard, s := range r.debts.settlements {
		err := r.cfg.Source.Settle(ctx, r.owner, *s)
		if errors.Is(err, schema.ErrFenced) {
			r.log.Warn("lease lost: another relay owns the shard", "shard", shard, "epoch", s.Shard.Epoch)
			r.tenure.drop(shard)
			err = nil
		}
		if err != nil {
			return err
		}
		delete(r.debts.settlements, shard)
	}
	clear(r.debts.joined)
	return nil
}

// maxReasonBytes bounds the error text that is stored with a record.
const maxReasonBytes = 2048

// bounded is the error's text, cut, without what a text column refuses.
func bounded(err error) string {
	text := []rune(err.Error())
	clean := make([]byte, 0, len(text))
	for _, c := range text {
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
