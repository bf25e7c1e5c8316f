//go:build slow

package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/IBM/sarama"
	"github.com/eapache/go-resiliency/breaker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]schema.PublishClass{
		sarama.ErrMessageSizeTooLarge:                  schema.PublishRecord,
		sarama.ErrInvalidRecord:                        schema.PublishRecord,
		sarama.ConfigurationError("too large"):         schema.PublishRecord,
		sarama.PacketEncodingError{Info: "bad"}:        schema.PublishRecord,
		sarama.ErrUnknownTopicOrPartition:              schema.PublishDestination,
		sarama.ErrTopicAuthorizationFailed:             schema.PublishDestination,
		sarama.ErrNotLeaderForPartition:                schema.PublishDestination,
		sarama.ErrNotEnoughReplicas:                    schema.PublishDestination,
		sarama.ErrInvalidReplicationFactor:             schema.PublishDestination,
		sarama.ErrOutOfBrokers:                         schema.PublishBroker,
		sarama.ErrRequestTimedOut:                      schema.PublishBroker,
		sarama.ErrOutOfOrderSequenceNumber:             schema.PublishBroker,
		breaker.ErrBreakerOpen:                         schema.PublishBroker,
		io.EOF:                                         schema.PublishBroker,
		&net.OpError{Op: "dial", Err: errors.New("x")}: schema.PublishBroker,
		context.DeadlineExceeded:                       schema.PublishBroker,
		ErrClosed:                                      schema.PublishBroker,
		errors.New("never seen"):                       schema.PublishUnknown,
		sarama.ErrUnknown:                              schema.PublishUnknown,
	} {
		assert.Equal(t, want, classify(err), "%v", err)
		assert.Equal(t, want, schema.ClassOfPublish(failure("orders", fmt.Errorf("wrapped: %w", err))), "%v", err)
	}
	require.NoError(t, failure("orders", nil))
	classed := failureOf(schema.PublishRecord, "orders", errors.New("never seen"))
	require.Same(t, classed, failure("orders", classed))
}
