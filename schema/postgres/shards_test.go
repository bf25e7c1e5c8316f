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

// gatesSQL makes whoever reads the relays of a second schema wait at a gate: an
// advisory lock. So a statement can be stopped between its snapshot and its
// first row lock.
const gatesSQL = `
CREATE TABLE relays AS SELECT * FROM postbus_relays;
CREATE FUNCTION gate() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_setting('postbus.gated', true) = 'yes' THEN PERFORM pg_advisory_xact_lock(4711); END IF;
    RETURN true;
END $$;
ALTER TABLE postbus_relays RENAME TO real_relays;
CREATE VIEW postbus_relays AS SELECT * FROM real_relays WHERE gate();`

// A relay whose statement has begun before another relay took the shards finds
// them free as of then. It must not take them again.
func TestPostgres_H50_AcquireSeesWhatWasTakenMeanwhile(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(testBundle){
		"shards without an owner":     func(testBundle) {},
		"shards of a relay that died": func(b testBundle) { b.die("dead") },
		"shards of a relay that left": func(b testBundle) { b.die("dead"); b.exec(b.db, "DELETE FROM postbus_relays") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, "postgres", postgres.Config{})
			prepare(b)
			for _, owner := range []string{"quick", "slow"} {
				_, err := b.Heartbeat(b.ctx, owner, time.Hour)
				require.NoError(t, err)
			}
			b.exec(b.db, gatesSQL)
			slow := open(t, schematest.Open(t, "postgres", b.url+"&postbus.gated=yes"), postgres.Config{})
			gate := b.begin()
			b.exec(gate, "SELECT pg_advisory_xact_lock(4711)")
			result := async(func() []schema.Shard {
				taken, err := slow.Acquire(b.ctx, "slow", schema.DefaultShards)
				assert.NoError(t, err)
				return taken
			})
			b.awaitBlocked(1)
			taken, err := b.Acquire(b.ctx, "quick", 40)
			require.NoError(t, err)
			require.Len(t, taken, 40)
			require.NoError(t, gate.Rollback())

			assert.Len(t, await(t, "the slow relay", result), schema.DefaultShards-40)
			assert.Equal(t, 40, b.count("SELECT count(*) FROM postbus_shards WHERE owner = 'quick'"))
		})
	}
}

// die leaves all shards with an owner whose lease is over.
func (b testBundle) die(owner string) {
	b.t.Helper()
	b.own(owner, "k")
	b.exec(b.db, "UPDATE postbus_relays SET lease_until = clock_timestamp() - interval '1 second'")
}

// The limit of an acquisition holds whatever plan the server chooses.
func TestPostgres_AcquireKeepsItsLimitUnderAnyPlan(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{})
	for _, off := range []string{"", "enable_hashjoin", "enable_mergejoin", "enable_nestloop", "enable_hashagg", "enable_material"} {
		b.exec(b.db, "ANALYZE postbus_shards")
		b.exec(b.db, "ANALYZE postbus_relays")
		url := b.url
		if off != "" {
			url += "&enable_hashjoin=off&enable_mergejoin=off&enable_hashagg=off&enable_material=off&" + off + "=off"
		}
		d := open(t, schematest.Open(t, "postgres", url), postgres.Config{})
		_, err := d.Heartbeat(b.ctx, "relay", time.Hour)
		require.NoError(t, err)
		taken, err := d.Acquire(b.ctx, "relay", 3)
		require.NoError(t, err)
		assert.Len(t, taken, 3, off)
		assert.Equal(t, 3, b.count("SELECT count(*) FROM postbus_shards WHERE owner = 'relay'"), off)
		require.NoError(t, d.Leave(b.ctx, "relay"))
	}
}

// A relay that is taking shards just now holds up no other one.
func TestPostgres_H07_AcquireDoesNotWait(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{})
	_, err := b.Heartbeat(b.ctx, "relay", time.Hour)
	require.NoError(t, err)
	other := b.begin()
	b.exec(other, "UPDATE postbus_shards SET owner = 'other', epoch = epoch + 1 WHERE shard < 10")
	taken := async(func() []schema.Shard {
		taken, err := b.Acquire(b.ctx, "relay", schema.DefaultShards)
		assert.NoError(t, err)
		return taken
	})
	assert.Len(t, await(t, "acquire", taken), schema.DefaultShards-10)
}

// Leases go by the server's clock: what a relay's or a session's clock and zone
// say plays no part.
func TestPostgres_H14_LeaseIsOfTheServersClock(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{})
	_, err := b.Heartbeat(b.ctx, "relay", 90*time.Second)
	require.NoError(t, err)
	assert.Equal(t, 1, b.count(`SELECT count(*) FROM postbus_relays
WHERE lease_until BETWEEN clock_timestamp() + interval '60 seconds' AND clock_timestamp() + interval '90 seconds'`))
}

// Relays that ended long ago are forgotten.
func TestPostgres_AcquireForgetsDeadRelays(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{})
	b.own("dead", "k")
	b.exec(b.db, "UPDATE postbus_relays SET lease_until = clock_timestamp() - interval '2 hours'")
	b.own("relay", "k")
	assert.Equal(t, 1, b.count("SELECT count(*) FROM postbus_relays"))
}
