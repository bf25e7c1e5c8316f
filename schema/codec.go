package schema

import (
	"encoding/json"
	"fmt"
)

// A Codec turns the body of an event into payload bytes and back. It is safe
// for concurrent use.
type Codec interface {
	// ContentType is the media type that travels in [HeaderContentType].
	ContentType() string
	// Marshal returns the payload of body.
	Marshal(body any) ([]byte, error)
	// Unmarshal reads payload into body, a pointer.
	Unmarshal(payload []byte, body any) error
}

// JSON is the default codec, encoding/json. A number that the Go type keeps as
// json.Number or an integer arrives digit for digit.
var JSON Codec = jsonCodec{}

type jsonCodec struct{}

func (jsonCodec) ContentType() string { return "application/json" }

func (jsonCodec) Marshal(body any) ([]byte, error) { return json.Marshal(body) }

func (jsonCodec) Unmarshal(payload []byte, body any) error { return json.Unmarshal(payload, body) }

// undecodable wraps what a codec says about a payload. The text of err may
// quote single values of the payload, as encoding/json does, never all of it.
func undecodable(contentType string, err error) error {
	return Permanent(fmt.Errorf("%w as %s: %w", ErrUndecodable, contentType, err))
}
