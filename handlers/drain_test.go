package handlers_test

import (
	"context"
	"fmt"
	"math/rand/v2"
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

func TestIntake_H41_StoppedInMidStream(t *testing.T) {
	stops := map[string]func(b *intakeBundle) error{
		"close": func(b *intakeBundle) error { return b.intake.Close() },
		"end of Subscribe's context": func(b *intakeBundle) error {
			b.end()
			return nil
		},
	}
	for name, stop := range stops {
		for round := range 50 {
			t.Run(fmt.Sprintf("%s/%d", name, round), func(t *testing.T) {
				inBubble(t, handlers.IntakeConfig{Lanes: 30, Window: 60}, func(t *testing.T, b *intakeBundle) {
					stopInMidStream(b, stop)
				})
			})
		}
	}
}

// stopInMidStream stops a stream of slow messages at a random moment.
func stopInMidStream(b *intakeBundle, stop func(*intakeBundle) error) {
	for n := range 400 {
		b.inner.push(topic, fmt.Sprintf("k%d", n%40), fmt.Sprintf("k%d-%d", n%40, n))
	}
	crowd := &crowd{}
	finished := inBackground(func() error {
		for msg := range b.messages {
			crowd.work(msg)
		}
		crowd.workers.Wait()
		return nil
	})
	<-time.After(rand.N(10 * time.Second))
	require.NoError(b.t, stop(b))
	require.NoError(b.t, await(b.t, finished, "end of the channel"))

	report := b.inner.report()
	assert.Zero(b.t, crowd.cancelled, "nothing was cancelled")
	assert.NotZero(b.t, crowd.applied)
	assert.Len(b.t, report.acked, crowd.applied, "what was applied was acked")
	assert.Empty(b.t, report.nacked)
}

// crowd is workers that watch their contexts.
type crowd struct {
	workers            sync.WaitGroup
	mu                 sync.Mutex
	applied, cancelled int
}

func (c *crowd) work(msg *message.Message) {
	c.workers.Go(func() {
		select {
		case <-time.After(100*time.Millisecond + rand.N(3*time.Second)):
			c.mu.Lock()
			c.applied++
			c.mu.Unlock()
			msg.Ack()
		case <-msg.Context().Done():
			c.mu.Lock()
			c.cancelled++
			c.mu.Unlock()
			msg.Nack()
		}
	})
}

func TestIntake_CloseWaitsForTheAckAndClosesTheInner(t *testing.T) {
	inBubble(t, handlers.IntakeConfig{}, func(t *testing.T, b *intakeBundle) {
		b.inner.push(topic, "k", "1", "2")
		first := b.expect("1")
		b.inner.push(topic, "l", "3")
		synctest.Wait()
		closing := inBackground(b.intake.Close)
		again := inBackground(b.intake.Close)
		b.expectNothing()
		require.True(t, b.inner.innerOpen(topic), "the inner subscription lives until the lanes are done")
		require.Zero(t, b.inner.report().closes)
		require.Empty(t, closing)
		require.Empty(t, again, "the second Close waits for the first")
		require.NoError(t, first.Context().Err())

		first.Ack()
		require.NoError(t, await(t, closing, "Close"))
		require.NoError(t, await(t, again, "second Close"))
		b.expectEnd()
		report := b.inner.report()
		assert.Equal(t, []string{"1"}, report.acked)
		assert.ElementsMatch(t, []string{"2", "3"}, report.left)
		assert.Equal(t, 1, report.closes)

		_, err := b.intake.Subscribe(t.Context(), topic)
		assert.ErrorIs(t, err, handlers.ErrClosed)
	})
}

func TestIntake_EndOfSubscribesContextLeavesTheInnerOpen(t *testing.T) {
	inBubble(t, handlers.IntakeConfig{}, func(t *testing.T, b *intakeBundle) {
		b.inner.push(topic, "k", "1", "2")
		first := b.expect("1")
		b.end()
		b.expectNothing()
		require.NoError(t, first.Context().Err(), "the message survives Subscribe's context")
		require.True(t, b.inner.innerOpen(topic))
		first.Ack()
		b.expectEnd()
		assert.Equal(t, []string{"1"}, b.inner.report().acked)
		assert.False(t, b.inner.innerOpen(topic))
		assert.Zero(t, b.inner.report().closes)

		_, err := b.intake.Subscribe(t.Context(), "other")
		require.NoError(t, err, "other subscriptions go on")
	})
}

func TestIntake_NackWhileDrainingIsLeftAlone(t *testing.T) {
	inBubble(t, handlers.IntakeConfig{}, func(t *testing.T, b *intakeBundle) {
		b.inner.push(topic, "a", "a1")
		b.inner.push(topic, "b", "b1")
		_, one := b.next()
		_, two := b.next()
		one.Nack() // waits in its backoff when Close comes
		synctest.Wait()
		begun := time.Now()
		closing := inBackground(b.intake.Close)
		synctest.Wait()
		two.Nack()
		require.NoError(t, await(t, closing, "Close"))
		assert.Zero(t, time.Since(begun), "there was nothing to wait for")
		b.expectEnd()
		assert.Equal(t, []string{}, append([]string{}, b.inner.report().nacked...))
		assert.ElementsMatch(t, []string{"a1", "b1"}, b.inner.report().left)
	})
}

func TestIntake_DrainDeadlineEndsContexts(t *testing.T) {
	cfg := handlers.IntakeConfig{DrainTimeout: 7 * time.Second, DrainGrace: 3 * time.Second}
	inBubble(t, cfg, func(t *testing.T, b *intakeBundle) {
		b.inner.push(topic, "a", "a1")
		b.inner.push(topic, "b", "b1")
		_, one := b.next()
		_, two := b.next()
		begun := time.Now()
		closing := inBackground(b.intake.Close)
		await(t, one.Context().Done(), "end of the context")
		await(t, two.Context().Done(), "end of the context")
		assert.Equal(t, 7*time.Second, time.Since(begun))
		require.ErrorIs(t, context.Cause(one.Context()), schema.ErrDraining)
		one.Nack()
		two.Ack() // it had just finished
		require.NoError(t, await(t, closing, "Close"))
		assert.Equal(t, 7*time.Second, time.Since(begun))
		assert.Equal(t, []string{two.UUID}, b.inner.report().acked)
		assert.Equal(t, []string{one.UUID}, b.inner.report().left)
	})
}

func TestIntake_WhatOutlivesTheGraceIsReportedAndNotAcked(t *testing.T) {
	cfg := handlers.IntakeConfig{DrainTimeout: 7 * time.Second, DrainGrace: 3 * time.Second}
	inBubble(t, cfg, func(t *testing.T, b *intakeBundle) {
		b.inner.push(topic, "a", "a1")
		stuck := b.expect("a1")
		begun := time.Now()
		err := await(t, inBackground(b.intake.Close), "Close")
		assert.Equal(t, 10*time.Second, time.Since(begun))
		require.ErrorIs(t, err, handlers.ErrDrainTimeout)
		assert.ErrorContains(t, err, "topic orders: 1 messages still worked on after 7s and a grace of 3s")
		stuck.Ack()
		synctest.Wait()
		assert.Empty(t, b.inner.report().acked)
		assert.Equal(t, []string{"a1"}, b.inner.report().left)
		require.Equal(t, err, b.intake.Close(), "said again")
	})
}

func TestIntake_CloseInterruptsSubscribe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := newScripted()
		inner.hangs = true
		intake, err := handlers.NewIntake(inner, handlers.IntakeConfig{})
		require.NoError(t, err)
		subscribing := inBackground(func() error {
			_, err := intake.Subscribe(t.Context(), topic)
			return err
		})
		synctest.Wait()
		require.NoError(t, intake.Close())
		require.ErrorIs(t, await(t, subscribing, "Subscribe"), context.Canceled)
	})
}

func TestIntake_ErrorsOfTheInnerSubscriber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := newScripted()
		inner.failWith, inner.closeWith = errBroker, errBroker
		intake, err := handlers.NewIntake(inner, handlers.IntakeConfig{})
		require.NoError(t, err)
		_, err = intake.Subscribe(t.Context(), topic)
		require.ErrorIs(t, err, errBroker)
		assert.ErrorContains(t, err, "subscribe to orders: ")
		require.ErrorIs(t, intake.Close(), errBroker)
	})
}

func TestIntake_InnerThatNeverClosesItsChannel(t *testing.T) {
	inBubble(t, handlers.IntakeConfig{DrainGrace: time.Second}, func(t *testing.T, b *intakeBundle) {
		b.inner.neverCloses = true
		begun := time.Now()
		err := await(t, inBackground(b.intake.Close), "Close")
		require.ErrorIs(t, err, handlers.ErrStuckSubscriber)
		assert.Equal(t, time.Second, time.Since(begun))
		b.expectEnd()
	})
}

func TestIntake_InnerThatSendsOnAfterItsEnd(t *testing.T) {
	inBubble(t, handlers.IntakeConfig{Window: 1}, func(t *testing.T, b *intakeBundle) {
		b.inner.stubborn = true
		b.inner.push(topic, "k", "1", "2")
		first := b.expect("1")
		synctest.Wait()
		closing := inBackground(b.intake.Close)
		synctest.Wait()
		first.Ack()
		require.NoError(t, await(t, closing, "Close"))
		b.expectEnd()
		assert.Equal(t, []string{"1"}, b.inner.report().acked)
		assert.Equal(t, []string{"2"}, b.inner.report().left)
	})
}
