// Package sqlite keeps outbox, inbox and dead letters in a SQLite file. It
// implements [schema.Database] on any *sql.DB whose driver's errors have a
// method Code() int, as modernc.org/sqlite's do. It imports no driver: a main
// package does, and opens the file with [DSN].
//
// # What it promises
//
//   - The promises of the outbox, the relay and the inbox hold for any number
//     of goroutines and processes on one machine, at the pace of one writer.
//   - A commit is on disk before it is reported: [Database.Check] refuses a
//     pool that is not in WAL mode with synchronous FULL, has no busy timeout,
//     or begins transactions that are not immediate. Read-then-write
//     transactions fail at random otherwise.
//
// # What it is not
//
// A second transaction while one is open in the same goroutine, such as InTx
// inside a handler, waits for itself until the busy timeout: SQLite has one
// writer. Times are this machine's clock, since the file has none.
package sqlite
