package forwarder_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// errRefused is a failure that no class is known of.
var errRefused = errors.New("refused")

// A try is one message on its way into the broker's log.
type try struct {
	ctx    context.Context //nolint:containedctx // an argument among arguments
	topic  string
	msg    *message.Message
	nth    int    // which try of this message it is, from 1
	accept func() // puts the message into the log: for answers that are lost
}

// is tells whether it is a try of the message.
func (t try) is(id string) bool { return t.msg.UUID == id }

// A broker is a log with faults on demand, and a witness.
type broker struct {
	t        *testing.T
	patience time.Duration
	decide   func(t try) error // nil accepts; set before a relay runs
	calls    sync.WaitGroup    // of publishers, also those that were left behind

	mu      sync.Mutex
	log     []entry
	content map[string]string // by id
	tries   map[string]int
	changed chan struct{} // closed with every entry
}

// An entry is a message in the log.
type entry struct {
	lane  schema.Lane
	id    string
	again bool // a repetition
	at    time.Time
}

func newBroker(t *testing.T, patience time.Duration) *broker {
	return &broker{
		t: t, patience: patience,
		content: map[string]string{}, tries: map[string]int{}, changed: make(chan struct{}),
	}
}

// latency is what a send takes: in a bubble no time would pass without.
const latency = time.Millisecond

func (b *broker) take(ctx context.Context, topic string, msg *message.Message) error {
	pass(latency)
	accept := func() { b.append(topic, msg) }
	if b.decide != nil {
		if err := b.decide(try{ctx: ctx, topic: topic, msg: msg, nth: b.count(msg.UUID), accept: accept}); err != nil {
			return err
		}
	}
	accept()
	return nil
}

func (b *broker) count(id string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tries[id]++
	return b.tries[id]
}

// append adds to the log, and checks that a repetition is the same in every
// byte.
func (b *broker) append(topic string, msg *message.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	content := fmt.Sprint(string(msg.Payload), msg.Metadata)
	before, again := b.content[msg.UUID]
	if again && before != content {
		b.t.Errorf("%s came again with other content: %s, first %s", msg.UUID, content, before)
	}
	b.content[msg.UUID] = content
	lane := schema.Lane{Topic: topic, Key: msg.Metadata.Get(schema.HeaderKey)}
	b.log = append(b.log, entry{lane: lane, id: msg.UUID, again: again, at: time.Now()})
	close(b.changed)
	b.changed = make(chan struct{})
}

// tried returns how often the message was tried.
func (b *broker) tried(id string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tries[id]
}

// ids returns the log, repetitions included.
func (b *broker) ids() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := []string{}
	for _, e := range b.log {
		ids = append(ids, e.id)
	}
	return ids
}

// of returns the log of one lane.
func (b *broker) of(topic, key string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := []string{}
	for _, e := range b.log {
		if e.lane == (schema.Lane{Topic: topic, Key: key}) {
			ids = append(ids, e.id)
		}
	}
	return ids
}

// firsts returns the first occurrences by lane.
func (b *broker) firsts() map[schema.Lane][]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	firsts := map[schema.Lane][]string{}
	for _, e := range b.log {
		if !e.again {
			firsts[e.lane] = append(firsts[e.lane], e.id)
		}
	}
	return firsts
}

// distinct is the number of messages in the log, repetitions aside.
func (b *broker) distinct() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.content)
}

// repeated is the number of repetitions in the log.
func (b *broker) repeated() int { return len(b.ids()) - b.distinct() }

// await waits until n different messages are in the log.
func (b *broker) await(n int) {
	b.t.Helper()
	deadline := time.After(b.patience)
	for {
		b.mu.Lock()
		changed, distinct := b.changed, len(b.content)
		b.mu.Unlock()
		if distinct >= n {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			b.t.Fatalf("%d messages within %s, not %d", distinct, b.patience, n)
		}
	}
}

// A batchPublisher is one relay's way into the broker. It sends the messages of
// a batch at once, and checks that a relay never has two of one key under way.
type batchPublisher struct {
	broker *broker
	mu     sync.Mutex
	flying map[schema.Lane]string
}

func (b *broker) batches() *batchPublisher {
	return &batchPublisher{broker: b, flying: map[schema.Lane]string{}}
}

func (p *batchPublisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	p.broker.calls.Add(1)
	defer p.broker.calls.Done()
	errs := make([]error, len(msgs))
	var all sync.WaitGroup
	for i, msg := range msgs {
		all.Go(func() {
			defer p.fly(topic, msg)()
			errs[i] = p.broker.take(ctx, topic, msg)
		})
	}
	all.Wait()
	return errs
}

func (p *batchPublisher) fly(topic string, msg *message.Message) (land func()) {
	lane := schema.Lane{Topic: topic, Key: msg.Metadata.Get(schema.HeaderKey)}
	if lane.Key == "" {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if other, ok := p.flying[lane]; ok {
		p.broker.t.Errorf("%s and %s under way at once", other, msg.UUID)
	}
	p.flying[lane] = msg.UUID
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.flying, lane)
	}
}

func (p *batchPublisher) Publish(string, ...*message.Message) error {
	p.broker.t.Error("a relay does not use Publish of a BatchPublisher")
	return nil
}

func (p *batchPublisher) Close() error {
	p.broker.t.Error("a relay does not close what it was given")
	return nil
}

// A plainPublisher is a Watermill publisher and nothing more. It checks that it
// is called once at a time, with one message.
type plainPublisher struct {
	broker *broker
	busy   sync.Mutex
}

func (b *broker) plain() *plainPublisher { return &plainPublisher{broker: b} }

func (p *plainPublisher) Publish(topic string, msgs ...*message.Message) error {
	p.broker.calls.Add(1)
	defer p.broker.calls.Done()
	if !p.busy.TryLock() {
		p.broker.t.Errorf("two calls at once, the second with %s", msgs[0].UUID)
	} else {
		defer p.busy.Unlock()
	}
	if len(msgs) != 1 {
		p.broker.t.Errorf("%d messages in one call", len(msgs))
	}
	return p.broker.take(context.Background(), topic, msgs[0])
}

func (p *plainPublisher) Close() error {
	p.broker.t.Error("a relay does not close what it was given")
	return nil
}

// A logbook is a slog.Handler that remembers.
type logbook struct {
	mu    sync.Mutex
	lines []string
}

func (l *logbook) Enabled(context.Context, slog.Level) bool { return true }
func (l *logbook) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logbook) WithGroup(string) slog.Handler            { return l }

func (l *logbook) Handle(_ context.Context, r slog.Record) error {
	line := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	return nil
}

// count returns how many lines have the text.
func (l *logbook) count(text string) int { return strings.Count(l.String(), text) }

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}
