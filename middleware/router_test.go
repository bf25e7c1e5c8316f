package middleware_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"
)

// inRouter has a hand-made Watermill router handle the messages, one after the
// other, and waits for the ack of each.
func inRouter(t *testing.T, topic string, h message.HandlerFunc, msgs ...*message.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	pubSub := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddConsumerHandler("hand-made", topic, pubSub, func(msg *message.Message) error {
		_, err := h(msg)
		return err
	})
	done := make(chan error, 1)
	go func() { done <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case <-ctx.Done():
		t.Fatal("router does not start")
	}
	for _, msg := range msgs {
		require.NoError(t, pubSub.Publish(topic, msg)) // returns after the ack
	}
	require.NoError(t, router.Close())
	require.NoError(t, <-done)
	require.NoError(t, pubSub.Close())
}
