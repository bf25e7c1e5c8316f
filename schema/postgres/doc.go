// Package postgres keeps outbox, inbox and dead letters in PostgreSQL 13 or
// newer. It implements [schema.Database] on any *sql.DB whose driver is lib/pq
// or pgx's stdlib.
//
// # What it promises
//
//   - Ids are drawn by one sequence with CACHE 1 ([Database.Check] refuses
//     another), one statement a call, in the order of the messages.
//   - A claim selects what is un-sent by state, never by a position, and is not
//     gated on any snapshot horizon: a transaction that commits late, or stays
//     open elsewhere, delays nobody.
//   - What a relay writes about a shard, but for deleting what was sent, first
//     locks the shard's row FOR SHARE and compares the epoch: a subselect
//     inside an UPDATE would not be read again after waiting for a row.
//   - The inbox takes the key's advisory lock in a statement of its own, so
//     that the next statement sees what the lock waited for. In a transaction
//     that is stricter than READ COMMITTED, where it does not, what it would
//     miss is a serialization failure.
//   - Only transaction-scoped locks are taken, and no session state is kept,
//     so all of it works through a pooler in transaction mode. (lib/pq needs
//     binary_parameters=yes there.)
//
// # What it is not
//
// It opens and closes no *sql.DB (but for the help of [Connect]), runs no DDL
// outside [Migrate], and does not use watermill-sql's own schema or
// Subscriber: that schema orders by transaction id, which inverts the events
// of one aggregate, and stalls behind any open transaction of the cluster.
// watermill-sql's Publisher does the insert, with this package's
// SchemaAdapter.
package postgres
