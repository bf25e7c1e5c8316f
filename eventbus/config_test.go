package eventbus_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/v2"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus"
	"github.com/postbus-io/postbus/schema"
)

const exampleFile = "../postbus.example.yaml"

// badValue is what one field cannot take, and what its message is to say.
type badValue struct{ field, yaml, value, bound string }

// badValues has every field of Config, most of them at both bounds.
var badValues = []badValue{
	{"database.kind", "mysql", `"mysql"`, "postgres, sqlite"},
	{"database.schema", "'app\"; drop'", `app\"; drop`, "^[a-z_][a-z0-9_]*$"},
	{"database.schema", strings.Repeat("s", 64), strings.Repeat("s", 64), "63 bytes"},
	{"database.table_prefix", "Post-Bus", "Post-Bus", "^[a-z_][a-z0-9_]*$"},
	{"database.table_prefix", strings.Repeat("p", 33), strings.Repeat("p", 33), "32 bytes"},
	{"database.table_prefix", `""`, `""`, "postbus_"},
	{"broker.kind", "kafkaesque", `"kafkaesque"`, "memory"},
	{"broker.kind", `""`, `""`, "memory"},
	{"broker.memory.retain_entries", "0", "0", "between 1 and 100000000"},
	{"broker.memory.retain_bytes", "1073741825", "1073741825", "between 1 and 1073741824"},
	{"broker.memory.max_backlog", "-1", "-1", "between 1 and 100000000"},
	{"broker.memory.max_backlog_bytes", "0", "0", "between 1 and 1073741824"},
	{"broker.memory.nack_backoff.initial", "0s", "0s", "between 1ms and 24h0m0s"},
	{"broker.memory.nack_backoff.initial", "1001ms", "1.001s", "broker.memory.nack_backoff.max, 1s"},
	{"broker.memory.nack_backoff.max", "25h", "25h0m0s", "between 1ms and 24h0m0s"},
	{"outbox.max_payload_bytes", "0", "0", "between 1 and 67108864"},
	{"outbox.max_payload_bytes", "67108865", "67108865", "between 1 and 67108864"},
	{"outbox.max_header_bytes", "1023", "1023", "between 1024 and 98304"},
	{"outbox.max_header_bytes", "98305", "98305", "between 1024 and 98304"},
	{"outbox.max_headers", "7", "7", "between 8 and 512"},
	{"outbox.max_headers", "513", "513", "between 8 and 512"},
	{"outbox.key_lock", "yes", `"yes"`, "true or false"},
	{"relay.lease", "99ms", "99ms", "between 100ms and 10m0s"},
	{"relay.lease", "11m", "11m0s", "between 100ms and 10m0s"},
	{"relay.heartbeat", "9ms", "9ms", "between 10ms and 10m0s"},
	{"relay.heartbeat", "5s", "5s", "less than half of relay.lease, 10s"},
	{"relay.publish_timeout", "-5s", "-5s", "between 10ms and 10m0s"},
	{"relay.publish_timeout", "10s", "10s", "less than relay.lease, 10s"},
	{"relay.batch", "0", "0", "between 1 and 10000"},
	{"relay.batch", "10001", "10001", "between 1 and 10000"},
	{"relay.poll_interval", "999us", "999µs", "between 1ms and 1m0s"},
	{"relay.poll_interval", "61s", "1m1s", "between 1ms and 1m0s"},
	{"relay.max_attempts", "0", "0", "between 1 and 1000"},
	{"relay.max_attempts", "1001", "1001", "between 1 and 1000"},
	{"relay.backoff.initial", "-1s", "-1s", "between 1ms and 24h0m0s"},
	{"relay.backoff.initial", "301s", "5m1s", "relay.backoff.max, 5m0s"},
	{"relay.backoff.max", "25h", "25h0m0s", "between 1ms and 24h0m0s"},
	{"relay.after_quarantine", "drop", `"drop"`, "hold, skip"},
	{"relay.stop_timeout", "0s", "0s", "between 1ms and 10m0s"},
	{"consumer.lanes", "0", "0", "between 1 and 1024"},
	{"consumer.lanes", "1025", "1025", "between 1 and 1024"},
	{"consumer.window", "10001", "10001", "between 1 and 10000"},
	{"consumer.window", "15", "15", "consumer.lanes, 16"},
	{"consumer.drain_timeout", "601s", "10m1s", "between 1ms and 10m0s"},
	{"consumer.retry.initial", "0ms", "0s", "between 1ms and 24h0m0s"},
	{"consumer.retry.initial", "6s", "6s", "consumer.retry.max, 5s"},
	{"consumer.retry.max", "-1h", "-1h0m0s", "between 1ms and 24h0m0s"},
	{"consumer.retry.budget", "61m", "1h1m0s", "between 1ms and 1h0m0s"},
}

func TestConfig_NamesFieldValueAndBound(t *testing.T) {
	t.Parallel()
	covered := map[string]bool{}
	for _, bad := range badValues {
		covered[bad.field] = true
		t.Run(bad.field+"="+bad.yaml, func(t *testing.T) {
			t.Parallel()
			_, err := eventbus.LoadConfig(write(t, nested(bad.field, bad.yaml)))
			requireFault(t, err, bad)
		})
	}
	for path := range fields(t) {
		require.True(t, covered[path], "%s has no bad value in the table", path)
	}
}

// requireFault requires one line that begins with the field.
func requireFault(t *testing.T, err error, bad badValue) {
	t.Helper()
	require.ErrorIs(t, err, eventbus.ErrInvalidConfig)
	require.NotContains(t, err.Error(), "\n")
	require.True(t, strings.HasPrefix(err.Error(), bad.field+": "), err.Error())
	require.Contains(t, err.Error(), bad.value)
	require.Contains(t, err.Error(), bad.bound)
	var fault *eventbus.FieldError
	require.ErrorAs(t, err, &fault)
	require.Equal(t, bad.field, fault.Field)
}

func TestConfig_TakesItsBounds(t *testing.T) {
	t.Parallel()
	for _, ok := range []eventbus.Config{
		{Relay: eventbus.RelayConfig{Lease: eventbus.MinLease, Heartbeat: 49 * time.Millisecond, PublishTimeout: 99 * time.Millisecond}},
		{Relay: eventbus.RelayConfig{Lease: eventbus.MaxLease, Batch: eventbus.MaxBatch, PollInterval: eventbus.MinPollInterval}},
		{Consumer: eventbus.ConsumerConfig{Lanes: 1, Window: 1}},
		{Consumer: eventbus.ConsumerConfig{Lanes: eventbus.MaxLanes, Window: eventbus.MaxLanes}},
		{Relay: eventbus.RelayConfig{Backoff: eventbus.BackoffConfig{Initial: time.Second, Max: time.Second}}},
		{Outbox: eventbus.OutboxConfig{MaxPayloadBytes: eventbus.MaxPayloadBytes, MaxHeaders: eventbus.MinHeaders}},
		{Database: eventbus.DatabaseConfig{Kind: eventbus.DatabasePostgres, Schema: "app", TablePrefix: "p_"}},
	} {
		require.NoError(t, ok.Validate())
	}
}

func TestConfig_SchemaIsForPostgreSQL(t *testing.T) {
	t.Parallel()
	err := eventbus.Config{Database: eventbus.DatabaseConfig{Kind: eventbus.DatabaseSQLite, Schema: "app"}}.Validate()
	requireFault(t, err, badValue{"database.schema", "", `"app"`, "PostgreSQL"})
}

func TestConfig_ZeroFieldsTakeDefaults(t *testing.T) {
	t.Parallel()
	require.NoError(t, eventbus.Config{}.Validate())
	require.NoError(t, eventbus.DefaultConfig().Validate())

	cfg := eventbus.Config{Relay: eventbus.RelayConfig{Batch: -1}}
	requireFault(t, cfg.Validate(), badValue{"relay.batch", "", "-1", "between 1 and 10000"})
	require.Equal(t, -1, cfg.Relay.Batch)
	require.Zero(t, cfg.Relay.Lease, "Validate has changed its receiver")
}

func TestConfig_GivesTablesAndLimits(t *testing.T) {
	t.Parallel()
	cfg := eventbus.DefaultConfig()
	cfg.Database.Schema = "app"
	require.Equal(t, schema.Tables{Schema: "app", Prefix: "postbus_"}, cfg.Database.Tables())
	cfg.Outbox.MaxHeaders = 8
	require.Equal(t, schema.Limits{MaxPayloadBytes: 900 << 10, MaxHeaderBytes: 32 << 10, MaxHeaders: 8}, cfg.Outbox.Limits())
}

func TestExampleFile_IsDefaultConfig(t *testing.T) {
	t.Parallel()
	cfg, err := eventbus.LoadConfig(exampleFile)
	require.NoError(t, err)
	require.Equal(t, eventbus.DefaultConfig(), cfg)
}

// TestExampleFile_HasEveryField compares texts too: LoadConfig would not tell a
// field that is missing from one at its default.
func TestExampleFile_HasEveryField(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(exampleFile)
	require.NoError(t, err)
	k := koanf.New(".")
	require.NoError(t, k.Load(rawbytes.Provider(data), yaml.Parser()))
	want := fields(t)
	for path, value := range k.All() {
		require.Contains(t, want, path, "%s is in the file and no field", path)
		require.Equal(t, plain(want[path]), plain(value), path)
	}
	require.Len(t, k.All(), len(want), "the file does not have every field")
}

// plain returns a value as the file would have it.
func plain(value any) string {
	if d, err := time.ParseDuration(fmt.Sprint(value)); err == nil && d != 0 {
		return d.String()
	}
	return fmt.Sprint(value)
}

var defaultPattern = regexp.MustCompile(`Default: ("[^"]*"|[^ ]+?)\.?( \(.*\)\.)?$`)

// TestExampleFile_SaysDefaults reads, for each field, the default out of the
// comment above it.
func TestExampleFile_SaysDefaults(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(exampleFile)
	require.NoError(t, err)
	said, comment := 0, ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		name, value, _ := strings.Cut(line, ":")
		switch {
		case strings.HasPrefix(line, "#"):
			comment += " " + strings.TrimSpace(line[1:])
			continue
		case strings.TrimSpace(value) != "":
			said++
			match := defaultPattern.FindStringSubmatch(comment)
			require.NotNil(t, match, "%s: no default in %q", name, comment)
			require.Equal(t, strings.TrimSpace(value), match[1], name)
		}
		comment = ""
	}
	require.Len(t, fields(t), said)
}

// fields returns every field of Config by its path, with its default.
func fields(t *testing.T) map[string]any {
	t.Helper()
	found := map[string]any{}
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for i := range v.NumField() {
			tag := v.Type().Field(i).Tag.Get("yaml")
			require.NotEmpty(t, tag, v.Type().Field(i).Name)
			if v.Field(i).Kind() == reflect.Struct {
				walk(prefix+tag+".", v.Field(i))
				continue
			}
			found[prefix+tag] = v.Field(i).Interface()
		}
	}
	walk("", reflect.ValueOf(eventbus.DefaultConfig()))
	return found
}

// nested returns YAML that sets one field.
func nested(path, value string) string {
	var out strings.Builder
	for depth, name := range strings.Split(path, ".") {
		fmt.Fprintf(&out, "\n%s%s:", strings.Repeat("  ", depth), name)
	}
	return out.String() + " " + value + "\n"
}

// write returns the path of a new file.
func write(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "postbus.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
