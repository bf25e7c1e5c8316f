package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/postbus-io/postbus/schema"
)

// Kind is the name of this database in a config file.
const Kind = "postgres"

// Config says where the tables are and what a publish takes.
type Config struct {
	// Tables names the tables. Defaults to "postbus_" in the search path.
	Tables schema.Tables
	// KeyLock makes every insert take the advisory locks of its keys before it
	// draws ids, so that id order is commit order per key even when the
	// application locks no aggregate of its own. Two transactions that publish
	// the same two keys in opposite order, in two calls, can then deadlock;
	// the server ends one with SQLSTATE 40P01. Defaults to false.
	KeyLock bool
}

// Database is PostgreSQL as a [schema.Database]. It is safe for concurrent
// use.
type Database struct {
	db      *sql.DB
	keyLock bool
	tables  schema.Tables
	stmts   *schema.Rewriter

	shards atomic.Int64 // 0: not read yet
}

var _ schema.Database = (*Database)(nil)

// New returns the database behind db, which stays the caller's to close. It
// does no I/O.
func New(db *sql.DB, cfg Config) (*Database, error) {
	if db == nil {
		return nil, errors.New("postgres: db is nil")
	}
	if err := cfg.Tables.Validate(); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return &Database{db: db, keyLock: cfg.KeyLock, tables: cfg.Tables, stmts: schema.NewRewriter(cfg.Tables)}, nil
}

// Kind implements [schema.Database].
func (d *Database) Kind() string { return Kind }

// checkSQL returns the newest migration and the cache of the outbox's sequence
// (0 if there is none). Input: the outbox's name.
const checkSQL = `
SELECT (SELECT coalesce(max(version_id), 0) FROM postbus_migrations WHERE is_applied),
       coalesce((SELECT s.seqcache FROM pg_catalog.pg_sequence s
                 WHERE s.seqrelid = pg_catalog.pg_get_serial_sequence($1, 'id')::regclass), 0)`

// Check implements [schema.Database].
func (d *Database) Check(ctx context.Context) error {
	var version, cache int64
	row := d.db.QueryRowContext(ctx, d.stmts.SQL(checkSQL), d.tables.Table("outbox"))
	if err := row.Scan(&version, &cache); err != nil {
		if state := sqlState(err); state == stateUndefinedTable || state == stateUndefinedColumn {
			return fmt.Errorf("%w: %s is not there; run the migrations first (eventbus.Migrate)", schema.ErrNotMigrated, d.tables.Table("outbox"))
		}
		return fmt.Errorf("check database: %w", err)
	}
	switch newest := newestMigration(); {
	case version < newest:
		return fmt.Errorf("%w: it is at version %d, this program needs %d; run the migrations first (eventbus.Migrate)", schema.ErrNotMigrated, version, newest)
	case cache != 1:
		return fmt.Errorf("%w: the sequence of %s has CACHE %d, so ids of two sessions would be out of order; ALTER TABLE %[2]s ALTER COLUMN id SET CACHE 1",
			schema.ErrUnsafeDatabase, d.tables.Table("outbox"), cache)
	}
	_, err := d.countShards(ctx, d.db)
	return err
}

// shardCount returns the number of shards, read once inside the caller's
// transaction: a second connection could wait for ever in a pool of one.
func (d *Database) shardCount(ctx context.Context, tx schema.Tx) (int, error) {
	if n := d.shards.Load(); n > 0 {
		return int(n), nil
	}
	return d.countShards(ctx, tx)
}

// countShardsSQL returns the number of shards, and what it is to be by the
// highest one.
const countShardsSQL = `SELECT count(*), coalesce(max(shard) + 1, 0) FROM postbus_shards`

// countShards refuses a table with holes: nobody could own the records of a
// missing shard, and with another count the keys would be on other shards.
func (d *Database) countShards(ctx context.Context, q interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}) (int, error) {
	var n, want int
	if err := q.QueryRowContext(ctx, d.stmts.SQL(countShardsSQL)).Scan(&n, &want); err != nil {
		return 0, fmt.Errorf("count shards: %w", err)
	}
	if n == 0 || n != want {
		return 0, fmt.Errorf("%w: %s has %d rows, not one for each shard from 0 to %d; restore the missing ones",
			schema.ErrUnsafeDatabase, d.tables.Table("shards"), n, max(want, schema.DefaultShards)-1)
	}
	d.shards.Store(int64(n))
	return n, nil
}

// inTx runs f in a transaction of its own, at READ COMMITTED whatever the
// server's default is: a statement behind a lock is to see what the lock waited
// for. An error of f rolls back.
func (d *Database) inTx(ctx context.Context, f func(tx *sql.Tx) error) error {
	tx, err := d.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback() // err says more
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}
