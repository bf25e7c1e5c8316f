package middleware_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/postbus-io/postbus/schema"
)

// toyDatabase is an inbox, a table of dead letters and a table of effects in a
// SQLite file: small, but with real transactions.
type toyDatabase struct{ db *sql.DB }

const toyTables = `
CREATE TABLE inbox (consumer TEXT, handler TEXT, message_id TEXT, PRIMARY KEY (consumer, handler, message_id));
CREATE TABLE dead (id INTEGER PRIMARY KEY, consumer TEXT, handler TEXT, message_id TEXT, topic TEXT, key TEXT,
    payload BLOB, headers TEXT, attempts INTEGER, redriven INTEGER, first_error TEXT, last_error TEXT,
    UNIQUE (consumer, handler, message_id));
CREATE TABLE effects (handler TEXT, message_id TEXT);`

func newToy(t *testing.T) toyDatabase {
	t.Helper()
	toy, err := openToy(filepath.Join(t.TempDir(), "toy.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, toy.db.Close()) })
	return toy
}

func openToy(path string) (toyDatabase, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		return toyDatabase{}, err
	}
	if _, err := db.Exec(toyTables); err != nil {
		return toyDatabase{}, errors.Join(err, db.Close())
	}
	return toyDatabase{db}, nil
}

func (d toyDatabase) Receive(ctx context.Context, tx *sql.Tx, m schema.Delivery) (schema.Verdict, error) {
	var dead bool
	err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM dead WHERE consumer = ? AND handler = ? AND message_id = ?)`,
		m.Consumer, m.Handler, m.Message.UUID).Scan(&dead)
	if err != nil || dead {
		return schema.VerdictDead, err
	}
	fresh, err := insertInbox(ctx, tx, m.Consumer, m.Handler, m.Message.UUID)
	if err != nil || fresh {
		return schema.VerdictFresh, err
	}
	return schema.VerdictDuplicate, nil
}

func insertInbox(ctx context.Context, tx *sql.Tx, consumer, handler, id string) (bool, error) {
	result, err := tx.ExecContext(ctx, `INSERT INTO inbox VALUES (?, ?, ?) ON CONFLICT DO NOTHING`, consumer, handler, id)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

func (d toyDatabase) Bury(ctx context.Context, l schema.DeadLetter) (bool, error) {
	headers, err := json.Marshal(l.Headers)
	if err != nil {
		return false, err
	}
	result, err := d.db.ExecContext(ctx, `
INSERT INTO dead (consumer, handler, message_id, topic, key, payload, headers, attempts, redriven, first_error, last_error)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11
WHERE NOT EXISTS (SELECT 1 FROM inbox WHERE consumer = $1 AND handler = $2 AND message_id = $3)
ON CONFLICT (consumer, handler, message_id) DO UPDATE SET attempts = attempts + excluded.attempts,
    redriven = max(redriven, excluded.redriven), last_error = excluded.last_error`,
		l.Consumer, l.Handler, l.MessageID, l.Topic, l.Key, l.Payload, string(headers), l.Attempts, l.Redriven, l.FirstError, l.LastError)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

const toyDeadColumns = `SELECT id, consumer, handler, message_id, topic, key, payload, headers, attempts, redriven, first_error, last_error FROM dead `

func scanToy(row interface{ Scan(...any) error }) (l schema.DeadLetter, err error) {
	var headers []byte
	err = row.Scan(&l.ID, &l.Consumer, &l.Handler, &l.MessageID, &l.Topic, &l.Key, &l.Payload, &headers,
		&l.Attempts, &l.Redriven, &l.FirstError, &l.LastError)
	if err == nil {
		err = json.Unmarshal(headers, &l.Headers)
	}
	return l, err
}

func (d toyDatabase) Dead(ctx context.Context, _ schema.DeadFilter) ([]schema.DeadLetter, error) {
	rows, err := d.db.QueryContext(ctx, toyDeadColumns+`ORDER BY id`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var letters []schema.DeadLetter
	for rows.Next() {
		l, err := scanToy(rows)
		if err != nil {
			return nil, err
		}
		letters = append(letters, l)
	}
	return letters, rows.Err()
}

func (d toyDatabase) Revive(ctx context.Context, tx *sql.Tx, id int64) (schema.DeadLetter, error) {
	l, err := scanToy(tx.QueryRowContext(ctx, toyDeadColumns+`WHERE id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return l, schema.ErrNotDead
	}
	if err != nil {
		return l, err
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM dead WHERE id = ?`, id); err != nil {
		return l, err
	}
	_, err = insertInbox(ctx, tx, l.Consumer, l.Handler, l.MessageID)
	return l, err
}

func (d toyDatabase) Classify(err error) schema.ErrorClass {
	var code interface{ Code() int }
	if errors.As(err, &code) && (code.Code()&0xff == 5 || code.Code()&0xff == 6) { // SQLITE_BUSY, SQLITE_LOCKED
		return schema.ErrorConflict
	}
	return classify(err)
}

// effect writes what a handler does, in the transaction of the message.
func effect(msg *message.Message, handler string) error {
	tx, ok := schema.TxFromContext(msg.Context())
	if !ok {
		return errors.New("no transaction in the context")
	}
	_, err := tx.ExecContext(msg.Context(), `INSERT INTO effects VALUES (?, ?)`, handler, msg.UUID)
	return err
}

// count returns how many rows a table has.
func (d toyDatabase) count(t *testing.T, table string) int {
	t.Helper()
	var n int
	require.NoError(t, d.db.QueryRow(`SELECT count(*) FROM `+table).Scan(&n))
	return n
}

// letter returns the only dead letter.
func (d toyDatabase) letter(t *testing.T) schema.DeadLetter {
	t.Helper()
	letters, err := d.Dead(t.Context(), schema.DeadFilter{})
	require.NoError(t, err)
	require.Len(t, letters, 1)
	return letters[0]
}
