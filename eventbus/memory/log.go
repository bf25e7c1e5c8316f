package memory

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// An entry is one message of a log. It is immutable.
type entry struct {
	id      string
	key     string
	headers map[string]string
	payload []byte
	end     int64 // bytes of the log up to here, this entry included
}

func newEntry(msg *message.Message) entry {
	e := entry{id: msg.UUID, key: schema.Key(msg), headers: maps.Clone(msg.Metadata), payload: bytes.Clone(msg.Payload)}
	e.end = int64(len(e.id) + len(e.payload))
	for name, value := range e.headers {
		e.end += int64(len(name) + len(value))
	}
	return e
}

// message returns a copy that shares nothing with the entry.
func (e entry) message() *message.Message {
	msg := message.NewMessage(e.id, bytes.Clone(e.payload))
	maps.Copy(msg.Metadata, e.headers)
	return msg
}

// A topicLog is the messages of one topic by offset, which counts from 0, and
// the cursors of the consumers.
type topicLog struct {
	config Config
	id     string // of this log in this process, for the ids of messages without one

	mu        sync.Mutex
	entries   []entry
	first     int64 // offset of entries[0]
	firstByte int64 // bytes of the log before entries[0]
	cursors   map[string]*cursor
	room      chan struct{} // closed when a backlog has shrunk; nil while nobody waits
}

func newTopicLog(config Config) *topicLog {
	return &topicLog{config: config, id: watermill.NewULID(), cursors: map[string]*cursor{}}
}

// append adds a copy of msg. While the log is full it waits for room until ctx
// ends.
func (l *topicLog) append(ctx context.Context, msg *message.Message) error {
	e := newEntry(msg)
	for {
		room := l.tryAppend(e)
		if room == nil {
			return nil
		}
		select {
		case <-room:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrFull, context.Cause(ctx))
		}
	}
}

// tryAppend returns nil, or what is closed when to try again.
func (l *topicLog) tryAppend(e entry) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full(e.end) {
		if l.room == nil {
			l.room = make(chan struct{})
		}
		return l.room
	}
	e.end += l.byteAt(l.next())
	if e.id == "" {
		e.id = l.derivedID(l.next())
	}
	l.entries = append(l.entries, e)
	l.trim()
	for _, c := range l.cursors {
		c.wakeAll()
	}
	return nil
}

// derivedID names a message that came without an id: the same for every
// consumer and every redelivery, and never the id of another message, not even
// of one at the same offset in the log of another process, which an inbox may
// remember.
func (l *topicLog) derivedID(offset int64) string {
	return Kind + ":" + l.id + "/" + strconv.FormatInt(offset, 10)
}

// next returns the offset of the entry to come.
func (l *topicLog) next() int64 { return l.first + int64(len(l.entries)) }

func (l *topicLog) at(offset int64) entry { return l.entries[offset-l.first] }

// byteAt returns the bytes of the log before offset.
func (l *topicLog) byteAt(offset int64) int64 {
	if offset == l.first {
		return l.firstByte
	}
	return l.at(offset - 1).end
}

// floor returns the oldest offset that some consumer has not acked.
func (l *topicLog) floor() int64 {
	floor := l.next()
	for _, c := range l.cursors {
		floor = min(floor, c.committed)
	}
	return floor
}

// full tells whether an entry of size bytes has to wait.
func (l *topicLog) full(size int64) bool {
	floor, next := l.floor(), l.next()
	if floor == next {
		return false
	}
	return next-floor >= int64(l.config.MaxBacklog) ||
		l.byteAt(next)-l.byteAt(floor)+size > l.config.MaxBacklogBytes
}

// trim drops the oldest entries below the floor that the config does not keep.
func (l *topicLog) trim() {
	floor := l.floor()
	end := l.byteAt(floor)
	for floor-l.first > int64(l.config.RetainEntries) || end-l.firstByte > l.config.RetainBytes {
		l.firstByte = l.entries[0].end
		l.entries[0] = entry{}
		l.entries = l.entries[1:]
		l.first++
	}
}

// progressed is called when a cursor has moved.
func (l *topicLog) progressed() {
	l.trim()
	if l.room != nil {
		close(l.room)
		l.room = nil
	}
}

// cursor returns the consumer's, which from now on keeps what it has not acked.
func (l *topicLog) cursor(consumer string) *cursor {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.cursors[consumer]
	if !ok {
		c = newCursor(l)
		l.cursors[consumer] = c
	}
	return c
}

// messages returns copies of all entries.
func (l *topicLog) messages() []*message.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	msgs := make([]*message.Message, 0, len(l.entries))
	for _, e := range l.entries {
		msgs = append(msgs, e.message())
	}
	return msgs
}

// backlog returns how many messages the consumer has not acked, all when it is
// not known.
func (l *topicLog) backlog(consumer string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c, ok := l.cursors[consumer]; ok {
		return int(l.next()-c.committed) - len(c.acked)
	}
	return len(l.entries)
}
