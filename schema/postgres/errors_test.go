package postgres_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
	"github.com/postbus-io/postbus/schema/schematest"
)

// connectionError is as pgx's errors of a connection are.
type connectionError struct{}

func (connectionError) Error() string     { return "conn busy" }
func (connectionError) SafeToRetry() bool { return false }

// translated is an error of the server in its own language, as each driver
// gives it.
func translated(state, text string) []error {
	return []error{&pq.Error{Code: pqerror.Code(state), Message: text}, &pgconn.PgError{Code: state, Message: text}}
}

// What an error means is told by SQLSTATE and type: the server's language, and
// words that look like another error, play no part.
func TestPostgres_S32_ClassifyGoesBySQLSTATE(t *testing.T) {
	t.Parallel()
	d := open(t, schematest.Open(t, "postgres", "postgres://nobody@127.0.0.1:1/nothing"), postgres.Config{})
	for state, c := range map[string]struct {
		text string
		want schema.ErrorClass
	}{
		"23505": {"doppelter Schlüsselwert verletzt Unique-Constraint »charges_pkey«", schema.ErrorOther},
		"23503": {"UPDATE или DELETE в таблице нарушает ограничение внешнего ключа", schema.ErrorOther},
		"P0001": {"deadlock detected, could not serialize access, connection refused", schema.ErrorOther},
		"57014": {"storniere Anfrage wegen Benutzeraufforderung", schema.ErrorOther},
		"25P02": {"aktuelle Transaktion wurde abgebrochen", schema.ErrorOther},
		"28P01": {"пользователь не прошёл проверку подлинности", schema.ErrorOther},
		"40001": {"kann Zugriff nicht serialisieren", schema.ErrorConflict},
		"40P01": {"обнаружена взаимоблокировка", schema.ErrorConflict},
		"55P03": {"storniere Anfrage wegen Zeitüberschreitung einer Sperre", schema.ErrorConflict},
		"53300": {"tut mir leid, schon zu viele Verbindungen", schema.ErrorUnavailable},
		"57P01": {"закрытие подключения по команде администратора", schema.ErrorUnavailable},
		"57P02": {"", schema.ErrorUnavailable},
		"57P03": {"das Datenbanksystem startet", schema.ErrorUnavailable},
		"57P05": {"", schema.ErrorUnavailable},
		"25P03": {"", schema.ErrorUnavailable},
		"08006": {"", schema.ErrorUnavailable},
		"08P01": {"", schema.ErrorUnavailable},
	} {
		for _, err := range translated(state, c.text) {
			assert.Equal(t, c.want, d.Classify(fmt.Errorf("deep: %w", errors.Join(errors.New("beside"), err))), "%s %T", state, err)
		}
	}
	for _, err := range []error{
		nil, context.Canceled, context.DeadlineExceeded, errors.New("deadlock detected (40P01)"), sql.ErrTxDone, sql.ErrNoRows,
		fmt.Errorf("insert: %w", context.DeadlineExceeded),
	} {
		assert.Equal(t, schema.ErrorOther, d.Classify(err), "%v", err)
	}
	for _, err := range []error{
		driver.ErrBadConn, sql.ErrConnDone, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, &net.DNSError{Name: "db"},
		&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, connectionError{},
	} {
		assert.Equal(t, schema.ErrorUnavailable, d.Classify(fmt.Errorf("exec: %w", err)), "%v", err)
	}
}

// The same with errors that a server sends, in German and with the SQLSTATE of
// its own errors.
func TestPostgres_S32_ServersErrorsInGerman(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		for state, want := range map[string]schema.ErrorClass{
			"23505": schema.ErrorOther, "40001": schema.ErrorConflict, "40P01": schema.ErrorConflict, "57P01": schema.ErrorUnavailable,
		} {
			_, err := b.db.ExecContext(b.ctx, fmt.Sprintf(`DO $$ BEGIN RAISE EXCEPTION 'Schlüssel existiert bereits' USING ERRCODE = '%s'; END $$`, state))
			require.ErrorContains(t, err, "existiert bereits")
			assert.Equal(t, want, b.Classify(err), state)
		}
	})
}

func TestPostgres_ClassifySerializationFailure(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		options := &sql.TxOptions{Isolation: sql.LevelSerializable}
		first, second := begin(b.ctx, t, b.db, options), begin(b.ctx, t, b.db, options)
		for _, tx := range []*sql.Tx{first, second} {
			b.exec(tx, "SELECT sum(epoch) FROM postbus_shards")
		}
		b.exec(first, "UPDATE postbus_shards SET epoch = 1 WHERE shard = 1")
		b.exec(second, "UPDATE postbus_shards SET epoch = 2 WHERE shard = 2")
		require.NoError(t, first.Commit())
		assert.Equal(t, schema.ErrorConflict, b.Classify(second.Commit()))
	})
}

func TestPostgres_ClassifyDeadlockAndLockTimeout(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		first, second := b.begin(), b.begin()
		b.exec(first, "UPDATE postbus_shards SET epoch = 1 WHERE shard = 1")
		b.exec(second, "UPDATE postbus_shards SET epoch = 1 WHERE shard = 2")
		b.exec(second, "SET LOCAL deadlock_timeout = '10min'") // the first one notices
		b.exec(first, "SET LOCAL deadlock_timeout = '10ms'")
		blocked := async(func() error {
			_, err := second.ExecContext(b.ctx, "UPDATE postbus_shards SET epoch = 1 WHERE shard = 1")
			return err
		})
		b.awaitBlocked(1)
		_, err := first.ExecContext(b.ctx, "UPDATE postbus_shards SET epoch = 1 WHERE shard = 2")
		assert.Equal(t, schema.ErrorConflict, b.Classify(err), "%v", err)
		require.NoError(t, first.Rollback())
		require.NoError(t, await(t, "the other one", blocked))

		third := b.begin()
		b.exec(third, "SET LOCAL lock_timeout = '10ms'")
		_, err = third.ExecContext(b.ctx, "UPDATE postbus_shards SET epoch = 1 WHERE shard = 1")
		assert.Equal(t, schema.ErrorConflict, b.Classify(err), "%v", err)
	})
}

// A connection that is lost says nothing about the work: in a statement, before
// the next statement of a transaction, before COMMIT, and while it is idle.
func TestPostgres_ClassifyLostConnection(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		victimName := strings.Replace(nameOf(t, b.url), "postbus_test_", "victim_", 1)
		victim := schematest.Open(t, driver, strings.Replace(b.url, "application_name="+nameOf(t, b.url), "application_name="+victimName, 1))
		lost := func(what string, err error) {
			t.Helper()
			require.Error(t, err, what)
			assert.Equal(t, schema.ErrorUnavailable, b.Classify(err), "%s: %T %v", what, err, err)
		}

		tx := begin(b.ctx, t, victim, nil)
		sleeping := async(func() error {
			_, err := tx.ExecContext(b.ctx, "SELECT pg_sleep(60)")
			return err
		})
		const activeSQL = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event = 'PgSleep'"
		eventually(t, "it sleeps", func() bool { return b.count(activeSQL, victimName) == 1 })
		schematest.Terminate(t, b.db, victimName)
		lost("in a statement", await(t, "the statement", sleeping))
		_, err := tx.ExecContext(b.ctx, "SELECT 1")
		lost("after it", err)
		if err := tx.Commit(); !errors.Is(err, sql.ErrTxDone) {
			lost("commit after it", err)
		}

		tx = begin(b.ctx, t, victim, nil)
		b.exec(tx, "SELECT 1")
		b.killAll(victimName)
		_, err = tx.ExecContext(b.ctx, "SELECT 1")
		lost("before a statement", err)
		_ = tx.Rollback()

		tx = begin(b.ctx, t, victim, nil)
		b.exec(tx, "SELECT 1")
		b.killAll(victimName)
		lost("before COMMIT", tx.Commit())

		require.NoError(t, victim.PingContext(b.ctx))
		b.killAll(victimName)
		eventually(t, "the pool is usable again", func() bool { return victim.PingContext(b.ctx) == nil })
	})
}

func nameOf(t *testing.T, rawURL string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	return u.Query().Get("search_path")
}

// killAll terminates the connections and returns when they are gone.
func (b testBundle) killAll(applicationName string) {
	b.t.Helper()
	schematest.Terminate(b.t, b.db, applicationName)
	const thereSQL = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1"
	eventually(b.t, "the connections are gone", func() bool { return b.count(thereSQL, applicationName) == 0 })
}

func TestPostgres_ClassifyUnreachableServer(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		db := schematest.Open(t, driver, "postgres://nobody:secret@127.0.0.1:1/nothing?sslmode=disable")
		d := open(t, db, postgres.Config{})
		err := d.Check(ctx)
		require.Error(t, err)
		assert.Equal(t, schema.ErrorUnavailable, d.Classify(err), "%T %v", err, err)
	})
}

func TestPostgres_ClassifyTooManyConnections(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		rawURL := b.appRole()
		u, err := url.Parse(rawURL)
		require.NoError(t, err)
		b.exec(b.db, fmt.Sprintf(`ALTER ROLE "%s" CONNECTION LIMIT 1`, u.User.Username()))
		db := schematest.Open(t, driver, rawURL)
		conn, err := db.Conn(b.ctx)
		require.NoError(t, err)
		defer conn.Close()
		err = db.PingContext(b.ctx)
		require.Error(t, err)
		assert.Equal(t, schema.ErrorUnavailable, b.Classify(err), "%T %v", err, err)
	})
}

// A context that ended is the caller's own doing, whatever the driver makes of
// it.
func TestPostgres_ClassifyEndedContext(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		ctx, cancel := context.WithTimeout(b.ctx, 20*time.Millisecond)
		defer cancel()
		_, err := b.db.ExecContext(ctx, "SELECT pg_sleep(60)")
		require.Error(t, err)
		assert.Equal(t, schema.ErrorOther, b.Classify(err), "%T %v", err, err)
	})
}
