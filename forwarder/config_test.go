package forwarder_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/forwarder"
	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/sqlite"
)

// valid is a config that New takes.
func valid() forwarder.Config {
	return forwarder.Config{Source: schema.Source(&sqlite.Database{}), Publisher: newBroker(nil, 0).batches()}
}

// faults are values that New refuses, with what the error says of them, one or
// more for each field.
var faults = []struct {
	field  string
	change func(c *forwarder.Config)
	says   string
}{
	{"Source", func(c *forwarder.Config) { c.Source = nil }, "Source is nil"},
	{"Publisher", func(c *forwarder.Config) { c.Publisher = nil }, "Publisher is nil"},
	{"Name", func(c *forwarder.Config) { c.Name = strings.Repeat("x", 201) }, "with 201 bytes, it must be UTF-8 without NUL and have at most 200 bytes"},
	{"Name", func(c *forwarder.Config) { c.Name = "a\x00" }, `Name is "a\x00" with 2 bytes`},
	{"Name", func(c *forwarder.Config) { c.Name = "\xff" }, `Name is "\xff" with 1 bytes`},
	{"Lease", func(c *forwarder.Config) { c.Lease, c.Heartbeat, c.PublishTimeout = 999, 2, 2 }, "Lease is 999ns, it must not be below 1ms"},
	{"Heartbeat", func(c *forwarder.Config) { c.Heartbeat = 5 * time.Second }, "Heartbeat is 5s, it must be above 0 and below half of Lease (10s)"},
	{"Heartbeat", func(c *forwarder.Config) { c.Heartbeat = -1 }, "Heartbeat is -1ns, it must be above 0 and below half of Lease (10s)"},
	{"PublishTimeout", func(c *forwarder.Config) { c.PublishTimeout = 10 * time.Second }, "PublishTimeout is 10s, it must be above 0 and below Lease (10s)"},
	{"PublishTimeout", func(c *forwarder.Config) { c.PublishTimeout = -1 }, "PublishTimeout is -1ns, it must be above 0 and below Lease (10s)"},
	{"PollInterval", func(c *forwarder.Config) { c.PollInterval = -time.Minute }, "PollInterval is -1m0s, it must be above 0"},
	{"StopTimeout", func(c *forwarder.Config) { c.StopTimeout = -time.Minute }, "StopTimeout is -1m0s, it must be above 0"},
	{"Batch", func(c *forwarder.Config) { c.Batch = -1 }, "Batch is -1, it must be between 1 and 10000"},
	{"Batch", func(c *forwarder.Config) { c.Batch = 10_001 }, "Batch is 10001, it must be between 1 and 10000"},
	{"MaxAttempts", func(c *forwarder.Config) { c.MaxAttempts = -1 }, "MaxAttempts is -1, it must be between 1 and 1000"},
	{"MaxAttempts", func(c *forwarder.Config) { c.MaxAttempts = 1001 }, "MaxAttempts is 1001, it must be between 1 and 1000"},
	{"BackoffInitial", func(c *forwarder.Config) { c.BackoffInitial = -1 }, "BackoffInitial is -1ns, it must be above 0"},
	{"BackoffMax", func(c *forwarder.Config) { c.BackoffMax = -time.Second }, "BackoffMax is -1s, it must not be below BackoffInitial (1s)"},
	{"AfterQuarantine", func(c *forwarder.Config) { c.AfterQuarantine = "drop" }, `AfterQuarantine is "drop", it must be "hold" or "skip"`},
}

// faultless are the fields that take every value.
var faultless = []string{"Logger", "SentFunc"}

func TestNew_NamesTheFault(t *testing.T) {
	t.Parallel()
	_, err := forwarder.New(valid())
	require.NoError(t, err)
	for _, fault := range faults {
		cfg := valid()
		fault.change(&cfg)
		_, err := forwarder.New(cfg)
		require.ErrorIs(t, err, forwarder.ErrInvalidConfig, fault.field)
		require.ErrorContains(t, err, fault.says)
		require.NotContains(t, err.Error(), "\n", "one fault, one line")
	}
}

func TestNew_NamesAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	cfg, fields := valid(), map[string]bool{}
	for _, fault := range faults {
		if !fields[fault.field] {
			fields[fault.field] = true
			fault.change(&cfg)
		}
	}
	_, err := forwarder.New(cfg)
	require.Error(t, err)
	for field := range fields {
		require.ErrorContains(t, err, field+" is ")
	}
}

func TestNew_EveryFieldHasItsFault(t *testing.T) {
	t.Parallel()
	known := append([]string{}, faultless...)
	for _, fault := range faults {
		known = append(known, fault.field)
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[forwarder.Config]()) {
		require.Contains(t, known, field.Name, "a new field needs a line in faults or faultless")
	}
}

func TestRelay_OwnerIsUnique(t *testing.T) {
	t.Parallel()
	owners := map[string]bool{}
	for range 100 {
		cfg := valid()
		cfg.Name = "host-1"
		r, err := forwarder.New(cfg)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(r.Owner(), "host-1-"), r.Owner())
		owners[r.Owner()] = true
	}
	require.Len(t, owners, 100)
}
