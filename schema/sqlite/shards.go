package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/postbus-io/postbus/schema"
)

const (
	// beatSQL renews the lease of relay ?1, until ?3, at ?2.
	beatSQL = `
INSERT INTO postbus_relays (owner, started_at, lease_until) VALUES (?1, ?2, ?3)
ON CONFLICT (owner) DO UPDATE SET lease_until = excluded.lease_until`
	// relaysSQL counts the relays that live at ?1.
	relaysSQL = `SELECT count(*), (SELECT count(*) FROM postbus_shards) FROM postbus_relays WHERE lease_until > ?1`
	// ownedSQL returns the shards of relay ?1.
	ownedSQL = `SELECT shard, epoch FROM postbus_shards WHERE owner = ?1 ORDER BY shard`
)

// Heartbeat implements [schema.Source].
func (d *Database) Heartbeat(ctx context.Context, owner string, lease time.Duration) (schema.Tenure, error) {
	var tenure schema.Tenure
	err := d.inTx(ctx, func(tx *sql.Tx) error {
		at := now()
		if _, err := tx.ExecContext(ctx, d.stmts.SQL(beatSQL), owner, at, at+lease.Microseconds()); err != nil {
			return err
		}
		if err := tx.QueryRowContext(ctx, d.stmts.SQL(relaysSQL), at).Scan(&tenure.Relays, &tenure.Shards); err != nil {
			return err
		}
		rows, err := tx.QueryContext(ctx, d.stmts.SQL(ownedSQL), owner)
		if err != nil {
			return err
		}
		tenure.Owned, err = scanShards(rows)
		return err
	})
	if err != nil {
		return schema.Tenure{}, fmt.Errorf("heartbeat: %w", err)
	}
	return tenure, nil
}

func scanShards(rows *sql.Rows) ([]schema.Shard, error) {
	defer rows.Close()
	var shards []schema.Shard
	for rows.Next() {
		var s schema.Shard
		if err := rows.Scan(&s.ID, &s.Epoch); err != nil {
			return nil, err
		}
		shards = append(shards, s)
	}
	return shards, rows.Err()
}

const (
	// acquireSQL gives relay ?1 up to ?2 shards without a relay that lives at ?3.
	acquireSQL = `
UPDATE postbus_shards SET owner = ?1, epoch = epoch + 1
WHERE shard IN (
    SELECT s.shard FROM postbus_shards s LEFT JOIN postbus_relays r ON r.owner = s.owner
    WHERE s.owner IS NULL OR r.owner IS NULL OR r.lease_until < ?3
    ORDER BY s.shard LIMIT ?2)
RETURNING shard, epoch`
	// forgetSQL removes relays whose lease ended before ?1.
	forgetSQL = `DELETE FROM postbus_relays WHERE lease_until < ?1`
)

// Acquire implements [schema.Source].
func (d *Database) Acquire(ctx context.Context, owner string, most int) ([]schema.Shard, error) {
	var taken []schema.Shard
	err := d.inTx(ctx, func(tx *sql.Tx) error {
		at := now()
		if _, err := tx.ExecContext(ctx, d.stmts.SQL(forgetSQL), at-time.Hour.Microseconds()); err != nil {
			return err
		}
		rows, err := tx.QueryContext(ctx, d.stmts.SQL(acquireSQL), owner, most, at)
		if err != nil {
			return err
		}
		taken, err = scanShards(rows)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("acquire shards: %w", err)
	}
	return taken, nil
}

// releaseSQL frees those of the shards ?2 (JSON) that relay ?1 still owns.
const releaseSQL = `
UPDATE postbus_shards SET owner = NULL WHERE owner = ?1 AND shard IN (SELECT value FROM json_each(?2))`

// Release implements [schema.Source].
func (d *Database) Release(ctx context.Context, owner string, shards []int) error {
	if _, err := d.db.ExecContext(ctx, d.stmts.SQL(releaseSQL), owner, jsonArray(shards)); err != nil {
		return fmt.Errorf("release shards: %w", err)
	}
	return nil
}

const (
	// freeSQL frees all shards of relay ?1.
	freeSQL = `UPDATE postbus_shards SET owner = NULL WHERE owner = ?1`
	// leaveSQL forgets relay ?1.
	leaveSQL = `DELETE FROM postbus_relays WHERE owner = ?1`
)

// Leave implements [schema.Source].
func (d *Database) Leave(ctx context.Context, owner string) error {
	err := d.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, d.stmts.SQL(freeSQL), owner); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, d.stmts.SQL(leaveSQL), owner)
		return err
	})
	if err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	return nil
}

// jsonArray is how a list of numbers becomes one parameter.
func jsonArray[T int | int64](values []T) string {
	if len(values) == 0 {
		return "[]"
	}
	text, err := json.Marshal(values)
	if err != nil {
		return "[]" // numbers always marshal
	}
	return string(text)
}
