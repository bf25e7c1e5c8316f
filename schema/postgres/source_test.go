package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
)

// A claim neither skips what somebody has locked, which would let later records
// pass, nor waits for it, nor locks anything itself.
func TestPostgres_H07_ClaimMindsNoLocks(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		b.publish("k", "m1", "m2", "m3")
		locker := b.begin()
		b.exec(locker, "SELECT 1 FROM postbus_outbox WHERE message_id = 'm1' FOR UPDATE")
		b.exec(locker, "DELETE FROM postbus_outbox WHERE message_id = 'm2'")
		claimed := async(func() []schema.Record {
			records, err := b.Claim(b.ctx, []int{shardOf("k")}, 10, 10)
			assert.NoError(t, err)
			return records
		})
		assert.Len(t, await(t, "claim", claimed), 3)
		require.NoError(t, locker.Rollback())
	})
}

// Two relays that mark the same records as sent do not deadlock, in whatever
// order each has them.
func TestPostgres_H31_SentByTwoRelaysAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{})
	for range 20 {
		b.publish("k", make([]string, 200)...)
		records := b.claim("k")
		require.Len(t, records, 200)
		backwards := make([]schema.Record, len(records))
		for i, r := range records {
			backwards[len(records)-1-i] = r
		}
		other := async(func() error { return b.Sent(b.ctx, backwards) })
		require.NoError(t, b.Sent(b.ctx, records))
		require.NoError(t, await(t, "the other relay", other))
		assert.Empty(t, b.claim("k"))
	}
}
