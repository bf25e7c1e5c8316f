package rabbitmq

import (
	"container/heap"
	"context"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postbus-io/postbus/schema"
)

// An item is one delivery: it waits in its lane, is handed out, maybe several
// times, and leaves when it is acked or when its tap ends.
type item struct {
	delivery amqp.Delivery
	tap      *tap
	lane     *lane
	seq      uint64 // the order of arrival
	arrived  time.Time
	nacks    int
	inHand   bool

	msg    *message.Message        // the copy that is, or is next, handed out
	cancel context.CancelCauseFunc // of its context
}

// prepare makes the copy to hand out, unless there is one.
func (i *item) prepare(ctx context.Context) {
	if i.msg != nil {
		return
	}
	i.msg = unmarshal(&i.delivery)
	ctx, i.cancel = context.WithCancelCause(ctx)
	i.msg.SetContext(ctx)
}

// release ends the copy's context.
func (i *item) release(cause error) {
	if i.msg != nil {
		i.cancel(cause)
		i.msg, i.cancel = nil, nil
	}
}

// A lane is what order is kept in: the items of one key that have arrived and
// are not acked, or one item without a key.
type lane struct {
	key      string
	queue    []*item // those that are not handed out, in their order
	inFlight int
	retryAt  time.Time // a nacked item waits until then; zero: none does

	heap  *laneHeap // the heap that the lane is in, or nil
	index int
}

// giveBack puts an item that was handed out back into its place.
func (l *lane) giveBack(i *item) {
	at, _ := slices.BinarySearchFunc(l.queue, i.seq, func(other *item, seq uint64) int {
		if other.seq < seq {
			return -1
		}
		return 1
	})
	l.queue = slices.Insert(l.queue, at, i)
}

// wait has the lane wait until t, or longer if it does already.
func (l *lane) wait(t time.Time) {
	if t.After(l.retryAt) {
		l.retryAt = t
	}
}

// A laneHeap has the least of its lanes first. A lane is in one heap at most.
type laneHeap struct {
	less  func(a, b *lane) bool
	lanes []*lane
}

func byHead(a, b *lane) bool { return a.queue[0].seq < b.queue[0].seq }

func byRetry(a, b *lane) bool { return a.retryAt.Before(b.retryAt) }

// first returns the least lane, or nil.
func (h *laneHeap) first() *lane {
	if len(h.lanes) == 0 {
		return nil
	}
	return h.lanes[0]
}

// Len, Less, Swap, Push and Pop are container/heap's.
func (h *laneHeap) Len() int           { return len(h.lanes) }
func (h *laneHeap) Less(i, j int) bool { return h.less(h.lanes[i], h.lanes[j]) }

func (h *laneHeap) Swap(i, j int) {
	h.lanes[i], h.lanes[j] = h.lanes[j], h.lanes[i]
	h.lanes[i].index, h.lanes[j].index = i, j
}

func (h *laneHeap) Push(x any) {
	l := x.(*lane)
	l.heap, l.index = h, len(h.lanes)
	h.lanes = append(h.lanes, l)
}

func (h *laneHeap) Pop() any {
	last := len(h.lanes) - 1
	l := h.lanes[last]
	h.lanes[last] = nil
	h.lanes = h.lanes[:last]
	l.heap = nil
	return l
}

// lanes are all of a subscription. They belong to one goroutine.
type lanes struct {
	byKey    map[string]*lane // a lane without a key is not in it
	ready    laneHeap         // with something to hand out
	waiting  laneHeap         // with a nacked item
	arrivals uint64
}

func newLanes() *lanes {
	return &lanes{byKey: map[string]*lane{}, ready: laneHeap{less: byHead}, waiting: laneHeap{less: byRetry}}
}

// place puts a lane that has changed where it belongs.
func (ls *lanes) place(l *lane) {
	if l.heap != nil {
		heap.Remove(l.heap, l.index)
	}
	switch {
	case len(l.queue) == 0:
		l.retryAt = time.Time{}
		if l.inFlight == 0 {
			delete(ls.byKey, l.key)
		}
	case !l.retryAt.IsZero():
		heap.Push(&ls.waiting, l)
	default:
		heap.Push(&ls.ready, l)
	}
}

// arrive puts a new item at the end of its lane.
func (ls *lanes) arrive(i *item) {
	key := headerText(i.delivery.Headers[schema.HeaderKey])
	l, ok := ls.byKey[key]
	if !ok {
		l = &lane{key: key}
		if key != "" {
			ls.byKey[key] = l
		}
	}
	ls.arrivals++
	i.seq, i.lane = ls.arrivals, l
	l.queue = append(l.queue, i)
	ls.place(l)
}

// next returns the item to hand out, nil when there is none.
func (ls *lanes) next() *item {
	if l := ls.ready.first(); l != nil {
		return l.queue[0]
	}
	return nil
}

// handOut takes the item that next returned out of its queue.
func (ls *lanes) handOut(i *item) {
	l := i.lane
	i.inHand = true
	l.inFlight++
	heap.Remove(&ls.ready, l.index)
	l.queue = l.queue[1:]
	ls.place(l)
}

// settle ends the flight of an item; retry is when to hand it out again, zero
// for never.
func (ls *lanes) settle(i *item, retry time.Time) {
	i.inHand = false
	i.lane.inFlight--
	if !retry.IsZero() {
		i.lane.wait(retry)
		i.lane.giveBack(i)
	}
	ls.place(i.lane)
}

// drop takes an item that is not in flight out of its lane.
func (ls *lanes) drop(i *item) {
	l := i.lane
	if l.heap != nil {
		heap.Remove(l.heap, l.index)
	}
	l.queue = slices.DeleteFunc(l.queue, func(other *item) bool { return other == i })
	ls.place(l)
}

// promote makes the lanes ready whose backoff is over.
func (ls *lanes) promote(now time.Time) {
	for l := ls.waiting.first(); l != nil && !l.retryAt.After(now); l = ls.waiting.first() {
		heap.Remove(&ls.waiting, l.index)
		l.retryAt = time.Time{}
		ls.place(l)
	}
}
