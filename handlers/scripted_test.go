package handlers_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// limit bounds every wait of a test.
const limit = 30 * time.Second

// scripted is an inner subscriber that hands out what a test pushes, as fast
// as it is read, and writes down what becomes of each message. It never hands
// out a message again.
type scripted struct {
	failWith     error // of Subscribe
	closeWith    error // of Close
	closeTakes   time.Duration
	hangs        bool // Subscribe waits for the end of its context
	neverCloses  bool // channels stay open for good
	stubborn     bool // a message that is ready is sent, whatever has ended
	contextValue any  // in each message's context, under contextKey{}

	mu      sync.Mutex
	streams map[string]*stream
	closes  int
	taken   map[string]*message.Message // by id
	revoke  map[string]context.CancelCauseFunc
	acked   []string
	nacked  []string
	left    []string // neither, when their subscription ended
}

type contextKey struct{}

type stream struct {
	queue  chan *message.Message
	end    context.CancelFunc // of the subscription
	ended  <-chan struct{}
	closed chan struct{} // after the out channel
}

func newScripted() *scripted {
	return &scripted{
		streams: map[string]*stream{}, taken: map[string]*message.Message{}, revoke: map[string]context.CancelCauseFunc{},
	}
}

func (s *scripted) stream(topic string) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[topic] == nil {
		s.streams[topic] = &stream{queue: make(chan *message.Message, 100_000), closed: make(chan struct{})}
	}
	return s.streams[topic]
}

// push puts messages of one key into a topic; the ids are kept as given.
func (s *scripted) push(topic, key string, ids ...string) {
	for _, id := range ids {
		msg := message.NewMessage(id, message.Payload(`{"n":1}`))
		if key != "" {
			msg.Metadata.Set(schema.HeaderKey, key)
		}
		s.send(topic, msg)
	}
}

func (s *scripted) send(topic string, msg *message.Message) { s.stream(topic).queue <- msg }

func (s *scripted) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if s.failWith != nil {
		return nil, s.failWith
	}
	st := s.stream(topic)
	ctx, end := context.WithCancel(ctx)
	s.mu.Lock()
	st.end, st.ended = end, ctx.Done()
	s.mu.Unlock()
	out := make(chan *message.Message)
	go s.pump(ctx, st, out)
	return out, nil
}

func (s *scripted) pump(ctx context.Context, st *stream, out chan *message.Message) {
	var watchers sync.WaitGroup
	defer func() {
		watchers.Wait()
		if !s.neverCloses {
			close(out)
		}
		close(st.closed)
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case msg := <-st.queue:
			s.prepare(ctx, msg)
			ended := ctx.Done()
			if s.stubborn {
				ended = nil
			}
			select {
			case <-ended:
				return
			case out <- msg:
				s.took(msg)
				watchers.Go(func() { s.watch(ctx, msg) })
			}
		}
	}
}

func (s *scripted) prepare(ctx context.Context, msg *message.Message) {
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, contextKey{}, s.contextValue))
	msg.SetContext(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revoke[msg.UUID] = cancel
}

func (s *scripted) took(msg *message.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken[msg.UUID] = msg
}

// watch writes down what becomes of a message. When its subscription ends it
// looks once more.
func (s *scripted) watch(ctx context.Context, msg *message.Message) {
	select {
	case <-msg.Acked():
	case <-msg.Nacked():
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case closed(msg.Acked()):
		s.acked = append(s.acked, msg.UUID)
	case closed(msg.Nacked()):
		s.nacked = append(s.nacked, msg.UUID)
	default:
		s.left = append(s.left, msg.UUID)
	}
	s.revoke[msg.UUID](context.Canceled)
}

// endBySelf closes the channel of a topic without having been asked to.
func (s *scripted) endBySelf(topic string) {
	st := s.stream(topic)
	st.end()
	<-st.closed
}

// revokeMessages takes messages back, as after a rebalance.
func (s *scripted) revokeMessages(ids ...string) { s.endContexts(schema.ErrRevoked, ids...) }

func (s *scripted) endContexts(cause error, ids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.revoke[id](cause)
	}
}

func (s *scripted) Close() error {
	s.mu.Lock()
	s.closes++
	var streams []*stream
	for _, st := range s.streams {
		if st.end != nil {
			streams = append(streams, st)
		}
	}
	s.mu.Unlock()
	for _, st := range streams {
		st.end()
		<-st.closed
	}
	<-time.After(s.closeTakes)
	return s.closeWith
}

// report is what became of the messages, each list in order.
type report struct {
	taken               int
	acked, nacked, left []string
	closes              int
}

func (s *scripted) report() report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return report{len(s.taken), slices.Clone(s.acked), slices.Clone(s.nacked), slices.Clone(s.left), s.closes}
}

// innerOpen tells whether the subscription's context has not ended.
func (s *scripted) innerOpen(topic string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !closed(s.streams[topic].ended)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// receive returns the next message of a channel.
func receive(t testing.TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, open := <-messages:
		require.True(t, open, "channel is closed")
		return msg
	case <-time.After(limit):
		require.FailNow(t, "no message")
		return nil
	}
}

// await waits for a channel to close, or for one value of it.
func await[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case value := <-c:
		return value
	case <-time.After(limit):
		require.FailNow(t, "waited too long", what)
		return *new(T)
	}
}

// inBackground runs f and returns what it will return.
func inBackground(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return result
}

// ids returns prefix1 ... prefixN.
func ids(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = prefix + strconv.Itoa(i+1)
	}
	return all
}

var errBroker = errors.New("broker says no")
