//go:build slow

package kafka

import (
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestKafka_H16_H28_ProducersAreSafe: what is confirmed is on all in-sync
// replicas, once and in order, and no setting of ours makes it less.
func TestKafka_H16_H28_ProducersAreSafe(t *testing.T) {
	t.Parallel()
	config := Config{Brokers: []string{"localhost:9092"}}.withDefaults()
	for name, conf := range map[string]*sarama.Config{"producer": config.producer(), "solo": config.soloProducer()} {
		require.NoError(t, conf.Validate(), name)
		assert.Equal(t, sarama.WaitForAll, conf.Producer.RequiredAcks, name)
		assert.True(t, conf.Producer.Idempotent, name)
		assert.Equal(t, 1, conf.Net.MaxOpenRequests, name)
		assert.GreaterOrEqual(t, conf.Producer.Retry.Max, 1, name)
		assert.False(t, conf.Metadata.AllowAutoTopicCreation, name)
		assert.True(t, conf.Version.IsAtLeast(sarama.V4_0_0_0), name)
		assert.Greater(t, conf.Net.ReadTimeout, conf.Producer.Timeout, name)
	}
}

// TestKafka_H17_PartitionerIsJavas: these are the partitions that Java's client
// chooses for these keys among 1,000.
func TestKafka_H17_PartitionerIsJavas(t *testing.T) {
	t.Parallel()
	partitioner := Config{}.withDefaults().producer().Producer.Partitioner("topic")
	for key, hash := range map[string]int32{ // org.apache.kafka.common.utils.UtilsTest
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		got, err := partitioner.Partition(&sarama.ProducerMessage{Key: sarama.StringEncoder(key)}, 1000)
		require.NoError(t, err)
		assert.Equal(t, (hash&0x7fffffff)%1000, got, key)
	}
}

// TestKafka_H44_H23_ConsumersAreSafe: a new consumer starts at the oldest
// message, an offset outside of the log is not reset, and an answer to a join is
// waited for longer than the slowest member may take.
func TestKafka_H44_H23_ConsumersAreSafe(t *testing.T) {
	t.Parallel()
	config := Config{Brokers: []string{"localhost:9092"}}.withDefaults()
	conf := config.consumer(newStrategy(nil))
	require.NoError(t, conf.Validate())
	assert.Equal(t, sarama.OffsetOldest, conf.Consumer.Offsets.Initial)
	assert.False(t, conf.Consumer.Group.ResetInvalidOffsets)
	assert.Equal(t, sarama.ReadCommitted, conf.Consumer.IsolationLevel)
	assert.False(t, conf.Metadata.AllowAutoTopicCreation)
	assert.Greater(t, conf.Net.ReadTimeout, conf.Consumer.Group.Rebalance.Timeout)
	assert.Less(t, config.grace(), conf.Consumer.Group.Rebalance.Timeout)
	assert.LessOrEqual(t, conf.Consumer.Offsets.AutoCommit.Interval, time.Second)
}
