package handlers_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/schema"
)

type orderPlaced struct {
	OrderID string `json:"order_id"`
}

type orderPlaced2 struct {
	ID string `json:"id"`
}

var (
	placed    = schema.Define[orderPlaced]("orders.placed", 1)
	placed2   = schema.Define[orderPlaced2]("orders.placed", 2)
	cancelled = schema.Define[orderPlaced]("orders.cancelled", 1)
	charged   = schema.Define[orderPlaced]("payments.charged", 1)
)

// event returns a message as it comes from a broker.
func event(id, key, eventType, version, payload string) *message.Message {
	msg := message.NewMessage(id, message.Payload(payload))
	msg.Metadata = message.Metadata{schema.HeaderType: eventType, schema.HeaderVersion: version}
	if key != "" {
		msg.Metadata.Set(schema.HeaderKey, key)
	}
	return msg
}

// journal is what handlers and the chain around them wrote down.
type journal struct {
	mu   sync.Mutex
	rows []string
	dead map[string]error // "handler id" -> the permanent error
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.rows = append(j.rows, fmt.Sprintf(format, args...))
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.rows)
}

func (j *journal) letters() map[string]error {
	j.mu.Lock()
	defer j.mu.Unlock()
	letters := map[string]error{}
	for name, err := range j.dead {
		letters[name] = err
	}
	return letters
}

// note returns a function that writes down what it was called for.
func note[T any](j *journal, name string) func(context.Context, *sql.Tx, schema.Received[T]) error {
	return func(_ context.Context, _ *sql.Tx, e schema.Received[T]) error {
		j.add("%s %s", name, e.ID)
		return nil
	}
}

// inner settles permanent errors as a dead letter would, and brings a
// transaction.
func (j *journal) inner(_ string, h handlers.Handler) []message.HandlerMiddleware {
	bury := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			if !schema.IsPermanent(err) {
				return produced, err
			}
			j.mu.Lock()
			defer j.mu.Unlock()
			if j.dead == nil {
				j.dead = map[string]error{}
			}
			j.dead[h.Name()+" "+msg.UUID] = err
			return nil, nil
		}
	}
	return []message.HandlerMiddleware{bury, withTx}
}

func withTx(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		msg.SetContext(schema.ContextWithTx(msg.Context(), new(sql.Tx)))
		return next(msg)
	}
}

// consumerBundle is a running consumer in a bubble of fake time.
type consumerBundle struct {
	inner   *scripted
	journal *journal
	run     <-chan error
	stop    context.CancelFunc
	log     *bytes.Buffer
}

func (b *consumerBundle) config(hs ...handlers.Handler) handlers.ConsumerConfig {
	return handlers.ConsumerConfig{
		Name: "payments", Handlers: hs, Subscriber: b.inner, InnerFunc: b.journal.inner,
		Logger: slog.New(slog.NewTextHandler(b.log, nil)),
	}
}

// runConsumer starts a consumer in a bubble of fake time, gives it to the test
// and stops it.
func runConsumer(
	t *testing.T, config func(b *consumerBundle) handlers.ConsumerConfig, test func(t *testing.T, b *consumerBundle),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		withConsumer(t, config, test)
		synctest.Wait()
	})
}

func withConsumer(
	t *testing.T, config func(b *consumerBundle) handlers.ConsumerConfig, test func(t *testing.T, b *consumerBundle),
) {
	t.Helper()
	b := &consumerBundle{inner: newScripted(), journal: &journal{}, log: &bytes.Buffer{}}
	c, err := handlers.NewConsumer(config(b))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	defer func() {
		stop()
		await(t, ended, "Run")
	}()
	b.stop = stop
	b.run = inBackground(func() error {
		defer close(ended)
		return c.Run(ctx)
	})
	await(t, c.Running(), "consumer to run")
	test(t, b)
}

func (b *consumerBundle) expectCleanStop(t *testing.T) {
	t.Helper()
	b.stop()
	require.NoError(t, await(t, b.run, "Run"))
	assert.NotContains(t, b.log.String(), "level=ERROR")
}
