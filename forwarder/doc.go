// Package forwarder relays records of an outbox to a broker.
//
// A [Relay] needs a [schema.Source], which a database folder below schema
// implements, and any Watermill publisher. Any number of relays may run
// against one outbox, in one process or in many.
//
//	claim --> waves, one record a key --> publish --> sent: delete
//	  ^                                      |
//	  |                                      +--> failed: hold the key
//	  +-- hold is due: its records first <-------------+
//
// # What it promises
//
//   - A record is marked as sent only after the publisher has confirmed it.
//     What dies between the two is sent again, with the same id and bytes.
//   - Records are chosen by their state, never by a position: one that commits
//     late is sent late, not skipped.
//   - Per topic and key, records are sent in the order of their ids, one at a
//     time, and none passes one that failed: a failing record holds its key and
//     is tried again with exponential backoff and full jitter. After MaxAttempts
//     it is quarantined; its key waits for a person, or goes on, by policy.
//   - One relay at a time owns a shard, which is a fixed slice of the keys.
//     Ownership is a row in the database with an epoch, valid while the
//     owner's heartbeat is. Losing it without noticing costs duplicates, never
//     order and never a record.
//   - A broker that cannot be reached, or a topic that takes nothing, costs
//     time and no attempt. Nor does what was in flight when the relay stopped.
//   - A publisher that panics, answers for too few messages or does not come
//     back stops neither the relay nor the records that have no part in it.
//   - No transaction is open while the broker is asked.
//
// # What it is not
//
// It is not Watermill's components/forwarder: that one envelopes the message,
// sends one at a time, and is stopped by the first message that cannot be
// sent. It does not create tables and does not close what it was given.
//
// A topic that takes nothing is tried again in every turn, and the relay pauses
// up to five seconds after a turn in which somebody refused: the other topics
// go on, at a slower pace.
package forwarder
