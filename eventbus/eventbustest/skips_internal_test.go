package eventbustest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// report is what a verbose run prints when exactly the listed tests of a room
// without a RestartCommand are skipped.
func report() string {
	var out strings.Builder
	out.WriteString("=== RUN   TestRoom/watermill/window_1/TestTopic\nnoise\n")
	out.WriteString("        --- PASS: TestRoom/watermill/window_1/TestTopic (0.00s)\n")
	for _, s := range skips {
		out.WriteString("            --- SKIP: TestRoom/watermill/" + s.suite + "/" + s.test + "/0d9a-42 (0.00s)\n")
		out.WriteString("                test_pubsub.go:411: reason\n")
	}
	return out.String()
}

func TestSkips_listedOnlyPass(t *testing.T) {
	t.Parallel()
	assert.Empty(t, skipFaults(Features{}, "TestRoom", report()))
}

func TestSkips_unlistedFail(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"TestRoom/watermill/window_1/TestTopic/0d9a-42",   // another test
		"TestRoom/watermill/window_1/TestNoAck/0d9a-42",   // listed for the other suite
		"TestRoom/watermill/alone/TestNoAck",              // likewise
		"TestRoom/watermill/real_window", "TestRoom/keys", // more than one test
	} {
		faults := skipFaults(Features{}, "TestRoom", report()+"  --- SKIP: "+name+" (0.00s)\n")
		assert.Len(t, faults, 1, name)
		assert.Contains(t, strings.Join(faults, ""), "is not listed", name)
	}
}

func TestSkips_staleFail(t *testing.T) {
	t.Parallel()
	for i, s := range skips {
		stale := strings.Replace(report(), s.suite+"/"+s.test+"/", s.suite+"/TestTopic/", 1)
		stale = strings.Replace(stale, "--- SKIP: TestRoom/watermill/"+s.suite+"/TestTopic/", "--- PASS: TestRoom/watermill/"+s.suite+"/TestTopic/", 1)
		faults := skipFaults(Features{}, "TestRoom", stale)
		assert.Len(t, faults, 1, "%d: %s", i, s.test)
		assert.Contains(t, strings.Join(faults, ""), "take it off the list")
	}
}

func TestSkips_nothingRunFails(t *testing.T) {
	t.Parallel()
	faults := skipFaults(Features{}, "TestAnother", report())
	assert.Contains(t, faults, "no test of Watermill's suites was run")
}

// TestSkips_declared: a room with a RestartCommand skips no TestReconnect.
func TestSkips_declared(t *testing.T) {
	t.Parallel()
	faults := skipFaults(Features{RestartCommand: []string{"restart"}}, "TestRoom", report())
	assert.Len(t, faults, 2)
	assert.Contains(t, strings.Join(faults, ""), "TestReconnect was skipped and is not listed")
}

func TestSkips_haveReasons(t *testing.T) {
	t.Parallel()
	for _, s := range skips {
		assert.NotEmpty(t, s.reason, "%s/%s", s.suite, s.test)
	}
}
