package handlers

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// An ack that comes with the end of the grace is passed on, a nack is no
// unfinished message.
func TestSubscription_LooksOnceMoreWhenAbandoned(t *testing.T) {
	t.Parallel()
	s := newSubscription("orders", IntakeConfig{}.withDefaults(), nil, nil, nil)
	close(s.abandoned)
	for range 200 {
		inner := message.NewMessage("1", nil)
		outer := inner.Copy()
		outer.Ack()
		require.Equal(t, acked, s.await(inner, outer))
		outer = inner.Copy()
		outer.Nack()
		require.Equal(t, nacked, s.await(inner, outer))
	}
	require.NoError(t, s.failure())

	require.Equal(t, leftAlone, s.await(message.NewMessage("1", nil), message.NewMessage("1", nil)))
	require.ErrorIs(t, s.failure(), ErrDrainTimeout)
}
