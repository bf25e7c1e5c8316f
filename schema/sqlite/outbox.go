package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// outboxTopic is what watermill-sql's Publisher is called with: it takes one
// topic a call, whereas here the topic is data.
const outboxTopic = "outbox"

// chunk is how many rows go into one statement: 10 parameters each, of the
// 32,766 that SQLite takes, and a text that is parsed in no time.
const chunk = 500

// Insert implements [schema.Outbox] with watermill-sql's Publisher, 500
// messages a statement.
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
	for part := range slices.Chunk(msgs, chunk) {
		if err := publisher.Publish(outboxTopic, part...); err != nil {
			return fmt.Errorf("write outbox: %w", err)
		}
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

// insertSQL writes rows; a group of parameters follows for each.
const insertSQL = `
INSERT INTO postbus_outbox
       (message_id, topic, key, shard, aggregate_type, event_type, version, payload, headers, created_at)
VALUES `

const insertRow = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

// InsertQuery implements wmsql.SchemaAdapter.
func (a outboxAdapter) InsertQuery(_ string, msgs message.Messages) (wmsql.Query, error) {
	var args []any
	at := now()
	for _, msg := range msgs {
		r := schema.NewRecord(msg, a.shards)
		headers, err := json.Marshal(r.Headers)
		if err != nil {
			return wmsql.Query{}, fmt.Errorf("headers of %s: %w", r.MessageID, err)
		}
		args = append(args, r.MessageID, r.Topic, r.Key, r.Shard, r.AggregateType, r.EventType, r.Version,
			blob(r.Payload), string(headers), at)
	}
	rows := strings.TrimSuffix(strings.Repeat(insertRow+", ", len(msgs)), ", ")
	return wmsql.Query{Query: a.database.stmts.SQL(insertSQL) + rows, Args: args}, nil
}

// blob keeps nil apart from empty, whatever the driver makes of a nil slice.
func blob(payload []byte) any {
	if payload == nil {
		return nil
	}
	return payload
}

// payload keeps them apart on the way back: the driver reads an empty blob as
// nil.
func payload(read []byte, present bool) []byte {
	if present && read == nil {
		return []byte{}
	}
	return read
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
func (a outboxAdapter) SubscribeIsolationLevel() sql.IsolationLevel { return sql.LevelDefault }
