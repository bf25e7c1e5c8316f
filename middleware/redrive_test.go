package middleware_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/middleware"
	"github.com/postbus-io/postbus/schema"
)

// redriveBundle is a chain around a handler that fails until repaired is set,
// and whose message m1 is a dead letter.
type redriveBundle struct {
	toy      toyDatabase
	seen     recorder
	h        *handler
	repaired bool
	fault    error
	run      message.HandlerFunc
}

func setupRedrive(t *testing.T) *redriveBundle {
	t.Helper()
	b := &redriveBundle{toy: newToy(t), fault: errBusiness}
	b.h = &handler{do: func(_ int, msg *message.Message) error {
		require.Equal(t, []byte(`{"order_id":"o1"}`), []byte(msg.Payload))
		if err := effect(msg, "charge"); err != nil {
			return err
		}
		if b.repaired {
			return nil
		}
		return b.fault
	}}
	b.run = inner(t, b.toy, &b.seen, "charge")(b.h.run)
	_, err := b.run(orderWith(t.Context(), "m1", "o1"))
	require.NoError(t, err)
	require.Equal(t, 2, b.toy.letter(t).Attempts)
	b.h.calls, b.seen.failures, b.seen.buried = 0, nil, nil
	return b
}

// inner returns the inner part of a chain with two attempts.
func inner(t *testing.T, db middleware.Database, seen *recorder, handlerName string) message.HandlerMiddleware {
	t.Helper()
	mw, err := newChain(t, db, seen, middleware.RetryConfig{MaxAttempts: 2}).Inner(handlerName, "orders")
	require.NoError(t, err)
	return mw
}

func TestRedrive_LetterTurnsIntoTheInboxRowWithTheEffect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupRedrive(t)
		b.repaired = true
		letter := b.toy.letter(t)
		require.NoError(t, middleware.Redrive(t.Context(), letter, b.run))
		require.Equal(t, [3]int{1, 1, 0}, [3]int{b.toy.count(t, "effects"), b.toy.count(t, "inbox"), b.toy.count(t, "dead")})

		require.ErrorIs(t, middleware.Redrive(t.Context(), letter, b.run), schema.ErrNotDead)
		require.Equal(t, 1, b.h.calls, "applied once")
		require.Zero(t, b.toy.count(t, "dead"), "and not buried for that")

		_, err := b.run(orderWith(t.Context(), "m1", "o1"))
		require.NoError(t, err)
		require.Equal(t, 1, b.h.calls, "a late redelivery is a duplicate")
	})
}

func TestRedrive_FailureIsReturnedAndCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupRedrive(t)
		for n := 1; n <= 2; n++ {
			began := time.Now()
			err := middleware.Redrive(t.Context(), b.toy.letter(t), b.run)
			require.ErrorIs(t, err, errBusiness)
			require.Equal(t, 1, exhausted(t, err).Attempts)
			require.Zero(t, time.Since(began), "one attempt, no waiting")
			require.Equal(t, n, b.h.calls)

			letter := b.toy.letter(t)
			require.Equal(t, n, letter.Redriven)
			require.Equal(t, 2+n, letter.Attempts)
			require.Equal(t, [2]int{0, 0}, [2]int{b.toy.count(t, "effects"), b.toy.count(t, "inbox")})
		}
		require.Len(t, b.seen.failures, 2)
		require.Len(t, b.seen.buried, 2)
	})
}

func TestRedrive_ConflictsAreTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupRedrive(t)
		b.fault = errConflict
		time.AfterFunc(time.Second, func() { b.h.mu.Lock(); b.repaired = true; b.h.mu.Unlock() })
		do := b.h.do
		b.h.do = func(call int, msg *message.Message) error {
			b.h.mu.Lock()
			defer b.h.mu.Unlock()
			return do(call, msg)
		}
		require.NoError(t, middleware.Redrive(t.Context(), b.toy.letter(t), b.run))
		require.Greater(t, b.h.calls, 2)
		require.Empty(t, b.seen.failures)
	})
}

func TestRedrive_DatabaseThatIsAwayIsReturnedAtOnceAndNotCounted(t *testing.T) {
	t.Parallel()
	letter := schema.DeadLetter{ID: 7, Consumer: "payments", Handler: "charge", MessageID: "m1"}
	for name, s := range map[string]*server{
		"at begin":          {beginFunc: func(context.Context) error { return errUnavailable }},
		"under the handler": {rollbackFunc: func() error { return errUnavailable }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db, seen := &fakeDatabase{letters: []schema.DeadLetter{letter}}, &recorder{}
				began := time.Now()
				err := middleware.Redrive(t.Context(), letter, chainOn(t, s, db, seen)(failing(errUnavailable).run))
				require.ErrorIs(t, err, errUnavailable)
				require.Zero(t, time.Since(began))
				require.Zero(t, db.tries)
				require.Empty(t, seen.failures)
			})
		})
	}
}

// chainOn returns the inner part of a chain on a fake driver.
func chainOn(t *testing.T, s *server, db *fakeDatabase, seen *recorder) message.HandlerMiddleware {
	t.Helper()
	chain, err := middleware.Standard(middleware.Config{
		DB: s.open(t), Database: db, Consumer: "payments", Logger: (&logBook{}).logger(), Hooks: []middleware.Hook{seen},
	})
	require.NoError(t, err)
	mw, err := chain.Inner("charge", "orders")
	require.NoError(t, err)
	return mw
}

func TestRedrive_CountThatCannotBeStoredIsToldToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		letter := schema.DeadLetter{ID: 7, Consumer: "payments", Handler: "charge", MessageID: "m1", Redriven: 3}
		db := &fakeDatabase{letters: []schema.DeadLetter{letter}}
		db.buryFunc = func(_ context.Context, l schema.DeadLetter) (bool, error) {
			require.Equal(t, [2]int64{7, 4}, [2]int64{l.ID, int64(l.Redriven)})
			return false, errUnavailable
		}
		err := middleware.Redrive(t.Context(), letter, chainOn(t, &server{}, db, &recorder{})(failing(errBusiness).run))
		require.ErrorIs(t, err, errBusiness)
		require.ErrorIs(t, err, errUnavailable)
		require.Equal(t, 1, db.tries)
	})
}

func TestRedrive_AppliedMeanwhileIsSuccess(t *testing.T) {
	t.Parallel()
	letter := schema.DeadLetter{ID: 7, Consumer: "payments", Handler: "charge", MessageID: "m1"}
	db := &fakeDatabase{letters: []schema.DeadLetter{letter}}
	db.buryFunc = func(context.Context, schema.DeadLetter) (bool, error) { return false, nil }
	require.NoError(t, middleware.Redrive(t.Context(), letter, chainOn(t, &server{}, db, &recorder{})(failing(errBusiness).run)))
}

func TestRedrive_ByTheWrongHandlerIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupRedrive(t)
		h := &handler{}
		err := middleware.Redrive(t.Context(), b.toy.letter(t), inner(t, b.toy, &b.seen, "refund")(h.run))
		require.ErrorIs(t, err, schema.ErrNotDead)
		require.ErrorContains(t, err, "payments/charge")
		require.Zero(t, h.calls)
		require.Zero(t, b.toy.letter(t).Redriven)
	})
}

func TestRedrive_EndOfTheContextCountsForNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupRedrive(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, middleware.Redrive(ctx, b.toy.letter(t), b.run), context.Canceled)
		require.Zero(t, b.toy.letter(t).Redriven)
	})
}
