package postgres_test

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
	"github.com/postbus-io/postbus/schema/postgres"
)

// migrateEnv turns this test binary into a program that migrates the database
// of that URL, for tests that need several processes.
const migrateEnv = "POSTBUS_TEST_MIGRATE_URL"

func TestMain(m *testing.M) {
	if url := os.Getenv(migrateEnv); url != "" {
		if err := migrateProgram(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func migrateProgram(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := sql.Open("postgres", url)
	if err != nil {
		return err
	}
	return errors.Join(postgres.Migrate(ctx, db, schema.Tables{}), db.Close())
}
