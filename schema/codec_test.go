package schema_test

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

const bigNumber = "9007199254740993" // 2^53+1: no float64 is this number

func TestJSON_H81_NumbersArriveDigitForDigit(t *testing.T) {
	t.Parallel()
	type amounts struct {
		Number json.Number     `json:"number"`
		Int    int64           `json:"int"`
		Raw    json.RawMessage `json:"raw"`
		Rest   json.RawMessage `json:"rest"`
	}
	payload := `{"number":` + bigNumber + `,"int":` + bigNumber + `,"raw":` + bigNumber + `,"rest":{"b":1e2, "a":` + bigNumber + `,"a":1.10}}`
	msg := schema.Record{MessageID: "m", Payload: []byte(payload)}.Message()
	got, err := schema.Decode[amounts](schema.JSON, "t", msg)
	require.NoError(t, err)
	require.Equal(t, bigNumber, got.Body.Number.String())
	require.Equal(t, int64(9007199254740993), got.Body.Int)
	require.Equal(t, bigNumber, string(got.Body.Raw))
	require.Equal(t, `{"b":1e2, "a":`+bigNumber+`,"a":1.10}`, string(got.Body.Rest))

	whole, err := schema.Decode[json.RawMessage](schema.JSON, "t", msg)
	require.NoError(t, err)
	require.Equal(t, payload, string(whole.Body))
	require.Equal(t, payload, string(msg.Payload))
}

func TestJSON_H81_NumbersLeaveDigitForDigit(t *testing.T) {
	t.Parallel()
	type amounts struct {
		Number json.Number
		Int    int64
		Raw    json.RawMessage
	}
	o := schema.Define[amounts]("a.b", 1).Unordered(amounts{bigNumber, 9007199254740993, json.RawMessage(`{"x":1e2}`)})
	msg, err := schema.NewRegistry().Encode(o)
	require.NoError(t, err)
	require.Equal(t, `{"Number":`+bigNumber+`,"Int":`+bigNumber+`,"Raw":{"x":1e2}}`, string(msg.Payload))
}

type gobCodec struct{}

func (gobCodec) ContentType() string { return "application/x-gob" }

func (gobCodec) Marshal(body any) ([]byte, error) {
	var out bytes.Buffer
	err := gob.NewEncoder(&out).Encode(body)
	return out.Bytes(), err
}

func (gobCodec) Unmarshal(payload []byte, body any) error {
	return gob.NewDecoder(bytes.NewReader(payload)).Decode(body)
}

func TestCodec_CanBeAnother(t *testing.T) {
	t.Parallel()
	registry := schema.NewRegistry(schema.WithCodec(gobCodec{}))
	msg, err := registry.Encode(placed.New("k", orderPlaced{"o-1", 7}))
	require.NoError(t, err)
	require.Equal(t, "application/x-gob", msg.Metadata.Get(schema.HeaderContentType))
	got, err := schema.Decode[orderPlaced](registry.Codec(), "orders", msg)
	require.NoError(t, err)
	require.Equal(t, orderPlaced{"o-1", 7}, got.Body)

	_, err = schema.Decode[orderPlaced](schema.JSON, "orders", msg)
	require.ErrorIs(t, err, schema.ErrUndecodable)
}
