package migrate_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/postbus-io/postbus/schema/internal/migrate"
	"github.com/postbus-io/postbus/schema/schematest"
)

func dsn(path string) string {
	return "file:" + path + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate"
}

func file(version int64, sql string) migrate.File {
	return migrate.File{Version: version, Name: "0001_file.sql", SQL: sql}
}

func up(ctx context.Context, db *sql.DB, files ...migrate.File) error {
	return migrate.Up(ctx, db, goose.DialectSQLite3, "books", files)
}

func TestFiles_AreOrderedAndRewritten(t *testing.T) {
	t.Parallel()
	files, err := migrate.Files(fstest.MapFS{
		"m/0002_b.sql": {Data: []byte("two")}, "m/0001_a.sql": {Data: []byte("one")}, "m/0010_c.sql": {Data: []byte("ten")},
	}, "m", strings.ToUpper)
	require.NoError(t, err)
	assert.Equal(t, []migrate.File{
		{Version: 1, Name: "0001_a.sql", SQL: "ONE"}, {Version: 2, Name: "0002_b.sql", SQL: "TWO"}, {Version: 10, Name: "0010_c.sql", SQL: "TEN"},
	}, files)
}

func TestFiles_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := migrate.Files(fstest.MapFS{}, "m", strings.ToUpper)
	require.ErrorContains(t, err, "read migrations")
	_, err = migrate.Files(fstest.MapFS{"m/first.sql": {}}, "m", strings.ToUpper)
	require.ErrorContains(t, err, "first.sql has no number")
	_, err = migrate.Files(fstest.MapFS{"m/0001_a.sql/x": {}}, "m", strings.ToUpper)
	require.ErrorContains(t, err, "read migration")
}

// A file that fails leaves nothing behind, neither of itself nor in the books,
// and is reported soon, with its name.
func TestUp_BrokenFileLeavesNothing(t *testing.T) {
	t.Parallel()
	db := schematest.SQLite(t, dsn, nil)
	broken := migrate.File{Version: 2, Name: "0002_broken.sql", SQL: "CREATE TABLE half (id INTEGER); CREATE TABLE broken ("}
	began := time.Now()
	err := up(t.Context(), db, file(1, "CREATE TABLE good (id INTEGER)"), broken)
	require.ErrorContains(t, err, "0002_broken.sql")
	assert.Less(t, time.Since(began), 20*time.Second)

	var tables, version int
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM sqlite_master WHERE name IN ('good', 'half')`).Scan(&tables))
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT max(version_id) FROM books`).Scan(&version))
	assert.Equal(t, []int{1, 1}, []int{tables, version})

	broken.SQL = "CREATE TABLE half (id INTEGER)"
	require.NoError(t, up(t.Context(), db, file(1, "never run again"), broken))
}

// However many start at once, on an empty file or on one that lacks the newest
// migrations, each is applied once.
func TestUp_ManyAtOnce(t *testing.T) {
	t.Parallel()
	files := []migrate.File{file(1, "CREATE TABLE a (id INTEGER)"), file(2, "CREATE TABLE b (id INTEGER)"), file(3, "INSERT INTO a VALUES (1); CREATE TABLE c (id INTEGER)")}
	for before := range files {
		path := filepath.Join(t.TempDir(), "many.db")
		db := schematest.Open(t, "sqlite", dsn(path))
		if before > 0 {
			require.NoError(t, up(t.Context(), db, files[:before]...))
		}
		assert.Equal(t, make([]error, 10), upAtOnce(t, path, files))
		var rows, applied int
		require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM a`).Scan(&rows))
		require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM books WHERE version_id > 0`).Scan(&applied))
		assert.Equal(t, []int{1, 3}, []int{rows, applied})
	}
}

// upAtOnce starts ten, each with a pool of its own.
func upAtOnce(t *testing.T, path string, files []migrate.File) []error {
	t.Helper()
	faults := make([]error, 10)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range faults {
		db := schematest.Open(t, "sqlite", dsn(path))
		require.NoError(t, db.PingContext(t.Context()))
		wg.Go(func() {
			<-start
			faults[i] = up(t.Context(), db, files...)
		})
	}
	close(start)
	wg.Wait()
	return faults
}

func TestUp_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, up(ctx, schematest.SQLite(t, dsn, nil), file(1, "SELECT 1")), context.Canceled)
}

func TestUp_RefusesTheSameNumberTwice(t *testing.T) {
	t.Parallel()
	require.Error(t, up(t.Context(), schematest.SQLite(t, dsn, nil), file(1, "SELECT 1"), file(1, "SELECT 2")))
}
