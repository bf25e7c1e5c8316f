package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/postbus-io/postbus/schema"
)

// holdsSQL returns the holds of the shards ?1 (JSON); a NULL time waits for a
// person.
const holdsSQL = `
SELECT shard, topic, key, record, head, reason, next_attempt_at
FROM postbus_holds WHERE shard IN (SELECT value FROM json_each(?1))`

// Holds implements [schema.Source].
func (d *Database) Holds(ctx context.Context, shards []int) ([]schema.Hold, error) {
	rows, err := d.db.QueryContext(ctx, d.stmts.SQL(holdsSQL), jsonArray(shards))
	if err != nil {
		return nil, fmt.Errorf("read holds: %w", err)
	}
	defer rows.Close()
	var holds []schema.Hold
	for rows.Next() {
		var h schema.Hold
		var due sql.NullInt64
		if err := rows.Scan(&h.Shard, &h.Lane.Topic, &h.Lane.Key, &h.Lane.Record, &h.Head, &h.Reason, &due); err != nil {
			return nil, fmt.Errorf("read holds: %w", err)
		}
		h.Retry = schema.Never
		if due.Valid {
			h.Retry = time.Duration(due.Int64-now()) * time.Microsecond
		}
		holds = append(holds, h)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read holds: %w", err)
	}
	return holds, nil
}

// heldSQL returns the oldest ?5 held records of lane (?1 shard, ?2 topic, ?3
// key, ?4 record) in id order.
const heldSQL = `
SELECT ` + recordColumns + `
FROM postbus_outbox AS o
WHERE o.shard = ?1 AND o.topic = ?2 AND o.key = ?3 AND o.state IN (1, 2, 3) AND o.state = 1 AND (?4 = 0 OR o.id = ?4)
ORDER BY o.id LIMIT ?5`

// Held implements [schema.Source].
func (d *Database) Held(ctx context.Context, holds []schema.Hold, perHold int) ([]schema.Record, error) {
	var all []schema.Record
	for _, h := range holds {
		records, err := d.queryRecords(ctx, heldSQL, h.Shard, h.Lane.Topic, h.Lane.Key, h.Lane.Record, perHold)
		if err != nil {
			return nil, fmt.Errorf("read held records: %w", err)
		}
		all = append(all, records...)
	}
	return all, nil
}

// fenceSQL tells whether relay ?2 owns shard ?1 under epoch ?3. The write lock
// that an immediate transaction holds keeps it so.
const fenceSQL = `SELECT 1 FROM postbus_shards WHERE shard = ?1 AND owner = ?2 AND epoch = ?3`

// Settle implements [schema.Source].
func (d *Database) Settle(ctx context.Context, owner string, s schema.Settlement) error {
	err := d.inTx(ctx, func(tx *sql.Tx) error {
		var one int
		err := tx.QueryRowContext(ctx, d.stmts.SQL(fenceSQL), s.Shard.ID, owner, s.Shard.Epoch).Scan(&one)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("%w: shard %d, epoch %d", schema.ErrFenced, s.Shard.ID, s.Shard.Epoch)
		}
		if err != nil {
			return fmt.Errorf("read shard: %w", err)
		}
		return d.settle(ctx, tx, s)
	})
	if err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	return nil
}

const (
	// failSQL writes a failure to record ?1 of shard ?2, if it is un-sent.
	failSQL = `
UPDATE postbus_outbox SET state = ?3, retry_count = ?4, last_error = ?5, next_attempt_at = ?6
WHERE id = ?1 AND shard = ?2 AND state IN (0, 1)`
	// holdRecordsSQL moves the waiting records ?2 (JSON) of shard ?1 behind
	// their hold.
	holdRecordsSQL = `
UPDATE postbus_outbox SET state = 1 WHERE id IN (SELECT value FROM json_each(?2)) AND shard = ?1 AND state = 0`
	// putHoldSQL writes a hold over that of the same lane.
	putHoldSQL = `
INSERT INTO postbus_holds (shard, topic, key, record, head, next_attempt_at, reason, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (shard, topic, key, record) DO UPDATE
SET head = excluded.head, next_attempt_at = excluded.next_attempt_at, reason = excluded.reason`
	// liftSQL removes a hold behind which no record is held any more.
	liftSQL = `
DELETE FROM postbus_holds
WHERE shard = ?1 AND topic = ?2 AND key = ?3 AND record = ?4
  AND NOT EXISTS (SELECT 1 FROM postbus_outbox o
                  WHERE o.shard = ?1 AND o.topic = ?2 AND o.key = ?3
                    AND o.state IN (1, 2, 3) AND o.state = 1 AND (?4 = 0 OR o.id = ?4))`
)

func (d *Database) settle(ctx context.Context, tx *sql.Tx, s schema.Settlement) error {
	exec := func(query string, args ...any) error {
		_, err := tx.ExecContext(ctx, d.stmts.SQL(query), args...)
		return err
	}
	for _, f := range s.Failed {
		if err := exec(failSQL, f.Record, s.Shard.ID, f.State, f.Attempts, f.Error, due(f.Retry)); err != nil {
			return fmt.Errorf("failures: %w", err)
		}
	}
	if len(s.Held) > 0 {
		if err := exec(holdRecordsSQL, s.Shard.ID, jsonArray(s.Held)); err != nil {
			return fmt.Errorf("held records: %w", err)
		}
	}
	for _, h := range s.Holds {
		if err := exec(putHoldSQL, h.Shard, h.Lane.Topic, h.Lane.Key, h.Lane.Record, h.Head, due(h.Retry), h.Reason, now()); err != nil {
			return fmt.Errorf("holds: %w", err)
		}
	}
	for _, h := range s.Lifted {
		if err := exec(liftSQL, h.Shard, h.Lane.Topic, h.Lane.Key, h.Lane.Record); err != nil {
			return fmt.Errorf("lift: %w", err)
		}
	}
	return nil
}

// due turns a wait into the time that is stored: NULL for never.
func due(retry time.Duration) sql.NullInt64 {
	return sql.NullInt64{Int64: now() + retry.Microseconds(), Valid: retry != schema.Never}
}
