package middleware_test

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/middleware"
	"github.com/postbus-io/postbus/schema"
)

// newChain returns the chain of consumer payments on a toy database.
func newChain(t *testing.T, db middleware.Database, seen *recorder, retry middleware.RetryConfig) *middleware.Chain {
	t.Helper()
	toy, ok := db.(toyDatabase)
	if !ok {
		toy = db.(*flakyToy).toyDatabase
	}
	chain, err := middleware.Standard(middleware.Config{
		DB: toy.db, Database: db, Consumer: "payments", Logger: (&logBook{}).logger(),
		Retry: retry, Hooks: []middleware.Hook{seen},
	})
	require.NoError(t, err)
	return chain
}

// whole returns the handler in both parts of the chain.
func whole(t *testing.T, chain *middleware.Chain, name string, h message.HandlerFunc) message.HandlerFunc {
	t.Helper()
	outer, err := chain.Outer("orders")
	require.NoError(t, err)
	inner, err := chain.Inner(name, "orders")
	require.NoError(t, err)
	return outer(inner(h))
}

// flakyToy is a toy database whose inbox fails first.
type flakyToy struct {
	toyDatabase
	mu   sync.Mutex
	left int
	err  error
}

func (f *flakyToy) Receive(ctx context.Context, tx *sql.Tx, d schema.Delivery) (schema.Verdict, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left > 0 {
		f.left--
		return 0, f.err
	}
	return f.toyDatabase.Receive(ctx, tx, d)
}

func TestStandard_GoldenOrder(t *testing.T) {
	t.Parallel()
	chain := newChain(t, newToy(t), &recorder{}, middleware.RetryConfig{})
	require.Equal(t, "recover > envelope | dead letter > retry > inbox > recover > handler", chain.String())
}

func TestStandard_ConfigFaultsComeAllAtOnceAndOnce(t *testing.T) {
	t.Parallel()
	_, err := middleware.Standard(middleware.Config{
		CommitTimeout: -1, BuryTimeout: -1, Hooks: []middleware.Hook{nil},
		Retry: middleware.RetryConfig{Budget: -1, MaxAttempts: -1},
	})
	require.ErrorIs(t, err, middleware.ErrInvalidConfig)
	for _, fault := range []string{
		"DB: nil", "Database: nil", "Consumer: name is empty", "CommitTimeout: -1ns", "BuryTimeout: -1ns",
		"Retry.Budget: -1ns", "Retry.MaxAttempts: -1", "Hooks: number 0",
	} {
		require.Equal(t, 1, strings.Count(err.Error(), fault), "%s in %s", fault, err)
	}
	require.NotContains(t, err.Error(), "Handler")

	_, err = newChain(t, newToy(t), &recorder{}, middleware.RetryConfig{}).Inner("", "orders")
	require.ErrorIs(t, err, middleware.ErrInvalidConfig)
}
