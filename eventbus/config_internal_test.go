package eventbus

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func environ(variables ...string) func() []string {
	return func() []string { return variables }
}

// TestEnv_EveryFieldHasAVariable sets each field by its variable, alone.
func TestEnv_EveryFieldHasAVariable(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, fd := range fieldsOf(reflect.TypeFor[Config]()) {
		require.False(t, seen[fd.env()], "%s names two fields", fd.env())
		seen[fd.env()] = true
		for _, reserved := range reservedEnv {
			require.False(t, strings.HasPrefix(fd.env(), reserved), fd.env())
		}

		got, want := Config{}, Config{}
		f := &faults{}
		readEnv(environ(fd.env()+"="+sample(fd)), &got, f)
		require.NoError(t, f.err())
		v := reflect.ValueOf(&want).Elem().FieldByIndex(fd.index)
		require.Empty(t, assignScalar(typed(sample(fd), fd.kind), v))
		require.False(t, v.IsZero())
		require.Equal(t, want, got, fd.env())
	}
	require.True(t, seen["POSTBUS_RELAY_POLL_INTERVAL"])
	require.True(t, seen["POSTBUS_BROKER_MEMORY_NACK_BACKOFF_INITIAL"])
}

func sample(fd field) string {
	switch {
	case fd.kind == durationType:
		return "1m30s"
	case fd.kind.Kind() == reflect.Int:
		return "17"
	case fd.kind.Kind() == reflect.Bool:
		return "true"
	}
	return "text"
}

func TestEnv_OverFile(t *testing.T) {
	t.Parallel()
	var cfg Config
	f := &faults{}
	readYAML("file", []byte("relay: {batch: 5, lease: 20s}\ndatabase: {schema: app}"), &cfg, f)
	readEnv(environ("PATH=/bin", "POSTBUS_RELAY_BATCH=7", "POSTBUS_DATABASE_SCHEMA="), &cfg, f)
	require.NoError(t, f.err())
	require.Equal(t, Config{Relay: RelayConfig{Batch: 7, Lease: 20 * time.Second}}, cfg)
}

func TestEnv_IsStrict(t *testing.T) {
	t.Parallel()
	for variable, says := range map[string]string{
		"POSTBUS_RELAY_BATCH=many":          `relay.batch: "many" is not a whole number (POSTBUS_RELAY_BATCH)`,
		"POSTBUS_RELAY_BATCH=":              `relay.batch: "" is not a whole number (POSTBUS_RELAY_BATCH)`,
		"POSTBUS_RELAY_LEASE=10":            `relay.lease: "10" is not a duration with a unit, such as 250ms, 10s or 5m (POSTBUS_RELAY_LEASE)`,
		"POSTBUS_OUTBOX_KEY_LOCK=yes":       `outbox.key_lock: "yes" is not true or false (POSTBUS_OUTBOX_KEY_LOCK)`,
		"POSTBUS_RELAY_BATCH=0":             `relay.batch: 0 is not between 1 and 10000`,
		"POSTBUS_BROKER_KIND=":              `broker.kind: "" is not one of memory`,
		"POSTBUS_RELAY_BATCHSIZE=1":         `POSTBUS_RELAY_BATCHSIZE: unknown variable; there are POSTBUS_RELAY_AFTER_QUARANTINE, POSTBUS_RELAY_BACKOFF_INITIAL, `,
		"POSTBUS_SPEED=1":                   `POSTBUS_SPEED: unknown variable; those of the configuration are named after its fields`,
		"POSTBUS_RELAY=1":                   `POSTBUS_RELAY: unknown variable`,
		"POSTBUS_relay_batch=1":             `POSTBUS_relay_batch: unknown variable`,
		"POSTBUS_TESTS=1":                   `POSTBUS_TESTS: unknown variable`,
		"POSTBUS_=1":                        `POSTBUS_: unknown variable`,
		"POSTBUS_RELAY_URL=amqp://a:Kq8@h/": `POSTBUS_RELAY_URL: unknown variable`,
	} {
		cfg, err := loadConfig("", environ(variable))
		require.ErrorIs(t, err, ErrInvalidConfig, variable)
		require.True(t, strings.HasPrefix(err.Error(), says), err.Error())
		require.NotContains(t, err.Error(), "\n")
		require.NotContains(t, err.Error(), "Kq8")
		require.Zero(t, cfg)
	}
}

func TestEnv_LeavesReservedVariablesAlone(t *testing.T) {
	t.Parallel()
	cfg, err := loadConfig("", environ("POSTBUS_TEST_POSTGRES=x", "POSTBUS_PG_PORT=1", "POSTBUS_SERVICES_DIR=/x", "POSTBUSY=1", "postbus_relay_batch=1"))
	require.NoError(t, err)
	require.Equal(t, DefaultConfig(), cfg)
}

func TestEnv_FaultsJoinThoseOfTheFile(t *testing.T) {
	t.Parallel()
	cfg, f := DefaultConfig(), &faults{}
	readYAML("file", []byte("relay: {batch: many}"), &cfg, f)
	readEnv(environ("POSTBUS_RELAY_BATCH=8", "POSTBUS_CONSUMER_LANES=few"), &cfg, f)
	require.Len(t, f.list, 2)
	require.Equal(t, "relay.batch", f.list[0].Field)
	require.Equal(t, "consumer.lanes", f.list[1].Field)
}

// TestSecret_InAFault has a field as the brokers to come will have.
func TestSecret_InAFault(t *testing.T) {
	t.Parallel()
	type section struct {
		Password Secret `yaml:"password"`
	}
	var ok section
	f := &faults{}
	readYAML("file", []byte("password: S3cr3t!"), &ok, f)
	readEnv(environ("POSTBUS_PASSWORD=S3cr3t!2"), &ok, f)
	require.NoError(t, f.err())
	require.Equal(t, "S3cr3t!2", string(ok.Password))

	for _, text := range []string{"password: 8437219", "password: [8437219]", "password: {a: 8437219}"} {
		f := &faults{}
		readYAML("file", []byte(text), &section{}, f)
		require.Len(t, f.list, 1)
		require.NotContains(t, f.err().Error(), "8437219")
	}
}

func TestWithDefaults_IsACopy(t *testing.T) {
	t.Parallel()
	require.Equal(t, DefaultConfig(), Config{}.withDefaults())

	given := Config{Relay: RelayConfig{Batch: 3}, Consumer: ConsumerConfig{Retry: RetryConfig{Max: time.Minute}}}
	want := DefaultConfig()
	want.Relay.Batch, want.Consumer.Retry.Max = 3, time.Minute
	require.Equal(t, want, given.withDefaults())
	require.Zero(t, given.Relay.Lease)
}
