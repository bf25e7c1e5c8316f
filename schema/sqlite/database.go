package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/postbus-io/postbus/schema"
)

// Kind is the name of this database in a config file.
const Kind = "sqlite"

// Config says where the tables are.
type Config struct {
	// Tables names the tables; a schema is refused. Defaults to "postbus_".
	Tables schema.Tables
}

// Database is a SQLite file as a [schema.Database]. It is safe for concurrent
// use.
type Database struct {
	db     *sql.DB
	tables schema.Tables
	stmts  *schema.Rewriter

	shards atomic.Int64 // 0: not read yet
}

var _ schema.Database = (*Database)(nil)

// New returns the database behind db, which stays the caller's to close. It
// does no I/O.
func New(db *sql.DB, cfg Config) (*Database, error) {
	if db == nil {
		return nil, errors.New("sqlite: db is nil")
	}
	if err := validate(cfg.Tables); err != nil {
		return nil, err
	}
	return &Database{db: db, tables: cfg.Tables, stmts: schema.NewRewriter(cfg.Tables)}, nil
}

func validate(tables schema.Tables) error {
	if tables.Schema != "" {
		return fmt.Errorf("sqlite: %w: schema %q: SQLite has no schemas; leave it empty", schema.ErrInvalidOption, tables.Schema)
	}
	if err := tables.Validate(); err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	return nil
}

// Kind implements [schema.Database].
func (d *Database) Kind() string { return Kind }

// migrationSQL returns the newest migration that was applied.
const migrationSQL = `SELECT coalesce(max(version_id), 0) FROM postbus_migrations WHERE is_applied`

// Check implements [schema.Database].
func (d *Database) Check(ctx context.Context) error {
	if err := d.checkSettings(ctx); err != nil {
		return err
	}
	var version int64
	if err := d.db.QueryRowContext(ctx, d.stmts.SQL(migrationSQL)).Scan(&version); err != nil {
		if resultCode(err) == codeError { // no such table
			return fmt.Errorf("%w: %s is not there; run the migrations first (eventbus.Migrate)", schema.ErrNotMigrated, d.tables.Table("outbox"))
		}
		return fmt.Errorf("check database: %w", err)
	}
	if newest := newestMigration(); version < newest {
		return fmt.Errorf("%w: it is at version %d, this program needs %d; run the migrations first (eventbus.Migrate)", schema.ErrNotMigrated, version, newest)
	}
	_, err := d.countShards(ctx, d.db)
	return err
}

// checkSettings refuses a pool that was not opened as by DSN.
func (d *Database) checkSettings(ctx context.Context) error {
	var timeout, synchronous int
	var journal string
	for pragma, value := range map[string]any{"busy_timeout": &timeout, "synchronous": &synchronous, "journal_mode": &journal} {
		if err := d.db.QueryRowContext(ctx, "PRAGMA "+pragma).Scan(value); err != nil {
			return fmt.Errorf("check setting %s: %w", pragma, err)
		}
	}
	const wayOut = "open the file with sqlite.DSN(path)"
	switch {
	case timeout <= 0:
		return fmt.Errorf("%w: busy_timeout is 0, so two writers fail instead of waiting; %s", schema.ErrUnsafeDatabase, wayOut)
	case journal != "wal":
		return fmt.Errorf("%w: journal_mode is %s, not wal, so readers and the writer block each other; %s", schema.ErrUnsafeDatabase, journal, wayOut)
	case synchronous < 2:
		return fmt.Errorf("%w: synchronous is %d, not FULL (2), so a power cut loses commits; %s", schema.ErrUnsafeDatabase, synchronous, wayOut)
	}
	immediate, err := d.beginsImmediate(ctx)
	if err != nil {
		return fmt.Errorf("check setting _txlock: %w", err)
	}
	if !immediate {
		return fmt.Errorf("%w: transactions are not immediate, so one that reads before it writes fails at random; %s", schema.ErrUnsafeDatabase, wayOut)
	}
	return nil
}

// beginsImmediate tries to write beside a transaction that has done nothing
// yet. It needs two connections; a pool of one is taken at its word.
func (d *Database) beginsImmediate(ctx context.Context) (bool, error) {
	if d.db.Stats().MaxOpenConnections == 1 {
		return true, nil
	}
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return false, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // nothing was done
	conn, err := d.db.Conn(ctx)
	if err != nil {
		return false, fmt.Errorf("second connection: %w", err)
	}
	defer conn.Close()
	return writeIsRefused(ctx, conn)
}

func writeIsRefused(ctx context.Context, conn *sql.Conn) (bool, error) {
	var timeout int
	if err := conn.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&timeout); err != nil {
		return false, err
	}
	if _, err := conn.ExecContext(ctx, "PRAGMA busy_timeout = 0"); err != nil {
		return false, err
	}
	_, beginErr := conn.ExecContext(ctx, "BEGIN IMMEDIATE")
	if beginErr == nil {
		if _, err := conn.ExecContext(ctx, "ROLLBACK"); err != nil {
			return false, err
		}
	}
	if _, err := conn.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", timeout)); err != nil {
		return false, err
	}
	if beginErr != nil && resultCode(beginErr) != codeBusy {
		return false, beginErr
	}
	return beginErr != nil, nil
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

// inTx runs f in a transaction of its own. An error of f rolls back.
func (d *Database) inTx(ctx context.Context, f func(tx *sql.Tx) error) error {
	tx, err := d.db.BeginTx(ctx, nil)
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

// now is the database's clock: this machine's, in microseconds.
func now() int64 { return time.Now().UnixMicro() }
