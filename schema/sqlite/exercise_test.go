package sqlite_test

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/schematest"
	"github.com/postbus-io/postbus/schema/sqlite"
)

func TestSQLite_Exercise(t *testing.T) {
	t.Parallel()
	schematest.Exercise(t, func(t testing.TB) (*sql.DB, schema.Database) {
		t.Helper()
		db := schematest.SQLite(t, sqlite.DSN, sqlite.Migrate)
		d, err := sqlite.New(db, sqlite.Config{})
		require.NoError(t, err)
		return db, d
	})
}
