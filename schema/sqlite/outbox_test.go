package sqlite_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	bunschema "github.com/uptrace/bun/schema"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/sqlite"
)

// Transactions of libraries that wrap *sql.Tx work like it.
func TestSQLite_H63_WrappedTransactions(t *testing.T) {
	t.Parallel()
	b := setup(t, sqlite.Config{})
	bunDB := bun.NewDB(b.db, bunschema.NewNopQueryGen().Dialect())
	for name, begin := range map[string]func() (schema.Tx, error){
		"sqlx": func() (schema.Tx, error) { return sqlx.NewDb(b.db, "sqlite").BeginTxx(b.ctx, nil) },
		"bun":  func() (schema.Tx, error) { return bunDB.BeginTx(b.ctx, nil) },
	} {
		for _, commits := range []bool{false, true} {
			tx, err := begin()
			require.NoError(t, err)
			require.NoError(t, b.Insert(b.ctx, tx, messages(name, fmt.Sprintf("%s %t", name, commits))))
			if commits {
				require.NoError(t, tx.Commit())
			} else {
				require.NoError(t, tx.Rollback())
			}
		}
		assert.Equal(t, []string{name + " true"}, b.claimed(name))
	}
}

// The time of a record is for people.
func TestSQLite_H02_CreatedAtIsNotTheOrder(t *testing.T) {
	t.Parallel()
	b := setup(t, sqlite.Config{})
	b.publish("k", "m1", "m2", "m3")
	b.exec("UPDATE postbus_outbox SET created_at = 1000 - id")
	assert.Equal(t, []string{"m1", "m2", "m3"}, b.claimed("k"))
}

// No statement of the relay reads the whole outbox.
func TestSQLite_H08_HeldRecordsCostNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, sqlite.Config{})
	for _, query := range sqlite.RelayStatements {
		rows, err := b.db.QueryContext(b.ctx, "EXPLAIN QUERY PLAN "+query, "[1]", 2, 3, 4, 5, 6)
		require.NoError(t, err, query)
		plan := readPlan(t, rows)
		for _, line := range plan {
			assert.False(t, strings.HasPrefix(line, "SCAN") && !strings.Contains(line, "VIRTUAL TABLE"), "%s\n%s", query, strings.Join(plan, "\n"))
		}
	}
}

func readPlan(t *testing.T, rows *sql.Rows) []string {
	t.Helper()
	defer rows.Close()
	var lines []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		require.NoError(t, rows.Scan(&id, &parent, &unused, &detail))
		lines = append(lines, detail)
	}
	require.NoError(t, rows.Err())
	require.NotEmpty(t, lines)
	return lines
}
