package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/sqlite"
)

// migrateEnv turns this test binary into a program that migrates the file, for
// tests that need several processes.
const migrateEnv = "POSTBUS_TEST_MIGRATE_FILE"

func TestMain(m *testing.M) {
	if path := os.Getenv(migrateEnv); path != "" {
		if err := migrateProgram(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func migrateProgram(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := sql.Open("sqlite", sqlite.DSN(path))
	if err != nil {
		return err
	}
	return errors.Join(sqlite.Migrate(ctx, db, schema.Tables{}), db.Close())
}
