package middleware

import (
	"context"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// An original is a message as it was before a handler could change it.
type original struct {
	ctx      context.Context //nolint:containedctx // it is a part of the message that handlers change
	id       string
	payload  message.Payload
	metadata message.Metadata
}

func originalOf(msg *message.Message) original {
	return original{
		ctx: msg.Context(), id: msg.UUID,
		payload: slices.Clone(msg.Payload), metadata: maps.Clone(msg.Metadata),
	}
}

// restore makes msg what it was. It may be called again: msg gets copies.
func (o original) restore(msg *message.Message) {
	msg.UUID = o.id
	msg.Payload = slices.Clone(o.payload)
	msg.Metadata = maps.Clone(o.metadata)
	msg.SetContext(o.ctx)
}
