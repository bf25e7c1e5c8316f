package schematest

import (
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// effectsSQL creates what handlers write to in these parts.
const effectsSQL = "CREATE TABLE effects (message VARCHAR(200) NOT NULL)"

// delivery is a message of the key "k" on its way to a handler.
func delivery(consumer, handler, messageID string) schema.Delivery {
	return schema.Delivery{Consumer: consumer, Handler: handler, Topic: "orders", Message: newMessage(messageID, "orders", "k", nil)}
}

// apply receives the delivery and, when it is fresh, writes an effect, all in
// tx. It may be called on any goroutine.
func (b testBundle) apply(tx *sql.Tx, d schema.Delivery) (schema.Verdict, error) {
	verdict, err := b.d.Receive(b.ctx, tx, d)
	if err != nil || verdict != schema.VerdictFresh {
		return verdict, err
	}
	_, err = tx.ExecContext(b.ctx, fmt.Sprintf("INSERT INTO effects (message) VALUES ('%s')", d.Message.UUID))
	return verdict, err
}

// deliver is one attempt: it commits.
func (b testBundle) deliver(d schema.Delivery) schema.Verdict {
	b.t.Helper()
	var verdict schema.Verdict
	require.NoError(b.t, b.inTx(func(tx *sql.Tx) error {
		var err error
		verdict, err = b.apply(tx, d)
		return err
	}))
	return verdict
}

func (b testBundle) effects() int {
	b.t.Helper()
	return b.count("SELECT count(*) FROM effects")
}

func (b testBundle) inboxRows() int {
	b.t.Helper()
	return b.count("SELECT count(*) FROM postbus_inbox")
}

// InboxRemembers checks that a message is fresh once; two messages with one
// body are two.
func InboxRemembers(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	b.exec(effectsSQL)
	assert.Equal(t, schema.VerdictFresh, b.deliver(delivery("payments", "charge", "m1")))
	for range 3 {
		assert.Equal(t, schema.VerdictDuplicate, b.deliver(delivery("payments", "charge", "m1")))
	}
	assert.Equal(t, schema.VerdictFresh, b.deliver(delivery("payments", "charge", "M1")))
	assert.Equal(t, 2, b.effects())
	assert.Equal(t, 2, b.inboxRows())

	// Twice in one transaction, as a batch would.
	require.NoError(t, b.inTx(func(tx *sql.Tx) error {
		first, err := b.apply(tx, delivery("payments", "charge", "m2"))
		second, err2 := b.apply(tx, delivery("payments", "charge", "m2"))
		assert.Equal(t, []schema.Verdict{schema.VerdictFresh, schema.VerdictDuplicate}, []schema.Verdict{first, second})
		return errors.Join(err, err2)
	}))
	assert.Equal(t, 3, b.effects())
}

// InboxTellsHandlersApart checks that what one handler has applied, or given
// up, is fresh for another handler and for the same one of another consumer.
func InboxTellsHandlersApart(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	b.exec(effectsSQL)
	receivers := [][2]string{{"payments", "charge"}, {"payments", "notify"}, {"stock", "charge"}, {"stock", "notify"}}
	for _, r := range receivers {
		assert.Equal(t, schema.VerdictFresh, b.deliver(delivery(r[0], r[1], "m1")), "%v", r)
	}
	for _, r := range receivers {
		assert.Equal(t, schema.VerdictDuplicate, b.deliver(delivery(r[0], r[1], "m1")), "%v", r)
	}
	assert.Equal(t, len(receivers), b.effects())

	b.bury(deadLetter("payments", "charge", "m2"))
	assert.Equal(t, schema.VerdictDead, b.deliver(delivery("payments", "charge", "m2")))
	assert.Equal(t, schema.VerdictFresh, b.deliver(delivery("payments", "notify", "m2")))
	assert.Equal(t, schema.VerdictFresh, b.deliver(delivery("stock", "charge", "m2")))
}

// InboxForgetsRollback checks that a handler that failed has left no memory of
// the message; the redelivery is applied.
func InboxForgetsRollback(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	b.exec(effectsSQL)
	for range 3 {
		require.ErrorIs(t, b.inTx(func(tx *sql.Tx) error {
			verdict, err := b.apply(tx, delivery("payments", "charge", "m1"))
			assert.Equal(t, schema.VerdictFresh, verdict)
			return errors.Join(err, errOnPurpose)
		}), errOnPurpose)
		assert.Equal(t, 0, b.inboxRows()+b.effects())
	}
	assert.Equal(t, schema.VerdictFresh, b.deliver(delivery("payments", "charge", "m1")))
	assert.Equal(t, []int{1, 1}, []int{b.inboxRows(), b.effects()})
}

// TwinsApplyOnce checks that two deliveries of one message at the same instant
// wait for each other, whichever commits or rolls back, and never fail: one
// effect if one of them meant to commit.
func TwinsApplyOnce(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	b.exec(effectsSQL)
	const rounds = 150
	want := 0
	for round := range rounds {
		commits := [2]bool{round&1 == 0, round&2 == 0}
		id := fmt.Sprintf("m-%d", round)
		verdicts, faults := b.twins(id, commits)
		require.NoError(t, errors.Join(faults[:]...), "round %d", round)
		if commits[0] || commits[1] {
			want++
		}
		n := b.count("SELECT count(*) FROM effects WHERE message = '%s'", id)
		require.Equal(t, commits[0] || commits[1], n == 1, "round %d: commits %v, verdicts %v, effects %d", round, commits, verdicts, n)
	}
	assert.Equal(t, []int{want, want}, []int{b.effects(), b.inboxRows()})
}

// twins delivers one message twice at once.
func (b testBundle) twins(messageID string, commits [2]bool) (verdicts [2]schema.Verdict, faults [2]error) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range 2 {
		wg.Go(func() {
			<-start
			faults[i] = b.inTx(func(tx *sql.Tx) error {
				var err error
				verdicts[i], err = b.apply(tx, delivery("payments", "charge", messageID))
				if err == nil && !commits[i] {
					return errOnPurpose
				}
				return err
			})
			if errors.Is(faults[i], errOnPurpose) {
				faults[i] = nil
			}
		})
	}
	close(start)
	wg.Wait()
	return verdicts, faults
}

// OwnViolationIsNoDuplicate checks that a handler that hits a unique index of
// its own has failed; nothing is remembered, and its error has no other
// meaning.
func OwnViolationIsNoDuplicate(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	b.exec("CREATE TABLE charges (message VARCHAR(200) PRIMARY KEY)")
	b.exec("INSERT INTO charges (message) VALUES ('m1')")
	for range 2 {
		err := b.inTx(func(tx *sql.Tx) error {
			verdict, err := b.d.Receive(b.ctx, tx, delivery("payments", "charge", "m1"))
			require.NoError(t, err)
			assert.Equal(t, schema.VerdictFresh, verdict)
			_, err = tx.ExecContext(b.ctx, "INSERT INTO charges (message) VALUES ('m1')")
			return err
		})
		require.Error(t, err)
		assert.Equal(t, schema.ErrorOther, b.d.Classify(err))
		assert.Equal(t, 0, b.inboxRows())
	}
}
