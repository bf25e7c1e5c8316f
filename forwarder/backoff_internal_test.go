package forwarder

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestConfig_Defaults(t *testing.T) {
	t.Parallel()
	got := Config{}.withDefaults()
	require.NotNil(t, got.Logger)
	got.Logger = nil
	require.Equal(t, Config{
		Name: "relay", Lease: 10 * time.Second, Heartbeat: 3 * time.Second, PublishTimeout: 5 * time.Second,
		PollInterval: time.Second, StopTimeout: 15 * time.Second, Batch: 1000, MaxAttempts: 10,
		BackoffInitial: time.Second, BackoffMax: 5 * time.Minute, AfterQuarantine: PolicyHold,
	}, got)
}

// Full jitter: between nothing and a bound that doubles up to the limit.
func TestDelay(t *testing.T) {
	t.Parallel()
	for n, bound := range map[int]time.Duration{
		1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 5: 10 * time.Second, 1_000_000: 10 * time.Second,
	} {
		var least, most time.Duration = time.Hour, 0
		for range 2000 {
			d := delay(n, time.Second, 10*time.Second)
			least, most = min(least, d), max(most, d)
		}
		require.LessOrEqual(t, most, bound+1, "attempt %d", n)
		require.Greater(t, most, bound*9/10, "attempt %d", n)
		require.GreaterOrEqual(t, least, time.Duration(0))
		require.Less(t, least, bound/10, "attempt %d", n)
	}
}

func TestJittered(t *testing.T) {
	t.Parallel()
	for range 1000 {
		require.InDelta(t, time.Second, jittered(time.Second), float64(time.Second/10))
	}
	require.Equal(t, 5*time.Nanosecond, jittered(5))
}

func TestBounded(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a\uFFFDb\uFFFD\uFFFDc", bounded(errors.New("a\x00b\xff\xfec")))
	long := bounded(errors.New(strings.Repeat("é", 3000)))
	require.Len(t, long, maxReasonBytes)
	require.True(t, utf8.ValidString(long))
	require.Len(t, bounded(errors.New("x"+strings.Repeat("é", 3000))), maxReasonBytes-1, "no half of a character")
}
