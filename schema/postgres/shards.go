package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/lib/pq"

	"github.com/postbus-io/postbus/schema"
)

// heartbeatSQL renews the lease of relay $1 by $2 microseconds and returns a
// row a shard that it owns, or one row with a NULL shard, each with the number
// of live relays and of shards.
const heartbeatSQL = `
WITH beat AS (
    INSERT INTO postbus_relays (owner, lease_until)
    VALUES ($1, clock_timestamp() + $2::bigint * interval '1 microsecond')
    ON CONFLICT (owner) DO UPDATE SET lease_until = excluded.lease_until
)
SELECT s.shard, s.epoch,
       1 + (SELECT count(*) FROM postbus_relays WHERE owner <> $1 AND lease_until > clock_timestamp()),
       (SELECT count(*) FROM postbus_shards)
FROM (SELECT) AS one LEFT JOIN postbus_shards s ON s.owner = $1
ORDER BY s.shard`

// Heartbeat implements [schema.Source].
func (d *Database) Heartbeat(ctx context.Context, owner string, lease time.Duration) (schema.Tenure, error) {
	rows, err := d.db.QueryContext(ctx, d.stmts.SQL(heartbeatSQL), owner, lease.Microseconds())
	if err != nil {
		return schema.Tenure{}, fmt.Errorf("heartbeat: %w", err)
	}
	defer rows.Close()
	var tenure schema.Tenure
	for rows.Next() {
		var shard, epoch sql.NullInt64
		if err := rows.Scan(&shard, &epoch, &tenure.Relays, &tenure.Shards); err != nil {
			return schema.Tenure{}, fmt.Errorf("heartbeat: %w", err)
		}
		if shard.Valid {
			tenure.Owned = append(tenure.Owned, schema.Shard{ID: int(shard.Int64), Epoch: epoch.Int64})
		}
	}
	if err := rows.Err(); err != nil {
		return schema.Tenure{}, fmt.Errorf("heartbeat: %w", err)
	}
	return tenure, nil
}

// acquireSQL gives relay $1 up to $2 shards without a living owner. SKIP
// LOCKED passes over those that another relay is taking just now; the epoch,
// compared as the row is locked, over those that it has taken since this
// statement began: the join with the relays is not done again then. Each step
// is MATERIALIZED, so that it runs once and the limit holds.
const acquireSQL = `
WITH free AS MATERIALIZED (
    SELECT s.shard, s.epoch FROM postbus_shards s LEFT JOIN postbus_relays r ON r.owner = s.owner
    WHERE s.owner IS NULL OR r.owner IS NULL OR r.lease_until < clock_timestamp()
), locked AS MATERIALIZED (
    SELECT s.shard FROM postbus_shards s JOIN free f ON f.shard = s.shard
    WHERE s.epoch = f.epoch
    ORDER BY s.shard LIMIT $2
    FOR UPDATE OF s SKIP LOCKED
)
UPDATE postbus_shards s SET owner = $1, epoch = s.epoch + 1
FROM locked l WHERE s.shard = l.shard
RETURNING s.shard, s.epoch`

// forgetSQL removes relays whose lease ended long ago; their shards, if they
// still have any, count as free then.
const forgetSQL = `DELETE FROM postbus_relays WHERE lease_until < clock_timestamp() - interval '1 hour'`

// Acquire implements [schema.Source].
func (d *Database) Acquire(ctx context.Context, owner string, most int) ([]schema.Shard, error) {
	if _, err := d.db.ExecContext(ctx, d.stmts.SQL(forgetSQL)); err != nil {
		return nil, fmt.Errorf("forget dead relays: %w", err)
	}
	rows, err := d.db.QueryContext(ctx, d.stmts.SQL(acquireSQL), owner, most)
	if err != nil {
		return nil, fmt.Errorf("acquire shards: %w", err)
	}
	defer rows.Close()
	var taken []schema.Shard
	for rows.Next() {
		var s schema.Shard
		if err := rows.Scan(&s.ID, &s.Epoch); err != nil {
			return nil, fmt.Errorf("acquire shards: %w", err)
		}
		taken = append(taken, s)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("acquire shards: %w", err)
	}
	return taken, nil
}

// releaseSQL frees those of the shards $2 that relay $1 still owns.
const releaseSQL = `UPDATE postbus_shards SET owner = NULL WHERE owner = $1 AND shard = ANY ($2::smallint[])`

// Release implements [schema.Source].
func (d *Database) Release(ctx context.Context, owner string, shards []int) error {
	if _, err := d.db.ExecContext(ctx, d.stmts.SQL(releaseSQL), owner, intArray(shards)); err != nil {
		return fmt.Errorf("release shards: %w", err)
	}
	return nil
}

// leaveSQL frees all shards of relay $1 and forgets it.
const leaveSQL = `
WITH freed AS (UPDATE postbus_shards SET owner = NULL WHERE owner = $1)
DELETE FROM postbus_relays WHERE owner = $1`

// Leave implements [schema.Source].
func (d *Database) Leave(ctx context.Context, owner string) error {
	if _, err := d.db.ExecContext(ctx, d.stmts.SQL(leaveSQL), owner); err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	return nil
}

func intArray(values []int) pq.Int64Array {
	out := make(pq.Int64Array, len(values))
	for i, v := range values {
		out[i] = int64(v)
	}
	return out
}
