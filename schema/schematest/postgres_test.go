package schematest_test

import (
	"fmt"
	"os"
	"testing"

	_ "github.com/lib/pq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema/schematest"
)

// probe is a test that notes how it was ended.
type probe struct {
	testing.TB
	ended string
}

func (p *probe) Helper() {}

func (p *probe) Skip(args ...any) { p.end("skip: " + fmt.Sprint(args...)) }

func (p *probe) Fatal(args ...any) { p.end("fatal: " + fmt.Sprint(args...)) }

func (p *probe) Fatalf(format string, args ...any) { p.end("fatal: " + fmt.Sprintf(format, args...)) }

type endOfProbe struct{}

func (p *probe) end(how string) {
	p.ended = how
	panic(endOfProbe{})
}

// endOf runs f as a test and returns how it ended, "" when it did by itself.
func endOf(t *testing.T, f func(tb testing.TB)) string {
	t.Helper()
	p := &probe{TB: t}
	func() {
		defer func() {
			if r := recover(); r != nil && r != any(endOfProbe{}) {
				panic(r)
			}
		}()
		f(p)
	}()
	return p.ended
}

// Without a server the test says how to get one, and fails where none may be
// missing.
func TestPostgres_MissingServer(t *testing.T) {
	t.Setenv(schematest.PostgresEnv, "")
	for strict, how := range map[string]string{"": "skip: ", "0": "skip: ", "1": "fatal: "} {
		t.Setenv(schematest.StrictEnv, strict)
		ended := endOf(t, func(tb testing.TB) { schematest.Postgres(tb, "postgres", nil) })
		assert.Contains(t, ended, how+"no PostgreSQL for this test")
		assert.Contains(t, ended, "dev/services up")
		assert.NotContains(t, ended, "\n")
	}
}

func TestOpen_MissingDriver(t *testing.T) {
	t.Parallel()
	ended := endOf(t, func(tb testing.TB) { schematest.Open(tb, "oracle", "") })
	assert.Contains(t, ended, `fatal: no database driver "oracle" in this test binary: import`)
	ended = endOf(t, func(tb testing.TB) { schematest.SQLite(tb, func(path string) string { return path }, nil) })
	assert.Contains(t, ended, `fatal: no database driver "sqlite"`)
}

func TestPostgresURL_SecretsStaySecret(t *testing.T) {
	t.Setenv(schematest.PostgresEnv, "postgres://user:hunter2@%zz/db")
	ended := endOf(t, func(tb testing.TB) { schematest.PostgresURL(tb) })
	assert.NotEmpty(t, ended)
	assert.NotContains(t, ended, "hunter2")
}

// Each test has a schema of its own, which goes away with it, connections and
// open transactions included.
func TestPostgres_SchemaGoesAwayWithTheTest(t *testing.T) {
	t.Parallel()
	if os.Getenv(schematest.PostgresEnv) == "" {
		schematest.PostgresURL(t) // skips
	}
	var names [2]string
	t.Run("inner", func(t *testing.T) {
		for i := range names {
			db := schematest.Postgres(t, "postgres", nil)
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT current_schema()").Scan(&names[i]))
			_, err := db.ExecContext(t.Context(), "CREATE TABLE things (id int)")
			require.NoError(t, err)
		}
		left := schematest.Open(t, "postgres", schematest.PostgresURL(t))
		conn, err := left.Conn(t.Context())
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.ExecContext(t.Context(), "BEGIN; CREATE TABLE things (id int)")
		require.NoError(t, err)
	})
	require.NotEqual(t, names[0], names[1])
	db := schematest.Postgres(t, "postgres", nil)
	var n int
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname IN ($1, $2)", names[0], names[1]).Scan(&n))
	assert.Zero(t, n)
}

func TestTerminate(t *testing.T) {
	t.Parallel()
	db := schematest.Postgres(t, "postgres", nil)
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	var name string
	require.NoError(t, conn.QueryRowContext(t.Context(), "SELECT current_setting('application_name')").Scan(&name))
	assert.Equal(t, 1, schematest.Terminate(t, db, name), "the connection that asks is spared")
	require.Error(t, conn.PingContext(t.Context()))
	require.NoError(t, db.PingContext(t.Context()))
}
