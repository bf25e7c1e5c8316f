package sqlite_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/schematest"
	"github.com/postbus-io/postbus/schema/sqlite"
)

// patience bounds every wait.
const patience = 60 * time.Second

type testBundle struct {
	*sqlite.Database
	t   *testing.T
	ctx context.Context //nolint:containedctx // the one context of a test, which bounds all its waits
	db  *sql.DB
}

func setup(t *testing.T, cfg sqlite.Config) testBundle {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	db := schematest.SQLite(t, sqlite.DSN, nil)
	require.NoError(t, sqlite.Migrate(ctx, db, cfg.Tables))
	return testBundle{Database: open(t, db, cfg), t: t, ctx: ctx, db: db}
}

func open(t *testing.T, db *sql.DB, cfg sqlite.Config) *sqlite.Database {
	t.Helper()
	d, err := sqlite.New(db, cfg)
	require.NoError(t, err)
	return d
}

func tempFile(t *testing.T) string { return filepath.Join(t.TempDir(), "postbus.db") }

// inTx may be called on any goroutine.
func (b testBundle) inTx(f func(tx *sql.Tx) error) error {
	tx, err := b.db.BeginTx(b.ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (b testBundle) exec(statement string) {
	b.t.Helper()
	_, err := b.db.ExecContext(b.ctx, statement)
	require.NoError(b.t, err, statement)
}

func (b testBundle) count(query string) int {
	b.t.Helper()
	var n int
	require.NoError(b.t, b.db.QueryRowContext(b.ctx, query).Scan(&n), query)
	return n
}

func (b testBundle) publish(key string, ids ...string) {
	b.t.Helper()
	require.NoError(b.t, b.inTx(func(tx *sql.Tx) error { return b.Insert(b.ctx, tx, messages(key, ids...)) }))
}

func (b testBundle) claimed(key string) []string {
	b.t.Helper()
	records, err := b.Claim(b.ctx, []int{schema.ShardOf(key, schema.DefaultShards)}, 1000, 1000)
	require.NoError(b.t, err)
	var ids []string
	for _, r := range records {
		ids = append(ids, r.MessageID)
	}
	return ids
}

func messages(key string, ids ...string) []*message.Message {
	msgs := make([]*message.Message, len(ids))
	for i, id := range ids {
		msgs[i] = message.NewMessage(id, []byte(id))
		msgs[i].Metadata.Set(schema.HeaderTopic, "orders")
		msgs[i].Metadata.Set(schema.HeaderKey, key)
	}
	return msgs
}
