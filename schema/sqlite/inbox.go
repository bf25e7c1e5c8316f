package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/postbus-io/postbus/schema"
)

const (
	// receiveSQL writes the inbox row of consumer ?1, handler ?2, message ?3,
	// at ?4, unless the message is a dead letter or was applied. It takes the
	// file's write lock, so no other transaction can be in between.
	receiveSQL = `
INSERT INTO postbus_inbox (consumer, handler, message_id, processed_at)
SELECT ?1, ?2, ?3, ?4
WHERE NOT EXISTS (SELECT 1 FROM postbus_parked WHERE consumer = ?1 AND handler = ?2 AND message_id = ?3)
ON CONFLICT (consumer, handler, message_id) DO NOTHING`
	// isParkedSQL tells whether message ?3 is parked or dead.
	isParkedSQL = `SELECT EXISTS (SELECT 1 FROM postbus_parked WHERE consumer = ?1 AND handler = ?2 AND message_id = ?3)`
)

// Receive implements [schema.Inbox].
func (d *Database) Receive(ctx context.Context, tx *sql.Tx, m schema.Delivery) (schema.Verdict, error) {
	n, err := affected(tx.ExecContext(ctx, d.stmts.SQL(receiveSQL), m.Consumer, m.Handler, m.Message.UUID, now()))
	if err != nil {
		return 0, fmt.Errorf("write inbox: %w", err)
	}
	if n == 1 {
		return schema.VerdictFresh, nil
	}
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

func affected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
