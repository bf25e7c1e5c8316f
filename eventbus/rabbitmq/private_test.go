//go:build slow

package rabbitmq_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus/rabbitmq"
	"github.com/postbus-io/postbus/schema"
)

// A server is a RabbitMQ of one test's own, which may be stopped.
type server struct {
	t           *testing.T
	environment []string
	url         rabbitmq.URL
}

// newServer returns one that is down.
func newServer(t *testing.T) *server {
	t.Helper()
	needBroker(t) // what this test needs can be had where that is
	if testing.Short() && !strict {
		t.Skip("NOT TESTED: a RabbitMQ of its own takes half a minute")
	}
	folder, err := os.MkdirTemp("/tmp", "postbus-rabbitmq-")
	require.NoError(t, err)
	port := freePort(t)
	s := &server{
		t: t, url: rabbitmq.URL(fmt.Sprintf("amqp://postbus:postbus@127.0.0.1:%d/", port)),
		environment: append(os.Environ(), "POSTBUS_SERVICES_DIR="+folder, fmt.Sprintf("POSTBUS_RABBITMQ_PORT=%d", port), "POSTBUS_RABBITMQ_MANAGEMENT_PORT="),
	}
	t.Cleanup(func() {
		s.services("down", "--immediate", "--purge", "rabbitmq")
		require.NoError(t, os.RemoveAll(folder))
	})
	return s
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

func (s *server) services(arguments ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join("..", "..", "dev", "services"), arguments...)
	cmd.Env, cmd.WaitDelay = s.environment, time.Second
	output, err := cmd.CombinedOutput()
	require.NoError(s.t, err, "%s: %s", arguments, output)
}

func (s *server) control(arguments ...string) {
	s.t.Helper()
	s.services(append([]string{"exec", "rabbitmq", "rabbitmqctl"}, arguments...)...)
}

// TestRabbitMQ_H27_S19_BrokerGoesAndComes is one story, since a RabbitMQ takes
// long to start: it is down at first, it stops taking messages, it dies with
// confirmations under way, and it comes back.
func TestRabbitMQ_H27_S19_BrokerGoesAndComes(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	log := &logBuffer{}
	broker := newBroker(t, rabbitmq.Config{URL: server.url, Logger: log.logger(), Queues: 2, PublishTimeout: time.Second, Heartbeat: 5 * time.Second})
	topic := fresh("orders")
	pub := newPublisher(t, broker)
	msgs := subscribe(t, newSubscriber(t, broker, "payments", topic, 64), topic) // does not fail, does not wait
	err := publishAll(t, pub, topic, 300*time.Millisecond, newMessage("", ""))[0]
	requireClass(t, schema.PublishBroker, err, rabbitmq.ErrNotConnected)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "it is not the topic that is too slow")
	require.ErrorContains(t, err, "connection refused")
	require.Contains(t, log.String(), "no connection to RabbitMQ")
	require.NotContains(t, log.String(), "postbus:postbus")

	server.services("up", "rabbitmq")
	left := map[string]bool{}
	send := func(t *testing.T, id string) error {
		err := publishAll(t, pub, topic, 2*time.Second, newMessage(id, ""))[0]
		if err == nil {
			left[id] = true
		}
		return err
	}
	require.Eventually(t, func() bool { return send(t, "first") == nil }, deadline, time.Millisecond, "up at last")
	takeAll(t, msgs, left)

	t.Run("blocked", func(t *testing.T) {
		server.control("set_vm_memory_high_watermark", "0.00001")
		requireBlocked(t, send)
		server.control("set_vm_memory_high_watermark", "0.4")
		require.Eventually(t, func() bool { return send(t, "freed") == nil }, deadline, time.Millisecond, "free again")
		takeAll(t, msgs, left)
	})

	t.Run("larger than the broker takes", func(t *testing.T) {
		server.control("eval", "application:set_env(rabbit, max_message_size, 1000).")
		other := newPublisher(t, broker) // the broker looks when a channel opens
		large := message.NewMessage("large", bytes.Repeat([]byte("x"), 2000))
		errs := publishAll(t, other, topic, deadline, large, newMessage("small", ""))
		requireClass(t, schema.PublishRecord, errs[0], rabbitmq.ErrMessage)
		if errs[1] != nil {
			requireClass(t, schema.PublishBroker, errs[1], rabbitmq.ErrLost)
		}
		require.NoError(t, publishOne(t, other, topic, newMessage("small", "")))
		left["small"] = true
		takeAll(t, msgs, left)
	})

	t.Run("restart", func(t *testing.T) {
		var confirmed []*message.Message
		for range 10 {
			batch := make([]*message.Message, 100)
			for i := range batch {
				batch[i] = newMessage(fresh("kept"), "")
			}
			for _, err := range publishAll(t, pub, topic, deadline, batch...) {
				require.NoError(t, err)
			}
			confirmed = append(confirmed, batch...)
		}
		for _, msg := range confirmed {
			left[msg.UUID] = true
		}
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			server.services("down", "--immediate", "rabbitmq")
		}()
		for running := true; running; { // until the broker is gone with confirmations under way
			select {
			case <-stopped:
				running = false
			default:
				_ = send(t, fresh("under way"))
			}
		}
		server.services("up", "rabbitmq")
		t.Logf("%d confirmed", len(left))
		takeAll(t, msgs, left)
		require.Eventually(t, func() bool { return send(t, "last") == nil }, deadline, time.Millisecond, "publishing again")
		takeAll(t, msgs, left)
	})
}

// requireBlocked sends until the broker takes nothing: it stops after some
// message, not before.
func requireBlocked(t *testing.T, send func(*testing.T, string) error) {
	t.Helper()
	var err error
	require.Eventually(t, func() bool {
		started := time.Now()
		err = send(t, fresh("blocked"))
		require.Less(t, time.Since(started), 4*time.Second)
		return err != nil
	}, deadline, time.Millisecond, "no more messages")
	requireClass(t, schema.PublishBroker, err, rabbitmq.ErrBlocked)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "it is not the topic that is too slow")
	requireClass(t, schema.PublishBroker, send(t, fresh("blocked")), rabbitmq.ErrBlocked)
}

// takeAll acks until all that is left has come; what was not confirmed may come,
// too.
func takeAll(t *testing.T, msgs <-chan *message.Message, left map[string]bool) {
	t.Helper()
	timeout := time.After(time.Minute)
	for len(left) > 0 {
		select {
		case msg, open := <-msgs:
			require.True(t, open)
			delete(left, msg.UUID)
			msg.Ack()
		case <-timeout:
			require.FailNow(t, "lost", "%d messages: %.300v", len(left), left)
		}
	}
}
