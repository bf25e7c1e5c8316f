package eventbus_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus"
)

func TestLoadConfig_FileOverDefaults(t *testing.T) {
	t.Parallel()
	cfg, err := eventbus.LoadConfig(write(t, `
database: {kind: sqlite, table_prefix: "app_"}
outbox:
  key_lock: true
relay:
  poll_interval: 250ms
  backoff: {max: 1h}
consumer:
`))
	require.NoError(t, err)
	want := eventbus.DefaultConfig()
	want.Database.Kind, want.Database.TablePrefix = "sqlite", "app_"
	want.Outbox.KeyLock = true
	want.Relay.PollInterval = 250 * time.Millisecond
	want.Relay.Backoff.Max = time.Hour
	require.Equal(t, want, cfg)
}

func TestLoadConfig_NothingIsDefaults(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"empty file": "", "comment": "# nothing\n", "null": "~\n", "marker": "---\n", "empty map": "{}\n",
	} {
		cfg, err := eventbus.LoadConfig(write(t, text))
		require.NoError(t, err, name)
		require.Equal(t, eventbus.DefaultConfig(), cfg, name)
	}
	cfg, err := eventbus.LoadConfig("")
	require.NoError(t, err)
	require.Equal(t, eventbus.DefaultConfig(), cfg)
}

func TestLoadConfig_MissingFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "nowhere.yaml")
	cfg, err := eventbus.LoadConfig(path)
	require.ErrorIs(t, err, eventbus.ErrInvalidConfig)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.Contains(t, err.Error(), path)
	require.NotContains(t, err.Error(), "\n")
	require.Zero(t, cfg)
}

// TestLoadConfig_IsStrict has what a lenient reader would pass over in silence.
func TestLoadConfig_IsStrict(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ yaml, field, says string }{
		"unknown section":    {"rely: {batch: 1}", "rely", "there are database, broker, outbox, relay, consumer"},
		"unknown field":      {"relay: {batchsize: 1}", "relay.batchsize", "relay.batch, relay.poll_interval"},
		"unknown, deep":      {"relay: {backoff: {min: 1s}}", "relay.backoff.min", "there are relay.backoff.initial, relay.backoff.max"},
		"field of another":   {"consumer: {batch: 1}", "consumer.batch", "unknown field"},
		"other case":         {"relay: {Batch: 1}", "relay.Batch", "unknown field"},
		"dotted key":         {"relay.batch: 1", "relay.batch", "unknown field"},
		"number as key":      {"relay: {1: 1}", "relay.1", "unknown field"},
		"fraction":           {"relay: {batch: 1.5}", "relay.batch", "1.5 is not a whole number"},
		"float":              {"relay: {batch: 1e3}", "relay.batch", "1000 is not a whole number"},
		"beyond int64":       {"relay: {batch: 18446744073709551615}", "relay.batch", "18446744073709551615 is not a whole number"},
		"quoted number":      {`relay: {batch: "10"}`, "relay.batch", `"10" is not a whole number`},
		"bool for number":    {"relay: {batch: true}", "relay.batch", "true is not a whole number"},
		"number for bool":    {"outbox: {key_lock: 1}", "outbox.key_lock", "1 is not true or false"},
		"duration, no unit":  {"relay: {lease: 10}", "relay.lease", "10 is not a duration with a unit"},
		"duration, quoted":   {`relay: {lease: "10"}`, "relay.lease", `"10" is not a duration with a unit`},
		"duration, date":     {"relay: {lease: 2026-01-02}", "relay.lease", "is not a duration"},
		"duration, overflow": {"relay: {lease: 9999999999h}", "relay.lease", `"9999999999h" is not a duration`},
		"number for text":    {"database: {table_prefix: 12}", "database.table_prefix", "12 is not text"},
		"list for text":      {"broker: {kind: [memory]}", "broker.kind", "a list is not text"},
		"map for number":     {"relay: {batch: {max: 1}}", "relay.batch", "a section is not a whole number"},
		"text for section":   {"relay: fast", "relay", `"fast" is not a section`},
		"list for section":   {"relay: [{batch: 1}]", "relay", "a list is not a section"},
		"no value":           {"relay: {batch: }", "relay.batch", "has no value"},
		"null text":          {"database: {kind: ~}", "database.kind", "has no value"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, err := eventbus.LoadConfig(write(t, c.yaml))
			requireFault(t, err, badValue{c.field, "", "", c.says})
			require.Zero(t, cfg)
		})
	}
}

func TestLoadConfig_UnreadableFile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ yaml, says string }{
		"duplicate key":     {"relay:\n  batch: 1\n  batch: 2\n", `line 3: mapping key "batch" already defined at line 2`},
		"duplicate section": {"relay: {batch: 1}\nrelay: {batch: 2}\n", `"relay" already defined at line 1`},
		"no YAML":           {"relay: {batch", "yaml: line 1"},
		"tab":               {"relay:\n\tbatch: 1\n", "line 2"},
		"a list":            {"- relay\n", "holds a list or a single value"},
		"a text":            {"postgres://app:S3cr3t!@db/app", "holds a list or a single value"},
		"two documents":     {"relay: {batch: 1}\n---\nrelay: {batch: 2}\n", "more than one YAML document"},
		"garbage":           {"\x00\x01\xff", "yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := write(t, c.yaml)
			_, err := eventbus.LoadConfig(path)
			requireFault(t, err, badValue{path, "", "", c.says})
			require.NotContains(t, err.Error(), "S3cr3t!")
		})
	}
}

func TestLoadConfig_SaysAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	_, err := eventbus.LoadConfig(write(t, `
database: {table_prefix: "P-"}
broker: {kind: carrier-pigeon}
relay:
  lease: 1s
  batch: many
  speed: high
consumer: {lanes: 8, window: 4, retry: {budget: 0s}}
extra: 1
`))
	require.ErrorIs(t, err, eventbus.ErrInvalidConfig)
	var begin []string
	for line := range strings.Lines(err.Error()) {
		field, _, _ := strings.Cut(line, ": ")
		begin = append(begin, field)
	}
	require.Equal(t, []string{
		"relay.batch", "relay.speed", "extra", "database.table_prefix", "broker.kind",
		"relay.heartbeat", "relay.publish_timeout", "consumer.window", "consumer.retry.budget",
	}, begin)
}

// TestLoadConfig_NoFaultFromAFault: a field that could not be read is not
// compared with the default that it has instead.
func TestLoadConfig_NoFaultFromAFault(t *testing.T) {
	t.Parallel()
	_, err := eventbus.LoadConfig(write(t, "relay: {lease: 60, heartbeat: 20s, publish_timeout: 30s}"))
	requireFault(t, err, badValue{"relay.lease", "", "60", "unit"})
}

func TestLoadConfig_PrintsNoPassword(t *testing.T) {
	t.Parallel()
	secret := strings.Repeat("S3cr3t!", 12)
	url := "amqp://app:" + secret + "@mq:5672/"
	for _, text := range []string{
		"broker: {kind: '" + url + "'}",
		"database: {schema: '" + url + "'}",
		"relay: {batch: '" + url + "'}",
		"relay: {after_quarantine: 'host=db password=" + secret + "'}",
		"relay: '" + url + "'",
		"broker: {password: '" + secret + "'}",
		"'" + url + "': 1",
	} {
		_, err := eventbus.LoadConfig(write(t, text))
		require.ErrorIs(t, err, eventbus.ErrInvalidConfig)
		require.NotContains(t, err.Error(), "S3cr3t!", text)
	}
}

func FuzzLoadConfig(f *testing.F) {
	example, err := os.ReadFile(exampleFile)
	require.NoError(f, err)
	f.Add(example)
	for _, seed := range []string{
		"", "relay: {batch: 1}", "a: &a [*a]", "? {a: b}\n: c", "<<: {relay: {batch: 2}}", "1: 2", "---\n---\n",
		"relay: &r {backoff: *r}", "\xff\xfe", "relay: !!binary aGk=", "!!map {}", "relay: {lease: .nan}",
	} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "postbus.yaml")
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, os.WriteFile(path, data, 0o600))
		cfg, err := eventbus.LoadConfig(path)
		if err != nil {
			require.ErrorIs(t, err, eventbus.ErrInvalidConfig)
			require.Zero(t, cfg)
			return
		}
		require.NoError(t, cfg.Validate())
	})
}
