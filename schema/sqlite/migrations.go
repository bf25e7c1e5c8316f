package sqlite

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

// Migrations has the migrations as plain SQL for the default names.
//
//go:embed migrations/*.sql
var Migrations embed.FS

// Migrate creates the tables or brings them up to date. It may run in any
// number of processes at once, and again at any time.
func Migrate(ctx context.Context, db *sql.DB, tables schema.Tables) error {
	if err := validate(tables); err != nil {
		return err
	}
	files, err := migrate.Files(Migrations, "migrations", tables.Rewrite)
	if err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	books := strings.ReplaceAll(tables.Table("migrations"), `"`, "")
	if err := migrate.Up(ctx, db, goose.DialectSQLite3, books, files); err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	return nil
}

var newestMigration = sync.OnceValue(func() int64 {
	files, err := migrate.Files(Migrations, "migrations", func(sql string) string { return sql })
	if err != nil || len(files) == 0 {
		return 0 // the files are embedded: a test reads them all
	}
	return files[len(files)-1].Version
})
