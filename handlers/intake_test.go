package handlers_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/schema"
)

const topic = "orders"

// intakeBundle is an Intake subscribed to one topic, in a bubble of fake time.
type intakeBundle struct {
	t        *testing.T
	inner    *scripted
	intake   *handlers.Intake
	messages <-chan *message.Message
	end      context.CancelFunc // of Subscribe's context
}

// inBubble runs a test in fake time. Whatever still runs afterwards fails it.
func inBubble(t *testing.T, cfg handlers.IntakeConfig, test func(t *testing.T, b *intakeBundle)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &intakeBundle{t: t, inner: newScripted()}
		cfg.Logger = slog.New(slog.DiscardHandler)
		intake, err := handlers.NewIntake(b.inner, cfg)
		require.NoError(t, err)
		ctx, end := context.WithCancel(t.Context())
		defer func() {
			end()
			_ = intake.Close()
		}()
		messages, err := intake.Subscribe(ctx, topic)
		require.NoError(t, err)
		b.intake, b.messages, b.end = intake, messages, end
		test(t, b)
	})
}

// next returns the id of the next message and the message.
func (b *intakeBundle) next() (string, *message.Message) {
	b.t.Helper()
	msg := receive(b.t, b.messages)
	return msg.UUID, msg
}

// expect receives a message with this id.
func (b *intakeBundle) expect(id string) *message.Message {
	b.t.Helper()
	got, msg := b.next()
	require.Equal(b.t, id, got)
	return msg
}

// expectNothing lets everything that can happen now happen.
func (b *intakeBundle) expectNothing() {
	b.t.Helper()
	synctest.Wait()
	select {
	case msg, open := <-b.messages:
		require.False(b.t, open, "got a message that was not to come")
		require.Nil(b.t, msg)
	default:
	}
}

func (b *intakeBundle) expectEnd() {
	b.t.Helper()
	for msg := range b.messages {
		require.Nil(b.t, msg, "got a message that was not to come")
	}
}

func TestIntake_H20_KeysKeepTheirOrderUnderRandomLatency(t *testing.T) {
	const keys, perKey, lanes = 40, 50, 12
	cfg := handlers.IntakeConfig{Lanes: lanes, Window: 64}
	inBubble(t, cfg, func(t *testing.T, b *intakeBundle) {
		for n := range perKey {
			for k := range keys {
				b.inner.push(topic, fmt.Sprintf("k%d", k), fmt.Sprintf("k%d-%d", k, n))
			}
			b.inner.push(topic, "", fmt.Sprintf("-%d", n))
		}
		seen := work(b, (keys+1)*perKey)

		for k := range keys {
			for n, id := range seen.byKey[fmt.Sprintf("k%d", k)] {
				require.Equal(b.t, fmt.Sprintf("k%d-%d", k, n), id)
			}
		}
		assert.Len(b.t, seen.byKey[""], perKey)
		assert.Equal(b.t, lanes, seen.mostAtOnce, "all lanes were in use, and no more")
		assert.Equal(b.t, 1, seen.mostPerKey, "one message of a key at a time")
		synctest.Wait()
		assert.Len(b.t, b.inner.report().acked, (keys+1)*perKey)
	})
}

// observed is what a crowd of workers saw.
type observed struct {
	mu                     sync.Mutex
	byKey                  map[string][]string
	now                    map[string]int
	mostAtOnce, mostPerKey int
	atOnce                 int
}

func (o *observed) enter(key, id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.byKey[key] = append(o.byKey[key], id)
	o.atOnce++
	o.mostAtOnce = max(o.mostAtOnce, o.atOnce)
	if key != "" {
		o.now[key]++
		o.mostPerKey = max(o.mostPerKey, o.now[key])
	}
}

func (o *observed) leave(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.atOnce--
	if key != "" {
		o.now[key]--
	}
}

// work gives each message a goroutine, as a router does, and acks it after a
// random time.
func work(b *intakeBundle, n int) *observed {
	o := &observed{byKey: map[string][]string{}, now: map[string]int{}}
	var workers sync.WaitGroup
	for range n {
		id, msg := b.next()
		workers.Go(func() {
			key := schema.Key(msg)
			o.enter(key, id)
			<-time.After(rand.N(20 * time.Millisecond))
			o.leave(key)
			msg.Ack()
		})
	}
	workers.Wait()
	return o
}

func TestIntake_KeysTakeTurns(t *testing.T) {
	inBubble(t, handlers.IntakeConfig{Lanes: 1, Window: 8}, func(t *testing.T, b *intakeBundle) {
		b.inner.push(topic, "hot", ids("hot", 5)...)
		synctest.Wait()
		b.inner.push(topic, "b", "b1")
		synctest.Wait()
		for _, id := range []string{"hot1", "b1", "hot2", "hot3"} {
			b.expect(id).Ack()
			synctest.Wait()
		}
	})
}

func TestIntake_MessagesWithoutKeyHaveALaneEach(t *testing.T) {
	inBubble(t, handlers.IntakeConfig{Lanes: 3, Window: 8}, func(t *testing.T, b *intakeBundle) {
		b.inner.push(topic, "", ids("m", 4)...)
		var got []string
		var messages []*message.Message
		for range 3 {
			id, msg := b.next()
			got, messages = append(got, id), append(messages, msg)
		}
		assert.Len(t, slices.Compact(slices.Sorted(slices.Values(got))), 3)
		b.expectNothing()
		messages[1].Ack()
		b.next()
	})
}

func TestIntake_WindowBoundsWhatIsTaken(t *testing.T) {
	inBubble(t, handlers.IntakeConfig{Lanes: 2, Window: 5}, func(t *testing.T, b *intakeBundle) {
		b.inner.push(topic, "a", ids("a", 20)...)
		first := b.expect("a1")
		b.expectNothing()
		assert.Equal(t, 5, b.inner.report().taken)
		first.Ack()
		synctest.Wait()
		assert.Equal(t, 6, b.inner.report().taken)
		b.expect("a2").Nack()
		synctest.Wait()
		assert.Equal(t, 6, b.inner.report().taken, "a nacked message keeps its place")
	})
}

func TestIntake_Defaults(t *testing.T) {
	inBubble(t, handlers.IntakeConfig{}, func(t *testing.T, b *intakeBundle) {
		b.inner.push(topic, "", ids("", 100)...)
		for range handlers.DefaultLanes {
			b.next()
		}
		b.expectNothing()
		assert.Equal(t, handlers.DefaultWindow, b.inner.report().taken)
	})
}

func TestIntake_LanesDefaultToASmallWindow(t *testing.T) {
	inBubble(t, handlers.IntakeConfig{Window: 2}, func(t *testing.T, b *intakeBundle) {
		b.inner.push(topic, "", ids("", 100)...)
		b.next()
		b.next()
		b.expectNothing()
	})
}

func TestIntake_HandsOutAFreshMessage(t *testing.T) {
	inBubble(t, handlers.IntakeConfig{}, func(t *testing.T, b *intakeBundle) {
		b.inner.contextValue = "value"
		sent := message.NewMessage("id", message.Payload(`{"a": 1}`))
		sent.Metadata = message.Metadata{schema.HeaderKey: "k", "app": "x"}
		b.inner.send(topic, sent)

		first := b.expect("id")
		require.NotSame(t, sent, first)
		assert.True(t, sent.Equals(first))
		assert.Equal(t, "value", first.Context().Value(contextKey{}))
		first.Metadata.Set("app", "changed")
		first.Nack()

		second := b.expect("id")
		require.NotSame(t, first, second)
		assert.True(t, sent.Equals(second), "the copy is made of the inner message")
	})
}

func TestIntake_ContextEndsWhenSettled(t *testing.T) {
	inBubble(t, handlers.IntakeConfig{}, func(t *testing.T, b *intakeBundle) {
		b.inner.push(topic, "k", "1", "2")
		for _, settle := range []func(*message.Message) bool{(*message.Message).Ack, (*message.Message).Nack} {
			_, msg := b.next()
			synctest.Wait()
			require.NoError(t, msg.Context().Err())
			settle(msg)
			await(t, msg.Context().Done(), "end of the context")
		}
	})
}

func TestIntake_NackHoldsItsKeyOnly(t *testing.T) {
	cfg := handlers.IntakeConfig{Lanes: 1, Window: 8, NackBackoff: handlers.Backoff{Initial: time.Second, Max: 4 * time.Second}}
	inBubble(t, cfg, func(t *testing.T, b *intakeBundle) {
		b.inner.push(topic, "a", "a1", "a2")
		mean := time.Second
		for range 5 {
			b.expect("a1").Nack()
			nacked := time.Now()
			b.inner.push(topic, "b", "b")
			b.expect("b").Ack()
			b.expectNothing()
			assert.Zero(t, time.Since(nacked), "the key waits without a lane")

			b.expect("a1").Nack()
			assert.GreaterOrEqual(t, time.Since(nacked), mean/2)
			assert.LessOrEqual(t, time.Since(nacked), mean*3/2+1)
			mean = min(4*mean, 4*time.Second) // two nacks a round
		}
		b.expect("a1").Ack()
		b.expect("a2").Ack()
		synctest.Wait()
		assert.Empty(t, b.inner.report().nacked)
	})
}

func TestIntake_InnerChannelThatClosesByItself(t *testing.T) {
	inBubble(t, handlers.IntakeConfig{}, func(t *testing.T, b *intakeBundle) {
		b.inner.push(topic, "k", "1", "2")
		first := b.expect("1")
		synctest.Wait()
		b.inner.endBySelf(topic)
		b.expectNothing()
		first.Nack()
		b.expect("1").Ack()
		b.expect("2").Ack()
		b.expectEnd()
		require.NoError(t, b.intake.Close())
	})
}

func TestNewIntake_TellsAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	_, err := handlers.NewIntake(nil, handlers.IntakeConfig{
		Lanes: 9, Window: 70_000, DrainTimeout: -1, DrainGrace: -2,
		NackBackoff: handlers.Backoff{Initial: -3, Max: -4},
	})
	require.ErrorIs(t, err, schema.ErrInvalidOption)
	for _, fault := range []string{
		"inner subscriber is nil", "Window is 70000, it is to be from 1 to 65535",
		"DrainTimeout is -1ns, it is to be above 0", "DrainGrace is -2ns, it is to be above 0",
		"NackBackoff.Initial is -3ns, it is to be above 0",
		"NackBackoff.Max is -4ns, it is to be at least NackBackoff.Initial, -3ns",
	} {
		assert.ErrorContains(t, err, fault)
	}
	assert.Len(t, strings.Split(err.Error(), "\n"), 6)

	_, err = handlers.NewIntake(newScripted(), handlers.IntakeConfig{Lanes: 9, Window: 8})
	assert.ErrorContains(t, err, "Lanes is 9, it is to be from 1 to Window, 8")
	_, err = handlers.NewIntake(newScripted(), handlers.IntakeConfig{Lanes: -1, Window: -1})
	assert.ErrorContains(t, err, "Window is -1")
	assert.ErrorContains(t, err, "Lanes is -1")
}

func BenchmarkIntake(b *testing.B) {
	inner := newScripted()
	intake, err := handlers.NewIntake(inner, handlers.IntakeConfig{})
	require.NoError(b, err)
	defer func() { require.NoError(b, intake.Close()) }()
	messages, err := intake.Subscribe(b.Context(), topic)
	require.NoError(b, err)
	n := 0
	for b.Loop() {
		inner.push(topic, fmt.Sprint(n%100), fmt.Sprint(n))
		receive(b, messages).Ack()
		n++
	}
}
