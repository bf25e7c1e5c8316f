package schema_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

func TestTables_Table(t *testing.T) {
	t.Parallel()
	require.Equal(t, `"postbus_outbox"`, schema.Tables{}.Table("outbox"))
	require.Equal(t, `"app"."postbus_outbox"`, schema.Tables{Schema: "app"}.Table("outbox"))
	require.Equal(t, `"app"."ev_outbox"`, schema.Tables{Schema: "app", Prefix: "ev_"}.Table("outbox"))
}

func TestTables_Rewrite(t *testing.T) {
	t.Parallel()
	const source = `CREATE INDEX idx_postbus_outbox_claim ON postbus_outbox (shard);
INSERT INTO postbus_outbox SELECT o.id FROM postbus_outbox AS o, my_postbus_outbox, postbus_, Postbus_outbox;`
	for _, c := range []struct {
		tables schema.Tables
		want   string
	}{
		{schema.Tables{}, `CREATE INDEX "idx_postbus_outbox_claim" ON "postbus_outbox" (shard);
INSERT INTO "postbus_outbox" SELECT o.id FROM "postbus_outbox" AS o, my_postbus_outbox, postbus_, Postbus_outbox;`},
		{schema.Tables{Schema: "app", Prefix: "ev_"}, `CREATE INDEX "idx_ev_outbox_claim" ON "app"."ev_outbox" (shard);
INSERT INTO "app"."ev_outbox" SELECT o.id FROM "app"."ev_outbox" AS o, my_postbus_outbox, postbus_, Postbus_outbox;`},
		{schema.Tables{Prefix: "postbus_postbus_"}, `CREATE INDEX "idx_postbus_postbus_outbox_claim" ON "postbus_postbus_outbox" (shard);
INSERT INTO "postbus_postbus_outbox" SELECT o.id FROM "postbus_postbus_outbox" AS o, my_postbus_outbox, postbus_, Postbus_outbox;`},
	} {
		require.Equal(t, c.want, c.tables.Rewrite(source))
	}
}

func TestTables_Validate(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "a", "_", "postbus_", "app2_", strings.Repeat("p", 32)} {
		require.NoError(t, schema.Tables{Schema: name, Prefix: name}.Validate(), name)
	}
	require.NoError(t, schema.Tables{Schema: strings.Repeat("s", 63)}.Validate())
	for _, name := range []string{
		`"`, `a"`, `a"; DROP TABLE users; --`, "a;", "a b", "a\x00", "a\n", "a\\", "$1", "a$", "a.b", "1a", "A", "ä", "\xff", "a'", "--", "a-", "%s", strings.Repeat("s", 64),
	} {
		for field, tables := range map[string]schema.Tables{"schema": {Schema: name}, "table_prefix": {Prefix: name}} {
			err := tables.Validate()
			require.ErrorIs(t, err, schema.ErrInvalidOption, name)
			require.ErrorContains(t, err, field)
			require.NotContains(t, err.Error(), "\n")
		}
	}
	require.ErrorContains(t, schema.Tables{Prefix: strings.Repeat("p", 33)}.Validate(), "at most 32 bytes")
	err := schema.Tables{Schema: "A", Prefix: "B"}.Validate()
	require.ErrorContains(t, err, `schema "A"`)
	require.ErrorContains(t, err, `table_prefix "B"`)
}

var namePattern = regexp.MustCompile(`\b(idx_)?postbus_[a-z_]+\b`)

// TestTables_NamesFitPostgreSQL reads every name in the migrations: PostgreSQL
// cuts names to 63 bytes without an error, and two of them may then be one.
func TestTables_NamesFitPostgreSQL(t *testing.T) {
	t.Parallel()
	longest := schema.Tables{Prefix: strings.Repeat("p", schema.MaxTablePrefixBytes)}
	files, err := filepath.Glob("*/migrations/*.sql")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, name := range namePattern.FindAllString(string(text), -1) {
			require.LessOrEqual(t, len(strings.Trim(longest.Rewrite(name), `"`)), 63, "%s: %s", file, name)
		}
	}
}

// FuzzTables: names that pass Validate leave a statement with the quotes, and
// nothing else, in the places where they were.
func FuzzTables(f *testing.F) {
	for _, seed := range []string{"", "app", `a"b`, "a;b", "a\x00b", `"; DROP TABLE x; --`, "$1", "${1}", "A", "\xff"} {
		f.Add(seed, seed)
	}
	harmless := regexp.MustCompile(`^INSERT INTO ("[a-z0-9_]+"\.)?"[a-z0-9_]+" VALUES \(\$1\); DROP INDEX "idx_[a-z0-9_]+"$`)
	f.Fuzz(func(t *testing.T, name, prefix string) {
		tables := schema.Tables{Schema: name, Prefix: prefix}
		if err := tables.Validate(); err != nil {
			require.ErrorIs(t, err, schema.ErrInvalidOption)
			return
		}
		require.Regexp(t, harmless, tables.Rewrite(`INSERT INTO postbus_outbox VALUES ($1); DROP INDEX idx_postbus_outbox_claim`))
	})
}
