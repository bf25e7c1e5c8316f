//go:build slow

package kafka

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// A desk is a ledger, and what a claim does with it.
type desk struct {
	ledger
	sub *subscription
	now time.Time
}

func newDesk(window int) *desk {
	return &desk{sub: newSubscription(context.Background(), "topic", window), now: time.Unix(1, 0)}
}

func (d *desk) read(offset int64, key string) {
	record := &sarama.ConsumerMessage{Offset: offset}
	if key != "" {
		record.Headers = []*sarama.RecordHeader{{Key: []byte(schema.HeaderKey), Value: []byte(key)}}
	}
	d.add(record)
}

// hand hands out what it may, and returns the entries.
func (d *desk) hand() (out []*entry) {
	for {
		t := d.turn(d.sub, d.now)
		switch {
		case t.deliver != nil:
			d.take(t.deliver)
			out = append(out, t.deliver)
		case t.place != nil && len(d.sub.places) < cap(d.sub.places):
			d.sub.places <- struct{}{}
			t.place.place = d.sub
		default:
			return out
		}
	}
}

func offsets(entries []*entry) (offsets []int64) {
	for _, e := range entries {
		offsets = append(offsets, e.offset)
	}
	return offsets
}

func (d *desk) settle(e *entry) (int64, bool) {
	e.leave()
	return d.ack(e)
}

func TestLedger_H45_MarksTheContiguousPrefix(t *testing.T) {
	t.Parallel()
	d := newDesk(8)
	for _, offset := range []int64{5, 6, 9, 10} { // a log has gaps
		d.read(offset, "")
	}
	out := d.hand()
	require.Equal(t, []int64{5, 6, 9, 10}, offsets(out))
	_, moved := d.settle(out[2])
	assert.False(t, moved)
	_, moved = d.settle(out[1])
	assert.False(t, moved)
	next, moved := d.settle(out[0])
	assert.True(t, moved)
	assert.Equal(t, int64(10), next)
	next, moved = d.settle(out[3])
	assert.True(t, moved)
	assert.Equal(t, int64(11), next)
	assert.Empty(t, d.entries)
}

func TestLedger_WindowBoundsWhatIsOut(t *testing.T) {
	t.Parallel()
	d := newDesk(2)
	for offset := range int64(4) {
		d.read(offset, "")
	}
	out := d.hand()
	require.Equal(t, []int64{0, 1}, offsets(out))
	d.settle(out[1])
	require.Equal(t, []int64{2}, offsets(d.hand()))
	assert.True(t, d.room(2))
	d.read(4, "")
	assert.False(t, d.room(2), "two wait")
}

func TestLedger_NackHoldsTheKeyAndNoOther(t *testing.T) {
	t.Parallel()
	d := newDesk(4)
	d.read(0, "a")
	d.read(1, "b")
	out := d.hand()
	d.nack(out[0], d.now.Add(time.Second))
	d.read(2, "a")
	d.read(3, "b")
	require.Equal(t, []int64{3}, offsets(d.hand()), "a waits")
	assert.Equal(t, time.Second, d.turn(d.sub, d.now).retry)
	d.now = d.now.Add(time.Second)
	require.Equal(t, []int64{0, 2}, offsets(d.hand()))
}

// TestLedger_NackedOnesKeepTheirPlaces: one that is due again is not stuck
// behind one that has no place yet.
func TestLedger_NackedOnesKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	d := newDesk(2)
	d.read(0, "a")
	out := d.hand()
	d.nack(out[0], d.now.Add(time.Second))
	d.read(1, "a")
	d.read(2, "b")
	b := d.hand()
	require.Equal(t, []int64{2}, offsets(b))
	d.nack(b[0], d.now)
	require.Equal(t, []int64{2}, offsets(d.hand()))
	d.read(3, "c")
	require.Empty(t, d.hand(), "the window is full")
	d.now = d.now.Add(time.Second)
	a := d.hand()
	require.Equal(t, []int64{0}, offsets(a))
	d.nack(b[0], d.now)
	d.settle(a[0])
	require.Equal(t, []int64{2, 1}, offsets(d.hand()))
}

// TestLedger_H20_KeysKeepTheirOrder has random outcomes: no record is handed
// out for the first time before an earlier one of its key, nothing is lost, and
// the mark never passes what is not acked.
func TestLedger_H20_KeysKeepTheirOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // no secret
		d := newDesk(1 + random.IntN(6))
		const records = 200
		var out []*entry
		first, done, mark := map[string]int64{}, map[int64]bool{}, int64(0)
		for read := int64(0); len(done) < records; d.now = d.now.Add(time.Millisecond) {
			if read < records && d.room(cap(d.sub.places)) {
				d.read(read, fmt.Sprintf("key-%d", random.IntN(3)))
				read++
			}
			for _, e := range d.hand() {
				if e.nacks == 0 {
					last, seen := first[e.key]
					require.True(t, !seen || last < e.offset, "seed %d: %d after %d", seed, e.offset, last)
					first[e.key] = e.offset
				}
				out = append(out, e)
			}
			require.LessOrEqual(t, len(out), cap(d.sub.places))
			if len(out) == 0 {
				continue
			}
			i := random.IntN(len(out))
			e := out[i]
			out = append(out[:i], out[i+1:]...)
			if random.IntN(3) == 0 {
				d.nack(e, d.now.Add(time.Duration(random.IntN(5))*time.Millisecond))
				continue
			}
			done[e.offset] = true
			if next, moved := d.settle(e); moved {
				for ; mark < next; mark++ {
					require.True(t, done[mark], "seed %d: marked %d, %d is not acked", seed, next, mark)
				}
			}
		}
		require.Equal(t, int64(records), mark)
	}
}
