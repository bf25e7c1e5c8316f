package forwarder

import (
	"cmp"
	"slices"

	"github.com/postbus-io/postbus/schema"
)

// A batch is what one turn of the relay sends: records by lane, each lane in
// the order of ids.
type batch struct {
	lanes []*lane
	index map[schema.Lane]*lane

	confirmed int             // how many records the broker has taken
	refused   map[string]bool // topics that take nothing in this turn
	stopped   bool            // nothing is taken in this turn
	fault     error           // the first reason for one of both
}

// A lane is the records of one key of a batch.
type lane struct {
	key     schema.Lane
	shard   int
	epoch   int64
	records []schema.Record // un-sent, oldest first
	hold    *schema.Hold    // the hold that is being drained, nil if none
	held    int             // draining: how many records were read from behind it
	all     bool            // draining: none is held beyond these
	failed  bool            // the first of records could not be sent
}

func newBatch() *batch {
	return &batch{index: map[schema.Lane]*lane{}, refused: map[string]bool{}}
}

func (b *batch) addLane(l *lane) {
	b.lanes = append(b.lanes, l)
	b.index[l.key] = l
}

// add appends a waiting record to its lane.
func (b *batch) add(r schema.Record, epoch int64) {
	key := r.Lane()
	if b.index[key] == nil {
		b.addLane(&lane{key: key, shard: r.Shard, epoch: epoch})
	}
	l := b.index[key]
	l.records = append(l.records, r)
}

// sort puts the lanes into the order of ids: a lane that is being drained has
// its held records first, then the waiting ones.
func (l *lane) sort() {
	slices.SortStableFunc(l.records, func(a, b schema.Record) int { return cmp.Compare(a.ID, b.ID) })
}

// wave returns the lanes that can send their first record now: those with
// something left, nothing failed, and a shard that is still the relay's own.
func (b *batch) wave(owned map[int]int64) []*lane {
	if b.stopped {
		return nil
	}
	var ready []*lane
	for _, l := range b.lanes {
		if len(l.records) > 0 && !l.failed && !b.refused[l.key.Topic] && owned[l.shard] == l.epoch {
			ready = append(ready, l)
		}
	}
	return ready
}

// refuse ends the turn of a topic: it says nothing about its records.
func (b *batch) refuse(topic string, err error) {
	b.refused[topic] = true
	b.blame(err)
}

// stop ends the turn.
func (b *batch) stop(err error) {
	b.stopped = true
	b.blame(err)
}

func (b *batch) blame(err error) {
	if b.fault == nil {
		b.fault = err
	}
}

// byTopic returns the places by topic of the lanes that have something to send:
// a record that cannot be read as a message is not.
func byTopic(wave []*lane) map[string][]int {
	topics := map[string][]int{}
	for i, l := range wave {
		if l.records[0].Fault == "" {
			topics[l.key.Topic] = append(topics[l.key.Topic], i)
		}
	}
	return topics
}
