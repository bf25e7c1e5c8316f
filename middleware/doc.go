// Package middleware is what stands between a received message and a
// handler: one file a promise, each a plain Watermill
// [message.HandlerMiddleware], and [Standard], which puts them in the one right
// order.
//
// # The chain
//
// Outermost first. What stands in brackets has its place and is not built yet.
//
//	per message   [trace, metrics, log]
//	              Recover      a panic of the framework is an error, the process lives
//	              Envelope     a message that no handler can be told for is one dead letter
//	------------  one branch per handler of the message's type
//	per handler   DeadLetter   what cannot be applied is kept, then acked [here: park]
//	              Retry        what failed is tried again, the key held
//	              [breaker gate, timeout]
//	              Inbox        the effect and the memory of it are one transaction
//	              Recover      a panic of the handler is one failed attempt
//	              handler
//
// The order matters. Retry inside DeadLetter, or nothing is ever retried; Inbox
// inside Retry, or two attempts share a transaction; the inner Recover inside
// Inbox, or a panic is a nack that nobody counts.
//
// # Promises
//
//   - A message is acked only after its effect, or its dead letter, is committed.
//   - The inbox row exists if and only if the effect does. A failure never marks
//     a message as seen.
//   - An attempt is a handler that ran and failed. A shutdown, a revoked
//     delivery, a lost connection, a conflict between transactions and a
//     database that is away are none: nothing is counted, nothing is dead.
//   - Each attempt gets a fresh transaction and the message as it was received,
//     whatever the one before did to payload and headers. A dead letter is that
//     message, too.
//   - Each middleware leaves the message's context as it found it.
//
// # What it is not
//
// It decodes nothing, subscribes to nothing and knows no database: package
// handlers does the first two, a folder below schema the third. It cannot stop a
// handler that ignores its context, and it makes only what a handler writes
// through its transaction happen once.
//
// Watermill's own middlewares are not used as they are:
//
//   - Retry: counts a shutdown as an attempt, and its hook advances the backoff.
//   - PoisonQueue: publishes and acks apart, on a context that may be dead, and
//     takes every error for poison, a shutdown included.
//   - Deduplicator: marks a message as seen before the handler ran, so that one
//     that failed is lost.
//   - Recoverer: puts the stack into the error's text, and from there into
//     headers and tables.
package middleware
