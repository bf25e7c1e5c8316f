package middleware_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/middleware"
	"github.com/postbus-io/postbus/schema"
)

// retryBundle is a Retry with everything that can be seen of it.
type retryBundle struct {
	log  logBook
	seen recorder
	h    *handler
}

// try runs the handler behind Retry and returns the time taken and the error.
func (b *retryBundle) try(ctx context.Context, t *testing.T, cfg middleware.RetryConfig) (time.Duration, error) {
	t.Helper()
	retry, err := middleware.Retry(receiver(&b.log, &b.seen), cfg)
	require.NoError(t, err)
	began := time.Now()
	_, err = retry(b.h.run)(orderWith(ctx, "m1", "o1"))
	return time.Since(began), err
}

func exhausted(t *testing.T, err error) *middleware.ExhaustedError {
	t.Helper()
	var e *middleware.ExhaustedError
	require.ErrorAs(t, err, &e)
	return e
}

// ran is a failure of class class after the handler was called, or before.
func ran(err error, class schema.ErrorClass) error {
	return &middleware.AttemptError{Step: "handler", Ran: true, Class: class, Err: err}
}

func notRan(err error, class schema.ErrorClass) error {
	return &middleware.AttemptError{Step: "begin", Class: class, Err: err}
}

func TestRetry_UntilItSucceeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := retryBundle{h: failing(errBusiness, errBusiness, nil)}
		took, err := b.try(t.Context(), t, middleware.RetryConfig{})
		require.NoError(t, err)
		require.Equal(t, 3, b.h.calls)
		require.Len(t, b.seen.failures, 2)
		require.Equal(t, 1, b.seen.failures[0].Attempt)
		require.Equal(t, errBusiness, b.seen.failures[1].Err)
		require.Equal(t, "payments", b.seen.failures[1].Delivery.Consumer)
		require.Equal(t, b.seen.failures[0].Wait+b.seen.failures[1].Wait, took, "hooks are told the waits that are waited")
		require.Empty(t, b.log.text())
	})
}

func TestRetry_WaitsGrowWithJitterUpToMax(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := retryBundle{h: failing(errBusiness)}
		took, _ := b.try(t.Context(), t, middleware.RetryConfig{Initial: 100 * time.Millisecond, Max: 2 * time.Second, MaxAttempts: 9})
		require.Len(t, b.seen.failures, 9)
		total, step, odd := time.Duration(0), 100*time.Millisecond, 0
		for _, f := range b.seen.failures[:8] {
			if f.Wait%step != 0 {
				odd++
			}
			require.GreaterOrEqual(t, f.Wait, step/2)
			require.LessOrEqual(t, f.Wait, min(step*3/2, 2*time.Second))
			total += f.Wait
			step = min(2*step, 2*time.Second)
		}
		require.NotZero(t, odd, "jitter")
		require.Zero(t, b.seen.failures[8].Wait, "there is no next attempt")
		require.Equal(t, total, took)
	})
}

func TestRetry_BudgetEndsTheAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, last := errors.New("first"), errors.New("last")
		b := retryBundle{h: failing(first, last)}
		took, err := b.try(t.Context(), t, middleware.RetryConfig{})
		e := exhausted(t, err)
		require.Equal(t, b.h.calls, e.Attempts)
		require.Len(t, b.seen.failures, e.Attempts)
		require.Equal(t, first, e.First)
		require.Equal(t, last, e.Last)
		require.ErrorIs(t, err, last)
		require.LessOrEqual(t, took, middleware.DefaultRetryBudget)
		require.Greater(t, took, middleware.DefaultRetryBudget-middleware.DefaultRetryMax)
		require.Greater(t, e.Attempts, 8)
	})
}

func TestRetry_SlowHandlerIsTriedAgainAndItsTimeCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := retryBundle{h: &handler{do: func(int, *message.Message) error {
			<-time.After(20 * time.Second)
			return errBusiness
		}}}
		took, err := b.try(t.Context(), t, middleware.RetryConfig{})
		require.Equal(t, 3, exhausted(t, err).Attempts)
		require.Less(t, took, 62*time.Second)
	})
}

func TestRetry_MaxAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, most := range []int{1, 3} {
			b := retryBundle{h: failing(errBusiness)}
			_, err := b.try(t.Context(), t, middleware.RetryConfig{MaxAttempts: most})
			require.Equal(t, most, exhausted(t, err).Attempts)
			require.Equal(t, most, b.h.calls)
		}
	})
}

func TestRetry_PermanentIsTheLastAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := retryBundle{h: failing(schema.Permanent(errBusiness))}
		took, err := b.try(t.Context(), t, middleware.RetryConfig{})
		require.Equal(t, 1, exhausted(t, err).Attempts)
		require.Equal(t, 1, b.h.calls)
		require.Zero(t, took)
		require.Len(t, b.seen.failures, 1)

		b = retryBundle{h: failing(errBusiness, ran(schema.Permanent(errConflict), schema.ErrorConflict))}
		_, err = b.try(t.Context(), t, middleware.RetryConfig{})
		require.Equal(t, 2, exhausted(t, err).Attempts, "a conflict that the handler calls permanent, too")
		require.Equal(t, errBusiness, exhausted(t, err).First)
		require.Equal(t, 2, b.h.calls)
	})
}

func TestRetry_ConflictsAndLostConnectionsAreFreeAndBounded(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]error{
		"conflict": ran(errConflict, schema.ErrorConflict),
		"lost":     ran(errUnavailable, schema.ErrorUnavailable),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := retryBundle{h: &handler{do: func(call int, _ *message.Message) error {
					if call <= 20 {
						return fault
					}
					return nil
				}}}
				took, err := b.try(t.Context(), t, middleware.RetryConfig{MaxAttempts: 1})
				require.NoError(t, err)
				require.Empty(t, b.seen.failures, "no attempts")
				require.Less(t, took, 10*time.Second)

				b.h = failing(fault)
				_, err = b.try(t.Context(), t, middleware.RetryConfig{MaxAttempts: 2, FreeTries: 5})
				require.Equal(t, 2, exhausted(t, err).Attempts)
				require.Equal(t, 7, b.h.calls)
			})
		})
	}
}

func TestRetry_DatabaseThatIsAwayIsNoAttempt(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]error{
		"unavailable":      notRan(errUnavailable, schema.ErrorUnavailable),
		"no rights":        notRan(errBusiness, schema.ErrorOther),
		"conflict, always": notRan(errConflict, schema.ErrorConflict),
		"even permanently": notRan(schema.Permanent(errBusiness), schema.ErrorOther),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				back := time.Now().Add(time.Hour)
				b := retryBundle{h: &handler{do: func(call int, _ *message.Message) error {
					if call == 1 {
						return errBusiness
					}
					if time.Now().Before(back) {
						return away
					}
					return nil
				}}}
				took, err := b.try(t.Context(), t, middleware.RetryConfig{})
				require.NoError(t, err)
				require.Less(t, took, time.Hour+5*time.Second, "back within the cap")
				require.Len(t, b.seen.failures, 1)
				require.Greater(t, b.h.calls, 3600/5)
				require.InDelta(t, b.h.calls, b.log.lines(), 23, "a line an interval")
				require.Contains(t, b.log.text(), "message held")
				require.NotContains(t, b.log.text(), "order_id")
			})
		})
	}
}

func TestRetry_WaitingForTheDatabaseSpendsNoBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		back := time.Now().Add(time.Hour)
		b := retryBundle{h: &handler{do: func(call int, _ *message.Message) error {
			if call > 1 && time.Now().Before(back) {
				return notRan(errUnavailable, schema.ErrorUnavailable)
			}
			return errBusiness
		}}}
		_, err := b.try(t.Context(), t, middleware.RetryConfig{})
		require.Greater(t, exhausted(t, err).Attempts, 8)
	})
}

func TestRetry_DatabaseThatWasBackIsAskedSoonAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		away := notRan(errUnavailable, schema.ErrorUnavailable)
		var before time.Time
		b := retryBundle{h: &handler{do: func(call int, _ *message.Message) error {
			switch call {
			case 11:
				return errBusiness
			case 12:
				before = time.Now()
				return away
			case 13:
				require.LessOrEqual(t, time.Since(before), 150*time.Millisecond)
				return nil
			}
			return away
		}}}
		_, err := b.try(t.Context(), t, middleware.RetryConfig{})
		require.NoError(t, err)
	})
}

func TestRetry_H41_EndOfTheContextIsNoAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, cause := range []error{schema.ErrRevoked, schema.ErrDraining, context.Canceled} {
			ctx, cancel := context.WithCancelCause(t.Context())
			b := retryBundle{h: &handler{do: func(int, *message.Message) error {
				cancel(cause)
				return schema.Permanent(pqCanceled{})
			}}}
			took, err := b.try(ctx, t, middleware.RetryConfig{})
			requireInterrupted(t, err, cause)
			require.ErrorIs(t, err, pqCanceled{})
			require.Empty(t, b.seen.failures)
			require.Equal(t, 1, b.h.calls)
			require.Zero(t, took)

			b = retryBundle{h: &handler{}}
			_, err = b.try(ctx, t, middleware.RetryConfig{})
			requireInterrupted(t, err, cause)
			require.Zero(t, b.h.calls, "nothing is begun on a dead context")
		}
	})
}

func requireInterrupted(t *testing.T, err, cause error) {
	t.Helper()
	var stopped *middleware.InterruptedError
	require.ErrorAs(t, err, &stopped)
	require.ErrorIs(t, err, cause)
	require.ErrorIs(t, err, context.Canceled)
	var e *middleware.ExhaustedError
	require.NotErrorAs(t, err, &e)
}

func TestRetry_H41_WaitEndsWithTheContext(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]error{
		"attempt": errBusiness,
		"away":    notRan(errUnavailable, schema.ErrorUnavailable),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(12*time.Second, func() { cancel(schema.ErrDraining) })
				b := retryBundle{h: failing(fault)}
				took, err := b.try(ctx, t, middleware.RetryConfig{})
				requireInterrupted(t, err, schema.ErrDraining)
				require.ErrorIs(t, err, fault, "and says what it was waiting for")
				require.Equal(t, 12*time.Second, took)
			})
		})
	}
}

func TestRetry_RevocationThatAHandlerMakesUpIsAnAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := retryBundle{h: failing(errors.Join(schema.ErrRevoked, context.Canceled), nil)}
		_, err := b.try(t.Context(), t, middleware.RetryConfig{})
		require.NoError(t, err)
		require.Len(t, b.seen.failures, 1)
	})
}

func TestRetry_EachAttemptGetsTheMessageAsItWasReceived(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		msg := orderWith(t.Context(), "m1", "o1")
		payload, received := msg.Payload, bytes.Clone(msg.Payload)
		h := func(m *message.Message) ([]*message.Message, error) {
			require.Equal(t, "m1", m.UUID)
			require.Equal(t, received, []byte(m.Payload))
			require.Equal(t, order("m1", "o1").Metadata, m.Metadata)
			require.NoError(t, m.Context().Err())
			ctx, cancel := context.WithCancel(m.Context())
			cancel()
			m.SetContext(ctx)
			m.UUID = "other"
			clear(m.Payload)
			m.Payload = m.Payload[:2]
			m.Metadata.Set("x", "y")
			return nil, errBusiness
		}
		retry, err := middleware.Retry(receiver(&logBook{}), middleware.RetryConfig{MaxAttempts: 3})
		require.NoError(t, err)
		_, err = retry(h)(msg)
		require.Equal(t, 3, exhausted(t, err).Attempts)
		require.True(t, msg.Equals(order("m1", "o1")))
		require.Equal(t, t.Context(), msg.Context())
		require.Equal(t, received, []byte(payload), "bytes that another handler's copy of the message shares")
	})
}

func TestRetry_OnlyTheLastAttemptsMessagesAreReturned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		h := func(*message.Message) ([]*message.Message, error) {
			calls++
			if calls == 1 {
				return []*message.Message{order("half", "")}, errBusiness
			}
			return []*message.Message{order("whole", "")}, nil
		}
		retry, err := middleware.Retry(receiver(&logBook{}), middleware.RetryConfig{})
		require.NoError(t, err)
		produced, err := retry(h)(orderWith(t.Context(), "m1", "o1"))
		require.NoError(t, err)
		require.Len(t, produced, 1)
		require.Equal(t, "whole", produced[0].UUID)
	})
}

func TestRetry_ConfigFaultsComeAllAtOnce(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]middleware.RetryConfig{
		"Initial: 1µs is below 1ms":         {Initial: time.Microsecond},
		"Max: 10ms is below Initial, 100ms": {Max: 10 * time.Millisecond},
		"Budget: -1s is negative":           {Budget: -time.Second},
		"MaxAttempts: -1 is negative":       {MaxAttempts: -1},
		"FreeTries: -2 is negative":         {FreeTries: -2},
	} {
		_, err := middleware.Retry(middleware.Receiver{}, cfg)
		require.ErrorIs(t, err, middleware.ErrInvalidConfig)
		require.ErrorContains(t, err, want)
	}
	_, err := middleware.Retry(middleware.Receiver{}, middleware.RetryConfig{Budget: -1, MaxAttempts: -1})
	require.ErrorContains(t, err, "Budget")
	require.ErrorContains(t, err, "MaxAttempts")
}
