package middleware_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/middleware"
	"github.com/postbus-io/postbus/schema"
)

// outcome is what one message through the whole chain leaves behind.
type outcome struct {
	calls    int // of the handler
	failures int // attempts, as hooks are told
	applied  int // effects, and as many rows in the inbox
	dead     int
	acked    bool
}

// behaviour is one row of the table that pins what the order is for.
type behaviour struct {
	handler func(call int, msg *message.Message, end context.CancelCauseFunc) error // after the effect was written
	inbox   error                                                                   // what the inbox says, 50 times
	want    outcome
	cause   error                               // of an interruption
	letter  func(*testing.T, schema.DeadLetter) // looks at the dead letter
}

var behaviours = map[string]behaviour{
	"success": {want: outcome{calls: 1, applied: 1, acked: true}},
	"error, then success": {
		handler: until(3, errBusiness),
		want:    outcome{calls: 3, failures: 2, applied: 1, acked: true},
	},
	"error": {
		handler: always(errBusiness),
		want:    outcome{calls: 4, failures: 4, dead: 1, acked: true},
		letter: func(t *testing.T, l schema.DeadLetter) {
			require.Equal(t, 4, l.Attempts)
			require.Equal(t, "card declined", l.LastError)
		},
	},
	"permanent error": {
		handler: always(schema.Permanent(errBusiness)),
		want:    outcome{calls: 1, failures: 1, dead: 1, acked: true},
	},
	"undecodable": {
		handler: func(_ int, msg *message.Message, _ context.CancelCauseFunc) error {
			msg.Payload = message.Payload("{")
			_, err := schema.Decode[map[string]string](schema.JSON, "orders", msg)
			return err
		},
		want: outcome{calls: 1, failures: 1, dead: 1, acked: true},
		letter: func(t *testing.T, l schema.DeadLetter) {
			require.Contains(t, l.LastError, "undecodable payload")
			require.Equal(t, []byte(`{"order_id":"o1"}`), l.Payload, "the bytes that came")
		},
	},
	"panic": {
		handler: func(int, *message.Message, context.CancelCauseFunc) error { panic("out of cheese") },
		want:    outcome{calls: 4, failures: 4, dead: 1, acked: true},
		letter: func(t *testing.T, l schema.DeadLetter) {
			require.Equal(t, "panic: out of cheese", l.LastError, "without the stack")
		},
	},
	"panic, then success": {
		handler: func(call int, _ *message.Message, _ context.CancelCauseFunc) error {
			if call == 1 {
				panic("out of cheese")
			}
			return nil
		},
		want: outcome{calls: 2, failures: 1, applied: 1, acked: true},
	},
	"nil pointer as error": {
		handler: always((*nilError)(nil)),
		want:    outcome{calls: 4, failures: 4, dead: 1, acked: true},
	},
	"own timeout of the handler": {
		handler: func(_ int, msg *message.Message, _ context.CancelCauseFunc) error {
			ctx, cancel := context.WithTimeout(msg.Context(), time.Second)
			defer cancel()
			msg.SetContext(ctx)
			<-ctx.Done()
			return ctx.Err()
		},
		want: outcome{calls: 4, failures: 4, dead: 1, acked: true},
	},
	"cancel":              interruption(context.Canceled, nil),
	"cancel, with error":  interruption(context.Canceled, errBusiness),
	"revoke":              interruption(schema.ErrRevoked, context.Canceled),
	"revoke, permanently": interruption(schema.ErrRevoked, schema.Permanent(context.Canceled)),
	"drain":               interruption(schema.ErrDraining, pqCanceled{}),
	"database away": {
		inbox: errUnavailable,
		want:  outcome{calls: 1, applied: 1, acked: true},
	},
	"inbox not readable": {
		inbox: errors.New("permission denied"),
		want:  outcome{calls: 1, applied: 1, acked: true},
	},
	"conflict in the inbox": {
		inbox: errConflict,
		want:  outcome{calls: 1, applied: 1, acked: true},
	},
	"conflict in the handler": {
		handler: until(15, errConflict),
		want:    outcome{calls: 15, applied: 1, acked: true},
	},
	"transaction ended by the handler": {
		handler: func(_ int, msg *message.Message, _ context.CancelCauseFunc) error {
			tx, _ := schema.TxFromContext(msg.Context())
			return tx.Rollback()
		},
		want: outcome{calls: 4, failures: 4, dead: 1, acked: true},
	},
}

func always(err error) func(int, *message.Message, context.CancelCauseFunc) error {
	return func(int, *message.Message, context.CancelCauseFunc) error { return err }
}

// until fails with err before the given call.
func until(call int, err error) func(int, *message.Message, context.CancelCauseFunc) error {
	return func(n int, _ *message.Message, _ context.CancelCauseFunc) error {
		if n < call {
			return err
		}
		return nil
	}
}

// interruption is a handler that returns err when its context has ended.
func interruption(cause, err error) behaviour {
	return behaviour{
		handler: func(_ int, _ *message.Message, end context.CancelCauseFunc) error { end(cause); return err },
		want:    outcome{calls: 1},
		cause:   cause,
	}
}

func TestChain_Behaviour(t *testing.T) {
	t.Parallel()
	for name, b := range behaviours {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, b.check)
		})
	}
}

func (b behaviour) check(t *testing.T) {
	db, seen := &flakyToy{toyDatabase: newToy(t), err: b.inbox}, &recorder{}
	if b.inbox != nil {
		db.left = 50
	}
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	h := &handler{do: func(call int, msg *message.Message) error {
		if err := effect(msg, "charge"); err != nil || b.handler == nil {
			return err
		}
		return b.handler(call, msg, end)
	}}
	msg := orderWith(ctx, "m1", "o1")
	_, err := whole(t, newChain(t, db, seen, middleware.RetryConfig{MaxAttempts: 4}), "charge", h.run)(msg)

	require.Equal(t, b.want, outcome{
		calls: h.calls, failures: len(seen.failures), applied: db.count(t, "effects"),
		dead: db.count(t, "dead"), acked: err == nil,
	}, "%v", err)
	require.Equal(t, b.want.applied, db.count(t, "inbox"))
	require.True(t, msg.Equals(order("m1", "o1")), "the message is as it came")
	require.Equal(t, ctx, msg.Context())
	if b.cause != nil {
		requireInterrupted(t, err, b.cause)
	}
	if b.letter != nil {
		b.letter(t, db.letter(t))
	}
}

func TestChain_H41_ShutdownIsNoAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		toy, seen := newToy(t), &recorder{}
		broken := true
		h := &handler{do: func(_ int, msg *message.Message) error {
			if broken {
				<-msg.Context().Done() // in mid-flight
				return fmt.Errorf("charge: %w", schema.Permanent(msg.Context().Err()))
			}
			return effect(msg, "charge")
		}}
		run := whole(t, newChain(t, toy, seen, middleware.RetryConfig{MaxAttempts: 1}), "charge", h.run)
		for range 20 { // deploys in a row, each in the middle of the message
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(schema.ErrDraining) })
			_, err := run(orderWith(ctx, "m1", "o1"))
			requireInterrupted(t, err, schema.ErrDraining)
		}
		require.Empty(t, seen.failures)
		require.Zero(t, toy.count(t, "dead"))

		broken = false
		_, err := run(orderWith(t.Context(), "m1", "o1"))
		require.NoError(t, err)
		require.Equal(t, 1, toy.count(t, "effects"))
	})
}

func TestChain_H48_LostAnswerToCommitIsNoAttemptAndNoSecondEffect(t *testing.T) {
	t.Parallel()
	for name, committed := range map[string]bool{"committed": true, "not committed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { lostAnswer(t, committed) })
		})
	}
}

// lostAnswer breaks the connection under the first COMMIT.
func lostAnswer(t *testing.T, committed bool) {
	t.Helper()
	applied, effects, commits := false, 0, 0
	s := &server{commitFunc: func(context.Context) error {
		commits++
		lost := commits == 1
		if !lost || committed {
			applied = true
			effects++
		}
		if lost {
			return driver.ErrBadConn
		}
		return nil
	}}
	db, seen := &fakeDatabase{}, &recorder{}
	db.receiveFunc = func(context.Context, schema.Delivery) (schema.Verdict, error) {
		if applied {
			return schema.VerdictDuplicate, nil
		}
		return schema.VerdictFresh, nil
	}
	_, err := chainOn(t, s, db, seen)((&handler{}).run)(orderWith(t.Context(), "m1", "o1"))
	require.NoError(t, err)
	require.Equal(t, 1, effects)
	require.Empty(t, seen.failures)
	require.Zero(t, db.tries)
}

func TestChain_H104_UndecodableIsOneDeadLetterAndTheNextIsHandled(t *testing.T) {
	t.Parallel()
	toy, seen := newToy(t), &recorder{}
	h := func(msg *message.Message) ([]*message.Message, error) {
		if _, err := schema.Decode[struct{}](schema.JSON, "orders", msg); err != nil {
			return nil, err
		}
		return nil, effect(msg, "charge")
	}
	garbage, next := order("m1", "o1"), order("m2", "o1")
	garbage.Payload = message.Payload{0xff, 0x00, '{'}
	inRouter(t, "orders", whole(t, newChain(t, toy, seen, middleware.RetryConfig{}), "charge", h), garbage, next)

	letter := toy.letter(t)
	require.Equal(t, "m1", letter.MessageID)
	require.Equal(t, []byte{0xff, 0x00, '{'}, letter.Payload)
	require.Equal(t, 1, letter.Attempts)
	require.Equal(t, 1, toy.count(t, "effects"))
}

func TestChain_H104_ForeignGarbageIsOneDeadLetterAndTheNextIsHandled(t *testing.T) {
	t.Parallel()
	toy := newToy(t)
	h := func(msg *message.Message) ([]*message.Message, error) { return nil, effect(msg, "charge") }
	inRouter(t, "orders", whole(t, newChain(t, toy, &recorder{}, middleware.RetryConfig{}), "charge", h),
		foreign("\x00\xff"), order("m2", "o1"))
	require.Empty(t, toy.letter(t).Handler)
	require.Equal(t, 1, toy.count(t, "effects"))
}

func TestChain_S33_TwoHandlersOneEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		toy, seen := newToy(t), &recorder{}
		chain := newChain(t, toy, seen, middleware.RetryConfig{})
		c1 := &handler{do: func(_ int, msg *message.Message) error { return effect(msg, "c1") }}
		c2 := &handler{do: func(call int, msg *message.Message) error {
			return errors.Join(effect(msg, "c2"), until(3, errBusiness)(call, nil, nil))
		}}
		for range 2 { // and once more, redelivered
			for _, h := range []struct {
				name string
				*handler
			}{{"c1", c1}, {"c2", c2}} {
				_, err := whole(t, chain, h.name, h.run)(orderWith(t.Context(), "m1", "o1"))
				require.NoError(t, err)
			}
		}
		require.Equal(t, [2]int{1, 3}, [2]int{c1.calls, c2.calls})
		require.Equal(t, 2, toy.count(t, "effects"))
	})
}

func TestChain_S35_FailureNeverMarksAsSeen(t *testing.T) {
	t.Parallel()
	toy := newToy(t)
	deaths := 0
	h := &handler{do: func(call int, msg *message.Message) error {
		if err := effect(msg, "charge"); err != nil {
			return err
		}
		switch call {
		case 1:
			return errBusiness
		case 2:
			deaths++
			runtime.Goexit() // ends in mid-work, between effect and commit
		}
		return nil
	}}
	run := whole(t, newChain(t, toy, &recorder{}, middleware.RetryConfig{Initial: time.Millisecond}), "charge", h.run)
	alone(func() { _, _ = run(order("m1", "o1")) })
	require.Equal(t, 1, deaths)
	require.Equal(t, [2]int{0, 0}, [2]int{toy.count(t, "effects"), toy.count(t, "inbox")})

	for range 2 { // the ack of the first is lost
		_, err := run(order("m1", "o1"))
		require.NoError(t, err)
	}
	_, err := run(order("m2", "o1")) // the same body, another message
	require.NoError(t, err)
	require.Equal(t, [2]int{2, 2}, [2]int{toy.count(t, "effects"), toy.count(t, "inbox")})
	require.Equal(t, 4, h.calls)
}

func TestChain_PanicOfTheFrameworkIsNeitherAckNorDeadLetter(t *testing.T) {
	t.Parallel()
	db := &fakeDatabase{receiveFunc: func(context.Context, schema.Delivery) (schema.Verdict, error) { panic("driver bug") }}
	s, h := &server{}, &handler{}
	chain, err := middleware.Standard(middleware.Config{
		DB: s.open(t), Database: db, Consumer: "payments", Logger: (&logBook{}).logger(),
	})
	require.NoError(t, err)
	_, err = whole(t, chain, "charge", h.run)(order("m1", "o1"))
	var p *middleware.PanicError
	require.ErrorAs(t, err, &p)
	require.Zero(t, db.tries)
	_, commits, rollbacks := s.counts()
	require.Equal(t, [2]int{0, 1}, [2]int{commits, rollbacks}, "no transaction stays open")
}

func TestChain_LogsNamesAndNoPayload(t *testing.T) {
	t.Parallel()
	var log logBook
	toy := newToy(t)
	chain, err := middleware.Standard(middleware.Config{
		DB: toy.db, Database: toy, Consumer: "payments", Logger: log.logger(), Retry: middleware.RetryConfig{MaxAttempts: 1},
	})
	require.NoError(t, err)
	msg := order("m1", "o1")
	msg.Payload = message.Payload("canary-payload")
	msg.Metadata.Set("h", "canary-header")
	_, err = whole(t, chain, "charge", panics("out of cheese"))(msg)
	require.NoError(t, err)
	require.Equal(t, 2, log.lines(), "the panic with its stack, and the dead letter")
	for line := range strings.Lines(log.text()) {
		require.Contains(t, line, "consumer=payments handler=charge topic=orders message_id=m1")
		require.NotContains(t, line, "canary")
	}
}
