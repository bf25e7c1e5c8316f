package eventbus_test

import (
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // driver "pgx"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite" // driver "sqlite"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}
