package middleware_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/middleware"
	"github.com/postbus-io/postbus/schema"
)

func panics(value any) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) { panic(value) }
}

func TestRecover_PanicIsAnErrorAndTheStackIsLogged(t *testing.T) {
	t.Parallel()
	var log logBook
	produced, err := middleware.Recover(log.logger())(panics("card number 42"))(order("m1", "o1"))

	require.Nil(t, produced)
	var p *middleware.PanicError
	require.ErrorAs(t, err, &p)
	require.Equal(t, "card number 42", p.Value)
	require.Equal(t, "panic: card number 42", err.Error(), "the value, without the stack")
	require.Contains(t, string(p.Stack), "recover_test.go")
	require.Equal(t, 1, log.lines())
	require.Contains(t, log.text(), "recover_test.go")
	require.Contains(t, log.text(), "message_id=m1")
	require.NotContains(t, log.text(), "order_id", "no payload in a log")
}

func TestRecover_TextIsBounded(t *testing.T) {
	t.Parallel()
	var log logBook
	_, err := middleware.Recover(log.logger())(panics(strings.Repeat("é\x00", 1<<20)))(order("m1", "o1"))
	require.Len(t, err.Error(), 1024)
	require.NotContains(t, err.Error(), "\x00")
	require.Less(t, len(log.text()), 64<<10)
}

func TestRecover_PanicWithAnErrorKeepsItsMeaning(t *testing.T) {
	t.Parallel()
	var log logBook
	_, err := middleware.Recover(log.logger())(panics(schema.Permanent(errBusiness)))(order("m1", "o1"))
	require.ErrorIs(t, err, errBusiness)
	require.True(t, schema.IsPermanent(err))
}

func TestRecover_LeavesErrorsAndResultsAlone(t *testing.T) {
	t.Parallel()
	out := []*message.Message{order("m2", "o1")}
	both := func(*message.Message) ([]*message.Message, error) { return out, errBusiness }
	produced, err := middleware.Recover(nil)(both)(order("m1", "o1"))
	require.Equal(t, out, produced)
	require.Equal(t, errBusiness, err)
}

// A nilError is the classic: a nil pointer in an error interface.
type nilError struct{ err error }

func (e *nilError) Error() string { return e.err.Error() }
func (e *nilError) Unwrap() error { return e.err }

func TestRecover_NilPointerAsErrorIsCaughtHere(t *testing.T) {
	t.Parallel()
	var log logBook
	h := func(*message.Message) ([]*message.Message, error) { return nil, (*nilError)(nil) }
	_, err := middleware.Recover(log.logger())(h)(order("m1", "o1"))
	var p *middleware.PanicError
	require.ErrorAs(t, err, &p)
	require.NotPanics(t, func() { _ = errors.Is(err, errBusiness) })
}
