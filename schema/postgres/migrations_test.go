package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
	"github.com/postbus-io/postbus/schema/schematest"
)

// catalogSQL returns everything that migrations make in the search path's
// schema, as text without the schema's name.
const catalogSQL = `
SELECT string_agg(line, E'\n' ORDER BY line) FROM (
    SELECT format('column %s.%s %s %s %s %s', table_name, column_name, data_type, is_nullable, column_default, is_identity) AS line
    FROM information_schema.columns WHERE table_schema = current_schema()
    UNION ALL
    SELECT replace(indexdef, current_schema() || '.', '') FROM pg_indexes WHERE schemaname = current_schema()
    UNION ALL
    SELECT format('constraint %s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
    FROM pg_constraint WHERE connamespace = current_schema()::regnamespace
    UNION ALL
    SELECT format('view %s %s', viewname, definition) FROM pg_views WHERE schemaname = current_schema()
    UNION ALL
    SELECT format('sequence %s %s %s %s', sequencename, data_type, cache_size, max_value) FROM pg_sequences WHERE schemaname = current_schema()
) AS lines`

func catalog(ctx context.Context, t *testing.T, db *sql.DB) string {
	t.Helper()
	var text string
	require.NoError(t, db.QueryRowContext(ctx, catalogSQL).Scan(&text))
	return text
}

const appliedSQL = `SELECT string_agg(version_id::text, ' ' ORDER BY id) FROM postbus_migrations`

func applied(ctx context.Context, t *testing.T, db *sql.DB) string {
	t.Helper()
	var text string
	require.NoError(t, db.QueryRowContext(ctx, appliedSQL).Scan(&text))
	return text
}

// Ten programs start at the same instant, each with a pool of its own.
func TestPostgres_H72_MigrateByTenPoolsAtOnce(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		u := schematest.PostgresURL(t)
		var wg sync.WaitGroup
		faults := make([]error, 10)
		for i := range faults {
			db := schematest.Open(t, driver, u)
			require.NoError(t, db.PingContext(t.Context()))
			wg.Go(func() { faults[i] = postgres.Migrate(t.Context(), db, schema.Tables{}) })
		}
		wg.Wait()
		assert.Equal(t, make([]error, 10), faults)

		db := schematest.Open(t, driver, u)
		before := catalog(t.Context(), t, db)
		assert.Equal(t, "0 1 2 3", applied(t.Context(), t, db), "each file was applied once")
		wholeJob(t.Context(), t, db, open(t, db, postgres.Config{}))

		require.NoError(t, postgres.Migrate(t.Context(), db, schema.Tables{}))
		assert.Equal(t, before, catalog(t.Context(), t, db), "again is nothing")
		assert.Equal(t, "0 1 2 3", applied(t.Context(), t, db))
	})
}

// The same with real processes.
func TestPostgres_H72_MigrateByTenProcessesAtOnce(t *testing.T) {
	t.Parallel()
	b := schematest.PostgresURL(t)
	processes := make([]*exec.Cmd, 10)
	outputs := make([]strings.Builder, 10)
	for i := range processes {
		processes[i] = exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		processes[i].Env = append(os.Environ(), migrateEnv+"="+b)
		processes[i].Stdout, processes[i].Stderr = &outputs[i], &outputs[i]
		require.NoError(t, processes[i].Start())
	}
	for i, p := range processes {
		assert.NoError(t, p.Wait(), outputs[i].String())
	}
	db := schematest.Open(t, "postgres", b)
	assert.Equal(t, "0 1 2 3", applied(t.Context(), t, db))
	require.NoError(t, open(t, db, postgres.Config{}).Check(t.Context()))
}

func TestPostgres_MigrateEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, postgres.Migrate(ctx, schematest.Postgres(t, "postgres", nil), schema.Tables{}), context.Canceled)
}

// The script is for people who migrate with a tool of their own: on an empty
// schema it makes what Migrate makes, and Migrate goes on from there.
func TestPostgres_SQLEqualsMigrate(t *testing.T) {
	t.Parallel()
	migrated := schematest.Postgres(t, "postgres", postgres.Migrate)
	scripted := schematest.Postgres(t, "postgres", nil)
	script, err := postgres.SQL(schema.Tables{})
	require.NoError(t, err)
	_, err = scripted.ExecContext(t.Context(), script)
	require.NoError(t, err)
	want := catalog(t.Context(), t, migrated)
	assert.Equal(t, want, catalog(t.Context(), t, scripted))
	assert.Equal(t, applied(t.Context(), t, migrated), applied(t.Context(), t, scripted))
	require.NoError(t, open(t, scripted, postgres.Config{}).Check(t.Context()))
	require.NoError(t, postgres.Migrate(t.Context(), scripted, schema.Tables{}))
	assert.Equal(t, want, catalog(t.Context(), t, scripted))
	wholeJob(t.Context(), t, scripted, open(t, scripted, postgres.Config{}))
}

// The files are plain SQL for the default names.
func TestPostgres_MigrationsAreReadable(t *testing.T) {
	t.Parallel()
	entries, err := postgres.Migrations.ReadDir("migrations")
	require.NoError(t, err)
	db := schematest.Postgres(t, "postgres", nil)
	for _, entry := range entries {
		file, err := postgres.Migrations.ReadFile("migrations/" + entry.Name())
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), string(file))
		require.NoError(t, err, entry.Name())
	}
	wholeJob(t.Context(), t, db, open(t, db, postgres.Config{}))
}

// All times are instants, all ids have 64 bits, and no column parses what it
// keeps. The books are goose's.
func TestPostgres_H80_H81_H83_ColumnTypes(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{})
	rows, err := b.db.QueryContext(b.ctx, `SELECT table_name || '.' || column_name, data_type FROM information_schema.columns
WHERE table_schema = current_schema() AND table_name <> 'postbus_migrations'`)
	require.NoError(t, err)
	defer rows.Close()
	seen := map[string]string{}
	for rows.Next() {
		var column, kind string
		require.NoError(t, rows.Scan(&column, &kind))
		seen[column] = kind
		assert.NotContains(t, []string{"timestamp without time zone", "time without time zone", "date", "json", "jsonb", "uuid", "character varying"}, kind, column)
		name := column[strings.Index(column, ".")+1:]
		if name == "id" || name == "epoch" || name == "head" || name == "record" {
			assert.Equal(t, "bigint", kind, column)
		}
		if strings.HasSuffix(name, "_at") || strings.HasSuffix(name, "_until") {
			assert.Equal(t, "timestamp with time zone", kind, column)
		}
	}
	require.NoError(t, rows.Err())
	assert.Equal(t, "bytea", seen["postbus_outbox.payload"])
	assert.Equal(t, "bytea", seen["postbus_parked.payload"])
	assert.Equal(t, "timestamp with time zone", seen["postbus_relays.lease_until"])
}

// A role that may read and write rows, and nothing else, does the whole job
// right after the migration: nothing creates a table on the way.
func TestPostgres_H72_ApplicationNeedsNoDDL(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		db := schematest.Open(t, driver, b.appRole())
		_, err := db.ExecContext(b.ctx, "CREATE TABLE forbidden (id int)")
		require.ErrorContains(t, err, "42501", "the role may create tables: this test says nothing")
		for _, keyLock := range []bool{false, true} {
			d := open(t, db, postgres.Config{KeyLock: keyLock})
			require.NoError(t, d.Check(b.ctx))
			wholeJob(b.ctx, t, db, d)
		}
	})
}

// appRole creates a login with the rights of an application and returns its
// URL.
func (b testBundle) appRole() string {
	b.t.Helper()
	u, err := url.Parse(b.url)
	require.NoError(b.t, err)
	name := u.Query().Get("search_path")
	role := strings.Replace(name, "postbus_test_", "app_", 1)
	for _, statement := range []string{
		`CREATE ROLE "%[2]s" LOGIN PASSWORD 'secret'`,
		`GRANT USAGE ON SCHEMA "%[1]s" TO "%[2]s"`,
		`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "%[1]s" TO "%[2]s"`,
	} {
		b.exec(b.db, fmt.Sprintf(statement, name, role))
	}
	b.t.Cleanup(func() {
		b.exec(b.db, fmt.Sprintf(`DROP OWNED BY "%s"`, role))
		b.exec(b.db, fmt.Sprintf(`DROP ROLE "%s"`, role))
	})
	u.User = url.UserPassword(role, "secret")
	return u.String()
}

// Schema and prefix are the user's; several outboxes live side by side.
func TestPostgres_OtherNames(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		u, err := url.Parse(b.url)
		require.NoError(t, err)
		extra := u.Query().Get("search_path") + "_extra"
		t.Cleanup(func() { b.exec(b.db, `DROP SCHEMA IF EXISTS "`+extra+`" CASCADE`) })
		for _, tables := range []schema.Tables{
			{Prefix: "a_"}, {Prefix: "b_"}, {Prefix: strings.Repeat("p", schema.MaxTablePrefixBytes)},
			{Schema: extra}, {Schema: extra, Prefix: "a_"}, {Prefix: "postbus_postbus_"},
		} {
			for range 2 {
				require.NoError(t, postgres.Migrate(b.ctx, b.db, tables), "%+v", tables)
			}
			for _, keyLock := range []bool{false, true} {
				d := open(t, b.db, postgres.Config{Tables: tables, KeyLock: keyLock})
				require.NoError(t, d.Check(b.ctx), "%+v", tables)
				wholeJob(b.ctx, t, b.db, d)
				tx := b.begin()
				require.NoError(t, d.Insert(b.ctx, tx, messages("k", "mine")))
				require.NoError(t, tx.Commit())
			}
		}
		assert.Empty(t, b.claimed("k"), "the outbox with the default names is another one")
		assert.Equal(t, 2, b.count(`SELECT count(*) FROM "`+extra+`".postbus_outbox`))
	})
}

// Two services in one database, with the same names for everything but the
// schema or the prefix, never wait for each other's locks.
func TestPostgres_OutboxesOfOneDatabaseShareNoLocks(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{KeyLock: true})
	tables := schema.Tables{Prefix: "other_"}
	require.NoError(t, postgres.Migrate(b.ctx, b.db, tables))
	holder := b.begin()
	b.insert(holder, "k", "m1")
	_, err := b.Receive(b.ctx, holder, delivery("m1"))
	require.NoError(t, err)
	done := async(func() error {
		d, err := postgres.New(b.db, postgres.Config{Tables: tables, KeyLock: true})
		if err != nil {
			return err
		}
		tx, err := b.db.BeginTx(b.ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := d.Insert(b.ctx, tx, messages("k", "m1")); err != nil {
			return err
		}
		_, err = d.Bury(b.ctx, letter("m1"))
		return err
	})
	require.NoError(t, await(t, "the other service", done))
}

func TestPostgres_SchemaIsCreatedByManyAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{})
	u, err := url.Parse(b.url)
	require.NoError(t, err)
	extra := u.Query().Get("search_path") + "_many"
	t.Cleanup(func() { b.exec(b.db, `DROP SCHEMA IF EXISTS "`+extra+`" CASCADE`) })
	var wg sync.WaitGroup
	faults := make([]error, 10)
	for i := range faults {
		wg.Go(func() { faults[i] = postgres.Migrate(b.ctx, b.db, schema.Tables{Schema: extra}) })
	}
	wg.Wait()
	assert.Equal(t, make([]error, 10), faults)
	require.NoError(t, open(t, b.db, postgres.Config{Tables: schema.Tables{Schema: extra}}).Check(b.ctx))
}

func TestPostgres_NamesThatInjectAreRefused(t *testing.T) {
	t.Parallel()
	db := schematest.Postgres(t, "postgres", nil)
	for _, tables := range []schema.Tables{
		{Prefix: `x"; DROP TABLE users; --`}, {Schema: `s"."t`}, {Prefix: "A"}, {Prefix: strings.Repeat("p", 33)}, {Schema: "a b"},
	} {
		require.ErrorIs(t, postgres.Migrate(t.Context(), db, tables), schema.ErrInvalidOption)
		_, err := postgres.SQL(tables)
		require.ErrorIs(t, err, schema.ErrInvalidOption)
		_, err = postgres.New(db, postgres.Config{Tables: tables})
		require.ErrorIs(t, err, schema.ErrInvalidOption)
	}
}

// People read payloads in the view as text, whatever the bytes are.
func TestPostgres_H80_ViewIsReadable(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{})
	tx := b.begin()
	msgs := messages("k", "text", "bytes", "nil")
	msgs[0].Payload, msgs[1].Payload, msgs[2].Payload = []byte(`{"name":"Jörg"}`), []byte{0, 'a', 0xff}, nil
	require.NoError(t, b.Insert(b.ctx, tx, msgs))
	require.NoError(t, tx.Commit())
	var text string
	require.NoError(t, b.db.QueryRowContext(b.ctx,
		`SELECT string_agg(message_id || '=' || coalesce(payload, 'NULL'), ' ' ORDER BY id) FROM postbus_outbox_text WHERE topic = 'orders' AND state = 0`).Scan(&text))
	assert.Contains(t, text, `text={"name":`)
	assert.Contains(t, text, `bytes=\000a\377 nil=NULL`)
}
