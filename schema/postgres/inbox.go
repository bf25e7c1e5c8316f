package postgres

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/postbus-io/postbus/schema"
)

// lockSharedSQL and lockExclusiveSQL take the lock of a handler's key until
// the transaction ends: handlers share it, whoever buries or revives has it
// alone. The table is part of the number, so that services which share a
// database do not wait for each other. The former returns the transaction's
// isolation level.
const (
	lockSharedSQL = `
SELECT current_setting('transaction_isolation')
FROM pg_advisory_xact_lock_shared($1::integer, $2::integer # 'postbus_parked'::regclass::integer)`
	lockExclusiveSQL = `
SELECT pg_advisory_xact_lock($1::integer, $2::integer # 'postbus_parked'::regclass::integer)`
)

// readCommitted is the level at which each statement has a snapshot of its own.
const readCommitted = "read committed"

// probeSQL puts a row where a letter of consumer $1, handler $2, message $3
// would be, and unprobeSQL takes it away. At a stricter level than READ
// COMMITTED the snapshot may be older than the key's lock, and a letter that was
// buried meanwhile is not to be seen; but it is in the way, and this fails with
// a serialization failure.
const (
	probeSQL = `
INSERT INTO postbus_parked (consumer, handler, message_id, topic, state) VALUES ($1, $2, $3, '', -1)
ON CONFLICT (consumer, handler, message_id) DO NOTHING`
	unprobeSQL = `DELETE FROM postbus_parked WHERE consumer = $1 AND handler = $2 AND message_id = $3 AND state = -1`
)

// receiveSQL writes the inbox row of consumer $1, handler $2, message $3,
// unless the message is a dead letter or was applied. While another
// transaction writes the same row it waits for that one's end.
const receiveSQL = `
INSERT INTO postbus_inbox (consumer, handler, message_id)
SELECT $1::text, $2::text, $3::text
WHERE NOT EXISTS (SELECT FROM postbus_parked WHERE consumer = $1 AND handler = $2 AND message_id = $3)
ON CONFLICT (consumer, handler, message_id) DO NOTHING`

// isParkedSQL tells whether message $3 is parked or dead for handler $2 of
// consumer $1.
const isParkedSQL = `SELECT EXISTS (SELECT FROM postbus_parked WHERE consumer = $1 AND handler = $2 AND message_id = $3)`

// Receive implements [schema.Inbox].
func (d *Database) Receive(ctx context.Context, tx *sql.Tx, m schema.Delivery) (schema.Verdict, error) {
	if err := d.lockShared(ctx, tx, m); err != nil {
		return 0, err
	}
	result, err := tx.ExecContext(ctx, d.stmts.SQL(receiveSQL), m.Consumer, m.Handler, m.Message.UUID)
	if err != nil {
		return 0, fmt.Errorf("write inbox: %w", err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("write inbox: %w", err)
	}
	if n == 1 {
		return schema.VerdictFresh, nil
	}
	return d.whyNot(ctx, tx, m)
}

func (d *Database) lockShared(ctx context.Context, tx *sql.Tx, m schema.Delivery) error {
	number := keyLock(m.Consumer, m.Handler, m.Topic, schema.Key(m.Message), m.Message.UUID)
	var isolation string
	if err := tx.QueryRowContext(ctx, d.stmts.SQL(lockSharedSQL), lockClassConsume, number).Scan(&isolation); err != nil {
		return fmt.Errorf("lock key: %w", err)
	}
	if isolation == readCommitted {
		return nil
	}
	for _, query := range []string{probeSQL, unprobeSQL} {
		if _, err := tx.ExecContext(ctx, d.stmts.SQL(query), m.Consumer, m.Handler, m.Message.UUID); err != nil {
			return fmt.Errorf("look for new dead letter: %w", err)
		}
	}
	return nil
}

func (d *Database) whyNot(ctx context.Context, tx *sql.Tx, m schema.Delivery) (schema.Verdict, error) {
	var dead bool
	row := tx.QueryRowContext(ctx, d.stmts.SQL(isParkedSQL), m.Consumer, m.Handler, m.Message.UUID)
	if err := row.Scan(&dead); err != nil {
		return 0, fmt.Errorf("look for dead letter: %w", err)
	}
	if dead {
		return schema.VerdictDead, nil
	}
	return schema.VerdictDuplicate, nil
}

// keyLock is the number of the lock of a handler's key, or of one message when
// it has none.
func keyLock(consumer, handler, topic, key, messageID string) int32 {
	return lockNumber(consumer, handler, topic, schema.ShardKey(messageID, key))
}
