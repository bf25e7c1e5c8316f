//go:build slow

package rabbitmq_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs the tests in a virtual host of their own, which is deleted with
// all that they leave.
func TestMain(m *testing.M) {
	drop, err := createHost()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rabbitmq tests:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := drop(); err != nil {
			fmt.Fprintln(os.Stderr, "rabbitmq tests:", err)
			code = max(code, 1)
		}
		os.Exit(code)
	}))
}
