package schema_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

func TestClassOfPublish(t *testing.T) {
	t.Parallel()
	refused := &schema.PublishError{Class: schema.PublishRecord, Topic: "orders", Err: io.ErrShortBuffer}
	late := &schema.PublishError{Class: schema.PublishDestination, Topic: "orders", Err: context.DeadlineExceeded}
	for name, c := range map[string]struct {
		err  error
		want schema.PublishClass
	}{
		"nil":                 {nil, schema.PublishUnknown},
		"no class":            {io.EOF, schema.PublishUnknown},
		"class":               {refused, schema.PublishRecord},
		"wrapped":             {fmt.Errorf("send: %w", refused), schema.PublishRecord},
		"joined":              {errors.Join(io.EOF, refused), schema.PublishRecord},
		"own deadline":        {context.DeadlineExceeded, schema.PublishBroker},
		"own deadline, wraps": {fmt.Errorf("send: %w", context.DeadlineExceeded), schema.PublishBroker},
		"own end":             {context.Canceled, schema.PublishBroker},
		"class before ctx":    {late, schema.PublishDestination},
		"unknown class":       {&schema.PublishError{Err: context.Canceled}, schema.PublishUnknown},
	} {
		require.Equal(t, c.want, schema.ClassOfPublish(c.err), name)
	}
}

func TestPublishError(t *testing.T) {
	t.Parallel()
	err := error(&schema.PublishError{Class: schema.PublishDestination, Topic: "orders", Err: io.EOF})
	require.EqualError(t, err, "publish to orders (destination): EOF")
	require.ErrorIs(t, err, io.EOF)
}

func TestPublishClass_String(t *testing.T) {
	t.Parallel()
	for class, word := range map[schema.PublishClass]string{
		schema.PublishUnknown: "unknown", schema.PublishRecord: "record",
		schema.PublishDestination: "destination", schema.PublishBroker: "broker", 99: "unknown",
	} {
		require.Equal(t, word, class.String())
	}
}

func TestPermanent(t *testing.T) {
	t.Parallel()
	require.NoError(t, schema.Permanent(nil))
	require.False(t, schema.IsPermanent(nil))
	require.False(t, schema.IsPermanent(io.EOF))
	err := fmt.Errorf("charge: %w", schema.Permanent(fmt.Errorf("card: %w", io.EOF)))
	require.True(t, schema.IsPermanent(err))
	require.ErrorIs(t, err, io.EOF)
	require.EqualError(t, err, "charge: card: EOF")
	require.True(t, schema.IsPermanent(&schema.InvalidMessageError{}))
}

func TestSettlement_Empty(t *testing.T) {
	t.Parallel()
	require.True(t, schema.Settlement{Shard: schema.Shard{ID: 1, Epoch: 2}}.Empty())
	for _, s := range []schema.Settlement{
		{Failed: []schema.Failure{{}}}, {Held: []int64{1}}, {Holds: []schema.Hold{{}}}, {Lifted: []schema.Hold{{}}},
	} {
		require.False(t, s.Empty())
	}
}
