package schema

import (
	"context"
	"database/sql"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// A Database is what one folder below this package implements: the outbox, the
// relay's and the consumer's side of it, and what its errors mean. All methods
// are safe for concurrent use. It owns no connection: whoever opened the
// *sql.DB closes it.
type Database interface {
	Outbox
	Source
	Inbox
	DeadLetters

	// Kind is the name of the database in a config file, for example
	// "postgres".
	Kind() string
	// Check reads what a promise depends on and returns [ErrNotMigrated] or
	// [ErrUnsafeDatabase] with the fault and the way out. It changes nothing.
	Check(ctx context.Context) error
	// Classify says what an error of this database, or one that wraps it,
	// means. It goes by SQLSTATE or result code and by type, never by text.
	Classify(err error) ErrorClass
}

// An ErrorClass says what an error of a database means for whoever got it.
type ErrorClass int

const (
	// ErrorOther: no meaning of its own; for a handler, an attempt that failed.
	ErrorOther ErrorClass = iota
	// ErrorConflict: a serialization failure, a deadlock or a busy database.
	// The same work in a fresh transaction is expected to pass.
	ErrorConflict
	// ErrorUnavailable: the server cannot be reached, is starting, stopping or
	// out of connections. It says nothing about the work.
	ErrorUnavailable
)

// An Outbox writes messages inside the caller's transaction.
type Outbox interface {
	// Insert writes the messages, which carry their destination in
	// [HeaderTopic], in order, at once: what the transaction does with
	// savepoints afterwards takes them along. Any number of messages, none
	// included, is one call. After an error the transaction is to be rolled
	// back.
	Insert(ctx context.Context, tx Tx, msgs []*message.Message) error
}

// A Shard is a fixed slice of the keys, as one relay owns it.
type Shard struct {
	// ID counts from 0.
	ID int
	// Epoch grows with every change of owner. What a relay writes about a
	// shard is refused with [ErrFenced] when the epoch has passed.
	Epoch int64
}

// Tenure is what a relay owns, as the database saw it at a heartbeat.
type Tenure struct {
	// Owned are the shards of the relay, by id.
	Owned []Shard
	// Relays counts the relays with a valid heartbeat, this one included.
	Relays int
	// Shards is the number of shards in the database.
	Shards int
}

// A Source is the relay's side of the outbox. Times are the database's.
//
// A relay is known by an owner name that is never used again. Its shards are
// its own while its last heartbeat is younger than the lease that came with
// it; after that any other relay may take them.
type Source interface {
	// Heartbeat says that owner lives for another lease and returns what it
	// owns. Idempotent.
	Heartbeat(ctx context.Context, owner string, lease time.Duration) (Tenure, error)
	// Acquire takes up to most shards that nobody owns or whose owner's
	// heartbeat is over, and returns them with their new epochs. It never
	// waits for another relay.
	Acquire(ctx context.Context, owner string, most int) ([]Shard, error)
	// Release gives the shards back that owner still owns. Idempotent.
	Release(ctx context.Context, owner string, shards []int) error
	// Leave releases everything and forgets the relay. Idempotent.
	Leave(ctx context.Context, owner string) error

	// Claim returns the oldest waiting records of the shards, by shard and
	// within one by id, at most perShard of each shard and most in all. Shards
	// are served in the order given. It locks nothing.
	Claim(ctx context.Context, shards []int, perShard, most int) ([]Record, error)
	// Sent says that the broker has confirmed the records: they are deleted,
	// or kept as sent. It needs no epoch: what was sent was sent. Idempotent.
	Sent(ctx context.Context, records []Record) error

	// Holds returns the holds of the shards.
	Holds(ctx context.Context, shards []int) ([]Hold, error)
	// Held returns the oldest held records behind each hold, at most perHold
	// of each, ordered by id within a hold.
	Held(ctx context.Context, holds []Hold, perHold int) ([]Record, error)
	// Settle writes what a relay learned about one shard, all of it or
	// nothing, or returns [ErrFenced].
	Settle(ctx context.Context, owner string, s Settlement) error
}

// A Hold keeps a lane's records back after its oldest one could not be sent.
type Hold struct {
	// Lane is what is held.
	Lane Lane
	// Shard is the lane's shard.
	Shard int
	// Head is the record that could not be sent.
	Head int64
	// Retry is how long to wait from now until the lane is tried again, by the
	// database's clock: 0 or less is due, [Never] waits for a person.
	Retry time.Duration
	// Reason is what the last send of the head said.
	Reason string
}

// Never is the Retry of a hold that only a person lifts.
const Never = time.Duration(1<<63 - 1)

// A Settlement is what a relay learned about one shard in one batch.
type Settlement struct {
	// Shard is the shard with the epoch under which the batch was sent.
	Shard Shard
	// Failed are the records whose send failed, with their new counts.
	Failed []Failure
	// Held are the ids of waiting records that go behind a hold.
	Held []int64
	// Holds are written, or written over when the lane is held already.
	Holds []Hold
	// Lifted are removed, each only if no held record is left behind it.
	Lifted []Hold
}

// Empty tells whether there is nothing to write.
func (s Settlement) Empty() bool {
	return len(s.Failed)+len(s.Held)+len(s.Holds)+len(s.Lifted) == 0
}

// A Failure is one record whose send failed.
type Failure struct {
	// Record is its id.
	Record int64
	// State is where it goes: [StateHeld] or [StateQuarantined].
	State State
	// Attempts is its new count.
	Attempts int
	// Retry is when it is tried again, as in [Hold].
	Retry time.Duration
	// Error is what the send said, bounded and without payload.
	Error string
}

// A Delivery is one message on its way into one handler.
type Delivery struct {
	// Consumer and Handler name the receiver.
	Consumer, Handler string
	// Topic is where the message came from.
	Topic string
	// Message is the message as received, its id never empty.
	Message *message.Message
}

// A Verdict says what an inbox knows about a delivery.
type Verdict int

const (
	// VerdictFresh: not seen before; the handler is to run in the same
	// transaction, which now holds the inbox row.
	VerdictFresh Verdict = iota
	// VerdictDuplicate: applied before. Nothing was written.
	VerdictDuplicate
	// VerdictDead: it is a dead letter of this handler. Nothing was written.
	VerdictDead
)

// An Inbox remembers which message which handler has applied.
type Inbox interface {
	// Receive takes the lock of the delivery's key, shared, looks for a dead
	// letter, and else writes the inbox row, all in tx. While another
	// transaction applies the same message to the same handler it waits for
	// that one's end. After an error the transaction is to be rolled back.
	Receive(ctx context.Context, tx *sql.Tx, d Delivery) (Verdict, error)
}

// DeadLetters keeps the messages that a handler will not be given again until
// a person says so.
type DeadLetters interface {
	// Bury stores the letter in a transaction of its own, under the key's
	// exclusive lock. It returns false, and stores nothing, when the handler
	// has applied the message meanwhile. Burying a letter that is there adds
	// to its attempts, raises Redriven to the given number, and leaves the
	// first error and its time as they are.
	Bury(ctx context.Context, letter DeadLetter) (bool, error)
	// Dead returns the letters that match, oldest first.
	Dead(ctx context.Context, filter DeadFilter) ([]DeadLetter, error)
	// Revive takes the key's exclusive lock, turns the letter into an inbox
	// row, and returns it, all in tx: the handler is to run in the same
	// transaction. [ErrNotDead] when there is no such letter.
	Revive(ctx context.Context, tx *sql.Tx, id int64) (DeadLetter, error)
}

// A DeadLetter is a message that a handler could not apply, as it was.
type DeadLetter struct {
	// ID is the database's; 0 until the letter is stored.
	ID int64
	// Consumer and Handler name the receiver. Handler is "" for a message that
	// no handler could be told for: a foreign one.
	Consumer, Handler string
	// Topic, MessageID, Key, Payload and Headers are the message's, unchanged.
	// Headers has all of them, Postbus's own included.
	Topic, MessageID, Key string
	Payload               []byte
	Headers               map[string]string
	// Attempts counts the runs of the handler that failed.
	Attempts int
	// FirstError and LastError are what they said, bounded.
	FirstError, LastError string
	// FirstFailedAt and LastFailedAt are the database's times.
	FirstFailedAt, LastFailedAt time.Time
	// Redriven counts the times a person had it tried again.
	Redriven int
}

// Message returns the dead letter's message as it was received.
func (d DeadLetter) Message() *message.Message {
	msg := message.NewMessage(d.MessageID, d.Payload)
	for name, value := range d.Headers {
		msg.Metadata.Set(name, value)
	}
	return msg
}

// A DeadFilter selects dead letters; a zero field selects all.
type DeadFilter struct {
	// ID is one letter's.
	ID int64
	// Consumer, Handler, Topic and Key are matched exactly.
	Consumer, Handler, Topic, Key string
	// After skips the letters up to and including this id, for paging.
	After int64
	// Most bounds the answer. Defaults to 100.
	Most int
}
