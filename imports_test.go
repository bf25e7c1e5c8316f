package postbus_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/postbus-io/postbus"

// A room is one row of the import table. The table governs the rooms of this module and the libraries named in vendors;
// the standard library is free everywhere, other libraries are free everywhere but in a closed room.
type room struct {
	path   string   // the folder; "/..." at its end takes in all folders below it
	may    []string // the rooms and vendors that its files may import
	tests  []string // the rooms and vendors that its tests may import besides those and the names in testsMay
	closed bool     // nothing else at all, and of a vendor only the very packages listed
	free   bool     // a program: everything
}

// The import table. A new folder with Go code gets a row here, a new broker or database client a line in vendors.
var rooms = []room{
	{path: "."},

	{path: "schema", closed: true, may: []string{
		"github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill/message",
	}},
	{path: "schema/internal/migrate", may: []string{"schema", "goose"}},
	// goose in both: its types name what a migration is.
	{path: "schema/postgres", may: []string{"schema", "schema/internal/...", "watermill", "watermill-sql", "goose", "lib/pq", "pglogrepl"}},
	{path: "schema/sqlite", may: []string{"schema", "schema/internal/...", "watermill", "watermill-sql", "goose"}},
	{path: "schema/schematest", may: []string{"schema", "watermill", "testing"}},

	// These three never import each other, in tests neither: what joins them is eventbus.
	{path: "forwarder", may: []string{"schema", "watermill"},
		tests: []string{"schema/postgres", "schema/sqlite", "eventbus/memory"}},
	{path: "middleware", may: []string{"schema", "watermill"},
		tests: []string{"schema/postgres", "schema/sqlite", "eventbus/memory"}},
	{path: "handlers", may: []string{"schema", "watermill"},
		tests: []string{"schema/postgres", "schema/sqlite", "eventbus/memory"}},

	{path: "eventbus", may: []string{
		"schema", "schema/postgres", "schema/sqlite", "forwarder", "middleware", "handlers",
		"eventbus/memory", "eventbus/kafka", "eventbus/rabbitmq", "watermill", "watermill-sql",
	}},
	{path: "eventbus/memory", may: []string{"schema", "watermill"}},
	{path: "eventbus/kafka", may: []string{"schema", "watermill", "watermill-kafka", "kafka"}},
	{path: "eventbus/rabbitmq", may: []string{"schema", "watermill", "watermill-amqp", "rabbitmq"}},
	{path: "eventbus/eventbustest", may: []string{"schema", "handlers", "watermill", "testing"}},

	{path: "examples/...", free: true},
	{path: "cmd/...", free: true},
	{path: "bench/...", free: true},
	{path: "torture/...", free: true},
}

// testsMay is what the tests of every room may import. The SQLite driver is here and in no row: a library does not
// choose it for its user.
var testsMay = []string{"testing", "lib/pq", "pgx", "sqlite", "transactions", "schema/schematest", "eventbus/eventbustest"}

// closedTestsMay is the same for the tests of a closed room.
var closedTestsMay = []string{"testing", "sqlite", "transactions"}

// vendors are the governed libraries: the name used in the table, and the import paths that it covers with all below.
var vendors = map[string][]string{
	"watermill":       {"github.com/ThreeDotsLabs/watermill"},
	"watermill-sql":   {"github.com/ThreeDotsLabs/watermill-sql"},
	"watermill-kafka": {"github.com/ThreeDotsLabs/watermill-kafka"},
	"watermill-amqp":  {"github.com/ThreeDotsLabs/watermill-amqp"},

	"kafka":    {"github.com/IBM/sarama"},
	"rabbitmq": {"github.com/rabbitmq/amqp091-go"},

	"lib/pq":    {"github.com/lib/pq"},
	"pgx":       {"github.com/jackc"},
	"pglogrepl": {"github.com/jackc/pglogrepl", "github.com/jackc/pgx/v5/pgconn", "github.com/jackc/pgx/v5/pgproto3"},
	"sqlite":    {"modernc.org/sqlite"},
	"goose":     {"github.com/pressly/goose"},

	// Wrappers of *sql.Tx that users bring.
	"transactions": {"github.com/jmoiron/sqlx", "github.com/uptrace/bun"},

	"testing": {"github.com/stretchr/testify", "go.uber.org/goleak", "github.com/google/go-cmp"},

	// In no row: no room speaks to these.
	"others": {
		"github.com/ThreeDotsLabs", "github.com/Shopify/sarama", "github.com/segmentio/kafka-go", "github.com/twmb/franz-go",
		"github.com/confluentinc", "github.com/streadway/amqp", "github.com/nats-io", "github.com/redis",
		"github.com/mattn/go-sqlite3", "github.com/ncruces/go-sqlite3", "github.com/go-sql-driver/mysql", "gorm.io",
	},
}

// TestImports holds the import table against every Go file of the module, whatever its build tags are.
func TestImports(t *testing.T) {
	t.Parallel()

	for _, name := range goFiles(t) {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if fault := checkImport(name, imported); fault != "" {
				t.Error(fault)
			}
		}
		if len(file.Imports) == 0 && roomOf(path.Dir(name)) == nil {
			t.Error(checkImport(name, "fmt"))
		}
	}
}

// checkImport says what is wrong with an import, or nothing. File is a slash-separated path inside the module.
func checkImport(file, imported string) string {
	dir := path.Dir(file)
	r := roomOf(dir)
	if r == nil {
		return fmt.Sprintf("%s: the folder %s has no row in the import table: add one to rooms in imports_test.go", file, dir)
	}
	allowed := slices.Clone(r.may)
	if strings.HasSuffix(file, "_test.go") {
		allowed = append(allowed, r.tests...)
		if r.closed {
			allowed = append(allowed, closedTestsMay...)
		} else {
			allowed = append(allowed, testsMay...)
		}
	}
	if r.free || isStandard(imported) || imported == path.Join(module, dir) ||
		!r.closed && !isGoverned(imported) ||
		slices.ContainsFunc(allowed, func(name string) bool { return covers(name, imported) }) {
		return ""
	}
	if len(allowed) == 0 {
		allowed = []string{"only the standard library"}
	}
	return fmt.Sprintf("%s imports %s: the room %q may import %s (the import table is in imports_test.go)",
		file, imported, r.path, strings.Join(allowed, ", "))
}

func roomOf(dir string) *room {
	for i := range rooms {
		if matches(rooms[i].path, dir) {
			return &rooms[i]
		}
	}
	return nil
}

// matches says whether dir is the folder of a pattern, or with "/..." one of those below.
func matches(pattern, dir string) bool {
	if below, ok := strings.CutSuffix(pattern, "/..."); ok {
		return isBelow(below, dir)
	}
	return pattern == dir
}

func isBelow(top, name string) bool { return name == top || strings.HasPrefix(name, top+"/") }

// covers says whether a name of the table (a vendor, a room, or one package by its full path) means the imported package.
func covers(name, imported string) bool {
	if paths, ok := vendors[name]; ok {
		return slices.ContainsFunc(paths, func(p string) bool { return isBelow(p, imported) })
	}
	return name == imported || matches(path.Join(module, name), imported)
}

// isStandard: the paths of the standard library have no dot in their first part.
func isStandard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

func isGoverned(imported string) bool {
	if isBelow(module, imported) {
		return true
	}
	for name := range vendors {
		if covers(name, imported) {
			return true
		}
	}
	return false
}

// goFiles lists all Go files of the module as slash-separated paths below its root. As the go command does, it leaves
// out what begins with a dot or an underscore, testdata, and other modules.
func goFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		hidden := name != "." && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_"))
		if !entry.IsDir() {
			if !hidden && strings.HasSuffix(base, ".go") {
				files = append(files, filepath.ToSlash(name))
			}
			return nil
		}
		if hidden || base == "testdata" || base == "vendor" {
			return fs.SkipDir
		}
		if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil && name != "." {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestImports_canFail shows for each rule of the table an import that breaks it, and its lawful neighbor.
func TestImports_canFail(t *testing.T) {
	t.Parallel()

	own := func(room string) string { return module + "/" + room }
	const (
		wm      = "github.com/ThreeDotsLabs/watermill"
		testify = "github.com/stretchr/testify/require"
		sqlite  = "modernc.org/sqlite"
	)
	for _, c := range []struct{ file, imported, want string }{
		{"schema/tx.go", "database/sql", ""},
		{"schema/tx.go", wm, ""},
		{"schema/tx.go", wm + "/message", ""},
		{"schema/tx.go", wm + "/message/router/middleware", "may import"},
		{"schema/tx.go", "github.com/google/uuid", "may import"},
		{"schema/tx.go", own("schema/postgres"), "may import"},
		{"schema/tx_test.go", own("schema"), ""},
		{"schema/tx_test.go", testify, ""},
		{"schema/tx.go", testify, "may import"},
		{"schema/tx_test.go", sqlite, ""},

		{"schema/postgres/claim.go", "github.com/lib/pq", ""},
		{"schema/postgres/claim.go", own("schema/internal/migrate"), ""},
		{"schema/postgres/wal.go", "github.com/jackc/pgx/v5/pgconn", ""},
		{"schema/postgres/claim.go", "github.com/jackc/pgx/v5", "may import"},
		{"schema/postgres/claim.go", own("schema/sqlite"), "may import"},
		{"schema/sqlite/claim.go", "github.com/lib/pq", "may import"},
		{"schema/sqlite/claim.go", sqlite, "may import"},
		{"schema/sqlite/claim_test.go", sqlite, ""},
		{"schema/sqlite/claim_test.go", own("schema/schematest"), ""},
		{"schema/schematest/exercise.go", testify, ""},
		{"schema/schematest/exercise.go", sqlite, "may import"},

		{"forwarder/relay.go", wm + "/message", ""},
		{"forwarder/relay.go", "golang.org/x/sync/errgroup", ""},
		{"forwarder/relay.go", own("middleware"), "may import"},
		{"forwarder/relay_test.go", own("middleware"), "may import"},
		{"forwarder/relay.go", own("schema/postgres"), "may import"},
		{"forwarder/relay_test.go", own("schema/postgres"), ""},
		{"forwarder/relay.go", wm + "-sql/v3/pkg/sql", "may import"},
		{"middleware/inbox.go", own("handlers"), "may import"},
		{"handlers/intake.go", own("forwarder"), "may import"},
		{"handlers/intake.go", testify, "may import"},

		{"eventbus/open.go", own("eventbus/kafka"), ""},
		{"eventbus/open.go", own("eventbus/eventbustest"), "may import"},
		{"eventbus/open.go", own("examples/orders"), "may import"},
		{"eventbus/open.go", sqlite, "may import"},
		{"eventbus/kafka/publisher.go", "github.com/IBM/sarama", ""},
		{"eventbus/kafka/publisher.go", own("eventbus"), "may import"},
		{"eventbus/kafka/publisher.go", "github.com/rabbitmq/amqp091-go", "may import"},
		{"eventbus/memory/log.go", "github.com/nats-io/nats.go", "may import"},

		{"examples/orders/main.go", sqlite, ""},
		{"cmd/postbus/main.go", own("eventbus"), ""},

		{"imports_test.go", "testing", ""},
		{"doc.go", own("eventbus"), "may import"},
		{"util/strings.go", "strings", "no row"},
		{"schema/postgres/sub/x.go", "strings", "no row"},
	} {
		got := checkImport(c.file, c.imported)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s importing %s: got %q, want %q", c.file, c.imported, got, c.want)
		}
	}
}

// TestImports_table: each name in the table means something.
func TestImports_table(t *testing.T) {
	t.Parallel()

	known := func(name string) bool {
		_, vendor := vendors[name]
		return vendor || strings.Contains(name, ".com/") ||
			slices.ContainsFunc(rooms, func(r room) bool { return r.path == name || matches(name, r.path) })
	}
	for _, r := range rooms {
		for _, name := range slices.Concat(r.may, r.tests, testsMay, closedTestsMay) {
			if !known(name) {
				t.Errorf("room %q may import %q, which is neither a room nor a vendor", r.path, name)
			}
		}
	}
}
