package schematest

import (
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// deadLetter is the letter of a message as [delivery] makes it.
func deadLetter(consumer, handler, messageID string) schema.DeadLetter {
	return schema.DeadLetter{
		Consumer: consumer, Handler: handler, Topic: "orders", MessageID: messageID, Key: "k",
		Payload: []byte(`{"total":1e2}`), Headers: map[string]string{schema.HeaderType: "orders.placed"},
		Attempts: 3, FirstError: "card declined", LastError: "card declined again",
	}
}

func (b testBundle) bury(letter schema.DeadLetter) {
	b.t.Helper()
	buried, err := b.d.Bury(b.ctx, letter)
	require.NoError(b.t, err)
	require.True(b.t, buried)
}

func (b testBundle) dead(filter schema.DeadFilter) []schema.DeadLetter {
	b.t.Helper()
	letters, err := b.d.Dead(b.ctx, filter)
	require.NoError(b.t, err)
	return letters
}

// LettersAreKept checks that what is buried comes out as it went in, buried
// again it is one letter with the counts of both, and the message is not handed
// out.
func LettersAreKept(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	b.exec(effectsSQL)
	letter := deadLetter("payments", "charge", "m1")
	b.bury(letter)
	got := b.dead(schema.DeadFilter{})
	require.Len(t, got, 1)
	first := got[0]
	assert.WithinDuration(t, time.Now(), first.FirstFailedAt, time.Hour)
	assert.WithinDuration(t, first.FirstFailedAt, first.LastFailedAt, time.Second)
	assert.NotZero(t, first.ID)
	want := letter
	want.ID, want.FirstFailedAt, want.LastFailedAt = first.ID, first.FirstFailedAt, first.LastFailedAt
	assert.Equal(t, want, first)

	letter.Attempts, letter.FirstError, letter.LastError, letter.Redriven = 2, "not the first", "timeout", 1
	b.bury(letter)
	got = b.dead(schema.DeadFilter{})
	require.Len(t, got, 1)
	assert.Equal(t, []any{first.ID, 5, "card declined", "timeout", 1}, []any{got[0].ID, got[0].Attempts, got[0].FirstError, got[0].LastError, got[0].Redriven})
	assert.Equal(t, first.FirstFailedAt, got[0].FirstFailedAt)
	assert.False(t, got[0].LastFailedAt.Before(first.LastFailedAt))

	assert.Equal(t, schema.VerdictDead, b.deliver(delivery("payments", "charge", "m1")))
	assert.Equal(t, 0, b.inboxRows()+b.effects(), "a dead letter leaves nothing in the inbox")
}

// LettersAreListed checks that letters are found by every field of the filter,
// oldest first, page by page.
func LettersAreListed(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	var all []string
	for i := range 105 {
		letter := deadLetter([]string{"payments", "stock"}[i%2], []string{"charge", "notify", ""}[i%3], fmt.Sprintf("m-%d", i))
		letter.Topic, letter.Key = []string{"orders", "refunds"}[i/2%2], fmt.Sprintf("k%d", i%5)
		b.bury(letter)
		all = append(all, letter.MessageID)
	}
	list := func(filter schema.DeadFilter) (ids []string) {
		for _, l := range b.dead(filter) {
			ids = append(ids, l.MessageID)
		}
		return ids
	}
	assert.Equal(t, all[:100], list(schema.DeadFilter{}), "100 is the default")
	assert.Equal(t, all, list(schema.DeadFilter{Most: 1000}))
	assert.Equal(t, []string{"m-1", "m-7", "m-13"}, list(schema.DeadFilter{Consumer: "stock", Handler: "notify", Most: 3}))
	assert.Equal(t, []string{"m-12", "m-32", "m-52"}, list(schema.DeadFilter{Consumer: "payments", Topic: "orders", Key: "k2", Most: 3}))
	assert.Empty(t, list(schema.DeadFilter{Consumer: "Payments"}))

	var paged []string
	filter := schema.DeadFilter{Most: 40}
	for page := b.dead(filter); len(page) > 0; page = b.dead(filter) {
		for _, l := range page {
			paged, filter.After = append(paged, l.MessageID), l.ID
		}
	}
	assert.Equal(t, all, paged)
	assert.Equal(t, all[len(all)-1:], list(schema.DeadFilter{ID: filter.After}))
	assert.Empty(t, list(schema.DeadFilter{ID: 1 << 40}))
}

// LettersSurviveRedrive checks that payload and headers are the same in the
// list, in what Revive returns, and after any number of rounds.
func LettersSurviveRedrive(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	headers := map[string]string{schema.HeaderKey: "k", schema.HeaderType: "orders.placed"}
	for names := trickyHeaders(); len(names) > 0; names = names[2:] {
		headers[names[0]] = names[1]
	}
	for name, payload := range trickyPayloads() {
		letter := deadLetter("payments", "charge", name)
		letter.Payload, letter.Headers = payload, maps.Clone(headers)
		for range 2 {
			b.bury(letter)
			listed := b.dead(schema.DeadFilter{})
			require.Len(t, listed, 1)
			require.ErrorIs(t, b.inTx(func(tx *sql.Tx) error {
				revived, err := b.d.Revive(b.ctx, tx, listed[0].ID)
				require.NoError(t, err)
				for _, l := range []schema.DeadLetter{listed[0], revived} {
					assertSameBytes(t, name, payload, l.Payload)
					assert.Equal(t, headers, map[string]string(l.Message().Metadata))
					assert.Equal(t, name, l.Message().UUID)
				}
				return errOnPurpose
			}), errOnPurpose)
		}
		b.exec("DELETE FROM postbus_parked")
	}
}

// BuryIsRefusedWhenApplied checks that what the handler has applied meanwhile
// is no dead letter.
func BuryIsRefusedWhenApplied(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	b.exec(effectsSQL)
	b.deliver(delivery("payments", "charge", "m1"))
	buried, err := b.d.Bury(b.ctx, deadLetter("payments", "charge", "m1"))
	require.NoError(t, err)
	assert.False(t, buried)
	assert.Empty(t, b.dead(schema.DeadFilter{}))
	b.bury(deadLetter("payments", "notify", "m1"))
}

// BuryRacesHandler checks that when a message is given up while its twin is
// applied, it is in exactly one state afterwards.
func BuryRacesHandler(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	b.exec(effectsSQL)
	for round := range 60 {
		id := fmt.Sprintf("m-%d", round)
		var verdict schema.Verdict
		var buried bool
		var faults [2]error
		var wg sync.WaitGroup
		start := make(chan struct{})
		wg.Go(func() {
			<-start
			faults[0] = b.inTx(func(tx *sql.Tx) (err error) {
				verdict, err = b.apply(tx, delivery("payments", "charge", id))
				return err
			})
		})
		wg.Go(func() {
			<-start
			buried, faults[1] = b.d.Bury(b.ctx, deadLetter("payments", "charge", id))
		})
		close(start)
		wg.Wait()
		require.NoError(t, errors.Join(faults[:]...))
		require.Equal(t, buried, verdict == schema.VerdictDead, "round %d: buried %t, verdict %d", round, buried, verdict)
		require.Equal(t, round+1, b.effects()+len(b.dead(schema.DeadFilter{Most: 1000})))
	}
	require.Equal(t, b.effects(), b.inboxRows())
}

// ReviveIsAtomic checks that the letter becomes the inbox row of its effect:
// after a rollback there is the letter as before, after a commit there is no
// letter.
func ReviveIsAtomic(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	b.exec(effectsSQL)
	b.bury(deadLetter("payments", "charge", "m1"))
	before := b.dead(schema.DeadFilter{})
	require.Len(t, before, 1)
	id := before[0].ID

	revive := func(then error) error {
		return b.inTx(func(tx *sql.Tx) error {
			letter, err := b.d.Revive(b.ctx, tx, id)
			if err != nil {
				return err
			}
			assert.Equal(t, before[0], letter)
			_, err = tx.ExecContext(b.ctx, "INSERT INTO effects (message) VALUES ('m1')")
			return errors.Join(err, then)
		})
	}
	require.ErrorIs(t, revive(errOnPurpose), errOnPurpose)
	assert.Equal(t, before, b.dead(schema.DeadFilter{}))
	assert.Equal(t, 0, b.inboxRows()+b.effects())
	assert.Equal(t, schema.VerdictDead, b.deliver(delivery("payments", "charge", "m1")))

	require.NoError(t, revive(nil))
	assert.Empty(t, b.dead(schema.DeadFilter{}))
	assert.Equal(t, schema.VerdictDuplicate, b.deliver(delivery("payments", "charge", "m1")))
	assert.Equal(t, []int{1, 1}, []int{b.inboxRows(), b.effects()})

	err := revive(nil)
	require.ErrorIs(t, err, schema.ErrNotDead)
	assert.True(t, strings.Contains(err.Error(), fmt.Sprint(id)), "the letter is named: %v", err)
	assert.Equal(t, 1, b.effects())
}

// RevivesAreExclusive checks that of two persons who redrive one letter at the
// same instant one has the effect, the other [schema.ErrNotDead]; when the
// first rolls back, the second has it.
func RevivesAreExclusive(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	b.exec(effectsSQL)
	for round := range 40 {
		b.bury(deadLetter("payments", "charge", fmt.Sprintf("m-%d", round)))
		id := b.dead(schema.DeadFilter{Most: 1})[0].ID
		var faults [3]error
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i := range faults {
			wg.Go(func() {
				<-start
				faults[i] = b.inTx(func(tx *sql.Tx) error {
					if _, err := b.d.Revive(b.ctx, tx, id); err != nil {
						return err
					}
					if _, err := tx.ExecContext(b.ctx, fmt.Sprintf("INSERT INTO effects (message) VALUES ('%d')", id)); err != nil {
						return err
					}
					if i == 2 {
						return errOnPurpose
					}
					return nil
				})
			})
		}
		close(start)
		wg.Wait()
		won := 0
		for i, err := range faults {
			if err == nil {
				won++
			} else if !errors.Is(err, schema.ErrNotDead) && (i != 2 || !errors.Is(err, errOnPurpose)) {
				t.Fatalf("round %d, revive %d: %v", round, i, err)
			}
		}
		require.Equal(t, 1, won, "round %d: %v", round, faults)
		require.Equal(t, []int{round + 1, round + 1, 0}, []int{b.effects(), b.inboxRows(), len(b.dead(schema.DeadFilter{}))})
	}
}
