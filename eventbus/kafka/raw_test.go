//go:build slow

package kafka_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus/kafka"
)

// rawConfig is the client library's own, with nothing of ours.
func rawConfig() *sarama.Config {
	conf := sarama.NewConfig()
	conf.Version = sarama.V4_0_0_0
	conf.Producer.Return.Successes = true
	conf.Producer.Partitioner = sarama.NewManualPartitioner
	conf.Metadata.AllowAutoTopicCreation = false
	return conf
}

// produce sends records as they are.
func produce(t testing.TB, addresses []string, records ...*sarama.ProducerMessage) {
	t.Helper()
	producer, err := sarama.NewSyncProducer(addresses, rawConfig())
	require.NoError(t, err)
	require.NoError(t, producer.SendMessages(records))
	require.NoError(t, producer.Close())
}

// records returns what lies in the topic, by partition, in the order of the log.
func records(t testing.TB, addresses []string, topic string) (all [][]*sarama.ConsumerMessage) {
	t.Helper()
	client, err := sarama.NewClient(addresses, rawConfig())
	require.NoError(t, err)
	defer client.Close()
	consumer, err := sarama.NewConsumerFromClient(client)
	require.NoError(t, err)
	partitions, err := client.Partitions(topic)
	require.NoError(t, err)
	for _, partition := range partitions {
		end, err := client.GetOffset(topic, partition, sarama.OffsetNewest)
		require.NoError(t, err)
		all = append(all, partitionRecords(t, consumer, topic, partition, end))
	}
	return all
}

func partitionRecords(t testing.TB, consumer sarama.Consumer, topic string, partition int32, end int64) (read []*sarama.ConsumerMessage) {
	t.Helper()
	source, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
	require.NoError(t, err)
	defer source.Close()
	for len(read) == 0 && end > 0 || len(read) > 0 && read[len(read)-1].Offset < end-1 {
		select {
		case record := <-source.Messages():
			read = append(read, record)
		case <-time.After(deadline):
			require.FailNow(t, "the log cannot be read", "%s/%d up to %d", topic, partition, end)
		}
	}
	return read
}

// topicNames returns the names of all topics.
func topicNames(t testing.TB, addresses []string) []string {
	t.Helper()
	admin, err := newAdmin(addresses)
	require.NoError(t, err)
	defer admin.Close()
	topics, err := admin.ListTopics()
	require.NoError(t, err)
	var names []string
	for name := range topics {
		names = append(names, name)
	}
	return names
}

// committed returns what the group has stored for each partition, -1: nothing.
func committed(t testing.TB, addresses []string, group, topic string, partitions int) []int64 {
	t.Helper()
	admin, err := newAdmin(addresses)
	require.NoError(t, err)
	defer admin.Close()
	numbers := make([]int32, partitions)
	for i := range numbers {
		numbers[i] = int32(i)
	}
	stored, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: numbers})
	require.NoError(t, err)
	offsets := make([]int64, partitions)
	for i := range offsets {
		offsets[i] = stored.GetBlock(topic, int32(i)).Offset
	}
	return offsets
}

// A logbook keeps what is logged.
type logbook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logbook) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(line)
}

func (l *logbook) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logbook) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

func (l *logbook) awaitText(t testing.TB, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return l.count(text) > 0 }, deadline, 10*time.Millisecond, text)
}

// tombstone has no value.
func tombstone(topic, key string) *sarama.ProducerMessage {
	return &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(key)}
}

func withTimeout(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	return ctx
}

func configWithLog(addresses []string) (kafka.Config, *logbook) {
	log := &logbook{}
	config := testConfig(addresses)
	config.Logger = log.logger()
	return config, log
}
