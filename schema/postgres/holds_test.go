package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
	"github.com/postbus-io/postbus/schema/schematest"
)

// holdOf is what a relay writes when the record could not be sent.
func holdOf(shard schema.Shard, r schema.Record) schema.Settlement {
	return schema.Settlement{
		Shard:  shard,
		Failed: []schema.Failure{{Record: r.ID, State: schema.StateHeld, Attempts: 1, Retry: time.Hour, Error: "zombie"}},
		Holds:  []schema.Hold{{Lane: r.Lane(), Shard: r.Shard, Head: r.ID, Retry: time.Hour}},
	}
}

// A relay that was paused wakes up and writes; its statement waits for a row.
// Until it is done nobody gets the shard, so it does not write under a new
// owner. (Comparing the epoch in a subselect of the UPDATE would not do: it is
// not read again after the wait.)
func TestPostgres_H50_EpochCannotMoveWhileSettleWaits(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		b.publish("k", "m1")
		record := b.claim("k")[0]
		shard := b.own("zombie", "k")
		rowLock := b.begin()
		b.exec(rowLock, "SELECT 1 FROM postbus_outbox FOR UPDATE")
		settled := async(func() error { return b.Settle(b.ctx, "zombie", holdOf(shard, record)) })
		b.awaitBlocked(1)

		b.exec(b.db, "UPDATE postbus_relays SET lease_until = clock_timestamp() - interval '1 second'")
		_, err := b.Heartbeat(b.ctx, "new", time.Hour)
		require.NoError(t, err)
		taken, err := b.Acquire(b.ctx, "new", schema.DefaultShards)
		require.NoError(t, err)
		assert.Len(t, taken, schema.DefaultShards-1)
		for _, s := range taken {
			assert.NotEqual(t, shard.ID, s.ID, "the epoch moved while a settlement was under way")
		}
		require.NoError(t, rowLock.Rollback())
		require.NoError(t, await(t, "settle", settled))

		taken, err = b.Acquire(b.ctx, "new", schema.DefaultShards)
		require.NoError(t, err)
		assert.Len(t, taken, 1)
		assert.Empty(t, b.claimed("k"), "the new owner finds what the old one wrote in its time")
	})
}

// A settlement that waits for the shard's row finds the new epoch there.
func TestPostgres_H50_SettleThatWaitedForTakeoverIsFenced(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		b.publish("k", "m1")
		record := b.claim("k")[0]
		shard := b.own("zombie", "k")
		takeover := b.begin()
		b.exec(takeover, "UPDATE postbus_shards SET owner = 'new', epoch = epoch + 1")
		settled := async(func() error { return b.Settle(b.ctx, "zombie", holdOf(shard, record)) })
		b.awaitBlocked(1)
		require.NoError(t, takeover.Commit())
		require.ErrorIs(t, await(t, "settle", settled), schema.ErrFenced)
		assert.Equal(t, []string{"m1"}, b.claimed("k"))
		assert.Equal(t, 0, b.count("SELECT count(*) FROM postbus_holds"))
	})
}

// A record that another relay moves aside while it is being marked as sent is
// found where it is then.
func TestPostgres_H31_SentFollowsRecordsAside(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{})
	b.publish("k", "m1", "m2")
	records := b.claim("k")
	moving := b.begin()
	b.exec(moving, "UPDATE postbus_outbox SET state = 1")
	sent := async(func() error { return b.Sent(b.ctx, records[:1]) })
	b.awaitBlocked(1)
	require.NoError(t, moving.Commit())
	require.NoError(t, await(t, "sent", sent))
	assert.Equal(t, 1, b.count("SELECT count(*) FROM postbus_outbox"))
	assert.Equal(t, 1, b.count("SELECT count(*) FROM postbus_outbox WHERE message_id = 'm2'"))
}

// Waits, leases and times are instants: sessions in other zones see the same.
func TestPostgres_H83_SessionsInThreeZones(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{})
	b.publish("k", "head")
	record := b.claim("k")[0]
	var zones []*postgres.Database
	for _, zone := range []string{"America/Los_Angeles", "UTC", "Asia/Kolkata"} {
		zones = append(zones, open(t, schematest.Open(t, "postgres", b.url+"&timezone="+zone), postgres.Config{}))
	}
	for i, writer := range zones {
		_, err := writer.Heartbeat(b.ctx, "relay", time.Hour)
		require.NoError(t, err)
		taken, err := zones[(i+1)%3].Acquire(b.ctx, "relay", schema.DefaultShards)
		require.NoError(t, err)
		require.Len(t, taken, schema.DefaultShards)
		shard := schema.Shard{ID: shardOf("k"), Epoch: int64(i + 1)}
		require.NoError(t, writer.Settle(b.ctx, "relay", holdOf(shard, record)))
		buried, err := writer.Bury(b.ctx, letter("m"))
		require.NoError(t, err)
		require.True(t, buried)
		for _, reader := range zones {
			assertSeenFromOtherZone(b, reader)
		}
		require.NoError(t, writer.Leave(b.ctx, "relay"))
	}
}

func assertSeenFromOtherZone(b testBundle, d *postgres.Database) {
	b.t.Helper()
	tenure, err := d.Heartbeat(b.ctx, "observer", time.Hour)
	require.NoError(b.t, err)
	assert.Equal(b.t, 2, tenure.Relays, "the other relay's lease has an hour to go")
	taken, err := d.Acquire(b.ctx, "observer", schema.DefaultShards)
	require.NoError(b.t, err)
	assert.Empty(b.t, taken)

	holds, err := d.Holds(b.ctx, []int{shardOf("k")})
	require.NoError(b.t, err)
	require.Len(b.t, holds, 1)
	assert.InDelta(b.t, time.Hour.Seconds(), holds[0].Retry.Seconds(), 120)
	held, err := d.Held(b.ctx, holds, 1)
	require.NoError(b.t, err)
	require.Len(b.t, held, 1)
	assert.WithinDuration(b.t, time.Now(), held[0].CreatedAt, 2*time.Minute)
	dead, err := d.Dead(b.ctx, schema.DeadFilter{})
	require.NoError(b.t, err)
	assert.WithinDuration(b.t, time.Now(), dead[0].LastFailedAt, 2*time.Minute)
	require.NoError(b.t, d.Leave(b.ctx, "observer"))
}
