package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/lib/pq"

	"github.com/postbus-io/postbus/schema"
)

// holdsSQL returns the holds of the shards $1, each with the microseconds left
// until it is due, by this server's clock; NULL waits for a person.
const holdsSQL = `
SELECT shard, topic, key, record, head, reason,
       (extract(epoch FROM next_attempt_at - clock_timestamp()) * 1000000)::bigint
FROM postbus_holds WHERE shard = ANY ($1::smallint[])`

// Holds implements [schema.Source].
func (d *Database) Holds(ctx context.Context, shards []int) ([]schema.Hold, error) {
	rows, err := d.db.QueryContext(ctx, d.stmts.SQL(holdsSQL), intArray(shards))
	if err != nil {
		return nil, fmt.Errorf("read holds: %w", err)
	}
	defer rows.Close()
	var holds []schema.Hold
	for rows.Next() {
		var h schema.Hold
		var left sql.NullInt64
		if err := rows.Scan(&h.Shard, &h.Lane.Topic, &h.Lane.Key, &h.Lane.Record, &h.Head, &h.Reason, &left); err != nil {
			return nil, fmt.Errorf("read holds: %w", err)
		}
		h.Retry = schema.Never
		if left.Valid {
			h.Retry = time.Duration(left.Int64) * time.Microsecond
		}
		holds = append(holds, h)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read holds: %w", err)
	}
	return holds, nil
}

// heldSQL returns, for each lane in the parallel arrays $1 to $4, its oldest
// $5 held records in id order. It walks the index of records aside from where
// the lane starts: with equalities in place of the row comparison, or state = 1
// in place of NOT IN, the server expects few rows, and reads and sorts all of a
// lane that has many.
const heldSQL = `
SELECT o.* FROM unnest($1::smallint[], $2::text[], $3::text[], $4::bigint[]) AS h (shard, topic, key, record)
CROSS JOIN LATERAL (
    SELECT ` + recordColumns + `
    FROM postbus_outbox
    WHERE (shard, topic, key, id) >= (h.shard, h.topic, h.key, h.record) AND state % 4 <> 0 AND state NOT IN (2, 3)
    ORDER BY postbus_outbox.shard, postbus_outbox.topic, postbus_outbox.key, postbus_outbox.id LIMIT $5) AS o
WHERE o.shard = h.shard AND o.topic = h.topic AND o.key = h.key AND (h.record = 0 OR o.id = h.record)`

// Held implements [schema.Source].
func (d *Database) Held(ctx context.Context, holds []schema.Hold, perHold int) ([]schema.Record, error) {
	l := lanesOf(holds)
	records, err := d.queryRecords(ctx, heldSQL, l.shards, l.topics, l.keys, l.records, perHold)
	if err != nil {
		return nil, fmt.Errorf("read held records: %w", err)
	}
	return records, nil
}

// lanes are holds, turned into parallel arrays.
type lanes struct {
	shards, records pq.Int64Array
	topics, keys    pq.StringArray
}

func lanesOf(holds []schema.Hold) lanes {
	var l lanes
	for _, h := range holds {
		l.shards = append(l.shards, int64(h.Shard))
		l.topics = append(l.topics, h.Lane.Topic)
		l.keys = append(l.keys, h.Lane.Key)
		l.records = append(l.records, h.Lane.Record)
	}
	return l
}

// fenceSQL locks shard $1 against a new owner, if relay $2 owns it under epoch
// $3. It is a statement of its own: the ones behind it see what it waited for.
const fenceSQL = `SELECT 1 FROM postbus_shards WHERE shard = $1 AND owner = $2 AND epoch = $3 FOR SHARE`

// Settle implements [schema.Source].
func (d *Database) Settle(ctx context.Context, owner string, s schema.Settlement) error {
	err := d.inTx(ctx, func(tx *sql.Tx) error {
		var one int
		err := tx.QueryRowContext(ctx, d.stmts.SQL(fenceSQL), s.Shard.ID, owner, s.Shard.Epoch).Scan(&one)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("%w: shard %d, epoch %d", schema.ErrFenced, s.Shard.ID, s.Shard.Epoch)
		}
		if err != nil {
			return fmt.Errorf("lock shard: %w", err)
		}
		return d.settle(ctx, tx, s)
	})
	if err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	return nil
}

func (d *Database) settle(ctx context.Context, tx *sql.Tx, s schema.Settlement) error {
	if err := d.writeFailures(ctx, tx, s.Shard.ID, s.Failed); err != nil {
		return fmt.Errorf("failures: %w", err)
	}
	if len(s.Held) > 0 {
		if _, err := tx.ExecContext(ctx, d.stmts.SQL(holdRecordsSQL), s.Shard.ID, pq.Int64Array(s.Held)); err != nil {
			return fmt.Errorf("held records: %w", err)
		}
	}
	if err := d.writeHolds(ctx, tx, s.Holds); err != nil {
		return fmt.Errorf("holds: %w", err)
	}
	for _, h := range s.Lifted {
		_, err := tx.ExecContext(ctx, d.stmts.SQL(liftSQL), h.Shard, h.Lane.Topic, h.Lane.Key, h.Lane.Record)
		if err != nil {
			return fmt.Errorf("lift: %w", err)
		}
	}
	return nil
}

// holdRecordsSQL moves waiting records $2 of shard $1 behind their hold.
const holdRecordsSQL = `
UPDATE postbus_outbox SET state = 1
WHERE state + 0 = 0 AND ctid = ANY (ARRAY(
    SELECT r.ctid FROM unnest($2::bigint[]) AS s (id)
    CROSS JOIN LATERAL (SELECT ctid FROM postbus_outbox WHERE shard = $1 AND id = s.id AND state = 0 LIMIT 1) AS r))`

// failSQL writes failures, as parallel arrays $1 to $5 (microseconds from now,
// NULL for never), to records of shard $6 that are waiting or held: the former
// are found by the claim index, the latter by that of the records aside.
const failSQL = `
UPDATE postbus_outbox o
SET state = f.state, retry_count = f.attempts, last_error = f.error,
    next_attempt_at = clock_timestamp() + f.retry * interval '1 microsecond'
FROM unnest($1::bigint[], $2::smallint[], $3::integer[], $4::bigint[], $5::text[]) AS f (id, state, attempts, retry, error)
WHERE o.id = f.id AND o.shard = $6 AND o.state + 0 IN (0, 1) AND o.ctid = ANY (ARRAY(
    SELECT r.ctid FROM unnest($1::bigint[]) AS s (id)
    CROSS JOIN LATERAL (
        (SELECT ctid FROM postbus_outbox WHERE shard = $6 AND id = s.id AND state = 0 LIMIT 1)
        UNION ALL
        (SELECT ctid FROM postbus_outbox WHERE id = s.id AND state % 4 <> 0 AND state = 1 LIMIT 1)) AS r))`

func (d *Database) writeFailures(ctx context.Context, tx *sql.Tx, shard int, failed []schema.Failure) error {
	if len(failed) == 0 {
		return nil
	}
	var ids, states, attempts pq.Int64Array
	var retries []sql.NullInt64
	var texts pq.StringArray
	for _, f := range failed {
		ids, states = append(ids, f.Record), append(states, int64(f.State))
		attempts, retries = append(attempts, int64(f.Attempts)), append(retries, microseconds(f.Retry))
		texts = append(texts, f.Error)
	}
	_, err := tx.ExecContext(ctx, d.stmts.SQL(failSQL), ids, states, attempts, pq.Array(retries), texts, shard)
	return err
}

// putHoldsSQL writes holds, as parallel arrays $1 to $7 (microseconds from
// now, NULL for never), over those of the same lanes; the last one of a lane
// counts, since one statement cannot write a row twice.
const putHoldsSQL = `
INSERT INTO postbus_holds (shard, topic, key, record, head, next_attempt_at, reason)
SELECT DISTINCT ON (shard, topic, key, record)
       shard, topic, key, record, head, clock_timestamp() + retry * interval '1 microsecond', reason
FROM unnest($1::smallint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[])
     WITH ORDINALITY AS h (shard, topic, key, record, head, retry, reason, n)
ORDER BY shard, topic, key, record, n DESC
ON CONFLICT (shard, topic, key, record) DO UPDATE
SET head = excluded.head, next_attempt_at = excluded.next_attempt_at, reason = excluded.reason`

func (d *Database) writeHolds(ctx context.Context, tx *sql.Tx, holds []schema.Hold) error {
	if len(holds) == 0 {
		return nil
	}
	l := lanesOf(holds)
	var heads pq.Int64Array
	var retries []sql.NullInt64
	var reasons pq.StringArray
	for _, h := range holds {
		heads, retries, reasons = append(heads, h.Head), append(retries, microseconds(h.Retry)), append(reasons, h.Reason)
	}
	_, err := tx.ExecContext(ctx, d.stmts.SQL(putHoldsSQL), l.shards, l.topics, l.keys, l.records, heads, pq.Array(retries), reasons)
	return err
}

// liftSQL removes a hold behind which no record is held any more.
const liftSQL = `
DELETE FROM postbus_holds h
WHERE shard = $1 AND topic = $2 AND key = $3 AND record = $4
  AND NOT EXISTS (SELECT FROM postbus_outbox o
                  WHERE o.shard = h.shard AND o.topic = h.topic AND o.key = h.key
                    AND o.state % 4 <> 0 AND o.state = 1 AND (h.record = 0 OR o.id = h.record))`

// microseconds turns a wait into what the statements take: NULL for never.
func microseconds(d time.Duration) sql.NullInt64 {
	return sql.NullInt64{Int64: d.Microseconds(), Valid: d != schema.Never}
}
