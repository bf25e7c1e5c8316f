package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

// topicPause is the time between two looks for a topic that was just created.
const topicPause = 50 * time.Millisecond

// ensureTopic returns nil when the topic can be used. It creates the topic if
// that is wanted, and otherwise nothing, ever.
func (c Config) ensureTopic(ctx context.Context, client sarama.Client, topic string) error {
	_, err := client.Partitions(topic)
	if err == nil || !c.Topics.Create || !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		return err
	}
	if err := c.createTopic(client, topic); err != nil {
		return fmt.Errorf("create topic: %w", err)
	}
	c.Logger.Info("kafka topic created", "topic", topic,
		"partitions", c.Topics.Partitions, "replication", c.Topics.Replication)
	for {
		if _, err = client.Partitions(topic); err == nil || !isAny(err, destinationFaults) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(topicPause):
		}
	}
}

func (c Config) createTopic(client sarama.Client, topic string) error {
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return err
	}
	err = admin.CreateTopic(topic, &sarama.TopicDetail{
		NumPartitions: int32(c.Topics.Partitions), ReplicationFactor: int16(c.Topics.Replication), //nolint:gosec // validated
	}, false)
	if errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return nil
	}
	return err
}
