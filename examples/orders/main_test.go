package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// program builds the program once, as the tests were built.
var program = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	binary := filepath.Join(buildFolder, "orders")
	args := []string{"build", "-o", binary}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "-race" && s.Value == "true" {
				args = append(args, "-race")
			}
		}
	}
	out, err := exec.CommandContext(ctx, "go", append(args, ".")...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go build: %w\n%s", err, out)
	}
	return binary, err
})

var buildFolder string

func TestMain(m *testing.M) {
	var err error
	if buildFolder, err = os.MkdirTemp("", "postbus-orders-test-"); err != nil {
		panic(err)
	}
	code := m.Run()
	if err := os.RemoveAll(buildFolder); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// A result is what a run of the program came to.
type result struct {
	code           int
	stdout, stderr string
}

// runProgram runs the program with a temporary folder of its own, which has to
// be empty in the end. It is interrupted when it prints interruptAt, if that is
// not empty.
func runProgram(t *testing.T, interruptAt string, args ...string) result {
	t.Helper()
	binary, err := program()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	folder := t.TempDir()
	var stderr bytes.Buffer
	stdout := &trigger{text: interruptAt}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+folder)
	cmd.Stdout, cmd.Stderr = stdout, &stderr
	stdout.pull = func() { assert.NoError(t, cmd.Process.Signal(os.Interrupt)) }
	require.NoError(t, cmd.Start())
	_ = cmd.Wait() // the exit code says it
	require.NoError(t, ctx.Err(), "the program did not end")
	left, err := os.ReadDir(folder)
	assert.NoError(t, err)
	assert.Empty(t, left, "left in the temporary folder")
	return result{cmd.ProcessState.ExitCode(), stdout.written.String(), stderr.String()}
}

// A trigger is pulled once, when the text was written.
type trigger struct {
	written strings.Builder
	text    string
	pull    func()
}

func (t *trigger) Write(p []byte) (int, error) {
	t.written.Write(p)
	if t.text != "" && strings.Contains(t.written.String(), t.text) {
		t.text = ""
		t.pull()
	}
	return len(p), nil
}

func TestProgram_json(t *testing.T) {
	t.Parallel()
	r := runProgram(t, "", "-orders", "500", "-json")

	require.Equal(t, 0, r.code, r.stderr)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	var sums map[string]int
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &sums), r.stdout)
	assert.GreaterOrEqual(t, sums["duplicates_suppressed"], 1)
	delete(sums, "duplicates_suppressed")
	assert.Equal(t, map[string]int{
		"orders_placed": 500, "orders_rolled_back": 1, "events_relayed": 1000, "payments_applied": 500,
		"retries": 2, "dead_letters": 1, "redriven": 1, "lost": 0, "doubled": 0,
	}, sums)
	assert.Contains(t, r.stderr, "All sums agree.")
}

func TestProgram_story(t *testing.T) {
	t.Parallel()
	r := runProgram(t, "")

	require.Equal(t, 0, r.code, r.stderr)
	assert.Empty(t, r.stderr)
	assert.Contains(t, r.stdout, "All sums agree.")
}

// Ctrl-C stops the story, drained and cleaned up.
func TestProgram_interrupt(t *testing.T) {
	t.Parallel()
	r := runProgram(t, "1. Orders are placed", "-orders", "50000")

	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.stderr, "stopped early")
}

func TestProgram_badFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"-nope"}, "-nope"},
		{[]string{"-orders", "many"}, `"many"`},
		{[]string{"-orders", "4"}, "-orders is 4, it must be from 5 to 50000"},
		{[]string{"-orders", "50001"}, "-orders is 50001"},
		{[]string{"now"}, `"now"`},
	} {
		r := runProgram(t, "", c.args...)
		assert.Equal(t, 2, r.code, c.args)
		assert.Empty(t, r.stdout, c.args)
		assert.Contains(t, r.stderr, c.says)
		assert.Equal(t, 1, strings.Count(r.stderr, "\n"), "one line: %q", r.stderr)
	}
}

func TestProgram_help(t *testing.T) {
	t.Parallel()
	r := runProgram(t, "", "-h")
	assert.Equal(t, 0, r.code)
	assert.Contains(t, r.stdout, "-orders")
	assert.Empty(t, r.stderr)
}
