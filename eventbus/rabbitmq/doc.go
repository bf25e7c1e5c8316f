// Package rabbitmq is RabbitMQ as a broker of events: a topic exchange for each
// topic, and for each consumer a few queues of it, each with one active reader.
//
//	PublishBatch --> exchange "orders" --<bucket>.<type>--> queue "payments:orders:0"
//	                                                        queue "payments:orders:1" ...
//	    --> tap (one channel on one queue) --> lane of the key --> handed out --> ack
//
// The publisher puts a message's key into one of 64 buckets, the first word of
// its routing key; a consumer with N queues of a topic binds bucket b to queue
// b modulo N. So publishers and consumers need not agree on N, and all of a key
// is in one queue. A delivery is in one of these states:
//
//	waiting in its lane --> handed out --ack--> done
//	       ^   ^               |    |
//	       |   +-- backoff <-nack   +-- connection, channel or queue lost: revoked,
//	       |                            and delivered again by the broker
//	       +-- delivered
//
// # Promises
//
//   - What was confirmed is in every queue that was bound, on disk, on a
//     majority of nodes with quorum queues. What no queue takes is not
//     confirmed: it is the destination's fault ([ErrUnroutable]), as is what a
//     full queue refuses ([ErrRejected]).
//   - PublishBatch returns by the end of its context, also when the broker is
//     blocked, hangs, or is not there. A connection that takes no bytes for
//     [Config.PublishTimeout], or says nothing for two heartbeats, is dropped.
//   - What would make the broker end a channel or a connection, with everybody
//     else's messages on it, is refused before it is sent ([ErrMessage]).
//   - Messages of one key are handed out in the order of their queue. A message
//     that is nacked waits here, its key behind it; nothing is ever put back into
//     a queue of which the rest is being read, since that inverts the order.
//   - Acks come in any order. What was not acked is handed out again, to another
//     member of the consumer if this one is gone.
//   - Closing takes the acks that were there before, then closes channels, and
//     cancels no consumer before that: the next member starts with what was left.
//   - A message that the broker took back has a context that ended with
//     [schema.ErrRevoked].
//   - A broker that is down, also at the start, costs nothing but time. Everything
//     is declared anew on each connection.
//   - Whatever is in a queue is handed out. Headers that are not text arrive as
//     text (numbers in digits, tables and lists as JSON, what is not UTF-8
//     replaced); those that brokers add (x-death, x-delivery-count) are left out.
//     What has no id of Watermill's has its message_id; what has none either, an
//     id derived from all that its publisher sent: two equal messages without ids
//     cannot be told from one that comes twice, and count as one.
//   - A nil payload arrives empty: AMQP knows no other.
//
// # Members
//
// A queue has one active reader (x-single-active-consumer), so order is kept with
// any number of members. Whoever comes first to a queue reads it until it leaves:
// members are there to take over, and share work only as far as they started at
// the same time. Work within one member is shared by keys, up to its window.
//
// # Changing the number of queues
//
// [Config.Queues] is fixed for a consumer and a topic once they exist. To change
// it: stop the publishers or hold the topic, wait until the queues are empty, stop
// the consumer, delete its queues, start it with the new number. Old bindings
// would deliver twice, and in another order, and queues that nobody reads would
// fill.
//
// # Foreign publishers and readers
//
// The wire is watermill-amqp's: the id in the header _watermill_message_uuid,
// metadata as headers, the payload as body. Its subscriber reads our messages from
// a queue of its own, with Exchange.Type "topic" and the routing key "#". Its
// publisher reaches our queues with Exchange.Type "topic", a durable exchange, and
// a routing key that begins with a bucket, as [RoutingKey] returns. A routing key
// that begins otherwise is bound to nothing.
//
// # What it replaces
//
// watermill-amqp v2 stays the wire format, and is tested against, both ways. Its
// publisher confirms what was lost (it hears no basic.return), waits for one
// confirmation at a time, and without a deadline; its subscriber has one message
// in flight, stands still for ever at a header that is not text (such as the
// x-delivery-count of every second delivery from a quorum queue), puts nacked
// messages back behind later ones, and hands out empty messages when the
// connection is lost.
//
// # What it is not
//
// It does not replicate classic queues, delete what it declared, or read what
// another virtual host has. It needs the permission to configure, write and read
// its exchanges and queues. It expects that nobody sets a TTL, or an overflow other
// than reject-publish, by an operator policy.
package rabbitmq
