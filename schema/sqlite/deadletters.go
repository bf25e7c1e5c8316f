package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/postbus-io/postbus/schema"
)

const (
	// isAppliedSQL tells whether handler ?2 of consumer ?1 has applied message
	// ?3.
	isAppliedSQL = `SELECT EXISTS (SELECT 1 FROM postbus_inbox WHERE consumer = ?1 AND handler = ?2 AND message_id = ?3)`
	// burySQL stores a dead letter at ?12, or adds to the counts of the one
	// that is there.
	burySQL = `
INSERT INTO postbus_parked
       (consumer, handler, message_id, topic, key, payload, headers, state, attempts, redriven,
        first_error, last_error, first_failed_at, last_failed_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 1, ?8, ?9, ?10, ?11, ?12, ?12)
ON CONFLICT (consumer, handler, message_id) DO UPDATE
SET attempts = attempts + excluded.attempts, redriven = max(redriven, excluded.redriven),
    last_error = excluded.last_error, last_failed_at = excluded.last_failed_at, state = 1`
)

// Bury implements [schema.DeadLetters].
func (d *Database) Bury(ctx context.Context, l schema.DeadLetter) (bool, error) {
	headers, err := json.Marshal(l.Headers)
	if err != nil {
		return false, fmt.Errorf("bury: headers: %w", err)
	}
	buried := false
	err = d.inTx(ctx, func(tx *sql.Tx) error {
		var applied bool
		row := tx.QueryRowContext(ctx, d.stmts.SQL(isAppliedSQL), l.Consumer, l.Handler, l.MessageID)
		if err := row.Scan(&applied); err != nil || applied {
			return err
		}
		_, err := tx.ExecContext(ctx, d.stmts.SQL(burySQL), l.Consumer, l.Handler, l.MessageID, l.Topic, l.Key,
			blob(l.Payload), string(headers), l.Attempts, l.Redriven, l.FirstError, l.LastError, now())
		buried = err == nil
		return err
	})
	if err != nil {
		return false, fmt.Errorf("bury: %w", err)
	}
	return buried, nil
}

// deadColumns are what scanDead reads, in its order.
const deadColumns = `id, consumer, handler, topic, message_id, key, payload, payload IS NOT NULL, headers,
       attempts, first_error, last_error, first_failed_at, last_failed_at, redriven`

// deadSQL returns dead letters by id; an empty filter (?1 to ?6) selects all.
const deadSQL = `
SELECT ` + deadColumns + ` FROM postbus_parked
WHERE state = 1 AND (?1 = 0 OR id = ?1) AND (?2 = '' OR consumer = ?2) AND (?3 = '' OR handler = ?3)
  AND (?4 = '' OR topic = ?4) AND (?5 = '' OR key = ?5) AND id > ?6
ORDER BY id LIMIT ?7`

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
	var first, last int64
	var present bool
	err := row.Scan(&l.ID, &l.Consumer, &l.Handler, &l.Topic, &l.MessageID, &l.Key, &l.Payload, &present, &headers,
		&l.Attempts, &l.FirstError, &l.LastError, &first, &last, &l.Redriven)
	if err != nil {
		return l, err
	}
	l.Payload = payload(l.Payload, present)
	l.FirstFailedAt, l.LastFailedAt = time.UnixMicro(first).UTC(), time.UnixMicro(last).UTC()
	if err := json.Unmarshal(headers, &l.Headers); err != nil {
		return l, fmt.Errorf("headers of dead letter %d: %w", l.ID, err)
	}
	return l, nil
}

const (
	// takeDeadSQL removes dead letter ?1 and returns it.
	takeDeadSQL = `DELETE FROM postbus_parked WHERE id = ?1 AND state = 1 RETURNING ` + deadColumns
	// reviveSQL writes the inbox row of consumer ?1, handler ?2, message ?3, at ?4.
	reviveSQL = `
INSERT INTO postbus_inbox (consumer, handler, message_id, processed_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (consumer, handler, message_id) DO NOTHING`
)

// Revive implements [schema.DeadLetters].
func (d *Database) Revive(ctx context.Context, tx *sql.Tx, id int64) (schema.DeadLetter, error) {
	l, err := scanDead(tx.QueryRowContext(ctx, d.stmts.SQL(takeDeadSQL), id))
	if errors.Is(err, sql.ErrNoRows) {
		return l, fmt.Errorf("%w: %d", schema.ErrNotDead, id)
	}
	if err != nil {
		return l, fmt.Errorf("take dead letter: %w", err)
	}
	fresh, err := affected(tx.ExecContext(ctx, d.stmts.SQL(reviveSQL), l.Consumer, l.Handler, l.MessageID, now()))
	if err != nil {
		return l, fmt.Errorf("write inbox: %w", err)
	}
	if fresh == 0 {
		return l, fmt.Errorf("%w: %d was applied before", schema.ErrNotDead, id)
	}
	return l, nil
}
