//go:build slow

package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus/kafka"
	"github.com/postbus-io/postbus/schema"
)

// ack acks and waits until the broker has recorded it.
func ack(t testing.TB, msgs ...*message.Message) {
	t.Helper()
	for _, msg := range msgs {
		require.True(t, msg.Ack())
		requireEnd(t, msg.Context().Done(), "ack of "+msg.UUID)
	}
}

func receiveAll(t testing.TB, msgs <-chan *message.Message, ids ...string) (received []*message.Message) {
	t.Helper()
	for i, id := range ids {
		received = append(received, receive(t, msgs))
		require.Equal(t, id, received[i].UUID)
	}
	return received
}

// numbered returns n ids of as many keys.
func numbered(n int, last string) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("key-%d-%s", i, last))
	}
	return ids
}

func TestKafka_H44_NewConsumerGetsOldMessages(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	broker := newBroker(t, testConfig(brokers))
	topic := newTopic(t, brokers, 3)
	var ids []string
	for n := range 10 {
		ids = append(ids, fmt.Sprintf("%c%d", 'a'+n, n))
	}
	publish(t, broker, topic, ids...)
	_, msgs := subscribe(t, broker, freshName("consumer"), topic, 2)
	got := map[string]bool{}
	for len(got) < 10 {
		msg := receive(t, msgs)
		got[msg.UUID] = true
		ack(t, msg)
	}
}

// TestKafka_H45_AcksBehindAnOpenMessageAreNotCommitted: a crash hands it out
// again, and so does a stop.
func TestKafka_H45_AcksBehindAnOpenMessageAreNotCommitted(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	broker := newBroker(t, testConfig(brokers))
	topic, consumer := newTopic(t, brokers, 1), freshName("consumer")
	publish(t, broker, topic, "a1", "a2", "a3", "a4")
	sub, msgs := subscribe(t, broker, consumer, topic, 8)
	held := receiveAll(t, msgs, "a1", "a2", "a3", "a4")
	ack(t, held[1], held[2])
	require.NoError(t, sub.Close())
	require.Equal(t, []int64{-1}, committed(t, brokers, consumer, topic, 1))

	sub, msgs = subscribe(t, broker, consumer, topic, 8)
	held = receiveAll(t, msgs, "a1", "a2")
	ack(t, held[1], held[0])
	require.NoError(t, sub.Close())
	require.Equal(t, []int64{2}, committed(t, brokers, consumer, topic, 1))
}

// TestKafka_AcksBeforeCloseCount, although nobody has seen them yet.
func TestKafka_AcksBeforeCloseCount(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	broker := newBroker(t, testConfig(brokers))
	topic, consumer := newTopic(t, brokers, 1), freshName("consumer")
	pub := newPublisher(t, broker)
	const messages = 64
	for n := range messages {
		require.NoError(t, publishOne(t, pub, topic, newMessage(fmt.Sprint(n), fmt.Sprint(n))))
	}
	sub, msgs := subscribe(t, broker, consumer, topic, messages)
	var held []*message.Message
	for range messages {
		held = append(held, receive(t, msgs))
	}
	for _, msg := range held {
		msg.Ack()
	}
	require.NoError(t, sub.Close())
	require.Equal(t, []int64{messages}, committed(t, brokers, consumer, topic, 1))
}

// TestKafka_AcksAreStoredWithinTheCommitInterval, not only at the end.
func TestKafka_AcksAreStoredWithinTheCommitInterval(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	broker := newBroker(t, testConfig(brokers))
	topic, consumer := newTopic(t, brokers, 1), freshName("consumer")
	publish(t, broker, topic, "a1", "a2")
	_, msgs := subscribe(t, broker, consumer, topic, 1)
	receive(t, msgs).Ack()
	require.Eventually(t, func() bool { return committed(t, brokers, consumer, topic, 1)[0] == 1 }, deadline, 50*time.Millisecond)
}

// TestKafka_H53_H104_WhateverLiesInATopicIsHandedOut, once each, with an id of
// its own, and nothing of it stops the partition.
func TestKafka_H53_H104_WhateverLiesInATopicIsHandedOut(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	broker := newBroker(t, testConfig(brokers))
	topic, consumer := newTopic(t, brokers, 1), freshName("consumer")
	header := func(name, value string) sarama.RecordHeader {
		return sarama.RecordHeader{Key: []byte(name), Value: []byte(value)}
	}
	binary := "\xff\x00\xfe"
	produce(t, brokers,
		&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("same")},
		&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("same")},
		&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(binary), Key: sarama.StringEncoder(binary), Headers: []sarama.RecordHeader{
			header(kafka.HeaderMessageID, binary), header("", ""), header(binary, binary), header("twice", "1"), header("twice", "2"),
		}},
		tombstone(topic, "their-key"),
	)
	publish(t, broker, topic, "ours1")

	sub, msgs := subscribe(t, broker, consumer, topic, 8)
	var got []*message.Message
	for range 5 {
		got = append(got, receive(t, msgs))
		ack(t, got[len(got)-1])
	}
	require.NoError(t, sub.Close())
	for i, msg := range got[:4] {
		assert.Equal(t, fmt.Sprintf("kafka:%s/0/%d", topic, i), msg.UUID)
		assert.True(t, schema.IsForeign(msg))
	}
	assert.Equal(t, binary, string(got[2].Payload))
	assert.Equal(t, binary, got[2].Metadata.Get(binary))
	assert.Equal(t, "2", got[2].Metadata.Get("twice"), "the last one")
	assert.Regexp(t, "^sha256:[0-9a-f]{64}$", schema.Key(got[2]))
	assert.Nil(t, got[3].Payload)
	assert.Equal(t, "their-key", schema.Key(got[3]))
	assert.Equal(t, "ours1", got[4].UUID)
	require.Equal(t, []int64{5}, committed(t, brokers, consumer, topic, 1))
}

// TestKafka_H23_RevokedMessagesEnd: when a second member joins while the first
// one's handlers are slow, the messages of the partitions that move end after
// the grace, with their cause, and only then the second member gets them. Those
// of the others go on. An ack that comes too late commits nothing.
func TestKafka_H23_RevokedMessagesEnd(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	broker := newBroker(t, testConfig(brokers))
	topic, consumer := newTopic(t, brokers, 4), freshName("consumer")
	publish(t, broker, topic, numbered(40, "0")...)
	_, slow := subscribe(t, broker, consumer, topic, 40)
	held := map[string]*message.Message{}
	for range 40 {
		msg := receive(t, slow)
		held[msg.UUID] = msg
	}

	joined, msgs := subscribe(t, broker, consumer, topic, 40)
	moved := receiveMoved(t, held, msgs)
	require.NotEmpty(t, moved)
	require.Less(t, len(moved), len(held))
	for id, msg := range held {
		if moved[id] == nil {
			require.NoError(t, msg.Context().Err(), "%s did not move", id)
		}
		msg.Ack()
	}
	require.NoError(t, joined.Close())
	got := map[string]bool{}
	for range moved {
		msg := receive(t, slow)
		require.NotNil(t, moved[msg.UUID], "%s was acked in time", msg.UUID)
		got[msg.UUID] = true
		ack(t, msg)
	}
	require.Len(t, got, len(moved))

	publish(t, broker, topic, numbered(40, "1")...)
	for range 40 { // the window is what it was
		receive(t, slow)
	}
}

// receiveMoved receives what the second member gets, and requires that the
// first one has it no more.
func receiveMoved(t *testing.T, held map[string]*message.Message, msgs <-chan *message.Message) map[string]*message.Message {
	t.Helper()
	moved := map[string]*message.Message{}
	for {
		var more <-chan time.Time
		if len(moved) > 0 {
			more = time.After(500 * time.Millisecond)
		}
		select {
		case msg := <-msgs:
			require.Error(t, held[msg.UUID].Context().Err(), "%s is in two hands", msg.UUID)
			require.ErrorIs(t, context.Cause(held[msg.UUID].Context()), schema.ErrRevoked)
			moved[msg.UUID] = msg
		case <-more:
			return moved
		case <-time.After(deadline):
			require.FailNow(t, "nothing moved")
		}
	}
}

// TestKafka_H23_AckedWithinTheGrace: what is finished before the grace is over
// is not handed out to the member that joins.
func TestKafka_H23_AckedWithinTheGrace(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	config := testConfig(brokers)
	config.RebalanceTimeout = 20 * time.Second
	broker := newBroker(t, config)
	topic, consumer := newTopic(t, brokers, 2), freshName("consumer")
	pub := newPublisher(t, broker)
	for n := range 20 {
		require.NoError(t, publishOne(t, pub, topic, newMessage(fmt.Sprintf("old-%d", n), fmt.Sprint(n))))
	}
	_, slow := subscribe(t, broker, consumer, topic, 20)
	var held []*message.Message
	for range 20 {
		held = append(held, receive(t, slow))
	}
	_, msgs := subscribe(t, broker, consumer, topic, 20)
	<-time.After(1500 * time.Millisecond) // the group is rebalancing, the grace is 10 s
	for _, msg := range held {
		require.NoError(t, msg.Context().Err())
		ack(t, msg)
	}
	for n := range 20 {
		require.NoError(t, publishOne(t, pub, topic, newMessage(fmt.Sprintf("new-%d", n), fmt.Sprint(n))))
	}
	for range 20 {
		var msg *message.Message
		select {
		case msg = <-msgs:
		case msg = <-slow:
		case <-time.After(deadline):
			require.FailNow(t, "no message")
		}
		require.Contains(t, msg.UUID, "new-")
		ack(t, msg)
	}
}

// TestKafka_H102_HeldMessagesKeepTheMembership: messages that stay in hand for
// longer than the session and the rebalance timeout cost neither.
func TestKafka_H102_HeldMessagesKeepTheMembership(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	config := testConfig(brokers)
	config.SessionTimeout, config.RebalanceTimeout = time.Second, time.Second
	broker := newBroker(t, config)
	topic := newTopic(t, brokers, 1)
	publish(t, broker, topic, "a1", "a2", "a3")
	_, msgs := subscribe(t, broker, freshName("consumer"), topic, 2)
	held := receiveAll(t, msgs, "a1", "a2")
	select {
	case msg := <-msgs:
		require.FailNow(t, "handed out "+msg.UUID)
	case <-held[0].Context().Done():
		require.FailNow(t, "the membership is lost", "%v", context.Cause(held[0].Context()))
	case <-time.After(3 * config.SessionTimeout):
	}
	ack(t, held...)
	receiveAll(t, msgs, "a3")
}

// TestKafka_H44_OffsetOutsideOfTheLogIsSaid, and not reset in silence: the
// consumer stands still until a person has decided.
func TestKafka_H44_OffsetOutsideOfTheLogIsSaid(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	config, log := configWithLog(brokers)
	broker := newBroker(t, config)
	topic, consumer := newTopic(t, brokers, 1), freshName("consumer")
	publish(t, broker, topic, "a1", "a2", "a3", "a4")
	sub, msgs := subscribe(t, broker, consumer, topic, 1)
	ack(t, receive(t, msgs))
	require.NoError(t, sub.Close())

	admin, err := newAdmin(brokers)
	require.NoError(t, err)
	defer admin.Close()
	require.NoError(t, admin.DeleteRecords(topic, map[int32]int64{0: 3}))
	sub, msgs = subscribe(t, broker, consumer, topic, 1)
	log.awaitText(t, kafka.TextOutside)
	select {
	case msg := <-msgs:
		require.FailNow(t, "handed out "+msg.UUID)
	case <-time.After(time.Second):
	}
	assert.Equal(t, 1, log.count(kafka.TextOutside), "once per interval")
	require.NoError(t, sub.Close())

	resetOffset(t, brokers, consumer, topic, 3)
	_, msgs = subscribe(t, broker, consumer, topic, 1)
	receiveAll(t, msgs, "a4")
}

// resetOffset does what a person does with kafka-consumer-groups.
func resetOffset(t *testing.T, brokers []string, group, topic string, offset int64) {
	t.Helper()
	client, err := sarama.NewClient(brokers, rawConfig())
	require.NoError(t, err)
	defer client.Close()
	manager, err := sarama.NewOffsetManagerFromClient(group, client)
	require.NoError(t, err)
	partition, err := manager.ManagePartition(topic, 0)
	require.NoError(t, err)
	partition.MarkOffset(offset, "")
	manager.Commit()
	require.NoError(t, partition.Close())
	require.NoError(t, manager.Close())
}

func TestKafka_SubscribesToDeclaredTopicsOnceAtATime(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	broker := newBroker(t, testConfig(brokers))
	topic := newTopic(t, brokers, 1)
	sub, err := broker.NewSubscriber(freshName("consumer"), []string{topic}, 1)
	require.NoError(t, err)
	_, err = sub.Subscribe(t.Context(), "undeclared")
	require.ErrorIs(t, err, kafka.ErrUndeclaredTopic)

	publish(t, broker, topic, "a1")
	ctx, cancel := context.WithCancelCause(t.Context())
	msgs, err := sub.Subscribe(ctx, topic)
	require.NoError(t, err)
	_, err = sub.Subscribe(t.Context(), topic)
	require.ErrorIs(t, err, kafka.ErrSubscribed)
	held := receive(t, msgs)

	enough := errors.New("enough")
	cancel(enough)
	again, err := sub.Subscribe(t.Context(), topic) // while the first one ends
	require.NoError(t, err)
	requireEnd(t, held.Context().Done(), "the first subscription's message")
	require.ErrorIs(t, context.Cause(held.Context()), enough)
	held = receive(t, again)
	require.NoError(t, sub.Close())
	require.ErrorIs(t, context.Cause(held.Context()), kafka.ErrClosed)
	_, err = sub.Subscribe(t.Context(), topic)
	require.ErrorIs(t, err, kafka.ErrClosed)
}

// TestKafka_EndedTopicIsGivenAway: another member takes over the topic that a
// subscriber has stopped working on, while it works on.
func TestKafka_EndedTopicIsGivenAway(t *testing.T) {
	t.Parallel()
	brokers := addresses(t)
	broker := newBroker(t, testConfig(brokers))
	ending, staying, consumer := newTopic(t, brokers, 6), newTopic(t, brokers, 1), freshName("consumer")
	sub, err := broker.NewSubscriber(consumer, []string{ending, staying}, 1)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended, err := sub.Subscribe(ctx, ending)
	require.NoError(t, err)
	stayed, err := sub.Subscribe(t.Context(), staying)
	require.NoError(t, err)
	const messages = 20 // in all partitions
	publish(t, broker, ending, numbered(messages, "1")...)
	publish(t, broker, staying, "b1")
	receive(t, ended)
	receive(t, stayed).Ack()
	cancel()
	_, msgs := subscribe(t, broker, consumer, ending, 1)
	got := map[string]bool{}
	for len(got) < messages {
		msg := receive(t, msgs)
		got[msg.UUID] = true
		msg.Ack()
	}
	publish(t, broker, staying, "b2")
	for msg := receive(t, stayed); msg.UUID != "b2"; msg = receive(t, stayed) {
		msg.Ack()
	}
}
