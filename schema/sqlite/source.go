package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/postbus-io/postbus/schema"
)

// recordColumns are what scanRecord reads, in its order.
const recordColumns = `o.id, o.message_id, o.topic, o.key, o.shard, o.aggregate_type, o.event_type, o.version,
       o.payload, o.payload IS NOT NULL, o.headers, o.created_at, o.state, o.retry_count, coalesce(o.last_error, '')`

// claimSQL returns the oldest waiting records: of each shard in ?1 (JSON), in
// that order, at most ?2, in all at most ?3. The inner select walks the claim
// index once a shard.
const claimSQL = `
SELECT ` + recordColumns + `
FROM json_each(?1) AS s CROSS JOIN postbus_outbox AS o
WHERE o.id IN (SELECT i.id FROM postbus_outbox AS i
               WHERE i.shard = s.value AND i.state = 0 ORDER BY i.id LIMIT ?2)
ORDER BY s.key, o.id LIMIT ?3`

// Claim implements [schema.Source].
func (d *Database) Claim(ctx context.Context, shards []int, perShard, most int) ([]schema.Record, error) {
	records, err := d.queryRecords(ctx, claimSQL, jsonArray(shards), perShard, most)
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	return records, nil
}

func (d *Database) queryRecords(ctx context.Context, query string, args ...any) ([]schema.Record, error) {
	rows, err := d.db.QueryContext(ctx, d.stmts.SQL(query), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var records []schema.Record
	for rows.Next() {
		r, err := scanRecord(rows)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, rows.Err()
}

func scanRecord(rows *sql.Rows) (schema.Record, error) {
	var r schema.Record
	var headers []byte
	var createdAt int64
	var present bool
	err := rows.Scan(&r.ID, &r.MessageID, &r.Topic, &r.Key, &r.Shard, &r.AggregateType, &r.EventType, &r.Version,
		&r.Payload, &present, &headers, &createdAt, &r.State, &r.Attempts, &r.LastError)
	if err != nil {
		return r, fmt.Errorf("scan record: %w", err)
	}
	r.CreatedAt = time.UnixMicro(createdAt).UTC()
	r.Payload = payload(r.Payload, present)
	if err := json.Unmarshal(headers, &r.Headers); err != nil {
		// No error of the claim: the records of other keys are to go on.
		r.Fault = fmt.Sprintf("headers are unreadable: %v", err)
	}
	return r, nil
}

// sentSQL deletes the un-sent records with ids ?1 (JSON).
const sentSQL = `DELETE FROM postbus_outbox WHERE id IN (SELECT value FROM json_each(?1)) AND state IN (0, 1, 2, 3)`

// Sent implements [schema.Source].
func (d *Database) Sent(ctx context.Context, records []schema.Record) error {
	ids := make([]int64, len(records))
	for i, r := range records {
		ids[i] = r.ID
	}
	if _, err := d.db.ExecContext(ctx, d.stmts.SQL(sentSQL), jsonArray(ids)); err != nil {
		return fmt.Errorf("delete sent records: %w", err)
	}
	return nil
}
