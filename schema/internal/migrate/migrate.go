// Package migrate applies numbered, forward-only SQL files to a database,
// with goose keeping the books. It is shared by the database folders of
// schema and promises that any number of processes may start at once: each
// file and its entry in the books are one transaction, and a process that
// comes second looks again instead of failing. It needs no session lock, so it
// also works through a pooler in transaction mode.
package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
)

// A File is one migration: plain SQL under a number.
type File struct {
	// Version is the number at the start of the file's name.
	Version int64
	// Name is the file's name.
	Name string
	// SQL is the file's content, rewritten.
	SQL string
}

// Files reads every *.sql below dir, ordered by name, and rewrites each.
func Files(files fs.FS, dir string, rewrite func(string) string) ([]File, error) {
	entries, err := fs.ReadDir(files, dir)
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	var found []File
	for _, entry := range entries {
		content, err := fs.ReadFile(files, path.Join(dir, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("read migration: %w", err)
		}
		number, _, _ := strings.Cut(entry.Name(), "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("migration %s has no number: %w", entry.Name(), err)
		}
		found = append(found, File{Version: version, Name: entry.Name(), SQL: rewrite(string(content))})
	}
	return found, nil
}

// tries bounds how often Up looks again without seeing any progress. A process
// that comes second fails only after the first one's commit, so it sees some.
const tries = 3

// Up applies what is missing. The books are kept in table.
func Up(ctx context.Context, db *sql.DB, dialect goose.Dialect, table string, files []File) error {
	provider, err := newProvider(db, dialect, table, files)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	seen := int64(-1)
	for try := 0; ; try++ {
		_, err = provider.Up(ctx)
		if err == nil {
			return nil
		}
		// Another process may have applied the same file a moment earlier.
		now, versionErr := provider.GetDBVersion(ctx)
		if versionErr == nil && now > seen {
			seen, try = now, 0
		}
		if versionErr != nil || try >= tries || wait(ctx, time.Duration(try+1)*20*time.Millisecond) != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
}

func newProvider(db *sql.DB, dialect goose.Dialect, table string, files []File) (*goose.Provider, error) {
	var migrations []*goose.Migration
	for _, file := range files {
		run := func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, file.SQL); err != nil {
				return fmt.Errorf("%s: %w", file.Name, err)
			}
			return nil
		}
		migrations = append(migrations, goose.NewGoMigration(file.Version, &goose.GoFunc{RunTx: run}, nil))
	}
	return goose.NewProvider(dialect, db, nil,
		goose.WithGoMigrations(migrations...),
		goose.WithTableName(table),
		goose.WithDisableGlobalRegistry(true),
	)
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return errors.Join(ctx.Err(), context.Cause(ctx))
	case <-timer.C:
		return nil
	}
}
