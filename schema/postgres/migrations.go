package postgres

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"strings"
	"sync"

	"github.com/pressly/goose/v3"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/internal/migrate"
)

// Migrations has the migrations as plain SQL for the default names, for people
// who run them with a tool of their own; [SQL] gives them for other names.
//
//go:embed migrations/*.sql
var Migrations embed.FS

// booksTable is where goose notes what is applied.
const booksTable = "migrations"

// Migrate creates the tables or brings them up to date. It may run in any
// number of processes at once, and again at any time. It needs the right to
// create tables; nothing else in Postbus does.
func Migrate(ctx context.Context, db *sql.DB, tables schema.Tables) error {
	if err := tables.Validate(); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	files, err := migrate.Files(Migrations, "migrations", tables.Rewrite)
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	if tables.Schema != "" {
		if err := createSchema(ctx, db, tables.Schema); err != nil {
			return fmt.Errorf("postgres: create schema %s: %w", tables.Schema, err)
		}
	}
	if err := migrate.Up(ctx, db, goose.DialectPostgres, plainBooks(tables), files); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// SQL returns all migrations as one script for the given names.
func SQL(tables schema.Tables) (string, error) {
	files, err := migrate.Files(Migrations, "migrations", tables.Rewrite)
	if err != nil {
		return "", fmt.Errorf("postgres: %w", err)
	}
	var script strings.Builder
	for _, file := range files {
		fmt.Fprintf(&script, "-- %s\n\n%s\n", file.Name, file.SQL)
	}
	return script.String(), nil
}

var newestMigration = sync.OnceValue(func() int64 {
	files, err := migrate.Files(Migrations, "migrations", func(sql string) string { return sql })
	if err != nil || len(files) == 0 {
		return 0 // the files are embedded: a test reads them all
	}
	return files[len(files)-1].Version
})

// createSchema is CREATE SCHEMA IF NOT EXISTS, which needs the right to create
// one even when it is there, and which two processes at once can still fail.
func createSchema(ctx context.Context, db *sql.DB, name string) error {
	const existsSQL = `SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)`
	var exists bool
	if err := db.QueryRowContext(ctx, existsSQL, name).Scan(&exists); err != nil || exists {
		return err
	}
	_, err := db.ExecContext(ctx, `CREATE SCHEMA IF NOT EXISTS "`+name+`"`)
	if err == nil {
		return nil
	}
	if readErr := db.QueryRowContext(ctx, existsSQL, name).Scan(&exists); readErr == nil && exists {
		return nil
	}
	return err
}

// plainBooks is the unquoted name, as goose takes it; Validate has restricted
// it to characters that need no quotes.
func plainBooks(tables schema.Tables) string {
	return strings.ReplaceAll(tables.Table(booksTable), `"`, "")
}
