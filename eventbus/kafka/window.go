package kafka

import (
	"cmp"
	"slices"
	"time"

	"github.com/IBM/sarama"
)

// maxBehind bounds the acks of a partition that wait behind an older record
// that is not acked.
const maxBehind = 100_000

// An entry is a record that was read and is not acked, or whose ack is not
// marked.
type entry struct {
	record  *sarama.ConsumerMessage // nil when acked
	offset  int64
	key     string
	retryAt time.Time // a nacked one waits until then
	nacks   int
	place   *subscription // in whose window it has a place, or nil
}

// leave gives the record's place in the window up.
func (e *entry) leave() {
	if e.place != nil {
		<-e.place.places
		e.place = nil
	}
}

// A ledger is what was read from one partition and is not marked, oldest first.
// It is not safe for concurrent use.
type ledger struct {
	entries []*entry
	waiting []*entry // those that are in nobody's hands, oldest first
}

func (l *ledger) add(record *sarama.ConsumerMessage) {
	e := &entry{record: record, offset: record.Offset, key: keyOf(record)}
	l.entries = append(l.entries, e)
	l.waiting = append(l.waiting, e)
}

// room tells whether more may be read: what waits behind a nacked record of its
// key is bounded by the window, what is acked behind one that is not is bounded,
// too.
func (l *ledger) room(window int) bool {
	return len(l.waiting) < window && len(l.entries) < maxBehind
}

// A turn says what a partition is to do next.
type turn struct {
	deliver *entry        // the record to hand out, or nil
	place   *entry        // the record that first needs a place in the window, or nil
	retry   time.Duration // until a nacked record is due; forever: there is none
}

// forever is a wait that only a signal ends.
const forever = time.Duration(-1)

// turn looks at what waits, oldest first. A record behind one of its key waits
// for that one.
func (l *ledger) turn(sub *subscription, now time.Time) turn {
	t := turn{retry: forever}
	held := map[string]bool{}
	for _, e := range l.waiting {
		if e.key != "" && held[e.key] {
			continue
		}
		switch due := e.retryAt.Sub(now); {
		case due > 0:
			held[e.key] = true
			if t.retry == forever || due < t.retry {
				t.retry = due
			}
		case e.place == sub:
			t.deliver = e
			return t
		default:
			held[e.key] = true
			t.place = cmp.Or(t.place, e)
		}
	}
	return t
}

// take takes a record out to hand it over.
func (l *ledger) take(e *entry) {
	i := slices.Index(l.waiting, e)
	l.waiting = slices.Delete(l.waiting, i, i+1)
}

// giveBack puts a record back that was not acked, into its place.
func (l *ledger) giveBack(e *entry) {
	i, _ := slices.BinarySearchFunc(l.waiting, e, func(a, b *entry) int { return cmp.Compare(a.offset, b.offset) })
	l.waiting = slices.Insert(l.waiting, i, e)
}

// nack puts a record back that is due at the time, its key behind it.
func (l *ledger) nack(e *entry, retryAt time.Time) {
	e.retryAt = retryAt
	e.nacks++
	l.giveBack(e)
}

// ack takes an ack. When the oldest records are all acked it lets them go and
// returns the offset that the partition goes on at.
func (l *ledger) ack(e *entry) (next int64, moved bool) {
	e.record = nil
	n := 0
	for n < len(l.entries) && l.entries[n].record == nil {
		next = l.entries[n].offset + 1
		l.entries[n] = nil
		n++
	}
	l.entries = l.entries[n:]
	return next, n > 0
}
