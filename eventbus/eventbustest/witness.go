package eventbustest

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/postbus-io/postbus/schema"
)

// A witness works on messages as services do, each in a goroutine of its own,
// and remembers what must not be: two members with messages of one key, or a
// message of a key handed out before an earlier one.
type witness struct {
	// serial: through Intake. A key has one message in hand, whoever's, and is
	// done with in order.
	serial bool

	mu         sync.Mutex
	order      map[string][]string // ids by key as published
	handedOut  map[string]int      // by key, how many of its messages
	done       map[string]bool
	left       int
	holds      map[string][]hold // by key
	inHand     int
	mostAtOnce int
	faults     []string
}

// A hold is a message that a member has in hand.
type hold struct {
	member string
	msg    *message.Message
}

func newWitness(serial bool) *witness {
	return &witness{
		serial: serial, order: map[string][]string{},
		handedOut: map[string]int{}, done: map[string]bool{}, holds: map[string][]hold{},
	}
}

// expect is to be called before the messages are published.
func (w *witness) expect(batches [][]*message.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, batch := range batches {
		for _, msg := range batch {
			w.order[schema.Key(msg)] = append(w.order[schema.Key(msg)], msg.UUID)
		}
		w.left += len(batch)
	}
}

// spins is how long a message is kept in hand at most, in turns of the
// scheduler.
const spins = 1000

// work takes messages for a member until the subscription ends; when all of
// them are done with, too, the returned channel is closed. Messages are kept in
// hand for a while, in the hope that atOnce of them are.
func (w *witness) work(msgs <-chan *message.Message, member string, atOnce int) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var working sync.WaitGroup
		for msg := range msgs {
			w.take(member, msg)
			working.Go(func() {
				for i := 0; i < spins && !w.crowded(atOnce); i++ {
					runtime.Gosched()
				}
				w.finish(member, msg)
			})
		}
		working.Wait()
	}()
	return ended
}

func (w *witness) crowded(atOnce int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.inHand >= atOnce
}

func (w *witness) take(member string, msg *message.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := schema.Key(msg)
	for _, other := range w.holds[key] {
		if (w.serial || other.member != member) && other.msg.Context().Err() == nil {
			w.fault("%s got %s while %s had %s", member, msg.UUID, other.member, other.msg.UUID)
		}
	}
	switch i := slices.Index(w.order[key], msg.UUID); {
	case i < 0:
		w.fault("%s got %s, which was not published", member, msg.UUID)
	case i > w.handedOut[key]:
		w.fault("%s got number %d of %s before number %d", member, i, key, w.handedOut[key])
	case i == w.handedOut[key]:
		w.handedOut[key]++
	}
	w.holds[key] = append(w.holds[key], hold{member, msg})
	w.inHand++
	w.mostAtOnce = max(w.mostAtOnce, w.inHand)
}

// finish notes the message as done and acks it, unless its delivery is over.
func (w *witness) finish(member string, msg *message.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := schema.Key(msg)
	w.holds[key] = slices.DeleteFunc(w.holds[key], func(h hold) bool { return h.msg == msg })
	w.inHand--
	if msg.Context().Err() != nil {
		return
	}
	if i := slices.Index(w.order[key], msg.UUID); w.serial && i > 0 && !w.done[w.order[key][i-1]] {
		w.fault("%s is done with number %d of %s before number %d", member, i, key, i-1)
	}
	if !w.done[msg.UUID] {
		w.done[msg.UUID] = true
		w.left--
	}
	msg.Ack()
}

func (w *witness) fault(format string, args ...any) {
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

// leaves tells whether at most n messages are not done.
func (w *witness) leaves(n int) func() bool {
	return func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.left <= n
	}
}

func (w *witness) report(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.Empty(t, w.faults[:min(10, len(w.faults))], "%d faults", len(w.faults))
	assert.Zero(t, w.left, "messages that were not done")
}
