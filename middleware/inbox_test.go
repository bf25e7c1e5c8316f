package middleware_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/middleware"
	"github.com/postbus-io/postbus/schema"
)

func newInbox(t *testing.T, db *sql.DB, known middleware.Database, hooks ...middleware.Hook) message.HandlerMiddleware {
	t.Helper()
	inbox, err := middleware.Inbox(receiver(&logBook{}, hooks...), middleware.InboxConfig{DB: db, Database: known})
	require.NoError(t, err)
	return inbox
}

func TestInbox_H39_FailureNeverMarksAsSeen(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(){
		"error":  func() {},
		"panic":  func() { panic("out of cheese") },
		"goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			toy := newToy(t)
			h := &handler{do: func(call int, msg *message.Message) error {
				require.NoError(t, effect(msg, "charge"))
				if call == 1 {
					fail()
					return errBusiness
				}
				return nil
			}}
			run := newInbox(t, toy.db, toy)(h.run)
			alone(func() { _, _ = run(order("m1", "o1")) })
			require.Zero(t, toy.count(t, "inbox"), "a failure leaves nothing behind")
			require.Zero(t, toy.count(t, "effects"))

			_, err := run(order("m1", "o1"))
			require.NoError(t, err)
			require.Equal(t, 2, h.calls, "the redelivery is no duplicate")
			require.Equal(t, 1, toy.count(t, "inbox"))
			require.Equal(t, 1, toy.count(t, "effects"))
		})
	}
}

// alone runs f in a goroutine that may panic or end, and waits for it.
func alone(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }()
		f()
	}()
	<-done
}

func TestInbox_H51_CrashAfterCommitBeforeAck(t *testing.T) {
	t.Parallel()
	toy, seen := newToy(t), &recorder{}
	h := &handler{do: func(_ int, msg *message.Message) error { return effect(msg, "charge") }}
	run := newInbox(t, toy.db, toy, seen)(h.run)
	for range 100 {
		_, err := run(order("m1", "o1")) // the ack is lost each time
		require.NoError(t, err)
	}
	require.Equal(t, 1, h.calls)
	require.Equal(t, 1, toy.count(t, "effects"))
	require.Len(t, seen.skips, 99)
}

func TestInbox_BodiesThatAreAlikeAreTwoMessages(t *testing.T) {
	t.Parallel()
	toy := newToy(t)
	h := &handler{do: func(_ int, msg *message.Message) error { return effect(msg, "charge") }}
	run := newInbox(t, toy.db, toy)(h.run)
	for _, id := range []string{"m1", "m2"} {
		_, err := run(order(id, "o1"))
		require.NoError(t, err)
	}
	require.Equal(t, 2, toy.count(t, "effects"))
}

func TestInbox_SkipsAfterTheRollback(t *testing.T) {
	t.Parallel()
	for _, verdict := range []schema.Verdict{schema.VerdictDuplicate, schema.VerdictDead} {
		s := &server{}
		known := &fakeDatabase{receiveFunc: func(context.Context, schema.Delivery) (schema.Verdict, error) { return verdict, nil }}
		hook := skipFunc(func(d schema.Delivery, v schema.Verdict) {
			_, commits, rollbacks := s.counts()
			require.Equal(t, [2]int{0, 1}, [2]int{commits, rollbacks}, "the hook holds no locks")
			require.Equal(t, verdict, v)
			require.Equal(t, [4]string{"payments", "charge", "orders", "m1"}, [4]string{d.Consumer, d.Handler, d.Topic, d.Message.UUID})
		})
		h := &handler{}
		_, err := newInbox(t, s.open(t), known, hook)(h.run)(order("m1", "o1"))
		require.NoError(t, err)
		require.Zero(t, h.calls)
	}
}

type ownKey struct{}

type skipFunc func(schema.Delivery, schema.Verdict)

func (f skipFunc) OnSkip(d schema.Delivery, v schema.Verdict) { f(d, v) }

func TestInbox_HandlerGetsTheTransactionAndTheContextIsRestored(t *testing.T) {
	t.Parallel()
	s := &server{}
	ctx := context.WithValue(t.Context(), ownKey{}, "mine")
	committed := 0
	inbox, err := middleware.Inbox(receiver(&logBook{}), middleware.InboxConfig{
		DB: s.open(t), Database: &fakeDatabase{}, AfterCommitFunc: func() {
			_, committed, _ = s.counts()
		},
	})
	require.NoError(t, err)
	msg := orderWith(ctx, "m1", "o1")
	_, err = inbox(func(msg *message.Message) ([]*message.Message, error) {
		_, ok := schema.TxFromContext(msg.Context())
		require.True(t, ok)
		msg.SetContext(context.Background())
		return nil, nil
	})(msg)
	require.NoError(t, err)
	require.Equal(t, ctx, msg.Context())
	require.Equal(t, 1, committed, "AfterCommitFunc comes after the commit")
}

func TestInbox_H66_CommitAnsweredByRollback(t *testing.T) {
	t.Parallel()
	s := &server{commitFunc: func(context.Context) error { return errors.New("commit unexpectedly resulted in rollback") }}
	called := false
	inbox, err := middleware.Inbox(receiver(&logBook{}), middleware.InboxConfig{
		DB: s.open(t), Database: &fakeDatabase{}, AfterCommitFunc: func() { called = true },
	})
	require.NoError(t, err)
	_, err = inbox((&handler{}).run)(order("m1", "o1"))
	requireAttempt(t, err, "commit", true, schema.ErrorOther)
	require.False(t, called)
}

func requireAttempt(t *testing.T, err error, step string, ran bool, class schema.ErrorClass) {
	t.Helper()
	var a *middleware.AttemptError
	require.ErrorAs(t, err, &a)
	require.Equal(t, step, a.Step)
	require.Equal(t, ran, a.Ran)
	require.Equal(t, class, a.Class, "%v", err)
}

func TestInbox_HandlerThatEndsTheTransactionIsNotAcked(t *testing.T) {
	t.Parallel()
	toy := newToy(t)
	h := func(msg *message.Message) ([]*message.Message, error) {
		tx, _ := schema.TxFromContext(msg.Context())
		return nil, tx.Rollback()
	}
	_, err := newInbox(t, toy.db, toy)(h)(order("m1", "o1"))
	require.ErrorIs(t, err, middleware.ErrTransactionEnded)
	requireAttempt(t, err, "commit", true, schema.ErrorOther)
}

func TestInbox_RefusesMessagesToPublish(t *testing.T) {
	t.Parallel()
	s := &server{}
	h := func(*message.Message) ([]*message.Message, error) { return []*message.Message{order("m2", "")}, nil }
	produced, err := newInbox(t, s.open(t), &fakeDatabase{})(h)(order("m1", "o1"))
	require.Empty(t, produced)
	require.ErrorIs(t, err, middleware.ErrProduced)
	require.True(t, schema.IsPermanent(err))
	_, commits, _ := s.counts()
	require.Zero(t, commits)
}

// pqCanceled is what lib/pq returns when the context of a statement ends.
type pqCanceled struct{}

func (pqCanceled) Error() string    { return "pq: canceling statement due to user request" }
func (pqCanceled) SQLState() string { return "57014" }

func TestInbox_WhatAHandlersErrorMeans(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	deadline := fmt.Errorf("slow query: %w", context.DeadlineExceeded)
	for name, c := range map[string]struct {
		err  error
		dead bool // the connection does not answer to ROLLBACK
		want schema.ErrorClass
	}{
		"business":                           {errBusiness, false, schema.ErrorOther},
		"conflict":                           {errConflict, false, schema.ErrorConflict},
		"an HTTP client's network error":     {refused, false, schema.ErrorOther},
		"another database is away":           {errUnavailable, false, schema.ErrorOther},
		"connection lost":                    {driver.ErrBadConn, true, schema.ErrorUnavailable},
		"connection lost, error says little": {errBusiness, true, schema.ErrorUnavailable},
		"own deadline broke the connection":  {deadline, true, schema.ErrorOther},
		"own deadline, as lib/pq says it":    {pqCanceled{}, true, schema.ErrorOther},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &server{rollbackFunc: func() error {
				if c.dead {
					return driver.ErrBadConn
				}
				return nil
			}}
			_, err := newInbox(t, s.open(t), &fakeDatabase{})(failing(c.err).run)(order("m1", "o1"))
			requireAttempt(t, err, "handler", true, c.want)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.err.Error(), err.Error(), "the handler's words, nothing around them")
		})
	}
}

func TestInbox_WhatADatabasesErrorMeans(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		begin, receive, commit error
		dead                   bool
		step                   string
		ran                    bool
		want                   schema.ErrorClass
	}{
		"begin, away":          {begin: errUnavailable, step: "begin", want: schema.ErrorUnavailable},
		"begin, busy":          {begin: errConflict, step: "begin", want: schema.ErrorConflict},
		"receive, away":        {receive: errUnavailable, step: "receive", want: schema.ErrorUnavailable},
		"receive, lost":        {receive: errBusiness, dead: true, step: "receive", want: schema.ErrorUnavailable},
		"receive, conflict":    {receive: errConflict, step: "receive", want: schema.ErrorConflict},
		"commit, conflict":     {commit: errConflict, step: "commit", ran: true, want: schema.ErrorConflict},
		"commit, away":         {commit: errUnavailable, step: "commit", ran: true, want: schema.ErrorUnavailable},
		"commit, bad":          {commit: driver.ErrBadConn, step: "commit", ran: true, want: schema.ErrorUnavailable},
		"commit, closed":       {commit: sql.ErrConnDone, step: "commit", ran: true, want: schema.ErrorUnavailable},
		"commit, a constraint": {commit: errBusiness, step: "commit", ran: true, want: schema.ErrorOther},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &server{
				beginFunc:  func(context.Context) error { return c.begin },
				commitFunc: func(context.Context) error { return c.commit },
				rollbackFunc: func() error {
					if c.dead {
						return errors.New("conn closed")
					}
					return nil
				},
			}
			known := &fakeDatabase{receiveFunc: func(context.Context, schema.Delivery) (schema.Verdict, error) {
				return schema.VerdictFresh, c.receive
			}}
			_, err := newInbox(t, s.open(t), known)((&handler{}).run)(order("m1", "o1"))
			requireAttempt(t, err, c.step, c.ran, c.want)
		})
	}
}

func TestInbox_CommitOutlivesTheMessagesContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		s := &server{commitFunc: func(txCtx context.Context) error {
			cancel(schema.ErrDraining)
			synctest.Wait() // whatever the end of ctx sets going has run
			return txCtx.Err()
		}}
		_, err := newInbox(t, s.open(t), &fakeDatabase{})((&handler{}).run)(orderWith(ctx, "m1", "o1"))
		require.NoError(t, err)
		_, commits, rollbacks := s.counts()
		require.Equal(t, [2]int{1, 0}, [2]int{commits, rollbacks})
	})
}

func TestInbox_CommitIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{commitFunc: func(txCtx context.Context) error {
			<-txCtx.Done()
			return txCtx.Err()
		}}
		began := time.Now()
		_, err := newInbox(t, s.open(t), &fakeDatabase{})((&handler{}).run)(orderWith(t.Context(), "m1", "o1"))
		require.Equal(t, middleware.DefaultCommitTimeout, time.Since(began))
		requireAttempt(t, err, "commit", true, schema.ErrorUnavailable)
	})
}

func TestInbox_H41_ContextThatEndsIsAnInterruption(t *testing.T) {
	t.Parallel()
	for name, cause := range map[string]error{"revoked": schema.ErrRevoked, "draining": schema.ErrDraining, "canceled": nil} {
		for _, result := range []error{nil, pqCanceled{}, schema.Permanent(errBusiness)} {
			t.Run(fmt.Sprintf("%s, handler says %v", name, result), func(t *testing.T) {
				t.Parallel()
				requireInterruption(t, cause, result)
			})
		}
	}
}

// requireInterruption ends the context while a handler runs that does not look
// at it, and then returns result.
func requireInterruption(t *testing.T, cause, result error) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	s := &server{}
	db := s.open(t)
	h := func(*message.Message) ([]*message.Message, error) {
		cancel(cause)
		select {
		case <-s.rollbackSeen: // its locks are free while it still runs
		case <-time.After(5 * time.Second):
			t.Error("no rollback")
		}
		return nil, result
	}
	_, err := newInbox(t, db, &fakeDatabase{})(h)(orderWith(ctx, "m1", "o1"))

	var stopped *middleware.InterruptedError
	require.ErrorAs(t, err, &stopped)
	require.ErrorIs(t, err, context.Cause(ctx))
	require.ErrorIs(t, err, context.Canceled, "routers do not log those")
	if result != nil {
		require.ErrorIs(t, err, result)
	}
	_, commits, _ := s.counts()
	require.Zero(t, commits)
}

func TestInbox_H41_ContextThatEndsRightBeforeTheCommitIsNoAck(t *testing.T) {
	t.Parallel()
	s := &server{}
	inbox := newInbox(t, s.open(t), &fakeDatabase{})
	for range 500 { // database/sql may not have heard of it when the commit begins
		ctx, cancel := context.WithCancelCause(t.Context())
		_, err := inbox(func(*message.Message) ([]*message.Message, error) {
			cancel(schema.ErrRevoked)
			return nil, nil
		})(orderWith(ctx, "m1", "o1"))
		require.ErrorIs(t, err, schema.ErrRevoked)
	}
	_, commits, _ := s.counts()
	require.Zero(t, commits)
}

func TestInbox_H41_ConnectionThatBreaksWithTheContextIsAnInterruption(t *testing.T) {
	t.Parallel()
	s := &server{rollbackFunc: func() error { return driver.ErrBadConn }}
	inbox := newInbox(t, s.open(t), &fakeDatabase{})
	for range 500 { // it is the one who rolls back first that sees the broken connection
		ctx, cancel := context.WithCancelCause(t.Context())
		_, err := inbox(func(*message.Message) ([]*message.Message, error) {
			cancel(schema.ErrRevoked)
			return nil, errBusiness
		})(orderWith(ctx, "m1", "o1"))
		requireInterrupted(t, err, schema.ErrRevoked)
	}
}

func TestInbox_BeginEndsWithTheMessagesContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	s := &server{beginFunc: func(txCtx context.Context) error {
		cancel(schema.ErrRevoked)
		select {
		case <-txCtx.Done():
			return txCtx.Err()
		case <-time.After(5 * time.Second):
			return errors.New("BEGIN goes on")
		}
	}}
	_, err := newInbox(t, s.open(t), &fakeDatabase{})((&handler{}).run)(orderWith(ctx, "m1", "o1"))
	require.ErrorIs(t, err, schema.ErrRevoked)
}

func TestInbox_ConfigFaultsComeAllAtOnce(t *testing.T) {
	t.Parallel()
	_, err := middleware.Inbox(middleware.Receiver{}, middleware.InboxConfig{
		CommitTimeout: -time.Second, TxOptions: &sql.TxOptions{ReadOnly: true},
	})
	require.ErrorIs(t, err, middleware.ErrInvalidConfig)
	for _, fault := range []string{"Consumer: name is empty", "Handler: name is empty", "DB: nil", "Database: nil", "CommitTimeout: -1s", "TxOptions: ReadOnly"} {
		require.ErrorContains(t, err, fault)
	}
}
