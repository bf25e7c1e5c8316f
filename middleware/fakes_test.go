package middleware_test

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/middleware"
	"github.com/postbus-io/postbus/schema"
)

// Errors that the fake database classifies.
var (
	errBusiness    = errors.New("card declined")
	errConflict    = errors.New("could not serialize access")
	errUnavailable = errors.New("server is starting")
)

func classify(err error) schema.ErrorClass {
	switch {
	case errors.Is(err, errConflict):
		return schema.ErrorConflict
	case errors.Is(err, errUnavailable), errors.Is(err, driver.ErrBadConn):
		return schema.ErrorUnavailable
	}
	return schema.ErrorOther
}

// fakeDatabase is a scripted [middleware.Database]; what is nil succeeds.
type fakeDatabase struct {
	receiveFunc func(context.Context, schema.Delivery) (schema.Verdict, error)
	buryFunc    func(context.Context, schema.DeadLetter) (bool, error)

	mu      sync.Mutex
	letters []schema.DeadLetter // that were stored
	tries   int                 // calls of Bury
}

func (f *fakeDatabase) Receive(ctx context.Context, _ *sql.Tx, d schema.Delivery) (schema.Verdict, error) {
	if f.receiveFunc == nil {
		return schema.VerdictFresh, nil
	}
	return f.receiveFunc(ctx, d)
}

func (f *fakeDatabase) Bury(ctx context.Context, letter schema.DeadLetter) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tries++
	if f.buryFunc != nil {
		if buried, err := f.buryFunc(ctx, letter); err != nil || !buried {
			return buried, err
		}
	}
	f.letters = append(f.letters, letter)
	return true, nil
}

func (f *fakeDatabase) Dead(context.Context, schema.DeadFilter) ([]schema.DeadLetter, error) {
	return f.letters, nil
}

func (f *fakeDatabase) Revive(_ context.Context, _ *sql.Tx, id int64) (schema.DeadLetter, error) {
	for _, l := range f.letters {
		if l.ID == id {
			return l, nil
		}
	}
	return schema.DeadLetter{}, schema.ErrNotDead
}

func (f *fakeDatabase) Classify(err error) schema.ErrorClass { return classify(err) }

// server is a fake driver that only begins and ends transactions; what is nil
// succeeds.
type server struct {
	beginFunc    func(context.Context) error
	commitFunc   func(context.Context) error
	rollbackFunc func() error

	mu                          sync.Mutex
	begins, commits, rolledBack int
	rollbackSeen                chan struct{} // closed at the first rollback
	seenOnce                    sync.Once
}

func (s *server) open(t *testing.T) *sql.DB {
	t.Helper()
	s.rollbackSeen = make(chan struct{})
	db := sql.OpenDB(s)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func (s *server) counts() (begins, commits, rollbacks int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begins, s.commits, s.rolledBack
}

func (s *server) Connect(context.Context) (driver.Conn, error) { return &fakeConn{s}, nil }
func (s *server) Driver() driver.Driver                        { return nil }

type fakeConn struct{ s *server }

func (c *fakeConn) Prepare(string) (driver.Stmt, error) { return nil, errors.New("no statements") }
func (c *fakeConn) Close() error                        { return nil }
func (c *fakeConn) Begin() (driver.Tx, error)           { return nil, errors.New("use BeginTx") }
func (c *fakeConn) ResetSession(context.Context) error  { return nil }
func (c *fakeConn) IsValid() bool                       { return true }
func (c *fakeConn) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	c.s.mu.Lock()
	c.s.begins++
	c.s.mu.Unlock()
	if c.s.beginFunc != nil {
		if err := c.s.beginFunc(ctx); err != nil {
			return nil, err
		}
	}
	return &fakeTx{c.s, ctx}, nil
}

type fakeTx struct {
	s   *server
	ctx context.Context
}

func (tx *fakeTx) Commit() error {
	if tx.s.commitFunc != nil {
		if err := tx.s.commitFunc(tx.ctx); err != nil {
			return err
		}
	}
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	tx.s.commits++
	return nil
}

func (tx *fakeTx) Rollback() error {
	tx.s.mu.Lock()
	tx.s.rolledBack++
	tx.s.mu.Unlock()
	tx.s.seenOnce.Do(func() { close(tx.s.rollbackSeen) })
	if tx.s.rollbackFunc != nil {
		return tx.s.rollbackFunc()
	}
	return nil
}

// recorder is every hook.
type recorder struct {
	mu       sync.Mutex
	failures []middleware.Failure
	skips    []schema.Verdict
	buried   []schema.DeadLetter
}

func (r *recorder) OnFailure(f middleware.Failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, f)
}

func (r *recorder) OnSkip(_ schema.Delivery, verdict schema.Verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.skips = append(r.skips, verdict)
}

func (r *recorder) OnBury(letter schema.DeadLetter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buried = append(r.buried, letter)
}

// logBook is a logger whose lines can be read.
type logBook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBook) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *logBook) logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

func (b *logBook) lines() int { return bytes.Count([]byte(b.text()), []byte("\n")) }

// order is a message as Postbus publishes it.
func order(id, key string) *message.Message {
	msg := message.NewMessage(id, message.Payload(`{"order_id":"`+key+`"}`))
	msg.Metadata.Set(schema.HeaderType, "orders.placed")
	msg.Metadata.Set(schema.HeaderVersion, "1")
	if key != "" {
		msg.Metadata.Set(schema.HeaderKey, key)
	}
	return msg
}

func orderWith(ctx context.Context, id, key string) *message.Message {
	msg := order(id, key)
	msg.SetContext(ctx)
	return msg
}

// handler is a scripted handler that counts its calls.
type handler struct {
	mu    sync.Mutex
	calls int
	do    func(call int, msg *message.Message) error
}

func (h *handler) run(msg *message.Message) ([]*message.Message, error) {
	h.mu.Lock()
	h.calls++
	call := h.calls
	h.mu.Unlock()
	if h.do == nil {
		return nil, nil
	}
	return nil, h.do(call, msg)
}

// failing returns a handler that returns the errors one after the other, the
// last one for ever.
func failing(errs ...error) *handler {
	return &handler{do: func(call int, _ *message.Message) error { return errs[min(call, len(errs))-1] }}
}
