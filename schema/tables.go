package schema

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// DefaultTablePrefix starts the name of every table.
const DefaultTablePrefix = "postbus_"

// MaxTablePrefixBytes keeps every name below PostgreSQL's 63 bytes.
const MaxTablePrefixBytes = 32

// Tables names where the tables are. The zero value is the default: prefix
// "postbus_", in the schema that the connection's search path finds first.
type Tables struct {
	// Schema is the database schema, PostgreSQL only. Defaults to "": found by
	// the search path.
	Schema string
	// Prefix starts the name of every table. Defaults to "postbus_".
	Prefix string
}

var identifierPattern = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

// Validate says whether the names are safe and short enough, all faults at
// once in one line.
func (t Tables) Validate() error {
	var faults []string
	if t.Schema != "" && (!identifierPattern.MatchString(t.Schema) || len(t.Schema) > 63) {
		faults = append(faults, fmt.Sprintf("schema %q is to match %s and have at most 63 bytes", t.Schema, identifierPattern))
	}
	if t.Prefix != "" && (!identifierPattern.MatchString(t.Prefix) || len(t.Prefix) > MaxTablePrefixBytes) {
		faults = append(faults, fmt.Sprintf("table_prefix %q is to match %s and have at most %d bytes", t.Prefix, identifierPattern, MaxTablePrefixBytes))
	}
	if len(faults) > 0 {
		return fmt.Errorf("%w: %s", ErrInvalidOption, strings.Join(faults, "; "))
	}
	return nil
}

func (t Tables) prefix() string {
	if t.Prefix == "" {
		return DefaultTablePrefix
	}
	return t.Prefix
}

// Table returns the quoted name of a table, for example "app"."postbus_outbox"
// for outbox.
func (t Tables) Table(name string) string {
	quoted := `"` + t.prefix() + name + `"`
	if t.Schema != "" {
		return `"` + t.Schema + `".` + quoted
	}
	return quoted
}

var (
	tablePattern = regexp.MustCompile(`\bpostbus_([a-z_]+)\b`)
	indexPattern = regexp.MustCompile(`\bidx_postbus_([a-z_]+)\b`)
)

// Rewrite returns SQL that is written for the default names with these names:
// postbus_x is a table or view, idx_postbus_x an index, which takes no schema.
// The statements stay readable, and runnable by hand, as they stand in the
// source.
func (t Tables) Rewrite(sql string) string {
	sql = indexPattern.ReplaceAllString(sql, `"idx_`+t.prefix()+`$1"`)
	return tablePattern.ReplaceAllStringFunc(sql, func(name string) string {
		return t.Table(strings.TrimPrefix(name, DefaultTablePrefix))
	})
}

// A Rewriter is [Tables.Rewrite] that remembers: statements are constants, so
// each is rewritten once. It is safe for concurrent use.
type Rewriter struct {
	tables Tables
	cache  sync.Map
}

// NewRewriter returns a Rewriter for the names.
func NewRewriter(tables Tables) *Rewriter { return &Rewriter{tables: tables} }

// SQL returns the statement with the names.
func (r *Rewriter) SQL(statement string) string {
	if known, ok := r.cache.Load(statement); ok {
		return known.(string)
	}
	rewritten := r.tables.Rewrite(statement)
	r.cache.Store(statement, rewritten)
	return rewritten
}
