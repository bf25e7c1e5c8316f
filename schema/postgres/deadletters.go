package postgres

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/postbus-io/postbus/schema"
)

// isAppliedSQL tells whether handler $2 of consumer $1 has applied message $3.
const isAppliedSQL = `SELECT EXISTS (SELECT FROM postbus_inbox WHERE consumer = $1 AND handler = $2 AND message_id = $3)`

// burySQL stores a dead letter, or adds to the counts of the one that is there.
const burySQL = `
INSERT INTO postbus_parked AS p
       (consumer, handler, message_id, topic, key, payload, headers, state, attempts, redriven, first_error, last_error)
VALUES ($1, $2, $3, $4, $5, $6, $7, 1, $8, $9, $10, $11)
ON CONFLICT (consumer, handler, message_id) DO UPDATE
SET attempts = p.attempts + excluded.attempts, redriven = greatest(p.redriven, excluded.redriven),
    last_error = excluded.last_error, last_failed_at = clock_timestamp(), state = 1`

// Bury implements [schema.DeadLetters].
func (d *Database) Bury(ctx context.Context, l schema.DeadLetter) (bool, error) {
	buried := false
	err := d.inTx(ctx, func(tx *sql.Tx) error {
		var err error
		buried, err = d.bury(ctx, tx, l)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("bury: %w", err)
	}
	return buried, nil
}

func (d *Database) bury(ctx context.Context, tx *sql.Tx, l schema.DeadLetter) (bool, error) {
	number := keyLock(l.Consumer, l.Handler, l.Topic, l.Key, l.MessageID)
	if _, err := tx.ExecContext(ctx, d.stmts.SQL(lockExclusiveSQL), lockClassConsume, number); err != nil {
		return false, fmt.Errorf("lock key: %w", err)
	}
	var applied bool
	if err := tx.QueryRowContext(ctx, d.stmts.SQL(isAppliedSQL), l.Consumer, l.Handler, l.MessageID).Scan(&applied); err != nil {
		return false, fmt.Errorf("look into inbox: %w", err)
	}
	if applied {
		return false, nil
	}
	headers, err := json.Marshal(l.Headers)
	if err != nil {
		return false, fmt.Errorf("headers: %w", err)
	}
	_, err = tx.ExecContext(ctx, d.stmts.SQL(burySQL), l.Consumer, l.Handler, l.MessageID, l.Topic, l.Key,
		l.Payload, string(headers), l.Attempts, l.Redriven, l.FirstError, l.LastError)
	return err == nil, err
}

// deadColumns are what scanDead reads, in its order.
const deadColumns = `id, consumer, handler, topic, message_id, key, payload, headers,
       attempts, first_error, last_error, first_failed_at, last_failed_at, redriven`

// deadSQL returns dead letters by id; an empty filter ($1 to $6) selects all.
const deadSQL = `
SELECT ` + deadColumns + ` FROM postbus_parked
WHERE state = 1 AND ($1::bigint = 0 OR id = $1) AND ($2::text = '' OR consumer = $2) AND ($3::text = '' OR handler = $3)
  AND ($4::text = '' OR topic = $4) AND ($5::text = '' OR key = $5) AND id > $6::bigint
ORDER BY id LIMIT $7`

// defaultDead bounds an answer whose filter has no bound.
const defaultDead = 100

// Dead implements [schema.DeadLetters].
func (d *Database) Dead(ctx context.Context, f schema.DeadFilter) ([]schema.DeadLetter, error) {
	if f.Most <= 0 {
		f.Most = defaultDead
	}
	rows, err := d.db.QueryContext(ctx, d.stmts.SQL(deadSQL), f.ID, f.Consumer, f.Handler, f.Topic, f.Key, f.After, f.Most)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	defer rows.Close()
	var letters []schema.DeadLetter
	for rows.Next() {
		l, err := scanDead(rows)
		if err != nil {
			return nil, fmt.Errorf("list dead letters: %w", err)
		}
		letters = append(letters, l)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return letters, nil
}

func scanDead(row interface{ Scan(...any) error }) (schema.DeadLetter, error) {
	var l schema.DeadLetter
	var headers []byte
	err := row.Scan(&l.ID, &l.Consumer, &l.Handler, &l.Topic, &l.MessageID, &l.Key, &l.Payload, &headers,
		&l.Attempts, &l.FirstError, &l.LastError, &l.FirstFailedAt, &l.LastFailedAt, &l.Redriven)
	if err != nil {
		return l, err
	}
	if err := json.Unmarshal(headers, &l.Headers); err != nil {
		return l, fmt.Errorf("headers of dead letter %d: %w", l.ID, err)
	}
	return l, nil
}

// findDeadSQL returns dead letter $1.
const findDeadSQL = `SELECT ` + deadColumns + ` FROM postbus_parked WHERE id = $1 AND state = 1`

// takeDeadSQL removes dead letter $1.
const takeDeadSQL = `DELETE FROM postbus_parked WHERE id = $1 AND state = 1`

// reviveSQL writes the inbox row of consumer $1, handler $2, message $3.
const reviveSQL = `INSERT INTO postbus_inbox (consumer, handler, message_id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`

// Revive implements [schema.DeadLetters].
func (d *Database) Revive(ctx context.Context, tx *sql.Tx, id int64) (schema.DeadLetter, error) {
	l, err := scanDead(tx.QueryRowContext(ctx, d.stmts.SQL(findDeadSQL), id))
	if errors.Is(err, sql.ErrNoRows) {
		return l, fmt.Errorf("%w: %d", schema.ErrNotDead, id)
	}
	if err != nil {
		return l, fmt.Errorf("find dead letter: %w", err)
	}
	number := keyLock(l.Consumer, l.Handler, l.Topic, l.Key, l.MessageID)
	if _, err := tx.ExecContext(ctx, d.stmts.SQL(lockExclusiveSQL), lockClassConsume, number); err != nil {
		return l, fmt.Errorf("lock key: %w", err)
	}
	// Another person may have revived it while this one waited for the lock.
	taken, err := affected(tx.ExecContext(ctx, d.stmts.SQL(takeDeadSQL), id))
	if err != nil {
		return l, fmt.Errorf("take dead letter: %w", err)
	}
	if taken == 0 {
		return l, fmt.Errorf("%w: %d", schema.ErrNotDead, id)
	}
	fresh, err := affected(tx.ExecContext(ctx, d.stmts.SQL(reviveSQL), l.Consumer, l.Handler, l.MessageID))
	if err != nil {
		return l, fmt.Errorf("write inbox: %w", err)
	}
	if fresh == 0 {
		return l, fmt.Errorf("%w: %d was applied before", schema.ErrNotDead, id)
	}
	return l, nil
}

func affected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
