package handlers_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/schema"
)

func TestIntake_EndOfInnerContextMeansNothingUnlessRevoked(t *testing.T) {
	inBubble(t, handlers.IntakeConfig{}, func(t *testing.T, b *intakeBundle) {
		b.inner.push(topic, "k", ids("", 2)...)
		working := b.expect("1")
		synctest.Wait()
		b.inner.endContexts(context.Canceled, "1", "2")
		synctest.Wait()
		require.NoError(t, working.Context().Err())
		working.Nack()
		b.expect("1").Ack()
		b.expect("2").Ack()
		synctest.Wait()
		assert.ElementsMatch(t, []string{"1", "2"}, b.inner.report().acked)
	})
}

func TestIntake_RevokedMessagesThatWaitAreDropped(t *testing.T) {
	inBubble(t, handlers.IntakeConfig{Lanes: 3, Window: 4}, func(t *testing.T, b *intakeBundle) {
		b.inner.push(topic, "a", "a1", "a2") // a2 waits for a1
		first := b.expect("a1")
		b.inner.push(topic, "b", "b1") // waits to be taken
		b.inner.push(topic, "c", "c1")
		synctest.Wait()
		b.inner.revokeMessages("a2", "b1", "c1")
		b.expectNothing()

		b.inner.push(topic, "d", ids("d", 10)...)
		synctest.Wait()
		assert.Equal(t, 4+3, b.inner.report().taken, "they leave the window at once, behind a slow one, too")
		first.Ack()
		b.expect("d1").Nack()
		synctest.Wait()
		b.inner.revokeMessages("d1") // waits after a nack
		b.expect("d2").Ack()
		synctest.Wait()
		assert.ElementsMatch(t, []string{"a1", "d2"}, b.inner.report().acked)
		assert.Empty(t, b.inner.report().nacked)
	})
}

func TestIntake_RevokedMessageIsNeverHandedOutAfterwards(t *testing.T) {
	inBubble(t, handlers.IntakeConfig{Lanes: 1, Window: 1}, func(t *testing.T, b *intakeBundle) {
		for _, id := range ids("", 200) {
			b.inner.push(topic, "k", id)
			synctest.Wait()
			b.inner.revokeMessages(id)
			select { // no wait in between
			case msg := <-b.messages:
				require.Failf(t, "handed out", "%s after its revocation", msg.UUID)
			default:
			}
		}
	})
}

func TestIntake_RevokedMessageAtWorkEndsAndIsNotAcked(t *testing.T) {
	inBubble(t, handlers.IntakeConfig{}, func(t *testing.T, b *intakeBundle) {
		b.inner.push(topic, "k", "1", "2", "3")
		working := b.expect("1")
		b.inner.revokeMessages("1")
		await(t, working.Context().Done(), "end of the context")
		require.ErrorIs(t, context.Cause(working.Context()), schema.ErrRevoked)
		b.expectNothing() // the key waits for the function to return
		working.Ack()

		second := b.expect("2")
		b.inner.revokeMessages("2")
		second.Nack()
		b.expect("3").Ack()
		synctest.Wait()
		assert.Equal(t, []string{"3"}, b.inner.report().acked)
		assert.Empty(t, b.inner.report().nacked)
	})
}
