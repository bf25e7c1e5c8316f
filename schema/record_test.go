package schema_test

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// goldenShards are keys with their shards of 64 and of 1,000,003, computed by
// another program from FNV-1a's definition. They never change: they say which
// relay sends a record, and which queue holds it.
var goldenShards = []struct {
	key       string
	of64, ofM int
}{
	{"", 1, 54971},
	{"a", 0, 816165},
	{"b", 41, 803447},
	{"foobar", 25, 503625},
	{"order-1", 50, 743613},
	{"order-2", 11, 769645},
	{"ORDER-1", 52, 115343},
	{"Order-1", 22, 181572},
	{" order-1", 61, 930606},
	{"order-1 ", 17, 177487},
	{"00000000-0000-0000-0000-000000000000", 19, 205343},
	{"f47ac10b-58cc-4372-a567-0e02b2c3d479", 6, 779514},
	{"F47AC10B-58CC-4372-A567-0E02B2C3D479", 8, 78297},
	{"01ARZ3NDEKTSV4RRFFQ69G5FAV", 38, 680825},
	{"caf\u00e9", 51, 161851},
	{"cafe\u0301", 27, 407564},
	{"\u6771\u4eac", 30, 176497},
	{"\U0001F980", 30, 550016},
	{"\xff\xfe", 55, 996016},
	{"0", 35, 341657},
	{"-1", 44, 642460},
	{"a.b", 53, 45446},
	{"a_b", 8, 513683},
	{"a\tb", 30, 148345},
}

func TestShardOf_H84_GoldenVectors(t *testing.T) {
	t.Parallel()
	for _, golden := range goldenShards {
		require.Equal(t, golden.of64, schema.ShardOf(golden.key, 64), "%q", golden.key)
		require.Equal(t, golden.ofM, schema.ShardOf(golden.key, 1_000_003), "%q", golden.key)
		require.Zero(t, schema.ShardOf(golden.key, 1))
	}
	kilobyte := make([]byte, 1024)
	for i := range kilobyte {
		kilobyte[i] = 'k'
	}
	require.Equal(t, 27, schema.ShardOf(string(kilobyte), 64))
}

// TestShardOf_H84_ExactBytes: what a person or a database may take for one key
// is two keys.
func TestShardOf_H84_ExactBytes(t *testing.T) {
	t.Parallel()
	for _, pair := range [][2]string{{"caf\u00e9", "cafe\u0301"}, {"ORDER-1", "order-1"}, {"order-1", "order-1 "}, {"1", "01"}} {
		require.NotEqual(t, schema.ShardOf(pair[0], 1_000_003), schema.ShardOf(pair[1], 1_000_003))
		left := schema.Record{Topic: "t", Key: pair[0]}.Lane()
		require.NotEqual(t, left, schema.Record{Topic: "t", Key: pair[1]}.Lane())
	}
}

// TestShardOf_H84_SpreadsKeys counts keys as services have them: consecutive
// numbers and random ids. 1,562 keys a shard is even; a shard that is off by a
// fifth is about eight standard deviations away.
func TestShardOf_H84_SpreadsKeys(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for name, keyOf := range map[string]func(int) string{
		"numbers":  func(i int) string { return fmt.Sprint(i) },
		"prefixed": func(i int) string { return fmt.Sprintf("order-%d", i) },
		"suffixed": func(i int) string { return fmt.Sprintf("%06d-order", i) },
		"uuids":    func(int) string { return fmt.Sprintf("%016x-%016x", random.Uint64(), random.Uint64()) },
	} {
		var counts [schema.DefaultShards]int
		for i := range 100_000 {
			counts[schema.ShardOf(keyOf(i), len(counts))]++
		}
		for shard, n := range counts {
			require.InDelta(t, 100_000/len(counts), n, 100_000/float64(len(counts))/5, "%s, shard %d", name, shard)
		}
	}
}

func TestShardKey(t *testing.T) {
	t.Parallel()
	require.Equal(t, "k", schema.ShardKey("m", "k"))
	require.Equal(t, "m", schema.ShardKey("m", ""))
	keyed := schema.NewRecord(validMessage(t), 64)
	require.Equal(t, schema.ShardOf("o-1", 64), keyed.Shard)
	msg := validMessage(t)
	delete(msg.Metadata, schema.HeaderKey)
	require.Equal(t, schema.ShardOf("m-1", 64), schema.NewRecord(msg, 64).Shard)
}

func TestNewRecord_SplitsTheMessage(t *testing.T) {
	t.Parallel()
	msg := validMessage(t)
	msg.Metadata["tenant"] = "acme"
	before := maps.Clone(msg.Metadata)
	got := schema.NewRecord(msg, 64)
	require.Equal(t, schema.Record{
		MessageID: "m-1", Topic: "orders", Key: "o-1", Shard: schema.ShardOf("o-1", 64), AggregateType: "orders",
		EventType: "orders.placed", Version: 1, Payload: []byte(`{"order_id":"o-1","total":5}`),
		Headers: map[string]string{
			"tenant": "acme", schema.HeaderTime: before[schema.HeaderTime], schema.HeaderContentType: "application/json",
		},
	}, got)
	require.Equal(t, before, msg.Metadata, "the message was changed")
}

func TestRecord_MessageIsWhatWasPublished(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(message.Metadata){
		"an event":                 func(message.Metadata) {},
		"no key":                   func(m message.Metadata) { delete(m, schema.HeaderKey) },
		"an empty key":             func(m message.Metadata) { m[schema.HeaderKey] = "" },
		"an empty type":            func(m message.Metadata) { m[schema.HeaderType] = "" },
		"plain":                    func(m message.Metadata) { clear(m) },
		"no version":               func(m message.Metadata) { delete(m, schema.HeaderVersion) },
		"version in other digits":  func(m message.Metadata) { m[schema.HeaderVersion] = "007" },
		"version with a sign":      func(m message.Metadata) { m[schema.HeaderVersion] = "+1" },
		"version 0":                func(m message.Metadata) { m[schema.HeaderVersion] = "0" },
		"version of no column":     func(m message.Metadata) { m[schema.HeaderVersion] = "2147483648" },
		"version that is a text":   func(m message.Metadata) { m[schema.HeaderVersion] = "v1" },
		"headers of all kinds":     func(m message.Metadata) { m["a"], m["A"], m["ß"], m["x\ty"] = "", "\r\n", "日本", "\"'\\" },
		"time in its own notation": func(m message.Metadata) { m[schema.HeaderTime] = "yesterday" },
	} {
		msg := validMessage(t)
		change(msg.Metadata)
		requireRoundTrip(t, name, msg)
	}
}

// requireRoundTrip requires that the record gives the message back, but for the
// headers that do not leave the process.
func requireRoundTrip(t *testing.T, name string, msg *message.Message) {
	t.Helper()
	want := maps.Clone(msg.Metadata)
	delete(want, schema.HeaderTopic)
	delete(want, schema.HeaderAggregateType)
	record := schema.NewRecord(msg, 64)
	for range 2 {
		got := record.Message()
		require.Equal(t, msg.UUID, got.UUID, name)
		require.Equal(t, want, got.Metadata, name)
		require.Equal(t, sha256.Sum256(msg.Payload), sha256.Sum256(got.Payload), name)
		require.Equal(t, msg.Payload == nil, got.Payload == nil, name)
	}
}

func TestRecord_H82_NilAndEmptyPayload(t *testing.T) {
	t.Parallel()
	for name, payload := range map[string][]byte{"nil": nil, "empty": {}, "one byte": {0}, "no JSON": []byte("\xff\x00{")} {
		msg := validMessage(t)
		msg.Payload = payload
		require.NoError(t, schema.Limits{}.Check(msg), name)
		requireRoundTrip(t, name, msg)
	}
}

func TestRecord_Lane(t *testing.T) {
	t.Parallel()
	require.Equal(t, schema.Lane{Topic: "t", Key: "k"}, schema.Record{ID: 7, Topic: "t", Key: "k"}.Lane())
	require.Equal(t, schema.Lane{Topic: "t", Record: 7}, schema.Record{ID: 7, Topic: "t"}.Lane())
}

func TestState_String(t *testing.T) {
	t.Parallel()
	for state, word := range map[schema.State]string{
		schema.StateWaiting: "waiting", schema.StateHeld: "held", schema.StateQuarantined: "quarantined", schema.StateSent: "sent", 9: "state 9",
	} {
		require.Equal(t, word, state.String())
	}
}

func TestDeadLetter_MessageIsWhatWasReceived(t *testing.T) {
	t.Parallel()
	msg := validMessage(t)
	letter := schema.DeadLetter{MessageID: msg.UUID, Payload: msg.Payload, Headers: msg.Metadata}
	require.True(t, msg.Equals(letter.Message()))
	require.Nil(t, schema.DeadLetter{}.Message().Payload)
}

// FuzzRecordRoundTrip: whatever passes the check comes out as it went in.
func FuzzRecordRoundTrip(f *testing.F) {
	f.Add("m", "orders", "k", "orders.placed", "1", "tenant", "acme", []byte("{}"))
	f.Add("m", "t", "", "", "01", "postbus_key", "", []byte(nil))
	f.Add("m", "t", "", "", "+1", "postbus_time", "\r\n", []byte{})
	f.Add("m", "t", "日本", "x", "2147483648", "X", "", []byte("\x00\xff"))
	f.Fuzz(func(t *testing.T, id, topic, key, kind, version, name, value string, payload []byte) {
		msg := message.NewMessage(id, payload)
		msg.Metadata = message.Metadata{schema.HeaderKey: key, schema.HeaderType: kind, schema.HeaderVersion: version}
		msg.Metadata[name] = value
		msg.Metadata[schema.HeaderTopic] = topic
		if (schema.Limits{}).Check(msg) != nil {
			return // not to be published, so not to be stored
		}
		requireRoundTrip(t, fmt.Sprint(msg.Metadata), msg)
		record := schema.NewRecord(msg, 64)
		require.Equal(t, topic, record.Topic)
		require.True(t, record.Shard >= 0 && record.Shard < 64)
		require.True(t, record.Version >= 0 && record.Version < 1<<31)
	})
}
