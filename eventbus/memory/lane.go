package memory

import (
	"container/heap"
	"slices"
	"time"
)

// A lane is what order is kept in: the messages of one key that a consumer has
// read and not acked, or one message without a key.
type lane struct {
	key      string
	queue    []int64 // offsets that are not handed out, ascending
	inFlight int
	holder   *member   // has the messages in flight
	retryAt  time.Time // a nacked message waits until then; zero: none does

	heap  *laneHeap // the heap that the lane is in, or nil
	index int
}

// pop takes the oldest offset off the queue.
func (l *lane) pop() int64 {
	offset := l.queue[0]
	l.queue = l.queue[1:]
	return offset
}

// giveBack puts an offset that was handed out back into its place.
func (l *lane) giveBack(offset int64) {
	i, _ := slices.BinarySearch(l.queue, offset)
	l.queue = slices.Insert(l.queue, i, offset)
}

// wait has the lane wait until t, or longer if it does already.
func (l *lane) wait(t time.Time) {
	if t.After(l.retryAt) {
		l.retryAt = t
	}
}

func (l *lane) leaveHeap() {
	if l.heap != nil {
		heap.Remove(l.heap, l.index)
	}
}

// A laneHeap has the least of its lanes first. A lane is in one heap at most.
type laneHeap struct {
	less  func(a, b *lane) bool
	lanes []*lane
}

func byHead(a, b *lane) bool { return a.queue[0] < b.queue[0] }

func byRetry(a, b *lane) bool { return a.retryAt.Before(b.retryAt) }

func (h *laneHeap) put(l *lane) { heap.Push(h, l) }

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
