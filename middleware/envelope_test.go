package middleware_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/middleware"
	"github.com/postbus-io/postbus/schema"
)

func receiver(log *logBook, hooks ...middleware.Hook) middleware.Receiver {
	return middleware.Receiver{Consumer: "payments", Handler: "charge", Topic: "orders", Logger: log.logger(), Hooks: hooks}
}

func newEnvelope(t *testing.T, db *fakeDatabase, hooks ...middleware.Hook) message.HandlerMiddleware {
	t.Helper()
	envelope, err := middleware.Envelope(receiver(&logBook{}, hooks...), middleware.EnvelopeConfig{DeadLetters: db})
	require.NoError(t, err)
	return envelope
}

func foreign(payload string) *message.Message {
	msg := message.NewMessage("", message.Payload(payload))
	msg.Metadata.Set("trace", "abc")
	return msg
}

func TestEnvelope_H53_ForeignMessagesWithoutIDsAreTwoDeadLetters(t *testing.T) {
	t.Parallel()
	db, seen, h := &fakeDatabase{}, &recorder{}, &handler{}
	run := newEnvelope(t, db, seen)(h.run)
	for _, payload := range []string{"one", "two"} {
		_, err := run(foreign(payload))
		require.NoError(t, err, "acked: the dead letter has it")
	}

	require.Zero(t, h.calls)
	require.Len(t, db.letters, 2)
	require.Equal(t, db.letters, seen.buried)
	first, second := db.letters[0], db.letters[1]
	require.NotEmpty(t, first.MessageID)
	require.NotEqual(t, first.MessageID, second.MessageID, "or the second would count as the first")
	require.Contains(t, first.LastError, "foreign message: no header postbus_type")
	require.Equal(t, first.FirstError, first.LastError)
	first.MessageID, first.FirstError, first.LastError = "", "", ""
	require.Equal(t, schema.DeadLetter{
		Consumer: "payments", Topic: "orders", Payload: []byte("one"), Headers: map[string]string{"trace": "abc"},
	}, first)
}

func TestEnvelope_H53_MissingIDIsDerivedTheSameEachTime(t *testing.T) {
	t.Parallel()
	var ids []string
	h := &handler{do: func(_ int, msg *message.Message) error { ids = append(ids, msg.UUID); return nil }}
	run := newEnvelope(t, &fakeDatabase{})(h.run)
	v2 := order("", "o1")
	v2.Metadata.Set(schema.HeaderVersion, "2")
	for _, msg := range []*message.Message{order("own", "o1"), order("", "o2"), v2, order("", "o1")} {
		_, err := run(msg)
		require.NoError(t, err)
	}
	require.Equal(t, "own", ids[0], "an id that is there is kept")
	require.Regexp(t, `^derived-[0-9a-f]{64}$`, ids[3])
	require.NotEqual(t, ids[1], ids[3], "another key and payload")
	require.NotEqual(t, ids[2], ids[3], "another value of a header")

	for range 50 { // whatever the order of a map
		_, err := run(order("", "o1"))
		require.NoError(t, err)
		require.Equal(t, ids[3], ids[len(ids)-1], "a redelivery has the same id")
	}
}

func TestEnvelope_H53_DerivedIDTellsTheBordersOfParts(t *testing.T) {
	t.Parallel()
	var ids []string
	h := &handler{do: func(_ int, msg *message.Message) error { ids = append(ids, msg.UUID); return nil }}
	run := newEnvelope(t, &fakeDatabase{})(h.run)
	for _, headers := range []message.Metadata{{"a": "bc"}, {"ab": "c"}} {
		msg := message.NewMessage("", nil)
		msg.Metadata = headers
		msg.Metadata.Set(schema.HeaderType, "orders.placed")
		_, err := run(msg)
		require.NoError(t, err)
	}
	require.NotEqual(t, ids[0], ids[1])
}

func TestEnvelope_WorksForNoHandler(t *testing.T) {
	t.Parallel()
	var log logBook
	envelope, err := middleware.Envelope(receiver(&log), middleware.EnvelopeConfig{DeadLetters: &fakeDatabase{}})
	require.NoError(t, err)
	_, err = envelope((&handler{}).run)(foreign("x"))
	require.NoError(t, err)
	require.Contains(t, log.text(), "consumer=payments topic=orders")
	require.NotContains(t, log.text(), "handler=")
}

func TestEnvelope_WhatNoDatabaseStoresIsADeadLetter(t *testing.T) {
	t.Parallel()
	for name, msg := range map[string]*message.Message{
		"id with NUL":        order("a\x00b", "o1"),
		"id not UTF-8":       order("a\xff", "o1"),
		"id too long":        order(strings.Repeat("i", schema.MaxMessageIDBytes+1), "o1"),
		"key with NUL":       order("m1", "o\x001"),
		"key not UTF-8":      order("m1", "o\xff"),
		"key too long":       order("m1", strings.Repeat("k", schema.MaxKeyBytes+1)),
		"without any header": {UUID: "m1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, h := &fakeDatabase{}, &handler{}
			_, err := newEnvelope(t, db)(h.run)(msg)
			require.NoError(t, err)
			require.Zero(t, h.calls)
			require.Len(t, db.letters, 1)
			for _, text := range []string{db.letters[0].MessageID, db.letters[0].Key, db.letters[0].LastError} {
				require.True(t, strings.ToValidUTF8(text, "") == text && !strings.Contains(text, "\x00"), "%q", text)
			}
			require.LessOrEqual(t, len(db.letters[0].Key), schema.MaxKeyBytes)
			require.LessOrEqual(t, len(db.letters[0].MessageID), schema.MaxMessageIDBytes)
			require.Equal(t, msg.Metadata.Get(schema.HeaderKey), db.letters[0].Headers[schema.HeaderKey], "whole")
		})
	}
}

func TestEnvelope_HoldsTheMessageWhileTheLetterCannotBeStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := &fakeDatabase{}
		db.buryFunc = func(context.Context, schema.DeadLetter) (bool, error) {
			if db.tries < 6 {
				return false, errUnavailable
			}
			return true, nil
		}
		began := time.Now()
		_, err := newEnvelope(t, db)((&handler{}).run)(foreign("x"))
		require.NoError(t, err)
		require.Len(t, db.letters, 1)
		require.Greater(t, time.Since(began), 1500*time.Millisecond)
	})
}

func TestEnvelope_TopicIsTheRoutersByDefault(t *testing.T) {
	t.Parallel()
	db := &fakeDatabase{}
	envelope, err := middleware.Envelope(middleware.Receiver{Consumer: "payments", Logger: (&logBook{}).logger()}, middleware.EnvelopeConfig{DeadLetters: db})
	require.NoError(t, err)
	inRouter(t, "orders", envelope(func(*message.Message) ([]*message.Message, error) { return nil, nil }), foreign("x"))
	require.Equal(t, "orders", db.letters[0].Topic)
}

func TestEnvelope_ConfigFaultsComeAllAtOnce(t *testing.T) {
	t.Parallel()
	_, err := middleware.Envelope(middleware.Receiver{Consumer: "Pay", Hooks: []middleware.Hook{42}},
		middleware.EnvelopeConfig{BuryTimeout: -time.Second})
	require.ErrorIs(t, err, middleware.ErrInvalidConfig)
	for _, fault := range []string{`Consumer: name "Pay"`, "DeadLetters: nil", "BuryTimeout: -1s", "number 0, a int, implements no hook"} {
		require.ErrorContains(t, err, fault)
	}
	require.NotContains(t, err.Error(), "Handler", "it works per message")
}
