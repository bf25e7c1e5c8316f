// Package handlers turns a message from a broker into a call of a typed
// function.
//
// [On] registers a function for one event under a stable name. [NewConsumer]
// takes the handlers of one receiver and runs them on a Watermill router.
// [Intake] stands in front of the router and decides which message is worked
// on when, and what becomes of it when the process stops.
//
// # The way of a message
//
//	inner subscriber -> Intake -> router -> Outer, once per message
//	    -> dispatch -> InnerFunc, once per handler -> decode -> your function
//
// Dispatch gives the message to every handler of its event's name and version,
// one after the other, and acknowledges when all have settled it. An event
// that nobody handles is acknowledged and counted. A version that nobody
// handles, or a version that is no number, is a permanent error of each handler
// of that name.
//
// # A message in the Intake
//
//	taken --> waiting for its lane --> handed out --ack--> acked to the broker
//	               |        ^               |
//	               |        '-- backoff <---+ nack
//	               |                        |
//	               '-- revoked: dropped     '-- revoked or past the drain
//	                   stopped: left alone      deadline: left alone
//
// A lane is one key of one topic, or one message alone when it has no key.
//
// # The promises
//
// One message of a key is worked on at a time, in the order in which the inner
// subscriber gave them, through failures too. A message is acknowledged to the
// inner subscriber only after it was acknowledged to the Intake, and never
// after the broker revoked it. The Intake never sends a nack on. Stopping
// cancels nothing before the drain deadline; what was not finished by then is
// left to the broker, neither acknowledged nor rejected.
//
// # What it is not
//
// It writes to no database: the transaction, the inbox, retries and dead
// letters are middlewares that come in by [ConsumerConfig].Outer and InnerFunc.
// Without a middleware that brings a transaction, every call of a handler ends
// in an error. It talks to no broker: the subscriber comes from outside.
package handlers
