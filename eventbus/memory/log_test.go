package memory_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus/memory"
	"github.com/postbus-io/postbus/schema"
)

// TestMemory_RetainsWhatIsAckedUpToTheBound: and a consumer that comes then
// starts at the oldest message that is kept.
func TestMemory_RetainsWhatIsAckedUpToTheBound(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]memory.Config{
		"entries": {RetainEntries: 2},
		"bytes":   {RetainBytes: 2*sizeOf("a1") + 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := newBroker(t, config)
			slow := newSubscriber(t, broker, "slow", 10)
			quick := subscribe(t, newSubscriber(t, broker, "quick", 10))
			publish(t, broker, "a1", "a2", "a3", "a4")
			ack(t, receiveAll(t, quick, "a1", "a2", "a3", "a4")...)
			assert.Len(t, broker.Messages(topic), 4, "a consumer has not acked them")

			ack(t, receiveAll(t, subscribe(t, slow), "a1", "a2", "a3", "a4")...)
			assert.Equal(t, []string{"a3", "a4"}, idsOf(broker.Messages(topic)))
			receiveAll(t, subscribe(t, newSubscriber(t, broker, "new", 10)), "a3", "a4")
		})
	}
}

// sizeOf is what publish's message counts: id, payload and key.
func sizeOf(id string) int64 {
	msg := newMessage(id, id[:len(id)-1])
	return int64(len(msg.UUID) + len(msg.Payload) + len(schema.HeaderKey) + len(msg.Metadata.Get(schema.HeaderKey)))
}

// TestMemory_WithoutConsumersNeverFull: a topic that nobody consumes keeps its
// last messages and blocks nobody.
func TestMemory_WithoutConsumersNeverFull(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, memory.Config{RetainEntries: 2, MaxBacklog: 1, MaxBacklogBytes: 1})
	publish(t, broker, "a1", "a2", "a3", "a4")
	assert.Equal(t, []string{"a3", "a4"}, idsOf(broker.Messages(topic)))
	assert.Equal(t, 2, broker.Backlog("nobody", topic))
	assert.Zero(t, broker.Backlog("nobody", "elsewhere"))
	assert.Empty(t, broker.Messages("elsewhere"))
}

// TestMemory_FullLogMakesPublishersWait: until an ack makes room, or their time
// is over, which is the broker's fault.
func TestMemory_FullLogMakesPublishersWait(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]memory.Config{
		"entries": {MaxBacklog: 2},
		"bytes":   {MaxBacklogBytes: 2*sizeOf("a1") + 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { exerciseFullLog(t, newBroker(t, config)) })
		})
	}
}

func exerciseFullLog(t *testing.T, broker *memory.Broker) {
	msgs := subscribe(t, newSubscriber(t, broker, consumer, 10))
	publish(t, broker, "a1", "a2")
	pub := newPublisher(t, broker)

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	started := time.Now()
	errs := pub.PublishBatch(ctx, topic, []*message.Message{newMessage("a3", "a"), newMessage("b4", "b")})
	assert.Equal(t, 3*time.Second, time.Since(started))
	for _, err := range errs {
		requireBrokerFault(t, err, context.DeadlineExceeded)
	}
	require.ErrorIs(t, errs[0], memory.ErrFull)

	started = time.Now()
	err := pub.Publish(topic, newMessage("a3", "a"))
	assert.Equal(t, memory.DefaultPublishTimeout, time.Since(started))
	require.ErrorIs(t, err, memory.ErrFull)
	requireBrokerFault(t, err, context.DeadlineExceeded)

	result := make(chan []error, 1)
	go func() {
		result <- pub.PublishBatch(t.Context(), topic, []*message.Message{newMessage("a3", "a"), newMessage("b4", "b")})
	}()
	synctest.Wait()
	assert.Equal(t, []string{"a1", "a2"}, idsOf(broker.Messages(topic)), "what was refused is not there")
	held := receiveAll(t, msgs, "a1", "a2")
	ack(t, held[1])
	synctest.Wait()
	assert.Len(t, broker.Messages(topic), 2, "the oldest is not acked")
	ack(t, held[0])
	require.Equal(t, []error{nil, nil}, <-result)
	receiveAll(t, msgs, "a3", "b4")
}

func requireBrokerFault(t *testing.T, err error, cause error) {
	t.Helper()
	var fault *schema.PublishError
	require.ErrorAs(t, err, &fault)
	require.Equal(t, schema.PublishBroker, fault.Class)
	require.Equal(t, topic, fault.Topic)
	require.ErrorIs(t, err, cause)
}

// TestMemory_LargeMessageIsTakenWithoutBacklog: a message above the bound of
// bytes does not wait for ever.
func TestMemory_LargeMessageIsTakenWithoutBacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := newBroker(t, memory.Config{MaxBacklogBytes: 1})
		msgs := subscribe(t, newSubscriber(t, broker, consumer, 10))
		publish(t, broker, "a1")
		require.ErrorIs(t, newPublisher(t, broker).Publish(topic, newMessage("a2", "a")), memory.ErrFull)
		ack(t, receiveAll(t, msgs, "a1")...)
		publish(t, broker, "a2")
	})
}

// TestMemory_CloseEndsAWaitingPublish: of the publisher and of the broker.
func TestMemory_CloseEndsAWaitingPublish(t *testing.T) {
	t.Parallel()
	for name, closeFunc := range map[string]func(*memory.Broker, schema.Publisher) error{
		"publisher": func(_ *memory.Broker, pub schema.Publisher) error { return pub.Close() },
		"broker":    func(broker *memory.Broker, _ schema.Publisher) error { return broker.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				broker := newBroker(t, memory.Config{MaxBacklog: 1})
				newSubscriber(t, broker, consumer, 1)
				publish(t, broker, "a1")
				pub := newPublisher(t, broker)
				result := make(chan error, 1)
				go func() { result <- pub.PublishBatch(t.Context(), topic, []*message.Message{newMessage("a2", "a")})[0] }()
				synctest.Wait()
				require.NoError(t, closeFunc(broker, pub))
				requireBrokerFault(t, <-result, memory.ErrClosed)
			})
		})
	}
}

// TestMemory_CloseWaitsForCalls: when a publisher's Close has returned, nothing
// of it is appended any more.
func TestMemory_CloseWaitsForCalls(t *testing.T) {
	t.Parallel()
	begun, release := make(chan struct{}), make(chan struct{})
	broker := newBroker(t, memory.Config{PublishFunc: func(_ context.Context, _ string, _ *message.Message, next func() error) error {
		close(begun)
		<-release
		return next()
	}})
	pub := newPublisher(t, broker)
	published, closed := make(chan error, 1), make(chan struct{})
	go func() { published <- pub.Publish(topic, newMessage("a1", "a")) }()
	requireEnd(t, begun, "the way to the call")
	go func() {
		defer close(closed)
		assert.NoError(t, pub.Close())
	}()
	select {
	case <-closed:
		require.FailNow(t, "closed before the call has returned")
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	requireEnd(t, closed, "Close")
	require.NoError(t, <-published)
	require.Len(t, broker.Messages(topic), 1, "appended before Close returned")
}

// TestMemory_PublishStopsAtTheFirstRefused: a later message of the same key
// does not pass it.
func TestMemory_PublishStopsAtTheFirstRefused(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	broker := newBroker(t, memory.Config{PublishFunc: func(_ context.Context, _ string, msg *message.Message, next func() error) error {
		if msg.UUID == "a2" {
			return refused
		}
		return next()
	}})
	pub := newPublisher(t, broker)
	msgs := []*message.Message{newMessage("a1", "a"), newMessage("a2", "a"), newMessage("a3", "a")}
	require.ErrorIs(t, pub.Publish(topic, msgs...), refused)
	assert.Equal(t, []string{"a1"}, idsOf(broker.Messages(topic)))
	assert.Equal(t, []error{nil, refused, nil}, pub.PublishBatch(t.Context(), topic, msgs))
	assert.Equal(t, []string{"a1", "a1", "a3"}, idsOf(broker.Messages(topic)))
}

// TestMemory_PublishFuncLosesAndRepeats: it can lose a confirmation and append
// a message twice.
func TestMemory_PublishFuncLosesAndRepeats(t *testing.T) {
	t.Parallel()
	lost := errors.New("connection reset")
	broker := newBroker(t, memory.Config{PublishFunc: func(_ context.Context, name string, msg *message.Message, next func() error) error {
		assert.Equal(t, topic, name)
		if msg.UUID == "a1" {
			return errors.Join(next(), lost)
		}
		return errors.Join(next(), next())
	}})
	pub := newPublisher(t, broker)
	require.ErrorIs(t, pub.Publish(topic, newMessage("a1", "a")), lost)
	require.NoError(t, pub.Publish(topic, newMessage("a2", "a")))
	assert.Equal(t, []string{"a1", "a2", "a2"}, idsOf(broker.Messages(topic)))
}

// TestMemory_H53_DerivedIDsAreUniqueAcrossProcesses: an inbox that has seen the
// first message of one log is not to take that of the next process for it.
func TestMemory_H53_DerivedIDsAreUniqueAcrossProcesses(t *testing.T) {
	t.Parallel()
	ids := map[string]bool{}
	for range 2 {
		broker := newBroker(t, memory.Config{})
		pub := newPublisher(t, broker)
		for _, name := range []string{topic, strings.Repeat("t", schema.MaxTopicBytes)} {
			require.NoError(t, pub.Publish(name, message.NewMessage("", nil), message.NewMessage("", nil)))
			for _, msg := range broker.Messages(name) {
				ids[msg.UUID] = true
				assert.Regexp(t, `^memory:[0-9A-Z]{26}/[01]$`, msg.UUID)
			}
		}
	}
	assert.Len(t, ids, 8)
}

// TestMemory_MessagesAreCopies: a witness changes nothing.
func TestMemory_MessagesAreCopies(t *testing.T) {
	t.Parallel()
	broker := newBroker(t, memory.Config{})
	publish(t, broker, "a1")
	seen := broker.Messages(topic)[0]
	seen.Payload[0] = '?'
	seen.Metadata.Set("header", "spoiled")
	again := broker.Messages(topic)[0]
	assert.Equal(t, "a1", string(again.Payload))
	assert.Equal(t, message.Metadata{schema.HeaderKey: "a"}, again.Metadata)
}
