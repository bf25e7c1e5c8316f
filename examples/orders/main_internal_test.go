package main

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/postbus-io/postbus/examples/orders/story"
)

// Not parallel: they replace what run runs.
func TestRun_exitCode(t *testing.T) {
	defer func() { tell = story.Tell }()
	for name, c := range map[string]struct {
		summary *story.Summary
		err     error
		code    int
		stdout  string
	}{
		"all agrees":        {&story.Summary{OrdersPlaced: 5}, nil, 0, `"orders_placed":5`},
		"the sums disagree": {&story.Summary{Lost: 1}, story.ErrSums, 1, `"lost":1`},
		"nothing counted":   {nil, errors.New("no disk"), 1, ``},
	} {
		t.Run(name, func(t *testing.T) {
			tell = func(context.Context, story.Config) (*story.Summary, error) { return c.summary, c.err }
			var stdout, stderr bytes.Buffer

			code := run(t.Context(), []string{"-json"}, &stdout, &stderr)

			assert.Equal(t, c.code, code)
			if c.stdout == "" {
				assert.Empty(t, stdout.String())
			}
			assert.Contains(t, stdout.String(), c.stdout)
			if c.err != nil {
				assert.Contains(t, stderr.String(), c.err.Error())
			}
		})
	}
}
