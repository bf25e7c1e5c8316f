package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ender ends the program when it has printed something.
type ender struct {
	strings.Builder
	end func()
}

func (e *ender) Write(p []byte) (int, error) {
	e.end()
	return e.Builder.Write(p)
}

func TestRun(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	database := filepath.Join(t.TempDir(), "payments.db")
	stdout := &ender{end: cancel}
	var stderr bytes.Buffer

	code := run(ctx, []string{"-database", database}, stdout, &stderr)

	assert.Equal(t, 0, code, stderr.String())
	assert.Contains(t, stdout.String(), "broker memory")
	assert.FileExists(t, database)
}

func TestRun_faults(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	config := filepath.Join(folder, "config.yaml")
	assert.NoError(t, os.WriteFile(config, []byte("broker:\n  kind: pigeon\n"), 0o600))
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"-nope"}, 2, "-nope"},
		{[]string{"now"}, 2, `"now"`},
		{[]string{"-config", config}, 1, "pigeon"},
		{[]string{"-config", filepath.Join(folder, "none.yaml")}, 1, "none.yaml"},
		{[]string{"-database", filepath.Join(folder, "none", "payments.db")}, 1, "database"},
	} {
		var stdout, stderr bytes.Buffer
		assert.Equal(t, c.code, run(t.Context(), c.args, &stdout, &stderr), c.args)
		assert.Empty(t, stdout.String())
		assert.Contains(t, stderr.String(), c.says)
	}
}

func TestRun_help(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	assert.Equal(t, 0, run(t.Context(), []string{"-h"}, &stdout, &stderr))
	assert.Contains(t, stdout.String(), "-database")
	assert.Empty(t, stderr.String())
}
