package schematest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postbus-io/postbus/schema"
)

const (
	// PostgresEnv is the environment variable with the URL of a PostgreSQL
	// for tests. Its user is to be allowed to create schemas.
	PostgresEnv = "POSTBUS_TEST_POSTGRES"
	// StrictEnv, set to 1, turns a skip for a missing service into a failure.
	StrictEnv = "POSTBUS_TEST_STRICT"
)

// maxConns keeps one test from taking all connections of a shared server.
const maxConns = 20

// patience bounds every wait of this package that no service answers.
const patience = 60 * time.Second

// A MigrateFunc creates the tables: postgres.Migrate and sqlite.Migrate are
// such functions.
type MigrateFunc func(ctx context.Context, db *sql.DB, tables schema.Tables) error

// Postgres returns a pool of at most 20 connections on a fresh schema in which
// migrate has created the tables (nil creates none). The driver is "postgres"
// for lib/pq, with binary_parameters=yes as by postgres.Connect, or "pgx". The
// pool is closed and the schema dropped when the test ends.
func Postgres(t testing.TB, driver string, migrate MigrateFunc) *sql.DB {
	t.Helper()
	db := Open(t, driver, PostgresURL(t))
	migrateUp(t, db, migrate)
	return db
}

// PostgresURL creates a schema and returns a URL whose search_path it is, for
// tests that need several pools or settings of their own; add those to the
// query. Its application_name is the schema's name, see [Terminate]. The schema
// is dropped when the test ends.
func PostgresURL(t testing.TB) string {
	t.Helper()
	server := postgresServer(t)
	name := "postbus_test_" + shortName(t.Name())
	target := withQuery(t, server, map[string]string{"search_path": name, "application_name": name})
	onServer(t, server, `CREATE SCHEMA "`+name+`"`)
	t.Cleanup(func() {
		// What the test left open would keep the schema from being dropped.
		onServer(t, server, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '`+name+`'`)
		onServer(t, server, `DROP SCHEMA "`+name+`" CASCADE`)
	})
	return target
}

// Open opens a pool of at most 20 connections and closes it when the test ends.
// With lib/pq it sets binary_parameters=yes unless the URL says otherwise.
func Open(t testing.TB, driver, dsn string) *sql.DB {
	t.Helper()
	if !slices.Contains(sql.Drivers(), driver) {
		t.Fatalf("no database driver %q in this test binary: import lib/pq, _ \"github.com/jackc/pgx/v5/stdlib\" or _ \"modernc.org/sqlite\" in a test file; there are %q", driver, sql.Drivers())
	}
	if driver == "postgres" && !strings.Contains(dsn, "binary_parameters=") {
		dsn = withQuery(t, dsn, map[string]string{"binary_parameters": "yes"})
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatalf("open %s: %v", driver, err)
	}
	db.SetMaxOpenConns(maxConns)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close %s: %v", driver, err)
		}
	})
	return db
}

// Terminate ends all connections of PostgreSQL with an application_name, but
// for the one that it is asked on, as a failing network or administrator would.
// It returns how many there were.
func Terminate(t testing.TB, db *sql.DB, applicationName string) int {
	t.Helper()
	const terminateSQL = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE application_name = $1 AND pid <> pg_backend_pid()`
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var n int
	if err := db.QueryRowContext(ctx, terminateSQL, applicationName).Scan(&n); err != nil {
		t.Fatalf("terminate connections of %s: %v", applicationName, err)
	}
	return n
}

// postgresServer returns the URL of the server, or ends the test.
func postgresServer(t testing.TB) string {
	t.Helper()
	server := os.Getenv(PostgresEnv)
	if server == "" {
		const howTo = "no PostgreSQL for this test: dev/services up && eval \"$(dev/services env)\" (or set " + PostgresEnv + ")"
		if os.Getenv(StrictEnv) == "1" {
			t.Fatal(howTo)
		}
		t.Skip(howTo)
	}
	return server
}

// onServer runs one statement on a connection of its own, without search_path,
// with whichever driver of PostgreSQL the test has.
func onServer(t testing.TB, server, statement string) {
	t.Helper()
	driver := "postgres"
	if !slices.Contains(sql.Drivers(), driver) {
		driver = "pgx"
	}
	db, err := sql.Open(driver, server)
	if err != nil {
		t.Fatalf("%s: %v", PostgresEnv, err)
	}
	defer db.Close() //nolint:errcheck // the statement says more
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := db.ExecContext(ctx, statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func migrateUp(t testing.TB, db *sql.DB, migrate MigrateFunc) {
	t.Helper()
	if migrate == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := migrate(ctx, db, schema.Tables{}); err != nil {
		t.Fatalf("migrate: %v", err)
	}
}

func withQuery(t testing.TB, rawURL string, settings map[string]string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatalf("%s is not a URL", PostgresEnv) // the parser's error quotes the password
	}
	query := u.Query()
	for name, value := range settings {
		query.Set(name, value)
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// shortName makes a name that no other run uses out of a test's: lower case,
// at most 41 bytes.
func shortName(testName string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, strings.ToLower(testName))
	random := make([]byte, 4)
	_, _ = rand.Read(random) // never fails
	return name[:min(len(name), 32)] + "_" + hex.EncodeToString(random)
}
