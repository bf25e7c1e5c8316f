package schematest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// LateCommitIsClaimed checks that a record is found by what it is, not by where
// a reader got to: also when those with higher ids were claimed and sent
// before. A database with one writer shows the same by a record that was left
// behind.
func LateCommitIsClaimed(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	late, early, another := simple("late", 1), simple("early", 3), simple("another", 2)
	if b.writersWait() {
		b.publish(late...)
		b.publish(early...)
		b.sendAllBut("late.0")
	} else {
		tx := b.begin()
		require.NoError(t, b.d.Insert(b.ctx, tx, late))
		b.publish(early...)
		b.sendAllBut("late.0")
		assert.Empty(t, b.waitingIDs(), "nothing of an open transaction is seen")
		rolledBack := b.begin()
		require.NoError(t, b.d.Insert(b.ctx, rolledBack, simple("ghost", 1)))
		b.publish(another...)
		b.sendAllBut("late.0")
		require.NoError(t, rolledBack.Rollback())
		require.NoError(t, tx.Commit())
	}
	assert.Equal(t, []string{"late.0"}, b.waitingIDs())
}

// writersWait tells whether a second transaction that writes waits for the
// first one's end, as SQLite's do.
func (b testBundle) writersWait() bool { return b.d.Kind() == "sqlite" }

// sendAllBut claims what there is and marks it as sent, but for one.
func (b testBundle) sendAllBut(messageID string) {
	b.t.Helper()
	records := slices.DeleteFunc(b.waiting(), func(r schema.Record) bool { return r.MessageID == messageID })
	require.NotEmpty(b.t, records)
	require.NoError(b.t, b.d.Sent(b.ctx, records))
}

// ClaimKeepsLimits checks that records come by shard in the order asked for, by
// id within one, at most so many a shard and in all, and from no other shard.
// Claiming changes nothing.
func ClaimKeepsLimits(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	for i := range 5 {
		for _, shard := range []int{9, 2, 30} {
			b.publish(newMessage(fmt.Sprintf("%d.%d", shard, i), "orders", keyOn(shard), nil))
		}
	}
	for _, c := range []struct {
		shards         []int
		perShard, most int
		want           []string
	}{
		{[]int{30, 2}, 2, 100, []string{"30.0", "30.1", "2.0", "2.1"}},
		{[]int{2, 9, 30}, 2, 3, []string{"2.0", "2.1", "9.0"}},
		{[]int{9}, 100, 100, []string{"9.0", "9.1", "9.2", "9.3", "9.4"}},
		{[]int{63, 30, 0}, 1, 1, []string{"30.0"}},
		{[]int{0, 1}, 10, 10, []string{}},
		{nil, 10, 10, []string{}},
	} {
		for range 2 {
			records, err := b.d.Claim(b.ctx, c.shards, c.perShard, c.most)
			require.NoError(t, err)
			assert.Equal(t, c.want, messageIDs(records), "%+v", c)
		}
	}
}

// ClaimTellsUnreadableRows checks that a row that is no message is claimed with
// its fault, and keeps no other one from being claimed.
func ClaimTellsUnreadableRows(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	b.publish(newMessage("bad", "orders", "a", nil), newMessage("good", "orders", "b", nil))
	b.exec(`UPDATE postbus_outbox SET headers = '{' WHERE message_id = 'bad'`)
	faults := map[string]bool{}
	for _, r := range b.waiting() {
		faults[r.MessageID] = r.Fault != ""
	}
	assert.Equal(t, map[string]bool{"bad": true, "good": false}, faults)
}

// SentIsIdempotent checks that what was sent is gone, whatever state it was
// read in and is in by now; nothing else is.
func SentIsIdempotent(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	b.publish(simple("a", 5)...)
	b.publish(newMessage("other", "orders", "b", nil))
	read := b.waiting()
	shard := b.own("relay")[read[0].Shard]
	// After it was read, another relay held the lane and gave a.1 up.
	require.NoError(t, b.d.Settle(b.ctx, "relay", schema.Settlement{
		Shard:  shard,
		Failed: []schema.Failure{{Record: read[0].ID, State: schema.StateHeld}, {Record: read[1].ID, State: schema.StateQuarantined}},
		Held:   []int64{read[2].ID},
		Holds:  []schema.Hold{{Lane: read[0].Lane(), Shard: shard.ID, Head: read[0].ID}},
	}))
	require.NoError(t, b.d.Sent(b.ctx, nil))
	for range 2 {
		require.NoError(t, b.d.Sent(b.ctx, read[:4]))
	}
	assert.Equal(t, []string{"a.4", "other"}, b.waitingIDs())
	held, err := b.d.Held(b.ctx, []schema.Hold{{Lane: read[0].Lane(), Shard: shard.ID}}, 10)
	require.NoError(t, err)
	assert.Empty(t, held)
	assert.Equal(t, 2, b.count("SELECT count(*) FROM postbus_outbox"))
}
