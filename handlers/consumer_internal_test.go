package handlers

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// silent is a subscriber without messages.
type silent struct{}

func (silent) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	messages := make(chan *message.Message)
	context.AfterFunc(ctx, func() { close(messages) })
	return messages, nil
}

func (silent) Close() error { return nil }

// Otherwise they could end before the router was told to stop.
func TestConsumer_SubscriptionsOutliveTheContextOfRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := NewConsumer(ConsumerConfig{
			Name: "payments", Subscriber: silent{},
			Handlers: []Handler{{
				name: "charge", definition: schema.Define[int]("orders.placed", 1).Definition(),
				bindFunc: func(schema.Codec, string) message.NoPublishHandlerFunc { return nil },
			}},
		})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		subscriptions, err := c.subscribe(ctx)
		require.NoError(t, err)
		stop()
		synctest.Wait()
		assert.False(t, isClosed(subscriptions[0].stopping))
		require.NoError(t, c.intake.Close())
		assert.True(t, isClosed(subscriptions[0].done))
	})
}
