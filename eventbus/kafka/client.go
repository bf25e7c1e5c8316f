package kafka

import (
	"time"

	"github.com/IBM/sarama"
)

// What the client library is told beside [Config].
const (
	// retries and retryPause bound how long a message stays with the library
	// after its publisher has given up: about a second and a half, in which a
	// leader usually is elected.
	retries    = 5
	retryPause = 100 * time.Millisecond
	// answerSlack is what an answer may take on top of what was waited for.
	answerSlack = 5 * time.Second
	// metadataRefresh is how often partitions that were added are looked for.
	metadataRefresh = time.Minute
	// fetchWait is how long a broker keeps a fetch that has nothing to return.
	// A partition is let go between two fetches.
	fetchWait = 250 * time.Millisecond
)

// client is what publishers and subscribers share.
func (c Config) client() *sarama.Config {
	conf := sarama.NewConfig()
	conf.ClientID = c.ClientID
	conf.Version, _ = sarama.ParseKafkaVersion(c.Version) // validated
	conf.Net.DialTimeout = c.DialTimeout
	if c.dialer != nil {
		conf.Net.Proxy.Enable, conf.Net.Proxy.Dialer = true, c.dialer
	}
	conf.Metadata.AllowAutoTopicCreation = false
	conf.Metadata.Retry.Max = 1
	conf.Metadata.Retry.Backoff = retryPause
	conf.Metadata.RefreshFrequency = metadataRefresh
	conf.Admin.Timeout = c.PublishTimeout
	return conf
}

// producer is the one way in which messages are sent: confirmed by all in-sync
// replicas, without duplicates and without reordering by retries, the
// partition chosen as Java's clients choose it.
func (c Config) producer() *sarama.Config {
	conf := c.client()
	conf.Net.MaxOpenRequests = 1
	conf.Net.ReadTimeout = c.PublishTimeout + answerSlack
	conf.Net.WriteTimeout = c.PublishTimeout + answerSlack
	conf.Producer.RequiredAcks = sarama.WaitForAll
	conf.Producer.Idempotent = true
	conf.Producer.Partitioner = sarama.NewMurmur2Partitioner
	conf.Producer.MaxMessageBytes = c.MaxMessageBytes
	conf.Producer.Timeout = c.PublishTimeout
	conf.Producer.Retry.Max = retries
	conf.Producer.Retry.Backoff = retryPause
	conf.Producer.Return.Successes = true
	conf.Producer.Return.Errors = true
	conf.Producer.Transaction.Retry.Max = retries // also for the id of an idempotent producer
	return conf
}

// soloProducer sends every message in a request of its own.
func (c Config) soloProducer() *sarama.Config {
	conf := c.producer()
	conf.Producer.Flush.MaxMessages = 1
	return conf
}

// consumer is the one way in which messages are received. An answer to a join
// takes as long as the slowest member.
func (c Config) consumer(strategy sarama.BalanceStrategy) *sarama.Config {
	conf := c.client()
	conf.Net.ReadTimeout = max(c.RebalanceTimeout, c.SessionTimeout) + answerSlack
	conf.Consumer.Return.Errors = true
	conf.Consumer.MaxWaitTime = fetchWait
	conf.Consumer.Retry.Backoff = 5 * retryPause
	conf.Consumer.IsolationLevel = sarama.ReadCommitted // what a transaction took back was never said
	conf.Consumer.Offsets.Initial = sarama.OffsetOldest
	conf.Consumer.Offsets.AutoCommit.Enable = true
	conf.Consumer.Offsets.AutoCommit.Interval = c.CommitInterval
	conf.Consumer.Group.ResetInvalidOffsets = false
	conf.Consumer.Group.Session.Timeout = c.SessionTimeout
	conf.Consumer.Group.Heartbeat.Interval = c.HeartbeatInterval
	conf.Consumer.Group.Rebalance.Timeout = c.RebalanceTimeout
	conf.Consumer.Group.Rebalance.Retry.Max = 10 * retries
	conf.Consumer.Group.Rebalance.Retry.Backoff = retryPause
	conf.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
	return conf
}
