package examples_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// The code that the README shows is the code that Example runs.
func TestReadme_sample(t *testing.T) {
	t.Parallel()
	_, code, found := strings.Cut(readFile(t, "readme_sample_test.go"), "// README begins\n")
	require.True(t, found)
	code, _, found = strings.Cut(code, "\n// README ends\n")
	require.True(t, found)

	_, shown, found := strings.Cut(readFile(t, "../README.md"), "```go\n")
	require.True(t, found, "the README has no Go code")
	shown, _, _ = strings.Cut(shown, "```")

	assert.Equal(t, code, shown)
}

var link = regexp.MustCompile(`\]\(([\w./-]+)(#[^)]*)?\)`)

// The files and folders that the README points to are there.
func TestReadme_links(t *testing.T) {
	t.Parallel()
	links := link.FindAllStringSubmatch(readFile(t, "../README.md"), -1)
	require.NotEmpty(t, links)
	for _, l := range links {
		_, err := os.Stat(filepath.Join("..", l[1]))
		assert.NoError(t, err)
	}
}
