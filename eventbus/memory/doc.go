// Package memory is the broker inside one process: a log of messages per topic
// and, for every consumer, a cursor into it.
//
// It is what a program runs on before it has a broker, and what tests run on:
// it keeps the same promises as a real one for as long as the process lives.
//
//	PublishBatch --> log of the topic --> cursor of a consumer
//	    --> lane of the key --> member (subscription) --> ack, in any order
//
// A message on its way to one consumer is in one of these states:
//
//	unread --> waiting in its lane --> handed out --ack--> done
//	               ^   ^                   |   |
//	               |   +--- backoff <-nack-+   |
//	               +------ subscription ended -+
//
// # Promises
//
//   - A confirmed message is handed to every consumer until that consumer has
//     acked it, whatever happens to subscriptions in between.
//   - Messages of one key are handed out in the order of the log. While a
//     message is nacked and waits, no later message of its key is handed out.
//   - Members of one consumer, which are subscriptions of one topic, never have
//     messages of one key at the same time. When members come or go, a key
//     moves once what its old member holds is acked or nacked, or that
//     member's subscription has ended.
//   - Acks come in any order. What was acked is not handed out again; the
//     consumer's position is the oldest message that is not acked.
//   - A new consumer starts at the oldest message that the log keeps.
//   - Payload and headers arrive as they were published, a nil payload as nil.
//     No two receivers share them.
//
// # Bounds
//
// A message that some known consumer has not acked is never dropped. A consumer
// is known from NewSubscriber on, for the topics it names there, until the
// broker is closed, also while it has no subscription. A known consumer that
// stays away, or that never acks one message, therefore lets the log grow until
// [Config.MaxBacklog] or [Config.MaxBacklogBytes]: then publishing waits, and
// fails as the broker's fault ([ErrFull]).
// What every known consumer has acked, or, on a topic without consumers,
// everything, is kept for consumers to come up to [Config.RetainEntries] and
// [Config.RetainBytes]; beyond that the oldest is dropped.
//
// # What it is not
//
// It is not durable: confirmed messages end with the process. It does not
// serialise the messages of a key: up to a window of them may be with their
// member at once, as with a Kafka partition. It does not reach another process.
package memory
