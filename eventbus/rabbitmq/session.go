package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A session is one connection of a link.
type session struct {
	conn   *amqp.Connection
	socket net.Conn
	began  time.Time
	lost   chan struct{} // closed when the connection is gone
	log    *slog.Logger

	mu      sync.Mutex
	failure error         // why it is gone
	blocked string        // why the broker takes no messages, empty when it does
	freed   chan struct{} // closed when it does again
}

// dial opens a connection, handshakes included, in no more than DialTimeout.
func dial(ctx context.Context, config *Config, name string, log *slog.Logger) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, config.DialTimeout)
	defer cancel()
	s := &session{began: time.Now(), lost: make(chan struct{}), freed: make(chan struct{}), log: log}
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(name)
	conn, err := amqp.DialConfig(config.addressFunc(), amqp.Config{
		Heartbeat: config.Heartbeat, Properties: properties,
		Dial: func(network, address string) (net.Conn, error) {
			var err error
			s.socket, err = dialSocket(ctx, config, network, address)
			return s.socket, err
		},
	})
	if err != nil {
		s.abort()
		return nil, err
	}
	s.conn = conn
	go s.watch(conn.NotifyClose(make(chan *amqp.Error, 1)), conn.NotifyBlocked(make(chan amqp.Blocking, 1)))
	return s, nil
}

// dialSocket returns a socket that is closed, while the handshakes last, when
// ctx ends.
func dialSocket(ctx context.Context, config *Config, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline() // until the client lifts it, after the handshakes
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &impatientSocket{Conn: conn, limit: config.PublishTimeout}, nil
}

// An impatientSocket fails a write that the peer takes nothing of. The client
// library then gives the connection up, instead of blocking everybody who
// wants to write for as long as TCP tries.
type impatientSocket struct {
	net.Conn
	limit time.Duration
}

func (s *impatientSocket) Write(p []byte) (int, error) {
	if err := s.SetWriteDeadline(time.Now().Add(s.limit)); err != nil {
		return 0, err
	}
	return s.Conn.Write(p)
}

// watch takes what the connection says about itself until it is gone.
func (s *session) watch(closed <-chan *amqp.Error, blockings <-chan amqp.Blocking) {
	defer close(s.lost)
	for {
		select {
		case b, open := <-blockings:
			if !open {
				blockings = nil
				continue
			}
			s.setBlocked(b)
		case failure, open := <-closed:
			if open {
				s.setFailure(failure)
			}
			return
		}
	}
}

func (s *session) setBlocked(b amqp.Blocking) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case b.Active && s.blocked == "":
		s.blocked = "reason: " + b.Reason
		s.log.Warn("RabbitMQ takes no messages for now", "reason", b.Reason)
	case !b.Active && s.blocked != "":
		s.blocked = ""
		s.log.Info("RabbitMQ takes messages again")
		close(s.freed)
		s.freed = make(chan struct{})
	}
}

// blocking returns why the broker takes no messages, and what is closed when
// it does; an empty reason when it does now.
func (s *session) blocking() (string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blocked, s.freed
}

func (s *session) setFailure(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
}

// reason says why the session is gone.
func (s *session) reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == nil {
		return ErrLost
	}
	return fmt.Errorf("%w: %w", ErrLost, s.failure)
}

// good tells whether the session lasted, so that another try may be made at
// once.
func (s *session) good(config *Config) bool { return time.Since(s.began) > config.ReconnectMax }

func (s *session) alive() bool {
	select {
	case <-s.lost:
		return false
	default:
		return true
	}
}

// frameSize returns how large a frame may be, 0 when there is no bound.
func (s *session) frameSize() int { return s.conn.Config.FrameSize }

// major returns the server's major version, 0 when it does not say.
func (s *session) major() int {
	version, _ := s.conn.Properties["version"].(string)
	first, _, _ := strings.Cut(version, ".")
	major, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return major
}

// within calls what asks the broker for something, and drops the connection
// when there is no answer in the time given, or in a short while after ctx has
// ended: the client library waits for ever.
func (s *session) within(ctx context.Context, limit time.Duration, call func() error) error {
	answered, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		if !closesWithin(answered, ctx.Done(), limit) && !closesWithin(answered, nil, patience) {
			s.abort()
		}
	}()
	err := call()
	close(answered)
	<-watched
	return err
}

// closesWithin waits for closing, at most so long and until other.
func closesWithin(closing, other <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-closing:
		return true
	case <-other:
	case <-timer.C:
	}
	return false
}

// goodbye calls what ends something, to which an answer is due soon.
func (s *session) goodbye(call func() error) {
	ended, end := context.WithCancel(context.Background())
	end()
	_ = s.within(ended, patience, call) // an error says that it had ended
}

// close says goodbye, unless the broker does not answer. When it returns the
// connection is gone.
func (s *session) close() {
	s.goodbye(s.conn.Close)
	s.abort()
	<-s.lost
}

// abort closes the socket.
func (s *session) abort() {
	if s.socket != nil {
		_ = s.socket.Close() // nothing is lost with it that was not before
	}
}
