package schema_test

import (
	"context"
	"database/sql"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/dialect/feature"
	bunschema "github.com/uptrace/bun/schema"
	_ "modernc.org/sqlite"

	"github.com/postbus-io/postbus/schema"
)

func TestTx_H63_WhatIsOne(t *testing.T) {
	t.Parallel()
	tx := reflect.TypeFor[schema.Tx]()
	for _, is := range []reflect.Type{reflect.TypeFor[*sql.Tx](), reflect.TypeFor[*sqlx.Tx](), reflect.TypeFor[bun.Tx](), reflect.TypeFor[*bun.Tx]()} {
		require.True(t, is.Implements(tx), is.String())
	}
	for _, isNot := range []reflect.Type{
		reflect.TypeFor[*sql.DB](), reflect.TypeFor[*sql.Conn](), reflect.TypeFor[*sqlx.DB](), reflect.TypeFor[*bun.DB](), reflect.TypeFor[bun.Conn](), reflect.TypeFor[*sql.Stmt](),
	} {
		require.False(t, isNot.Implements(tx), isNot.String())
	}
}

// TestTx_H63_DBDoesNotCompile has the compiler's type checker read what a user
// might write.
func TestTx_H63_DBDoesNotCompile(t *testing.T) {
	t.Parallel()
	const publish = "package schema\nimport \"database/sql\"\nfunc publish(tx Tx) {}\n"
	require.NoError(t, compile(t, publish+"func user(tx *sql.Tx) { publish(tx) }"))
	err := compile(t, publish+"func user(db *sql.DB) { publish(db) }")
	require.ErrorContains(t, err, "cannot use db")
	require.ErrorContains(t, err, "*sql.DB does not implement Tx (missing method Commit)")
}

// compile type-checks text as one more file of the package.
func compile(t *testing.T, text string) error {
	t.Helper()
	set := token.NewFileSet()
	files := []*ast.File{}
	for _, name := range []string{"tx.go", "errors.go"} {
		file, err := parser.ParseFile(set, filepath.Join(".", name), nil, 0)
		require.NoError(t, err)
		files = append(files, file)
	}
	user, err := parser.ParseFile(set, "user.go", text, 0)
	require.NoError(t, err)
	conf := types.Config{Importer: importer.ForCompiler(set, "gc", nil)}
	_, err = conf.Check("schema", set, append(files, user), nil)
	return err
}

func TestUnwrap(t *testing.T) {
	t.Parallel()
	db := openSQLite(t)
	ctx := t.Context()

	own, err := db.BeginTx(ctx, nil)
	require.NoError(t, err)
	fromSQLX, err := sqlx.NewDb(db, "sqlite").BeginTxx(ctx, nil)
	require.NoError(t, err)
	fromBun, err := bun.NewDB(db, newDialect()).BeginTx(ctx, nil)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		tx   schema.Tx
		want *sql.Tx
	}{
		"*sql.Tx":               {own, own},
		"*sqlx.Tx":              {fromSQLX, fromSQLX.Tx},
		"bun.Tx":                {fromBun, fromBun.Tx},
		"*bun.Tx":               {&fromBun, fromBun.Tx},
		"a wrapper of a bun.Tx": {struct{ bun.Tx }{fromBun}, fromBun.Tx},
		"of an *sqlx.Tx, twice": {&struct{ *wrapper }{&wrapper{fromSQLX}}, fromSQLX.Tx},
		"an own type":           {struct{ *sql.Tx }{own}, own},
		"behind another field": {struct {
			*circle
			*sql.Tx
		}{&circle{}, own}, own},
	} {
		got, err := schema.Unwrap(c.tx)
		require.NoError(t, err, name)
		require.Same(t, c.want, got, name)
	}
	require.NoError(t, errors.Join(own.Rollback(), fromSQLX.Rollback(), fromBun.Rollback()))
}

type wrapper struct{ *sqlx.Tx }

// circle embeds itself.
type circle struct{ *circle }

// observed is a transaction that looks at statements on their way: it hides no
// *sql.Tx that could be taken out.
type observed struct{ schema.Tx }

func TestUnwrap_LeavesOthersAsTheyAre(t *testing.T) {
	t.Parallel()
	own := &sql.Tx{}
	for _, tx := range []schema.Tx{observed{own}, &observed{own}} {
		got, err := schema.Unwrap(tx)
		require.NoError(t, err)
		require.Equal(t, tx, got)
	}
}

func TestUnwrap_H63_NoTransaction(t *testing.T) {
	t.Parallel()
	for name, tx := range map[string]schema.Tx{
		"nil": nil, "nil *sql.Tx": (*sql.Tx)(nil), "nil *sqlx.Tx": (*sqlx.Tx)(nil), "nil *bun.Tx": (*bun.Tx)(nil),
		"zero sqlx.Tx": &sqlx.Tx{}, "zero bun.Tx": bun.Tx{}, "zero *bun.Tx": &bun.Tx{},
		"wrapper of nothing": struct{ bun.Tx }{}, "wrapper of nil": &wrapper{},
	} {
		got, err := schema.Unwrap(tx)
		require.ErrorIs(t, err, schema.ErrNoTransaction, name)
		require.Nil(t, got, name)
	}
}

// TestUnwrap_ArgumentsArrive: bun's own ExecContext knows ? only, and formats
// it into the text itself.
func TestUnwrap_ArgumentsArrive(t *testing.T) {
	t.Parallel()
	db := openSQLite(t)
	_, err := db.ExecContext(t.Context(), `CREATE TABLE notes (id INTEGER, text TEXT)`)
	require.NoError(t, err)
	tx, err := bun.NewDB(db, newDialect()).BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), `INSERT INTO notes VALUES ($1, $2)`, 1, "lost")
	require.Error(t, err, "bun passes $1 on by now: Unwrap's reason is gone")

	unwrapped, err := schema.Unwrap(tx)
	require.NoError(t, err)
	const odd = `it's ? and $1, "quoted"`
	_, err = unwrapped.ExecContext(t.Context(), `INSERT INTO notes VALUES ($1, $2), (?, ?)`, 1, odd, 2, odd)
	require.NoError(t, err)
	var count int
	require.NoError(t, unwrapped.QueryRowContext(t.Context(), `SELECT count(*) FROM notes WHERE text = $1 AND id IN (1, 2)`, odd).Scan(&count))
	require.Equal(t, 2, count)
	require.NoError(t, tx.Rollback())
}

// recorder remembers the context of the last call.
type recorder struct {
	schema.Tx
	ctx   context.Context
	calls []string
}

func (r *recorder) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	r.note(ctx, query, args)
	return nil, sql.ErrTxDone
}

func (r *recorder) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	r.note(ctx, query, args)
	return nil, sql.ErrTxDone
}

func (r *recorder) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	r.note(ctx, query, args)
	return nil
}

func (r *recorder) note(ctx context.Context, query string, args []any) {
	r.ctx = ctx
	r.calls = append(r.calls, query+" "+args[0].(string))
}

// TestExecutor_H74_RunsUnderTheCallersContext: a library that knows no context,
// or brings context.Background, does not get past the caller's.
func TestExecutor_H74_RunsUnderTheCallersContext(t *testing.T) {
	t.Parallel()
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "the caller's")
	r := &recorder{}
	e := schema.BindContext(ctx, r)
	for name, call := range map[string]func() error{
		"Exec":            func() error { _, err := e.Exec("q", "a"); return err },
		"ExecContext":     func() error { _, err := e.ExecContext(context.Background(), "q", "a"); return err },
		"Query":           func() error { _, err := e.Query("q", "a"); return err },                              //nolint:sqlclosecheck,rowserrcheck // there are no rows
		"QueryContext":    func() error { _, err := e.QueryContext(context.Background(), "q", "a"); return err }, //nolint:sqlclosecheck,rowserrcheck // there are no rows
		"QueryRow":        func() error { e.QueryRow("q", "a"); return sql.ErrTxDone },
		"QueryRowContext": func() error { e.QueryRowContext(context.Background(), "q", "a"); return sql.ErrTxDone },
	} {
		r.ctx, r.calls = nil, nil
		require.ErrorIs(t, call(), sql.ErrTxDone, name)
		require.Equal(t, []string{"q a"}, r.calls, name)
		require.Equal(t, "the caller's", r.ctx.Value(key{}), name)
	}
}

func TestContextWithTx(t *testing.T) {
	t.Parallel()
	_, ok := schema.TxFromContext(t.Context())
	require.False(t, ok)
	_, ok = schema.TxFromContext(schema.ContextWithTx(t.Context(), nil))
	require.False(t, ok)
	tx := &sql.Tx{}
	got, ok := schema.TxFromContext(schema.ContextWithTx(t.Context(), tx))
	require.True(t, ok)
	require.Same(t, tx, got)
}

// openSQLite returns a database in memory, one for each connection.
func openSQLite(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// sqliteDialect is as much of a dialect as bun needs to begin a transaction.
type sqliteDialect struct {
	bunschema.BaseDialect
	tables *bunschema.Tables
}

func newDialect() *sqliteDialect {
	d := &sqliteDialect{}
	d.tables = bunschema.NewTables(d)
	return d
}

func (*sqliteDialect) Init(*sql.DB)                {}
func (*sqliteDialect) Name() dialect.Name          { return dialect.SQLite }
func (*sqliteDialect) Features() feature.Feature   { return 0 }
func (d *sqliteDialect) Tables() *bunschema.Tables { return d.tables }
func (*sqliteDialect) OnTable(*bunschema.Table)    {}
func (*sqliteDialect) IdentQuote() byte            { return '"' }
func (*sqliteDialect) DefaultVarcharLen() int      { return 0 }
func (*sqliteDialect) DefaultSchema() string       { return "main" }
func (*sqliteDialect) AppendSequence(b []byte, _ *bunschema.Table, _ *bunschema.Field) []byte {
	return b
}
