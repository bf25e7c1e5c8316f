package schema

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
)

// A Tx is a running transaction of the caller's: a *sql.Tx, or a type that
// embeds one, as sqlx's and bun's transactions do. A *sql.DB is none and does
// not compile. Postbus writes to it and never ends it.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	Commit() error
	Rollback() error
}

var sqlTxType = reflect.TypeFor[*sql.Tx]()

// Unwrap returns the *sql.Tx inside a wrapper that embeds one, or that embeds
// such a wrapper, and tx itself otherwise. A wrapper's own ExecContext is not
// trusted with our statements: bun's, for one, formats the query itself and
// drops the arguments of $1.
// A nil transaction, bare or inside a wrapper, is [ErrNoTransaction].
func Unwrap(tx Tx) (Tx, error) {
	if tx == nil {
		return nil, fmt.Errorf("%w: nil", ErrNoTransaction)
	}
	if own, ok := tx.(*sql.Tx); ok {
		if own == nil {
			return nil, fmt.Errorf("%w: nil *sql.Tx", ErrNoTransaction)
		}
		return own, nil
	}
	v := reflect.ValueOf(tx)
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil, fmt.Errorf("%w: nil %T", ErrNoTransaction, tx)
		}
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return tx, nil
	}
	return unwrapStruct(v, tx)
}

func unwrapStruct(v reflect.Value, tx Tx) (Tx, error) {
	inner, found := embeddedTx(v, maxWrappers)
	switch {
	case !found:
		return tx, nil
	case inner == nil:
		return nil, fmt.Errorf("%w: nil *sql.Tx in %T", ErrNoTransaction, tx)
	}
	return inner, nil
}

// maxWrappers ends the search in a type that embeds itself.
const maxWrappers = 4

// embeddedTx returns the *sql.Tx that the struct v embeds, itself or by what it
// embeds. A nil wrapper on the way hides a nil one.
func embeddedTx(v reflect.Value, depth int) (inner *sql.Tx, found bool) {
	for i := range v.NumField() {
		field := v.Field(i)
		if !v.Type().Field(i).Anonymous {
			continue
		}
		if field.Type() == sqlTxType && field.CanInterface() {
			inner, found = field.Interface().(*sql.Tx)
			return inner, found
		}
		if field.Kind() == reflect.Pointer {
			if field.IsNil() {
				field = reflect.Zero(field.Type().Elem())
			} else {
				field = field.Elem()
			}
		}
		if field.Kind() == reflect.Struct && depth > 0 {
			if inner, found = embeddedTx(field, depth-1); found {
				return inner, true
			}
		}
	}
	return nil, false
}

// An Executor runs statements of a library that knows no context, such as
// watermill-sql's Publisher, on the caller's transaction under the caller's
// context. A context given to a method is ignored in favour of that one.
type Executor struct {
	ctx context.Context //nolint:containedctx // it stands in for the context that the library's call cannot carry
	tx  Tx
}

// BindContext returns an Executor for one call.
func BindContext(ctx context.Context, tx Tx) Executor { return Executor{ctx: ctx, tx: tx} }

// Exec runs a statement.
func (e Executor) Exec(query string, args ...any) (sql.Result, error) {
	return e.tx.ExecContext(e.ctx, query, args...)
}

// Query runs a query.
func (e Executor) Query(query string, args ...any) (*sql.Rows, error) {
	return e.tx.QueryContext(e.ctx, query, args...)
}

// QueryRow runs a query for one row.
func (e Executor) QueryRow(query string, args ...any) *sql.Row {
	return e.tx.QueryRowContext(e.ctx, query, args...)
}

// ExecContext runs a statement under the bound context.
func (e Executor) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	return e.Exec(query, args...)
}

// QueryContext runs a query under the bound context.
func (e Executor) QueryContext(_ context.Context, query string, args ...any) (*sql.Rows, error) {
	return e.Query(query, args...)
}

// QueryRowContext runs a query for one row under the bound context.
func (e Executor) QueryRowContext(_ context.Context, query string, args ...any) *sql.Row {
	return e.QueryRow(query, args...)
}

type txKey struct{}

// ContextWithTx returns a context that carries the transaction in which a
// handler runs, or in which InTx calls its function.
func ContextWithTx(ctx context.Context, tx *sql.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, tx)
}

// TxFromContext returns the transaction that ctx carries.
func TxFromContext(ctx context.Context) (*sql.Tx, bool) {
	tx, ok := ctx.Value(txKey{}).(*sql.Tx)
	return tx, ok && tx != nil
}
