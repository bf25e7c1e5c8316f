package story_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/examples/orders/story"
)

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// temporaryFolder makes the story use a folder of the test's own, and checks in
// the end that nothing is left in it.
func temporaryFolder(t *testing.T) {
	t.Helper()
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	t.Cleanup(func() {
		left, err := os.ReadDir(folder)
		assert.NoError(t, err)
		assert.Empty(t, left, "left in the temporary folder")
	})
}

func TestTell(t *testing.T) {
	temporaryFolder(t)
	var told strings.Builder

	summary, err := story.Tell(deadline(t), story.Config{Orders: 20, Out: &told})

	t.Log(told.String())
	require.NoError(t, err)
	assert.Equal(t, &story.Summary{
		OrdersPlaced: 20, OrdersRolledBack: 1, EventsRelayed: 40, PaymentsApplied: 20,
		// Nine from the relay that died, one put there by hand; more when the machine stalls for a lease.
		DuplicatesSuppressed: max(10, summary.DuplicatesSuppressed),
		Retries:              2, DeadLetters: 1, Redriven: 1,
	}, summary)
	for _, observed := range []string{
		"orders in the database: 18, events in its outbox: 18, messages at the broker: 0",
		"events in the outbox as seen from its transaction: 19; rolled back",
		"orders of that id: 0, events in the outbox: 18",
		"events at the broker: 9, marked as sent: 0, shards that A still owns: 64",
		"orders: 18, charges: 18",
		"duplicates suppressed: 1, charges of order-00",
		"retries: 2; the bank was asked 3 times, different idempotency keys: 1",
		"charges of order-0019: 1, its status: paid",
		"dead letter 1, of order-0020, handler charge: no limit is set for CHF",
		"charges of order-0020: 0, its status: placed",
		"charges of order-0020: 1, its status: paid",
		"All sums agree.",
	} {
		assert.Contains(t, told.String(), observed)
	}
	assertInReadme(t, told.String())
}

// varying is what differs from run to run: times, and how often something came
// twice on a machine that stalls.
var varying = regexp.MustCompile(`after \d.*s|second time: \d+|(duplicates suppressed.*) \d.*`)

// assertInReadme: what the README shows is what the story says.
func assertInReadme(t *testing.T, told string) {
	t.Helper()
	readme, err := os.ReadFile("../../../README.md")
	require.NoError(t, err)
	_, shown, found := strings.Cut(string(readme), "```text\n")
	require.True(t, found)
	shown, _, _ = strings.Cut(shown, "```")
	assert.Equal(t, varying.ReplaceAllString(shown, "$1"), varying.ReplaceAllString(told, "$1"), "told, and in the README")
}

// cutter ends the story when it comes to a line.
type cutter struct {
	line string
	cut  func()
}

func (c cutter) Write(p []byte) (int, error) {
	if strings.Contains(string(p), c.line) {
		c.cut()
	}
	return len(p), nil
}

// Whenever the story is interrupted, it stops soon, counts nothing, and leaves
// no file and no goroutine.
func TestTell_interrupted(t *testing.T) {
	for _, chapter := range []int{1, 3, 4, 6} {
		t.Run(fmt.Sprintf("chapter %d", chapter), func(t *testing.T) {
			temporaryFolder(t)
			interrupt := errors.New("interrupted by the test")
			ctx, cancel := context.WithCancelCause(deadline(t))
			out := cutter{line: fmt.Sprintf("\n%d. ", chapter), cut: func() { cancel(interrupt) }}
			began := time.Now()

			summary, err := story.Tell(ctx, story.Config{Orders: 20, Out: out})

			require.ErrorIs(t, err, interrupt)
			assert.ErrorContains(t, err, "stopped early")
			assert.Nil(t, summary)
			assert.Less(t, time.Since(began), 20*time.Second)
		})
	}
}

func TestTell_bounds(t *testing.T) {
	t.Parallel()
	for _, orders := range []int{-1, 0, story.MinOrders - 1, story.MaxOrders + 1} {
		_, err := story.Tell(t.Context(), story.Config{Orders: orders, Out: io.Discard})
		require.ErrorIs(t, err, story.ErrInvalidConfig)
		assert.ErrorContains(t, err, fmt.Sprint(orders))
	}
}

func TestTell_smallest(t *testing.T) {
	t.Parallel()
	summary, err := story.Tell(deadline(t), story.Config{Orders: story.MinOrders, Out: io.Discard})
	require.NoError(t, err)
	assert.Equal(t, story.MinOrders, summary.PaymentsApplied)
}
