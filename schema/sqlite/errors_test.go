package sqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/schematest"
	"github.com/postbus-io/postbus/schema/sqlite"
)

type coded int

func (c coded) Error() string { return "disk I/O error, database is locked, busy" }
func (c coded) Code() int     { return int(c) }

// What an error means is told by its code, extended or not, and not by text.
func TestSQLite_ClassifyGoesByCode(t *testing.T) {
	t.Parallel()
	d := open(t, schematest.SQLite(t, sqlite.DSN, nil), sqlite.Config{})
	for code, want := range map[coded]schema.ErrorClass{
		1: schema.ErrorOther, 19: schema.ErrorOther, 1555: schema.ErrorOther, 2067: schema.ErrorOther, 9: schema.ErrorOther,
		5: schema.ErrorConflict, 6: schema.ErrorConflict, 261: schema.ErrorConflict, 517: schema.ErrorConflict, 262: schema.ErrorConflict,
		10: schema.ErrorUnavailable, 266: schema.ErrorUnavailable, 13: schema.ErrorUnavailable, 14: schema.ErrorUnavailable,
	} {
		assert.Equal(t, want, d.Classify(fmt.Errorf("deep: %w", errors.Join(errors.New("beside"), code))), "%d", int(code))
	}
	for _, err := range []error{nil, context.Canceled, context.DeadlineExceeded, errors.New("database is locked (5)"), sql.ErrTxDone} {
		assert.Equal(t, schema.ErrorOther, d.Classify(err), "%v", err)
	}
	assert.Equal(t, schema.ErrorUnavailable, d.Classify(fmt.Errorf("exec: %w", driver.ErrBadConn)))
}

// A writer that waited in vain for the one in front is a conflict; a folder
// that is not there is an outage.
func TestSQLite_ClassifyRealErrors(t *testing.T) {
	t.Parallel()
	b := setup(t, sqlite.Config{})
	path := tempFile(t)
	impatient := func() *sql.DB {
		return schematest.Open(t, "sqlite", "file:"+path+"?_pragma=busy_timeout(1)&_pragma=journal_mode(WAL)&_txlock=immediate")
	}
	first, second := impatient(), impatient()
	_, err := first.ExecContext(b.ctx, "CREATE TABLE t (id INTEGER PRIMARY KEY)")
	require.NoError(t, err)
	tx, err := first.BeginTx(b.ctx, nil)
	require.NoError(t, err)
	_, err = second.ExecContext(b.ctx, "INSERT INTO t VALUES (1)")
	assert.Equal(t, schema.ErrorConflict, b.Classify(err), "%T %v", err, err)
	_, err = second.BeginTx(b.ctx, nil)
	assert.Equal(t, schema.ErrorConflict, b.Classify(err), "%T %v", err, err)
	require.NoError(t, tx.Rollback())

	nowhere := schematest.Open(t, "sqlite", sqlite.DSN(path+"/no/such/folder.db"))
	err = nowhere.PingContext(b.ctx)
	assert.Equal(t, schema.ErrorUnavailable, b.Classify(err), "%T %v", err, err)
}
