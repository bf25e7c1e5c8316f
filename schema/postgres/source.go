package postgres

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/lib/pq"

	"github.com/postbus-io/postbus/schema"
)

// recordColumns are what scanRecord reads, in its order.
const recordColumns = `id, message_id, topic, key, shard, aggregate_type, event_type, version,
       payload, headers, created_at, state, retry_count, coalesce(last_error, '')`

// claimSQL returns the oldest waiting records: of each shard in $1, in that
// order, at most $2, in all at most $3. The lateral subquery walks the claim
// index once a shard; "shard = ANY" would walk everybody's rows.
const claimSQL = `
SELECT o.* FROM unnest($1::smallint[]) WITH ORDINALITY AS s (shard, n)
CROSS JOIN LATERAL (
    SELECT ` + recordColumns + `
    FROM postbus_outbox WHERE shard = s.shard AND state = 0
    ORDER BY id LIMIT $2) AS o
LIMIT $3`

// Claim implements [schema.Source].
func (d *Database) Claim(ctx context.Context, shards []int, perShard, most int) ([]schema.Record, error) {
	records, err := d.queryRecords(ctx, claimSQL, intArray(shards), perShard, most)
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
	err := rows.Scan(&r.ID, &r.MessageID, &r.Topic, &r.Key, &r.Shard, &r.AggregateType, &r.EventType, &r.Version,
		&r.Payload, &headers, &r.CreatedAt, &r.State, &r.Attempts, &r.LastError)
	if err != nil {
		return r, fmt.Errorf("scan record: %w", err)
	}
	if err := json.Unmarshal(headers, &r.Headers); err != nil {
		// No error of the claim: the records of other keys are to go on.
		r.Fault = fmt.Sprintf("headers are unreadable: %v", err)
	}
	return r, nil
}

// Statements that change records find the rows first, one index lookup each in
// a lateral subquery, and then go by ctid. A join would do, but its plan flips:
// the waiting rows of an outbox come and go, statistics that were taken when
// there were none make a scan of all of them look cheap, and then a backlog is
// read whole for each batch. "state + 0" keeps the second look at the state,
// for rows that were waited for, from being taken for a condition of an index;
// "state % 4 <> 0" is that of the indexes of records aside.

// sentWaitingSQL deletes the waiting records with shards $1 and ids $2, by the
// claim index. Two relays that delete the same records do so in one order, that
// of ctid; with what a third one settles a deadlock is possible, and the one
// that the server picks tries again.
const sentWaitingSQL = `
DELETE FROM postbus_outbox
WHERE state + 0 = 0 AND ctid = ANY (ARRAY(
    SELECT r.ctid FROM unnest($1::smallint[], $2::bigint[]) AS s (shard, id)
    CROSS JOIN LATERAL (SELECT ctid FROM postbus_outbox WHERE shard = s.shard AND id = s.id AND state = 0 LIMIT 1) AS r))`

// sentAsideSQL deletes the held records with ids $1, by the index of records
// aside. A record that another relay has moved aside meanwhile is found here.
const sentAsideSQL = `
DELETE FROM postbus_outbox
WHERE state + 0 IN (1, 2, 3) AND ctid = ANY (ARRAY(
    SELECT r.ctid FROM unnest($1::bigint[]) AS s (id)
    CROSS JOIN LATERAL (SELECT ctid FROM postbus_outbox WHERE id = s.id AND state % 4 <> 0 LIMIT 1) AS r))`

// Sent implements [schema.Source].
func (d *Database) Sent(ctx context.Context, records []schema.Record) error {
	var shards, waiting, all pq.Int64Array
	for _, r := range records {
		all = append(all, r.ID)
		if r.State == schema.StateWaiting {
			shards, waiting = append(shards, int64(r.Shard)), append(waiting, r.ID)
		}
	}
	gone := int64(0)
	if len(waiting) > 0 {
		n, err := d.exec(ctx, sentWaitingSQL, shards, waiting)
		if err != nil {
			return fmt.Errorf("delete sent records: %w", err)
		}
		gone = n
	}
	if gone == int64(len(all)) {
		return nil
	}
	if _, err := d.exec(ctx, sentAsideSQL, all); err != nil {
		return fmt.Errorf("delete sent records: %w", err)
	}
	return nil
}

func (d *Database) exec(ctx context.Context, query string, args ...any) (int64, error) {
	result, err := d.db.ExecContext(ctx, d.stmts.SQL(query), args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
