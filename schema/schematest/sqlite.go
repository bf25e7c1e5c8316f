package schematest

import (
	"database/sql"
	"path/filepath"
	"testing"
)

// SQLite returns a pool of at most 20 connections on a fresh file in which
// migrate has created the tables (nil creates none). dsn makes the data source
// name of a path: sqlite.DSN. The test is to import the driver, _
// "modernc.org/sqlite". The pool is closed and the file deleted when the test
// ends.
func SQLite(t testing.TB, dsn func(path string) string, migrate MigrateFunc) *sql.DB {
	t.Helper()
	db := Open(t, "sqlite", dsn(filepath.Join(t.TempDir(), "postbus.db")))
	migrateUp(t, db, migrate)
	return db
}
