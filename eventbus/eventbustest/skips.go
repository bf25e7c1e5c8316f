package eventbustest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A skip is a test of Watermill's suite that is not run, and why.
type skip struct {
	suite, test string
	reason      string
	// unless: a room that declares this does not skip the test.
	unless func(Features) bool
}

// skips are all tests of Watermill's suite that may be skipped. Any other skip
// fails the exercise, and so does one of these that no longer happens.
var skips = []skip{
	{
		suite: suiteWindow1, test: "TestReconnect", unless: restarts,
		reason: "the suite skips it by itself when there is no RestartCommand",
	},
	{
		suite: suiteWindow1, test: "TestNewSubscriberReceivesOldMessages",
		reason: "not declared: it wants every subscriber to get all messages, the others share one consumer; " +
			"run alone, with consumers of their own, for rooms that declare OldMessages",
	},
	{
		suite: suiteRealWindow, test: "TestNoAck",
		reason: "not declared (GuaranteedOrder): it wants no second message before the first is acked; run at window 1",
	},
	{
		suite: suiteRealWindow, test: "TestPublishSubscribeInOrder",
		reason: "not declared (GuaranteedOrder, because of TestNoAck); run alone at this window",
	},
	{
		suite: suiteRealWindow, test: "TestReconnect", unless: restarts,
		reason: "the suite skips it by itself when there is no RestartCommand",
	},
	{
		suite: suiteRealWindow, test: "TestNewSubscriberReceivesOldMessages",
		reason: "as at window 1",
	},
}

func restarts(f Features) bool { return len(f.RestartCommand) > 0 }

// exerciseSkips runs Watermill's suites once more, short and in a process of
// their own, since a test cannot see what its subtests skip, and compares every
// skip that the process reports with the list.
func exerciseSkips(t *testing.T, features Features) {
	root, _, _ := strings.Cut(t.Name(), "/")
	args := []string{
		"-test.run=^" + root + "$/^" + watermillSuites + "$",
		"-test.v", "-test.short", "-test.count=1", "-test.timeout=5m",
	}
	if restarts(features) {
		args = append(args, "-test.skip=/TestReconnect$") // it is not skipped, and has restarted the broker enough
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	require.NoError(t, err, "%s\n%s", &stdout, &stderr)
	for _, fault := range skipFaults(features, root, stdout.String()) {
		t.Error(fault)
	}
}

var reportPattern = regexp.MustCompile(`--- (PASS|FAIL|SKIP): (\S+) \(`)

// skipFaults compares what a verbose run of Watermill's suites printed with the
// list.
func skipFaults(features Features, root, output string) []string {
	skipped := map[string]bool{}
	passed := 0
	for line := range strings.Lines(output) {
		report := reportPattern.FindStringSubmatch(line)
		if report == nil {
			continue
		}
		name, ok := strings.CutPrefix(report[2], root+"/"+watermillSuites+"/")
		if report[1] == "SKIP" {
			skipped[testName(name)] = true
		} else if ok && strings.Contains(name, "/") {
			passed++
		}
	}
	var faults []string
	if passed == 0 {
		faults = append(faults, "no test of Watermill's suites was run")
	}
	for _, s := range skips {
		name := s.suite + "/" + s.test
		if unlisted := s.unless != nil && s.unless(features); !unlisted && !skipped[name] {
			faults = append(faults, fmt.Sprintf("%s is listed as skipped and was not: take it off the list", name))
		} else if !unlisted {
			delete(skipped, name)
		}
	}
	for name := range skipped {
		faults = append(faults, fmt.Sprintf("%s was skipped and is not listed", name))
	}
	return faults
}

// testName cuts the id off that the suite appends to the names of its tests.
func testName(name string) string {
	parts := strings.Split(name, "/")
	return strings.Join(parts[:min(2, len(parts))], "/")
}
