package middleware_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/middleware"
	"github.com/postbus-io/postbus/schema"
)

func newDeadLetter(t *testing.T, db *fakeDatabase, log *logBook, hooks ...middleware.Hook) message.HandlerMiddleware {
	t.Helper()
	deadLetter, err := middleware.DeadLetter(receiver(log, hooks...), middleware.DeadLetterConfig{DeadLetters: db})
	require.NoError(t, err)
	return deadLetter
}

func gaveUp(attempts int, first, last error) error {
	return &middleware.ExhaustedError{Attempts: attempts, First: first, Last: last}
}

func TestDeadLetter_KeepsTheMessageAsItWasReceived(t *testing.T) {
	t.Parallel()
	db, seen := &fakeDatabase{}, &recorder{}
	var log logBook
	msg := order("m1", "o1")
	msg.Metadata.Set("trace", "abc")
	h := func(m *message.Message) ([]*message.Message, error) {
		m.UUID = "other"
		clear(m.Payload)
		m.Metadata.Set("trace", "spoilt")
		m.Metadata.Set(schema.HeaderKey, "o2")
		return []*message.Message{order("half", "")}, gaveUp(7, errors.New("first"), errors.New("last"))
	}
	produced, err := newDeadLetter(t, db, &log, seen)(h)(msg)

	require.NoError(t, err)
	require.Empty(t, produced)
	require.Equal(t, []schema.DeadLetter{{
		Consumer: "payments", Handler: "charge", Topic: "orders", MessageID: "m1", Key: "o1",
		Payload: []byte(`{"order_id":"o1"}`),
		Headers: map[string]string{
			schema.HeaderType: "orders.placed", schema.HeaderVersion: "1", schema.HeaderKey: "o1", "trace": "abc",
		},
		Attempts: 7, FirstError: "first", LastError: "last",
	}}, db.letters)
	require.Equal(t, db.letters, seen.buried)
	require.Equal(t, 1, log.lines())
	require.Contains(t, log.text(), "message_id=m1")
	require.NotContains(t, log.text(), "order_id", "no payload in a log")
}

func TestDeadLetter_ErrorsAreBoundedAndClean(t *testing.T) {
	t.Parallel()
	db := &fakeDatabase{}
	dirty := errors.New("\xff\x00x" + strings.Repeat("é", 1<<20))
	_, err := newDeadLetter(t, db, &logBook{})(failing(gaveUp(1, dirty, dirty)).run)(order("m1", "o1"))
	require.NoError(t, err)
	for _, text := range []string{db.letters[0].FirstError, db.letters[0].LastError} {
		require.LessOrEqual(t, len(text), 4096)
		require.Greater(t, len(text), 4000)
		require.True(t, utf8.ValidString(text))
		require.NotContains(t, text, "\x00")
		require.True(t, strings.HasPrefix(text, "\uFFFD\uFFFDxé"), "%.10q", text)
	}
}

func TestDeadLetter_PermanentWithoutRetryIsOneAttempt(t *testing.T) {
	t.Parallel()
	db := &fakeDatabase{}
	_, err := newDeadLetter(t, db, &logBook{})(failing(schema.Permanent(errBusiness)).run)(order("m1", "o1"))
	require.NoError(t, err)
	require.Equal(t, 1, db.letters[0].Attempts)
	require.Equal(t, "card declined", db.letters[0].FirstError)
}

func TestDeadLetter_OtherErrorsPassThrough(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{
		errBusiness,
		context.Canceled,
		errors.New("breaker is open"),
		notRan(errUnavailable, schema.ErrorUnavailable),
		&middleware.InterruptedError{Cause: schema.ErrRevoked, Err: schema.Permanent(errBusiness)},
		&middleware.InterruptedError{Cause: schema.ErrDraining, Err: gaveUp(1, errBusiness, errBusiness)},
	} {
		db := &fakeDatabase{}
		_, err := newDeadLetter(t, db, &logBook{})(failing(cause).run)(order("m1", "o1"))
		require.Equal(t, cause, err)
		require.Zero(t, db.tries)
	}
}

func TestDeadLetter_H41_PermanentErrorOfADeadContextPassesThrough(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(schema.ErrDraining)
	db := &fakeDatabase{}
	_, err := newDeadLetter(t, db, &logBook{})(failing(schema.Permanent(ctx.Err())).run)(orderWith(ctx, "m1", "o1"))
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, db.tries)
}

func TestDeadLetter_H40_DeadContextDoesNotKeepItFromBeingStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		db := &fakeDatabase{buryFunc: func(buryCtx context.Context, _ schema.DeadLetter) (bool, error) {
			deadline, ok := buryCtx.Deadline()
			require.True(t, ok)
			require.Equal(t, middleware.DefaultBuryTimeout, time.Until(deadline))
			return true, buryCtx.Err()
		}}
		h := &handler{do: func(int, *message.Message) error {
			cancel()
			return gaveUp(3, errBusiness, errBusiness)
		}}
		_, err := newDeadLetter(t, db, &logBook{})(h.run)(orderWith(ctx, "m1", "o1"))
		require.NoError(t, err)
		require.Len(t, db.letters, 1)
	})
}

func TestDeadLetter_H40_HoldsTheMessageWhileItCannotBeStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		back := time.Now().Add(10 * time.Minute)
		db := &fakeDatabase{buryFunc: func(context.Context, schema.DeadLetter) (bool, error) {
			if time.Now().Before(back) {
				return false, errUnavailable
			}
			return true, nil
		}}
		var log logBook
		h := failing(gaveUp(3, errBusiness, errBusiness))
		_, err := newDeadLetter(t, db, &log)(h.run)(orderWith(t.Context(), "m1", "o1"))
		require.NoError(t, err)
		require.Len(t, db.letters, 1)
		require.Equal(t, 1, h.calls, "the handler is not run again")
		require.Greater(t, db.tries, 600/5)
		require.Less(t, time.Since(back), 5*time.Second)
		require.Equal(t, db.tries, log.lines(), "one line a try")
	})
}

func TestDeadLetter_H40_NeitherStoredNorAckedWhenTheContextEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(7*time.Second, func() { cancel(schema.ErrDraining) })
		db := &fakeDatabase{buryFunc: func(context.Context, schema.DeadLetter) (bool, error) { return false, errUnavailable }}
		began := time.Now()
		_, err := newDeadLetter(t, db, &logBook{})(failing(gaveUp(3, errBusiness, errBusiness)).run)(orderWith(ctx, "m1", "o1"))
		requireInterrupted(t, err, schema.ErrDraining)
		require.ErrorIs(t, err, errUnavailable)
		require.Equal(t, 7*time.Second, time.Since(began))
	})
}

func TestDeadLetter_AppliedMeanwhileIsAcked(t *testing.T) {
	t.Parallel()
	seen := &recorder{}
	db := &fakeDatabase{buryFunc: func(context.Context, schema.DeadLetter) (bool, error) { return false, nil }}
	_, err := newDeadLetter(t, db, &logBook{}, seen)(failing(gaveUp(3, errBusiness, errBusiness)).run)(order("m1", "o1"))
	require.NoError(t, err)
	require.Equal(t, 1, db.tries)
	require.Empty(t, seen.buried)
}

func TestDeadLetter_SuccessPassesThrough(t *testing.T) {
	t.Parallel()
	out := []*message.Message{order("m2", "")}
	produced, err := newDeadLetter(t, &fakeDatabase{}, &logBook{})(func(*message.Message) ([]*message.Message, error) {
		return out, nil
	})(order("m1", "o1"))
	require.NoError(t, err)
	require.Equal(t, out, produced)
}

func TestDeadLetter_ConfigFaultsComeAllAtOnce(t *testing.T) {
	t.Parallel()
	_, err := middleware.DeadLetter(middleware.Receiver{Consumer: "payments"}, middleware.DeadLetterConfig{BuryTimeout: -1})
	require.ErrorIs(t, err, middleware.ErrInvalidConfig)
	for _, fault := range []string{"Handler: name is empty", "DeadLetters: nil", "BuryTimeout: -1ns is negative"} {
		require.ErrorContains(t, err, fault)
	}
}
