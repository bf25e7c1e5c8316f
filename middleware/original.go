package middleware

import (
	"context"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// An original is a message as it was received.
type original struct {
	ctx      context.Context //nolint:containedctx // it is a part of the message that handlers change
	id       string
	payload  message.Payload
	metadata message.Metadata
}

func originalOf(msg *message.Message) original {
	return original{ctx: msg.Context(), id: msg.UUID, payload: msg.Payload, metadata: msg.Metadata}
}

// lend runs h on msg with copies of payload and metadata, which h may change,
// and makes msg the original again.
func (o original) lend(h message.HandlerFunc, msg *message.Message) ([]*message.Message, error) {
	defer func() {
		msg.UUID, msg.Payload, msg.Metadata = o.id, o.payload, o.metadata
		msg.SetContext(o.ctx)
	}()
	msg.Payload, msg.Metadata = slices.Clone(o.payload), maps.Clone(o.metadata)
	return h(msg)
}
