// Package schematest says what a database must do to be a [schema.Database],
// and gives tests a database of their own.
//
// # A database for a test
//
//	import (
//		_ "modernc.org/sqlite" // the driver is the test's to choose
//
//		"github.com/postbus-io/postbus/schema/postgres"
//		"github.com/postbus-io/postbus/schema/schematest"
//		"github.com/postbus-io/postbus/schema/sqlite"
//	)
//
//	db := schematest.SQLite(t, sqlite.DSN, sqlite.Migrate)
//	db := schematest.Postgres(t, "postgres", postgres.Migrate) // lib/pq
//	db := schematest.Postgres(t, "pgx", postgres.Migrate)      // _ "github.com/jackc/pgx/v5/stdlib"
//
// Each call is a fresh file or schema that goes away with the test, so tests
// run in parallel. PostgreSQL is found by POSTBUS_TEST_POSTGRES; without it the
// test is skipped and says how to get one, and under POSTBUS_TEST_STRICT=1 it
// fails.
//
// # What a database must do
//
// [Exercise] runs every part; each part is a function of its own, so that a
// test can be named after the one thing that it holds. A part takes an
// [OpenFunc] and knows nothing of the database but [schema.Database] and the
// SQL that all databases share.
//
// # What it is not
//
// It does not look at plans, locks, catalogs or settings, which differ from
// one database to the next: those tests stand beside the database.
package schematest
