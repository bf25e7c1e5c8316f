package eventbus

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
	"github.com/postbus-io/postbus/schema/sqlite"
)

// A databaseKind is how the front door deals with one kind of database.
type databaseKind struct {
	newFunc     func(db *sql.DB, cfg Config) (schema.Database, error)
	migrateFunc func(ctx context.Context, db *sql.DB, tables schema.Tables) error
	// probe is a query that only this kind answers, with a text that starts
	// with sign.
	probe, sign string
}

// databases has an entry for each kind of database.
var databases = map[string]databaseKind{
	DatabasePostgres: {
		newFunc: func(db *sql.DB, cfg Config) (schema.Database, error) {
			return postgres.New(db, postgres.Config{Tables: cfg.Database.Tables(), KeyLock: cfg.Outbox.KeyLock})
		},
		migrateFunc: postgres.Migrate,
		probe:       `SELECT version()`, sign: "PostgreSQL",
	},
	DatabaseSQLite: {
		newFunc: func(db *sql.DB, cfg Config) (schema.Database, error) {
			return sqlite.New(db, sqlite.Config{Tables: cfg.Database.Tables()})
		},
		migrateFunc: sqlite.Migrate,
		probe:       `SELECT 'SQLite ' || sqlite_version()`, sign: "SQLite",
	},
}

// Migrate creates the tables of the bus in db, or brings them up to date. It
// may run in any number of processes at once. It is the only thing in Postbus
// that needs the right to create tables.
func Migrate(ctx context.Context, db *sql.DB, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	kind, err := detect(ctx, db, cfg.Database.Kind)
	if err != nil {
		return err
	}
	if err := databases[kind].migrateFunc(ctx, db, cfg.withDefaults().Database.Tables()); err != nil {
		return fmt.Errorf("%w: %w", ErrDatabase, err)
	}
	return nil
}

func openDatabase(ctx context.Context, db *sql.DB, cfg Config) (schema.Database, error) {
	kind, err := detect(ctx, db, cfg.Database.Kind)
	if err != nil {
		return nil, err
	}
	database, err := databases[kind].newFunc(db, cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDatabase, err)
	}
	if err := database.Check(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDatabase, err)
	}
	return database, nil
}

// detect asks the server what it is. A configured kind that is another one is
// an error.
func detect(ctx context.Context, db *sql.DB, configured string) (string, error) {
	if db == nil {
		return "", fmt.Errorf("%w: db is nil", ErrDatabase)
	}
	if err := db.PingContext(ctx); err != nil {
		return "", fmt.Errorf("%w cannot be reached: %w", ErrDatabase, redactedError(err))
	}
	for name, kind := range databases {
		var answer string
		if err := db.QueryRowContext(ctx, kind.probe).Scan(&answer); err != nil || !strings.HasPrefix(answer, kind.sign) {
			continue
		}
		if configured != "" && configured != name {
			return "", fmt.Errorf("%w: database.kind is %s, but the server says it is %s", ErrDatabase, configured, answer)
		}
		return name, nil
	}
	return "", fmt.Errorf("%w: the server is neither PostgreSQL nor SQLite", ErrDatabase)
}

// redactedError keeps err as it is unless its text has a password in it: then
// only the text without the password is left.
func redactedError(err error) error {
	if text := RedactURL(err.Error()); text != err.Error() {
		return fmt.Errorf("%s", text)
	}
	return err
}
