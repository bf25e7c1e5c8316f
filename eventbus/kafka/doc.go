// Package kafka is Apache Kafka as a broker: publishers that confirm what all
// in-sync replicas have, and consumers that hand out a window of messages, in
// the order of their keys, and take acks in any order.
//
//	PublishBatch --> record (key, headers) --> partition of the key
//	    --> group of the consumer --> member --> window of the topic --> ack, in any order
//	    --> mark of the contiguous prefix --> stored in the group
//
// A record on its way to one consumer is in one of these states:
//
//	unread --> waiting --> handed out --ack--> acked --older ones acked--> marked
//	              ^   ^        |   |
//	              |   +-backoff+   |
//	              +-- not acked ---+  subscription ended, partition revoked
//
// # Promises of a publisher
//
//   - A message is confirmed when all in-sync replicas have it (acks=all). Set
//     min.insync.replicas of the topic to 2 at least, with a replication of 3:
//     otherwise "all" may be one.
//   - The producer is idempotent and has one request in flight: retries of the
//     client neither reorder nor duplicate. What a publisher repeats, because no
//     confirmation came, may be there twice; inboxes absorb that.
//   - Messages of a key go to one partition, the one that Java's clients choose
//     (murmur2). A message without a key goes to any.
//   - It ends with its context. What is unconfirmed then is the broker's fault,
//     and may still be sent within the next seconds.
//   - A topic that does not exist is the destination's fault, within a second,
//     and stays non-existent unless [Topics].Create says otherwise. What is too
//     large is the record's fault and harms no other message, also when the
//     broker takes less than [Config.MaxMessageBytes] and refuses a whole request
//     for the sake of one record.
//   - It connects when it is first used, and makes itself a new producer when the
//     client library's has come to a state that it does not leave by itself.
//
// # Promises of a subscriber
//
//   - One subscriber is one member of the consumer's group, for all of its
//     topics; it joins once. The group has the consumer's name. A topic that does
//     not exist is waited for, the others are worked on meanwhile.
//   - A new consumer starts at the oldest message. Records of a transaction that
//     was aborted are left out.
//   - Up to window messages of a topic, over all partitions of the member, are
//     handed out and not acked. Messages of a partition come in its order, so
//     those of a key do. While a message is nacked and waits, no later one of its
//     key is handed out that was not on offer already; other keys go on.
//   - What is stored in the group is the contiguous prefix of the acks: never
//     beyond a message that is not acked. Marks are stored within
//     [Config.CommitInterval], before a partition is given away, and at Close.
//   - Rebalances are cooperative: only partitions that move are interrupted. For
//     those nothing more is handed out; what is in hand can be acked for half of
//     [Config.RebalanceTimeout]; then the messages' contexts end with the cause
//     schema.ErrRevoked, and only after that another member gets the partition.
//     When the group has forgotten the member, contexts end at once. After a broken
//     connection they live for half of the session timeout at most: the group
//     waits for that long. Nothing is marked afterwards.
//   - Messages in hand, however long, do not cost the membership: heartbeats do not
//     depend on them.
//   - Whatever lies in a topic is handed out. A record without an id gets one from
//     its place in the log ("kafka:<topic>/<partition>/<offset>"), the same each
//     time. Values of headers are kept byte for byte; of a header that is repeated
//     the last value is kept. The key of a record that has no key header becomes
//     the message's key, a hash of it when it is not a text. A nil payload is a
//     tombstone.
//   - An offset that is not in the log any more, because the retention was shorter
//     than the outage, is not reset: messages are lost then, and that is for a
//     person to know. The consumer says so as an error once per
//     [Config.LogInterval] and stands still, with all partitions of the member,
//     until the group's offsets are reset, for example with
//     kafka-consumer-groups --reset-offsets while no member runs.
//
// # What of watermill-kafka is replaced
//
// The wire format is watermill-kafka's, and its subscribers read what is
// published here and the other way round. Two parts of it are not used:
//
//   - Its Publisher sets no key, so there is no order; waits for one replica
//     (acks=1) with five requests in flight, so what it confirmed can be lost and
//     retries reorder; sends one message at a time; and knows no context.
//   - Its Subscriber starts at the newest message; has one message in flight per
//     partition and one member of the group per topic; keeps working on, and
//     resending, messages of a partition that it has lost; ends the claim over and
//     over at a record that cannot be unmarshalled; and drops acks that come while
//     it closes.
//
// # What it is not
//
// It does not serialise the messages of a key: up to a window of them may be in
// hand at once; handlers.Intake does that. It keeps no order among partitions.
// Adding partitions to a topic moves keys while their old messages may be
// unread: drain first.
package kafka
