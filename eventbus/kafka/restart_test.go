//go:build slow

package kafka_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// A server is a Kafka of one test's own, which it may stop.
type server struct {
	t       *testing.T
	env     []string
	address string
}

// newServer starts one. It needs what the shared one needs.
func newServer(t *testing.T) *server {
	t.Helper()
	addresses(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &server{t: t, address: free.Addr().String()}
	_, port, err := net.SplitHostPort(s.address)
	require.NoError(t, err)
	require.NoError(t, free.Close())
	s.env = append(os.Environ(), "POSTBUS_SERVICES_DIR="+t.TempDir(), "POSTBUS_KAFKA_PORT="+port)
	s.up()
	t.Cleanup(func() { s.services(context.Background(), "down", "--immediate", "--purge", "kafka") })
	return s
}

func (s *server) up()    { s.services(s.t.Context(), "up", "kafka") }
func (s *server) crash() { s.services(s.t.Context(), "down", "--immediate", "kafka") }

func (s *server) services(ctx context.Context, args ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	tool, err := filepath.Abs("../../dev/services")
	require.NoError(s.t, err)
	cmd := exec.CommandContext(ctx, tool, args...)
	cmd.Env = s.env
	out, err := cmd.CombinedOutput()
	require.NoError(s.t, err, "%s", out)
}

// TestKafka_H16_H25_BrokerCrashesInMidStream: everything that was confirmed
// arrives, and every key in its order, while the broker is killed and comes
// back.
func TestKafka_H16_H25_BrokerCrashesInMidStream(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	brokers := []string{server.address}
	topic := newTopic(t, brokers, 3)
	broker := newBroker(t, testConfig(brokers))
	const keys, each = 8, 150
	seen := newSightings(keys)
	_, msgs := subscribe(t, broker, freshName("consumer"), topic, 16)
	var consuming sync.WaitGroup
	consuming.Go(func() { seen.consume(msgs) })

	pub := newPublisher(t, broker)
	for n := range each {
		var wave []*message.Message
		for k := range keys {
			wave = append(wave, newMessage(fmt.Sprintf("%d-%03d", k, n), fmt.Sprintf("key-%d", k)))
		}
		if n == each/3 {
			require.Eventually(t, func() bool { return seen.complete(1) }, deadline, 10*time.Millisecond, "in mid-stream")
			server.crash()
			back := make(chan struct{})
			go func() {
				defer close(back)
				server.up()
			}()
			defer func() { requireEnd(t, back, "the start") }()
		}
		publishAll(t, pub, topic, wave)
	}
	require.Eventually(t, func() bool { return seen.complete(each) }, deadline, 10*time.Millisecond, "lost messages")
	require.NoError(t, broker.Close())
	consuming.Wait()
	require.Empty(t, seen.faults)
}

// sightings are the numbers that were received, by key.
type sightings struct {
	mu     sync.Mutex
	next   map[string]int
	keys   int
	faults []string
}

func newSightings(keys int) *sightings { return &sightings{next: map[string]int{}, keys: keys} }

func (s *sightings) consume(msgs <-chan *message.Message) {
	for msg := range msgs {
		var key, n int
		if _, err := fmt.Sscanf(msg.UUID, "%d-%d", &key, &n); err == nil {
			s.see(schema.Key(msg), n)
		}
		msg.Ack()
	}
}

func (s *sightings) see(key string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > s.next[key] {
		s.faults = append(s.faults, fmt.Sprintf("%s: %d before %d", key, n, s.next[key]))
	}
	s.next[key] = max(s.next[key], n+1)
}

func (s *sightings) complete(each int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.next {
		if n < each {
			return false
		}
	}
	return len(s.next) == s.keys
}
