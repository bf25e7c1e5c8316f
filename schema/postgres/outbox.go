package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/postbus-io/postbus/schema"
)

// outboxTopic is what watermill-sql's Publisher is called with: it takes one
// topic a call, whereas here the topic is data.
const outboxTopic = "outbox"

// Insert implements [schema.Outbox] with watermill-sql's Publisher: one
// statement, whatever the number of messages.
func (d *Database) Insert(ctx context.Context, tx schema.Tx, msgs []*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	own, err := schema.Unwrap(tx)
	if err != nil {
		return err
	}
	shards, err := d.shardCount(ctx, own)
	if err != nil {
		return err
	}
	publisher, err := wmsql.NewPublisher(
		schema.BindContext(ctx, own),
		wmsql.PublisherConfig{SchemaAdapter: outboxAdapter{database: d, shards: shards}},
		nil, // its trace log prints payloads
	)
	if err != nil {
		return fmt.Errorf("outbox publisher: %w", err)
	}
	if err := publisher.Publish(outboxTopic, msgs...); err != nil {
		return fmt.Errorf("write outbox: %w", err)
	}
	return nil
}

// errWriteOnly is returned by the parts of a SchemaAdapter that belong to
// watermill-sql's Subscriber: the relay reads the outbox.
var errWriteOnly = errors.New("the outbox is read by a relay, not by watermill-sql's Subscriber")

// outboxAdapter is the outbox as a watermill-sql SchemaAdapter.
type outboxAdapter struct {
	database *Database
	shards   int
}

// insertSQL writes the elements of parallel arrays as rows, in their order.
const insertSQL = `
INSERT INTO postbus_outbox (message_id, topic, key, shard, aggregate_type, event_type, version, payload, headers)
SELECT message_id, topic, key, shard, aggregate_type, event_type, version, payload, headers
FROM unnest($1::text[], $2::text[], $3::text[], $4::smallint[], $5::text[], $6::text[], $7::integer[], $8::bytea[], $9::text[])
     WITH ORDINALITY AS m (message_id, topic, key, shard, aggregate_type, event_type, version, payload, headers, n)
ORDER BY n`

// insertLockedSQL is insertSQL behind the advisory locks of the keys ($10,
// sorted, so that two calls cannot deadlock). The locks are taken in a CTE
// that the INSERT selects from: ids are drawn when rows come out of it, after
// the locks. In VALUES, or beside the rows, the lock would come too late. The
// table is part of the number, as in lockSharedSQL.
const insertLockedSQL = `
WITH locks AS MATERIALIZED (
    SELECT count(pg_advisory_xact_lock($11::integer, k # 'postbus_outbox'::regclass::integer)) AS taken
    FROM unnest($10::integer[]) AS k
)
INSERT INTO postbus_outbox (message_id, topic, key, shard, aggregate_type, event_type, version, payload, headers)
SELECT message_id, topic, key, shard, aggregate_type, event_type, version, payload, headers
FROM locks,
     unnest($1::text[], $2::text[], $3::text[], $4::smallint[], $5::text[], $6::text[], $7::integer[], $8::bytea[], $9::text[])
     WITH ORDINALITY AS m (message_id, topic, key, shard, aggregate_type, event_type, version, payload, headers, n)
WHERE locks.taken >= 0
ORDER BY n`

// InsertQuery implements wmsql.SchemaAdapter.
func (a outboxAdapter) InsertQuery(_ string, msgs message.Messages) (wmsql.Query, error) {
	var c columns
	for _, msg := range msgs {
		if err := c.add(schema.NewRecord(msg, a.shards)); err != nil {
			return wmsql.Query{}, err
		}
	}
	args := []any{
		pq.StringArray(c.messageIDs), pq.StringArray(c.topics), pq.StringArray(c.keys), pq.Int64Array(c.shards),
		pq.StringArray(c.aggregateTypes), pq.StringArray(c.eventTypes), pq.Int64Array(c.versions),
		byteaArray(c.payloads), pq.StringArray(c.headers),
	}
	if !a.database.keyLock {
		return wmsql.Query{Query: a.database.stmts.SQL(insertSQL), Args: args}, nil
	}
	args = append(args, pq.Int64Array(c.lockKeys()), lockClassPublish)
	return wmsql.Query{Query: a.database.stmts.SQL(insertLockedSQL), Args: args}, nil
}

// columns are the rows of one insert, turned into parallel arrays.
type columns struct {
	messageIDs, topics, keys, aggregateTypes, eventTypes, headers []string
	shards, versions                                              []int64
	payloads                                                      [][]byte
}

func (c *columns) add(r schema.Record) error {
	headers, err := json.Marshal(r.Headers)
	if err != nil {
		return fmt.Errorf("headers of %s: %w", r.MessageID, err)
	}
	c.messageIDs = append(c.messageIDs, r.MessageID)
	c.topics = append(c.topics, r.Topic)
	c.keys = append(c.keys, r.Key)
	c.shards = append(c.shards, int64(r.Shard))
	c.aggregateTypes = append(c.aggregateTypes, r.AggregateType)
	c.eventTypes = append(c.eventTypes, r.EventType)
	c.versions = append(c.versions, int64(r.Version))
	c.payloads = append(c.payloads, r.Payload)
	c.headers = append(c.headers, string(headers))
	return nil
}

// lockKeys returns the lock numbers of the keys, sorted, each once. Two keys
// may share a number: they then wait for each other, no more.
func (c *columns) lockKeys() []int64 {
	var locks []int64
	for i, key := range c.keys {
		if key != "" {
			locks = append(locks, int64(lockNumber(c.topics[i], key)))
		}
	}
	slices.SortFunc(locks, cmp.Compare[int64])
	return slices.Compact(locks)
}

// The first numbers of the two-number advisory locks that Postbus takes, so
// that they cannot meet those of an application.
const (
	lockClassPublish = 0x706f7301 // "pos", 1
	lockClassConsume = 0x706f7302 // "pos", 2
)

// lockNumber is the second number: FNV-1a over the parts, NUL between them.
func lockNumber(parts ...string) int32 {
	h := fnv.New32a()
	h.Write([]byte(strings.Join(parts, "\x00"))) // never fails
	return int32(h.Sum32())
}

// byteaArray writes an array of bytea as text, as pq.ByteaArray does, but
// keeps nil apart from empty.
func byteaArray(values [][]byte) string {
	size := 2
	for _, v := range values {
		size += 8 + 2*len(v)
	}
	out := make([]byte, 0, size)
	out = append(out, '{')
	for i, v := range values {
		if i > 0 {
			out = append(out, ',')
		}
		if v == nil {
			out = append(out, "NULL"...)
			continue
		}
		out = append(out, `"\\x`...)
		out = hex.AppendEncode(out, v)
		out = append(out, '"')
	}
	return string(append(out, '}'))
}

// SelectQuery implements wmsql.SchemaAdapter; its Subscriber is not used.
func (a outboxAdapter) SelectQuery(string, string, wmsql.OffsetsAdapter) wmsql.Query {
	return wmsql.Query{}
}

// UnmarshalMessage implements wmsql.SchemaAdapter; its Subscriber is not used.
func (a outboxAdapter) UnmarshalMessage(wmsql.Scanner) (wmsql.Row, error) {
	return wmsql.Row{}, errWriteOnly
}

// SchemaInitializingQueries implements wmsql.SchemaAdapter: Migrate does it.
func (a outboxAdapter) SchemaInitializingQueries(string) []wmsql.Query { return nil }

// SubscribeIsolationLevel implements wmsql.SchemaAdapter; its Subscriber is
// not used.
func (a outboxAdapter) SubscribeIsolationLevel() sql.IsolationLevel { return sql.LevelReadCommitted }
