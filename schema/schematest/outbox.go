package schematest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// InsertIsAtomic checks that messages are there iff their transaction
// committed; none, or a transaction that is none, writes nothing.
func InsertIsAtomic(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	b.publish(newMessage("committed", "orders", "a", nil))
	rolledBack := errors.New("rolled back on purpose")
	require.ErrorIs(t, b.inTx(func(tx *sql.Tx) error {
		require.NoError(t, b.d.Insert(b.ctx, tx, []*message.Message{newMessage("ghost", "orders", "a", nil)}))
		return rolledBack
	}), rolledBack)
	require.NoError(t, b.inTx(func(tx *sql.Tx) error { return b.d.Insert(b.ctx, tx, nil) }))
	assert.Equal(t, []string{"committed"}, b.waitingIDs())

	var none *sql.Tx
	require.ErrorIs(t, b.d.Insert(b.ctx, none, simple("a", 1)), schema.ErrNoTransaction)
	require.ErrorIs(t, b.d.Insert(b.ctx, nil, simple("a", 1)), schema.ErrNoTransaction)
}

// InsertFollowsSavepoints checks that what is rolled back to a savepoint takes
// its messages along and leaves those before and behind it.
func InsertFollowsSavepoints(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	require.NoError(t, b.inTx(func(tx *sql.Tx) error {
		for _, step := range []string{
			"+outer", "SAVEPOINT one", "+ghost", "SAVEPOINT two", "+deeper ghost", "RELEASE SAVEPOINT two",
			"ROLLBACK TO SAVEPOINT one", "+second", "SAVEPOINT three", "+kept", "RELEASE SAVEPOINT three",
		} {
			if id, ok := strings.CutPrefix(step, "+"); ok {
				require.NoError(t, b.d.Insert(b.ctx, tx, []*message.Message{newMessage(id, "orders", "a", nil)}))
				continue
			}
			_, err := tx.ExecContext(b.ctx, step)
			require.NoError(t, err, step)
		}
		return nil
	}))
	assert.Equal(t, []string{"outer", "second", "kept"}, b.waitingIDs())
}

// InsertKeepsOrder checks that ids follow the order of the messages within a
// call, of the calls within a transaction, and of transactions one after the
// other.
func InsertKeepsOrder(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	var want []string
	next := func(n int) []*message.Message {
		msgs := make([]*message.Message, n)
		for i := range msgs {
			// Ids that sort otherwise, keys on many shards.
			id := fmt.Sprintf("%d-%d", 1000-len(want), len(want))
			msgs[i] = newMessage(id, "orders", fmt.Sprintf("key-%d", i%7), nil)
			want = append(want, id)
		}
		return msgs
	}
	for range 3 {
		require.NoError(t, b.inTx(func(tx *sql.Tx) error {
			return errors.Join(b.d.Insert(b.ctx, tx, next(50)), b.d.Insert(b.ctx, tx, next(1)), b.d.Insert(b.ctx, tx, next(20)))
		}))
	}
	assert.Equal(t, want, b.waitingIDs())
}

// InsertTakesManyMessages checks that 50,000 messages in one call are written,
// in order.
func InsertTakesManyMessages(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	const many = 50_000
	msgs := make([]*message.Message, many)
	for i := range msgs {
		msgs[i] = newMessage(fmt.Sprintf("m-%05d", i), "orders", fmt.Sprintf("key-%d", i%100), []byte{byte(i)})
	}
	b.publish(msgs...)
	assert.Equal(t, many, b.count("SELECT count(DISTINCT message_id) FROM postbus_outbox"))
	assert.Zero(t, b.count(`SELECT count(*) FROM (
    SELECT message_id, lag(message_id) OVER (ORDER BY id) AS before FROM postbus_outbox) AS pairs WHERE before > message_id`))
}

// InsertRefusesFinishedTransaction checks that after the end of its transaction
// a message is an error that the caller recognises, and nothing is written.
func InsertRefusesFinishedTransaction(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	committed, rolledBack := b.begin(), (*sql.Tx)(nil)
	require.NoError(t, committed.Commit())
	require.ErrorIs(t, b.d.Insert(b.ctx, committed, simple("a", 1)), sql.ErrTxDone)

	rolledBack = b.begin()
	require.NoError(t, b.d.Insert(b.ctx, rolledBack, simple("b", 1)))
	require.NoError(t, rolledBack.Rollback())
	require.ErrorIs(t, b.d.Insert(b.ctx, rolledBack, simple("b", 1)), sql.ErrTxDone)
	assert.Empty(t, b.waitingIDs())
}

// InsertHonoursContext checks that an insert runs under its caller's context,
// not under that of a message, and an ended one stops it.
func InsertHonoursContext(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	over, cancel := context.WithCancel(b.ctx)
	cancel()

	tx := b.begin()
	require.Error(t, b.d.Insert(over, tx, simple("ghost", 1)))
	require.NoError(t, tx.Rollback())

	late, cancelLate := context.WithTimeout(b.ctx, time.Nanosecond)
	defer cancelLate()
	tx = b.begin()
	require.Error(t, b.d.Insert(late, tx, simple("ghost", 1)))
	require.NoError(t, tx.Rollback())

	msg := newMessage("mine", "orders", "a", nil)
	msg.SetContext(over)
	b.publish(msg)
	assert.Equal(t, []string{"mine"}, b.waitingIDs())
}

// InsertNeedsOneConnection checks that everything happens on the transaction's
// own connection, also the first time, in a pool that has no other.
func InsertNeedsOneConnection(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	b.db.SetMaxOpenConns(1)
	b.publish(simple("a", 2)...)
	require.NoError(t, b.inTx(func(tx *sql.Tx) error {
		verdict, err := b.d.Receive(b.ctx, tx, delivery("payments", "charge", "a.0"))
		assert.Equal(t, schema.VerdictFresh, verdict)
		return errors.Join(err, b.d.Insert(b.ctx, tx, simple("b", 1)))
	}))
	assert.Equal(t, []string{"a.0", "a.1", "b.0"}, b.waitingIDs())
}

// trickyPayloads are bytes that some column or encoding would refuse or change.
func trickyPayloads() map[string][]byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return map[string][]byte{
		"nil": nil, "empty": {}, "one byte": {0}, "backslash": []byte(`\x41`), "all bytes": all,
		"NUL in JSON": []byte(`{"a":"\u0000"}`), "lone surrogate": []byte(`"\ud800"`), "invalid UTF-8": {0xff, 0xfe},
		"not JSON": []byte("{"), "key order, duplicates, numbers": []byte(`{"b":1e2, "a":9007199254740993,"a":1.0}`),
		"1 MiB": []byte(strings.Repeat("\x00\xff\"'{},", 1<<17)),
	}
}

// PayloadsSurvive checks that the same bytes come out that went in; nil and
// empty are told apart.
func PayloadsSurvive(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	payloads := trickyPayloads()
	var msgs []*message.Message
	for name, payload := range payloads {
		msgs = append(msgs, newMessage(name, "orders", "", payload))
	}
	b.publish(msgs...) // in one call ...
	for name, payload := range payloads {
		b.publish(newMessage(name, "orders", name, payload)) // ... and alone
	}
	records := b.waiting()
	require.Len(t, records, 2*len(payloads))
	for _, r := range records {
		assertSameBytes(t, r.MessageID, payloads[r.MessageID], r.Payload)
		assertSameBytes(t, r.MessageID, payloads[r.MessageID], r.Message().Payload)
	}
}

func assertSameBytes(t *testing.T, what string, want, got []byte) {
	t.Helper()
	if string(want) != string(got) || (want == nil) != (got == nil) {
		t.Errorf("%s: payload changed: %.40q (nil: %t) became %.40q (nil: %t)", what, want, want == nil, got, got == nil)
	}
}

// trickyHeaders are valid UTF-8 that quoting or JSON would change.
func trickyHeaders() []string {
	return []string{
		"plain", "value", "empty", "", "Größe", "Ω ≈ ç √ 漢字 🚌", "quotes", `"'\{},<>&` + "\u2028\t\n", "case", "1", "Case", "2",
		"null", "null", "number", "1e2", "e\u0301", "decomposed", "\u00e9", "composed", "{\"json\":1}", "[]",
	}
}

// HeadersSurvive checks that headers, and what is kept in columns of its own,
// come out as they went in.
func HeadersSurvive(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	full := newMessage("full", "orders", "a", []byte("{}"), trickyHeaders()...)
	full.Metadata.Set(schema.HeaderType, "orders.placed")
	full.Metadata.Set(schema.HeaderVersion, "7")
	full.Metadata.Set(schema.HeaderTime, "2024-02-29T23:59:59.123456789Z")
	full.Metadata.Set(schema.HeaderContentType, "application/json")
	full.Metadata.Set(schema.HeaderAggregateType, "order")
	bare := newMessage("bare", "payments", "", nil)
	b.publish(full, bare)

	records := b.waiting()
	require.Len(t, records, 2)
	for i, msg := range []*message.Message{full, bare} {
		want := maps.Clone(msg.Metadata)
		delete(want, schema.HeaderTopic)
		delete(want, schema.HeaderAggregateType)
		got := records[i].Message()
		assert.Equal(t, want, got.Metadata)
		assert.Equal(t, msg.UUID, got.UUID)
	}
	r := records[0]
	assert.Equal(t, []any{"orders", "a", "order", "orders.placed", 7, schema.StateWaiting, 0, ""},
		[]any{r.Topic, r.Key, r.AggregateType, r.EventType, r.Version, r.State, r.Attempts, r.LastError})
	assert.WithinDuration(t, time.Now(), r.CreatedAt, time.Hour)
}

// KeysSurvive checks that a key is its exact bytes; its shard is that of the
// golden function, whatever the database's collation and case rules are.
func KeysSurvive(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	keys := []string{
		"a", "A", "a ", " a", "e\u0301", "\u00e9", strings.Repeat("k", schema.MaxKeyBytes), "0", "00", "NULL", "'", `\`, "{a,b}", "漢字",
		"8f14e45f-ceea-467f-a0e6-b7e0e7b8f6d1", "8F14E45F-CEEA-467F-A0E6-B7E0E7B8F6D1",
	}
	for _, key := range keys {
		b.publish(newMessage("", "orders", key, nil))
	}
	records := b.waiting()
	require.Len(t, records, len(keys))
	for i, r := range records {
		assert.Equal(t, keys[i], r.Key)
		assert.Equal(t, schema.ShardOf(keys[i], schema.DefaultShards), r.Shard)
	}
	b.publish(newMessage("keyless", "orders", "", nil))
	assert.Equal(t, schema.ShardOf("keyless", schema.DefaultShards), b.waiting()[len(keys)].Shard)
}
