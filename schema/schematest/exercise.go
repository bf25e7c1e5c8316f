package schematest

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// An OpenFunc returns a fresh database with Postbus's tables and the pool that
// it was made with, both gone when the test ends.
type OpenFunc func(t testing.TB) (*sql.DB, schema.Database)

// Exercise runs everything that a database must do, each part on a database
// of its own.
func Exercise(t *testing.T, open OpenFunc) {
	t.Helper()
	for _, part := range []struct {
		name string
		run  func(*testing.T, OpenFunc)
	}{
		{"InsertIsAtomic", InsertIsAtomic},
		{"InsertFollowsSavepoints", InsertFollowsSavepoints},
		{"InsertKeepsOrder", InsertKeepsOrder},
		{"InsertTakesManyMessages", InsertTakesManyMessages},
		{"InsertRefusesFinishedTransaction", InsertRefusesFinishedTransaction},
		{"InsertHonoursContext", InsertHonoursContext},
		{"InsertNeedsOneConnection", InsertNeedsOneConnection},
		{"PayloadsSurvive", PayloadsSurvive},
		{"HeadersSurvive", HeadersSurvive},
		{"KeysSurvive", KeysSurvive},

		{"MembershipIsCounted", MembershipIsCounted},
		{"ShardsHaveOneOwner", ShardsHaveOneOwner},
		{"ShardsAreTakenOverAfterTheLease", ShardsAreTakenOverAfterTheLease},
		{"ShardsAreGivenBack", ShardsAreGivenBack},

		{"LateCommitIsClaimed", LateCommitIsClaimed},
		{"ClaimKeepsLimits", ClaimKeepsLimits},
		{"ClaimTellsUnreadableRows", ClaimTellsUnreadableRows},
		{"SentIsIdempotent", SentIsIdempotent},

		{"HoldsKeepLanes", HoldsKeepLanes},
		{"HoldsAreLiftedWhenEmpty", HoldsAreLiftedWhenEmpty},
		{"FailuresAreKept", FailuresAreKept},
		{"SettleIsFenced", SettleIsFenced},
		{"SettleRacesTakeover", SettleRacesTakeover},

		{"InboxRemembers", InboxRemembers},
		{"InboxTellsHandlersApart", InboxTellsHandlersApart},
		{"InboxForgetsRollback", InboxForgetsRollback},
		{"TwinsApplyOnce", TwinsApplyOnce},
		{"OwnViolationIsNoDuplicate", OwnViolationIsNoDuplicate},

		{"LettersAreKept", LettersAreKept},
		{"LettersAreListed", LettersAreListed},
		{"LettersSurviveRedrive", LettersSurviveRedrive},
		{"BuryIsRefusedWhenApplied", BuryIsRefusedWhenApplied},
		{"BuryRacesHandler", BuryRacesHandler},
		{"ReviveIsAtomic", ReviveIsAtomic},
		{"RevivesAreExclusive", RevivesAreExclusive},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			part.run(t, open)
		})
	}
}

// testBundle is what every part works with.
type testBundle struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // the one context of a test, which bounds all its waits
	db  *sql.DB
	d   schema.Database
}

func setup(t *testing.T, open OpenFunc) testBundle {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	db, d := open(t)
	return testBundle{t: t, ctx: ctx, db: db, d: d}
}

// inTx runs f in a transaction and commits, unless f fails. It may be called on
// any goroutine.
func (b testBundle) inTx(f func(tx *sql.Tx) error) error {
	tx, err := b.db.BeginTx(b.ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// begin starts a transaction that ends with the test at the latest.
func (b testBundle) begin() *sql.Tx {
	b.t.Helper()
	tx, err := b.db.BeginTx(b.ctx, nil)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// exec runs a statement that all databases know.
func (b testBundle) exec(statement string) {
	b.t.Helper()
	_, err := b.db.ExecContext(b.ctx, statement)
	require.NoError(b.t, err, statement)
}

// count returns the one number that a query answers.
func (b testBundle) count(query string, args ...any) int {
	b.t.Helper()
	var n int
	require.NoError(b.t, b.db.QueryRowContext(b.ctx, fmt.Sprintf(query, args...)).Scan(&n), query)
	return n
}

// publish writes messages in a transaction of their own.
func (b testBundle) publish(msgs ...*message.Message) {
	b.t.Helper()
	require.NoError(b.t, b.inTx(func(tx *sql.Tx) error { return b.d.Insert(b.ctx, tx, msgs) }))
}

// waiting returns all records that a relay could claim, by id.
func (b testBundle) waiting() []schema.Record {
	b.t.Helper()
	records, err := b.d.Claim(b.ctx, allShards(), 1<<20, 1<<20)
	require.NoError(b.t, err)
	slices.SortFunc(records, func(x, y schema.Record) int { return int(x.ID - y.ID) })
	return records
}

// waitingIDs returns the message ids of all records that could be claimed.
func (b testBundle) waitingIDs() []string {
	b.t.Helper()
	return messageIDs(b.waiting())
}

// eventually asks until f says true, and fails when it never does.
func (b testBundle) eventually(what string, f func() bool) {
	b.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for !f() {
		select {
		case <-deadline.C:
			b.t.Fatalf("still not after %s: %s", patience, what)
		case <-ticker.C:
		}
	}
}

func messageIDs(records []schema.Record) []string {
	ids := make([]string, len(records))
	for i, r := range records {
		ids[i] = r.MessageID
	}
	return ids
}

func recordIDs(records []schema.Record) []int64 {
	ids := make([]int64, len(records))
	for i, r := range records {
		ids[i] = r.ID
	}
	return ids
}

func allShards() []int {
	shards := make([]int, schema.DefaultShards)
	for i := range shards {
		shards[i] = i
	}
	return shards
}

// newMessage returns a message as an outbox takes it. Headers are names and
// values in turn.
func newMessage(id, topic, key string, payload []byte, headers ...string) *message.Message {
	if id == "" {
		id = watermill.NewULID()
	}
	msg := message.NewMessage(id, payload)
	msg.Metadata.Set(schema.HeaderTopic, topic)
	if key != "" {
		msg.Metadata.Set(schema.HeaderKey, key)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		msg.Metadata.Set(headers[i], headers[i+1])
	}
	return msg
}

// simple returns n messages of one key, named after it: key.0, key.1, ...
func simple(key string, n int) []*message.Message {
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = newMessage(fmt.Sprintf("%s.%d", key, i), "orders", key, []byte(strings.Repeat("x", i%8)))
	}
	return msgs
}

// keyOn returns a key whose shard it is.
func keyOn(shard int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprintf("key-%d", i); schema.ShardOf(key, schema.DefaultShards) == shard {
			return key
		}
	}
}
