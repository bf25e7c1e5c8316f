package sqlite_test

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/schematest"
	"github.com/postbus-io/postbus/schema/sqlite"
)

func fileNames(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

const appliedSQL = "SELECT group_concat(version_id, ' ') FROM (SELECT version_id FROM postbus_migrations ORDER BY id)"

func assertMigrated(t *testing.T, path string) {
	t.Helper()
	db := schematest.Open(t, "sqlite", sqlite.DSN(path))
	var applied string
	require.NoError(t, db.QueryRowContext(t.Context(), appliedSQL).Scan(&applied))
	assert.Equal(t, "0 1 2 3", applied, "each file was applied once")
	require.NoError(t, open(t, db, sqlite.Config{}).Check(t.Context()))
}

// Ten programs start at the same instant, each with a pool of its own, and
// again later.
func TestSQLite_H72_MigrateByTenPoolsAtOnce(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	for range 2 {
		var wg sync.WaitGroup
		faults := make([]error, 10)
		for i := range faults {
			db := schematest.Open(t, "sqlite", sqlite.DSN(path))
			wg.Go(func() { faults[i] = sqlite.Migrate(t.Context(), db, schema.Tables{}) })
		}
		wg.Wait()
		assert.Equal(t, make([]error, 10), faults)
		assertMigrated(t, path)
	}
}

// The same with real processes.
func TestSQLite_H72_MigrateByTenProcessesAtOnce(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	processes := make([]*exec.Cmd, 10)
	outputs := make([]strings.Builder, 10)
	for i := range processes {
		processes[i] = exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		processes[i].Env = append(os.Environ(), migrateEnv+"="+path)
		processes[i].Stdout, processes[i].Stderr = &outputs[i], &outputs[i]
		require.NoError(t, processes[i].Start())
	}
	for i, p := range processes {
		assert.NoError(t, p.Wait(), outputs[i].String())
	}
	assertMigrated(t, path)
}

// Several outboxes live in one file, each with its prefix.
func TestSQLite_OtherNames(t *testing.T) {
	t.Parallel()
	b := setup(t, sqlite.Config{})
	for _, prefix := range []string{"a_", "b_", strings.Repeat("p", schema.MaxTablePrefixBytes)} {
		tables := schema.Tables{Prefix: prefix}
		for range 2 {
			require.NoError(t, sqlite.Migrate(b.ctx, b.db, tables))
		}
		other := testBundle{Database: open(t, b.db, sqlite.Config{Tables: tables}), t: t, ctx: b.ctx, db: b.db}
		require.NoError(t, other.Check(b.ctx))
		other.publish("k", "mine")
		assert.Equal(t, []string{"mine"}, other.claimed("k"))
		assert.Equal(t, 1, b.count("SELECT count(*) FROM "+prefix+"outbox_text WHERE payload = 'mine'"))
	}
	assert.Empty(t, b.claimed("k"), "the outbox with the default names is another one")
}

// The files are plain SQL for the default names.
func TestSQLite_MigrationsAreReadable(t *testing.T) {
	t.Parallel()
	entries, err := sqlite.Migrations.ReadDir("migrations")
	require.NoError(t, err)
	db := schematest.SQLite(t, sqlite.DSN, nil)
	for _, entry := range entries {
		file, err := sqlite.Migrations.ReadFile("migrations/" + entry.Name())
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), string(file))
		require.NoError(t, err, entry.Name())
	}
}
