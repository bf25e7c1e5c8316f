package rabbitmq

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// A link is one named connection to the broker, made when it is first asked
// for and made anew when it is lost, until the link is closed.
type link struct {
	config *Config
	log    *slog.Logger
	name   string
	life   context.Context //nolint:containedctx // ends with close
	end    context.CancelFunc

	mu      sync.Mutex
	started bool
	session *session      // nil while there is none
	failure error         // what the last attempt or the last loss said
	changed chan struct{} // closed at the next change of session or failure
	ended   chan struct{} // closed when nothing runs any more
}

func newLink(config *Config, purpose string) *link {
	name := config.ConnectionName + ": " + purpose
	l := &link{
		config: config, name: name, log: config.Logger.With("connection", name),
		changed: make(chan struct{}), ended: make(chan struct{}),
	}
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// get waits for a session. The error is ctx's, ErrClosed or, for the
// impatient, what the first attempt to connect failed with.
func (l *link) get(ctx context.Context, impatient bool) (*session, error) {
	for {
		session, failure, changed := l.look()
		switch {
		case l.life.Err() != nil:
			return nil, ErrClosed
		case session != nil:
			return session, nil
		case impatient && failure != nil:
			return nil, failure
		}
		select {
		case <-changed:
		case <-l.life.Done():
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// look starts the link if that has not been done.
func (l *link) look() (*session, error, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.started && l.life.Err() == nil {
		l.started = true
		go l.run()
	}
	return l.session, l.failure, l.changed
}

// lastFailure says why there is no session.
func (l *link) lastFailure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure == nil {
		return ErrNotConnected
	}
	return fmt.Errorf("%w: %w", ErrNotConnected, l.failure)
}

func (l *link) set(session *session, failure error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.session, l.failure = session, failure
	close(l.changed)
	l.changed = make(chan struct{})
}

// run connects, and waits for the loss of the connection, until the link is
// closed.
func (l *link) run() {
	defer close(l.ended)
	pauses, notice := l.config.pauses(), newNotice(l.config.LogInterval)
	for l.life.Err() == nil {
		session, err := dial(l.life, l.config, l.name, l.log)
		if err == nil {
			notice.over(func() { l.log.Info("connected to RabbitMQ again") })
			err = l.keep(session)
		}
		l.set(nil, err)
		if l.life.Err() != nil {
			return
		}
		notice.tell(func() { l.log.Warn("no connection to RabbitMQ", "url", l.config.URL, "error", err) })
		if session != nil && session.good(l.config) {
			pauses.Reset()
			continue // it was a good one: try again at once
		}
		sleep(l.life, pauses.NextBackOff())
	}
}

// keep returns why the session ended. It leaves nothing of it.
func (l *link) keep(session *session) error {
	l.set(session, nil)
	select {
	case <-session.lost:
	case <-l.life.Done():
	}
	session.close()
	return session.reason()
}

// close ends the connection and returns when nothing of it is left. Idempotent.
func (l *link) close() {
	l.mu.Lock()
	l.end()
	started := l.started
	l.mu.Unlock()
	if started {
		<-l.ended
	}
}

// sleep returns early when ctx ends.
func sleep(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// A notice lets a fault that lasts be told once an interval, and its end if it
// was told.
type notice struct {
	interval time.Duration
	told     time.Time
}

func newNotice(interval time.Duration) *notice { return &notice{interval: interval} }

func (n *notice) tell(tell func()) {
	if n.told.IsZero() || time.Since(n.told) >= n.interval {
		n.told = time.Now()
		tell()
	}
}

func (n *notice) over(tell func()) {
	if !n.told.IsZero() {
		n.told = time.Time{}
		tell()
	}
}
