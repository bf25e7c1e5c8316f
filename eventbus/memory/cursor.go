package memory

import (
	"hash/maphash"
	"slices"
	"time"
)

// forever is the wait of a member that only a signal wakes.
const forever = time.Duration(-1)

// A cursor is how far one consumer is in one topic. It reads the log only as
// far as its members ask. The log's mutex guards it, its lanes and its members.
type cursor struct {
	log       *topicLog
	committed int64              // everything below is acked
	acked     map[int64]struct{} // offsets above committed that are acked
	next      int64              // everything below has been read into a lane
	nacks     map[int64]int      // by offset, until it is acked

	lanes   map[string]*lane // by key; a lane without a key is not in it
	loose   laneHeap         // lanes without a key: any member's
	waiting laneHeap         // lanes with a nacked message
	members []*member
}

func newCursor(l *topicLog) *cursor {
	return &cursor{
		log: l, committed: l.first, next: l.first,
		acked: map[int64]struct{}{}, nacks: map[int64]int{}, lanes: map[string]*lane{},
		loose: laneHeap{less: byHead}, waiting: laneHeap{less: byRetry},
	}
}

// A member is a subscription's side of the cursor.
type member struct {
	cursor   *cursor
	window   int
	seed     maphash.Seed
	inFlight int
	ready    laneHeap // lanes that are this member's to hand out
	wake     chan struct{}
}

// A delivery is one message that is handed out.
type delivery struct {
	lane   *lane
	member *member
	offset int64
	entry  entry
}

// An outcome is how a delivery ended.
type outcome int

const (
	outcomeAcked outcome = iota
	outcomeNacked
	outcomeReturned // the subscription ended first
)

// join adds a member; some keys become its own.
func (c *cursor) join(window int) *member {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	m := &member{
		cursor: c, window: window, seed: maphash.MakeSeed(),
		ready: laneHeap{less: byHead}, wake: make(chan struct{}, 1),
	}
	c.members = append(c.members, m)
	c.rebalance()
	return m
}

// leave removes a member that has nothing in flight; its keys become others'.
func (c *cursor) leave(m *member) {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	c.members = slices.DeleteFunc(c.members, func(other *member) bool { return other == m })
	c.rebalance()
}

func (c *cursor) rebalance() {
	for _, l := range c.lanes {
		c.place(l)
	}
	c.wakeAll()
}

func (c *cursor) wakeAll() {
	for _, m := range c.members {
		m.signal()
	}
}

// place puts a lane that has changed where it belongs.
func (c *cursor) place(l *lane) {
	l.leaveHeap()
	switch {
	case len(l.queue) == 0:
		if l.inFlight == 0 {
			delete(c.lanes, l.key)
		}
	case !l.retryAt.IsZero():
		c.waiting.put(l)
		c.wakeAll()
	case l.key == "":
		c.loose.put(l)
		c.wakeAll()
	default:
		if owner := c.owner(l.key); owner != nil && (l.inFlight == 0 || l.holder == owner) {
			owner.ready.put(l)
			owner.signal()
		}
	}
}

// owner returns the member that a key belongs to: the one with the highest
// hash of the key, so that a member that comes or goes moves only its own keys.
func (c *cursor) owner(key string) *member {
	var owner *member
	var highest uint64
	for _, m := range c.members {
		if h := maphash.String(m.seed, key); owner == nil || h > highest {
			owner, highest = m, h
		}
	}
	return owner
}

// read puts the next entry of the log into its lane; false at the log's end.
func (c *cursor) read() bool {
	if c.next == c.log.next() {
		return false
	}
	key := c.log.at(c.next).key
	l, ok := c.lanes[key]
	if !ok {
		l = &lane{key: key}
		if key != "" {
			c.lanes[key] = l
		}
	}
	l.queue = append(l.queue, c.next)
	c.next++
	if l.heap == nil {
		c.place(l)
	}
	return true
}

// promote puts the lanes back whose backoff is over.
func (c *cursor) promote(now time.Time) {
	for l := c.waiting.first(); l != nil && !l.retryAt.After(now); l = c.waiting.first() {
		l.retryAt = time.Time{}
		c.place(l)
	}
}

// untilRetry returns how long it is until promote has something to do.
func (c *cursor) untilRetry(now time.Time) time.Duration {
	if l := c.waiting.first(); l != nil {
		return l.retryAt.Sub(now)
	}
	return forever
}

// commit takes an ack and moves over the contiguous prefix.
func (c *cursor) commit(offset int64) {
	delete(c.nacks, offset)
	c.acked[offset] = struct{}{}
	if offset != c.committed {
		return
	}
	for {
		if _, ok := c.acked[c.committed]; !ok {
			break
		}
		delete(c.acked, c.committed)
		c.committed++
	}
	c.log.progressed()
}

func (m *member) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// take hands out the oldest message that the member may have now. Without one
// it returns nil and how long to wait, unless woken first.
func (m *member) take(now time.Time) (*delivery, time.Duration) {
	c := m.cursor
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	c.promote(now)
	if m.inFlight >= m.window {
		return nil, c.untilRetry(now)
	}
	l := m.first()
	for l == nil && c.read() {
		l = m.first()
	}
	if l == nil {
		return nil, c.untilRetry(now)
	}
	return m.handOut(l), 0
}

// first returns the lane with the oldest message among the member's own and
// those without a key, or nil.
func (m *member) first() *lane {
	own, loose := m.ready.first(), m.cursor.loose.first()
	if own == nil || loose != nil && byHead(loose, own) {
		return loose
	}
	return own
}

func (m *member) handOut(l *lane) *delivery {
	d := &delivery{lane: l, member: m, offset: l.pop()}
	d.entry = m.cursor.log.at(d.offset)
	l.holder = m
	l.inFlight++
	m.inFlight++
	m.cursor.place(l)
	return d
}

// settle ends a delivery, once.
func (d *delivery) settle(o outcome, now time.Time) {
	c, l := d.member.cursor, d.lane
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	l.inFlight--
	d.member.inFlight--
	switch o {
	case outcomeAcked:
		c.commit(d.offset)
	case outcomeNacked:
		c.nacks[d.offset]++
		l.wait(now.Add(c.log.config.backoff(c.nacks[d.offset])))
		l.giveBack(d.offset)
	case outcomeReturned:
		l.giveBack(d.offset)
	}
	c.place(l)
	d.member.signal()
}
