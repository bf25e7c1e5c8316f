package eventbus_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus"
	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
	"github.com/postbus-io/postbus/schema/schematest"
	"github.com/postbus-io/postbus/schema/sqlite"
)

func TestConsume_S33_H52_HandlersOfOneEventAreIndependent(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB) {
		createEffects(t, db)
		b := setup(t, db)
		var failures, runsOfA atomic.Int32
		require.NoError(t, b.bus.Consume("c1", onNote("a", func(context.Context, *sql.Tx, schema.Received[note]) error {
			runsOfA.Add(1)
			return nil
		}), onNote("b", func(context.Context, *sql.Tx, schema.Received[note]) error {
			if failures.Add(1) <= 2 {
				return errOops
			}
			return nil
		})))
		require.NoError(t, b.bus.Consume("c2", onNote("a2", nil)))
		stop := b.run(t)
		b.publish(t, noted.New("k", note{"x"}))
		eventually(t, "three effects", func() bool { return b.count(t, `SELECT count(*) FROM effects`) == 3 })
		stop()
		require.Equal(t, 3, b.count(t, `SELECT count(DISTINCT handler) FROM effects`))
		require.EqualValues(t, 1, runsOfA.Load(), "a retry of b ran a again")
		require.Equal(t, 3, b.count(t, `SELECT count(*) FROM postbus_inbox`))
	})
}

func TestConsume_H51_H55_RedeliveredMessageIsAppliedOnce(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB) {
		createEffects(t, db)
		b := setup(t, db)
		require.NoError(t, b.bus.Consume("c", onNote("h", nil)))
		stop := b.run(t)
		b.publish(t, noted.New("k", note{"x"}), noted.New("k", note{"x"}))
		eventually(t, "two different messages with equal bytes", func() bool { return b.count(t, `SELECT count(*) FROM effects`) == 2 })
		for _, msg := range b.broker.Messages("notes") {
			b.deliver(t, "notes", msg.Copy(), msg.Copy())
		}
		eventually(t, "four duplicates", func() bool { _, skips, _ := b.seen.counts(); return skips == 4 })
		stop()
		require.Equal(t, 2, b.count(t, `SELECT count(*) FROM effects`))
		require.Empty(t, b.dead(t))
	})
}

// lostAcks is a broker whose acks do not arrive: what was handed out comes
// again when the consumer comes back.
type lostAcks struct{ schema.Broker }

func (l lostAcks) NewSubscriber(consumer string, topics []string, window int) (message.Subscriber, error) {
	s, err := l.Broker.NewSubscriber(consumer, topics, window)
	return lostAcksSubscriber{s}, err
}

type lostAcksSubscriber struct{ message.Subscriber }

func (l lostAcksSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := l.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for msg := range in {
			copied := msg.Copy()
			copied.SetContext(msg.Context())
			select {
			case out <- copied:
			case <-ctx.Done():
			}
		}
	}()
	return out, nil
}

func TestConsume_S35_FailureNeverMarksAsSeen(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB) {
		createEffects(t, db)
		first := setup(t, db)
		var attempt atomic.Int32
		third := make(chan struct{})
		h := onNote("h", func(ctx context.Context, tx *sql.Tx, _ schema.Received[note]) error {
			switch attempt.Add(1) {
			case 1:
				return errOops
			case 2: // as a process that dies after its SQL: the transaction is gone
				return tx.Rollback()
			case 3: // commits, and the ack is lost
				close(third)
			}
			return nil
		})
		cutOff := setupWith(t, db, first.broker, lostAcks{first.broker})
		require.NoError(t, cutOff.bus.Consume("c", h))
		stop := cutOff.run(t)
		first.publish(t, noted.New("k", note{"x"}))
		await(t, third, "third attempt")
		eventually(t, "effect", func() bool { return first.count(t, `SELECT count(*) FROM effects`) == 1 })
		require.Equal(t, 1, first.count(t, `SELECT count(*) FROM postbus_inbox`))
		stop()
		require.Equal(t, 1, first.broker.Backlog("c", "notes"), "the ack arrived, so this shows nothing")

		require.NoError(t, first.bus.Consume("c", h))
		stop = first.run(t)
		eventually(t, "the message comes again", func() bool { return first.broker.Backlog("c", "notes") == 0 })
		stop()
		require.Equal(t, 1, first.count(t, `SELECT count(*) FROM effects`))
		require.EqualValues(t, 3, attempt.Load())
	})
}

func TestConsume_H104_H53_GarbageBecomesDeadLettersAndTheNextMessageIsHandled(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB) {
		createEffects(t, db)
		b := setup(t, db)
		require.NoError(t, b.bus.Consume("c", onNote("a", nil), onNote("b", nil)))
		stop := b.run(t)
		garbage := message.NewMessage("garbage", []byte{0xff, 0x00, '{'})
		garbage.Metadata.Set(schema.HeaderType, noted.Name())
		garbage.Metadata.Set(schema.HeaderVersion, "1")
		newer := garbage.Copy()
		newer.UUID = "newer"
		newer.Metadata.Set(schema.HeaderVersion, "7")
		foreign, nameless := message.NewMessage("foreign", []byte("hello")), message.NewMessage("", []byte("hello"))
		unknown := garbage.Copy()
		unknown.Metadata.Set(schema.HeaderType, "notes.unknown")
		b.deliver(t, "notes", garbage, newer, foreign, nameless, nameless.Copy(), unknown)
		b.publish(t, noted.New("k", note{"after"}))
		eventually(t, "the good one", func() bool { return b.count(t, `SELECT count(*) FROM effects`) == 2 })
		eventually(t, "all acked", func() bool { return b.broker.Backlog("c", "notes") == 0 })
		stop()

		byHandler := map[string]int{}
		for _, l := range b.dead(t) {
			byHandler[l.Handler]++
			if l.MessageID == "garbage" {
				require.Equal(t, []byte{0xff, 0x00, '{'}, l.Payload)
			}
		}
		require.Equal(t, map[string]int{"": 3, "a": 2, "b": 2}, byHandler)
	})
}

// TestConsume_H80_H81_H82_BytesAndHeadersAreSacred sends bytes that databases
// and JSON libraries like to change through outbox, broker, handler, dead letter
// and redrive.
func TestConsume_H80_H81_H82_BytesAndHeadersAreSacred(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	payloads := map[string][]byte{
		"all": all, "nul": []byte(`"\u0000"`), "surrogate": []byte(`"\ud800"`), "keys": []byte(`{"b":1,"a":2,"b":1e2}`),
		"big": []byte(`9007199254740993`), "huge": []byte(`1e400`), "empty": {}, "nil": nil,
	}
	raw := schema.Define[json.RawMessage]("raw.sent", 1)
	eachDatabase(t, func(t *testing.T, db *sql.DB) {
		b := setup(t, db)
		fail := true
		require.NoError(t, b.bus.Consume("c", handlers.On(raw, "h", func(context.Context, *sql.Tx, schema.Received[json.RawMessage]) error {
			if fail {
				return schema.Permanent(errOops)
			}
			return nil
		})))
		stop := b.run(t)
		headers := message.Metadata{
			schema.HeaderType: "raw.sent", schema.HeaderVersion: "1", schema.HeaderKey: "clé", "emoji": "✅", "empty": "", "json": `{"a":[1]}`,
		}
		require.NoError(t, b.bus.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			for id, payload := range payloads {
				msg := message.NewMessage(id, payload)
				for name, value := range headers {
					msg.Metadata.Set(name, value)
				}
				if err := b.bus.Publisher(ctx, tx).Publish("raw", msg); err != nil {
					return err
				}
			}
			return nil
		}))
		eventually(t, "dead letters", func() bool { return len(b.dead(t)) == len(payloads) })
		stop()
		same := func(id string, payload []byte, got map[string]string) {
			require.Equal(t, payloads[id] == nil, payload == nil, "%s: nil and empty", id)
			require.Equal(t, sha256.Sum256(payloads[id]), sha256.Sum256(payload), id)
			require.Equal(t, map[string]string(headers), got, id)
		}
		for _, msg := range b.broker.Messages("raw") {
			same(msg.UUID, msg.Payload, msg.Metadata)
		}
		for _, l := range b.dead(t) {
			same(l.MessageID, l.Payload, l.Headers)
			require.Equal(t, "clé", l.Key)
		}
		fail = false
		for _, l := range b.dead(t) {
			err := b.bus.Redrive(t.Context(), l.ID)
			if json.Valid(l.Payload) {
				require.NoError(t, err, l.MessageID)
			} else {
				require.ErrorIs(t, err, schema.ErrUndecodable, l.MessageID)
			}
		}
		require.Len(t, b.dead(t), 3, "all, empty and nil are no JSON")
	})
}

func TestConsume_DeadLetterIsRedrivenOnceItsCauseIsRepaired(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB) {
		createEffects(t, db)
		b := setup(t, db)
		var broken atomic.Bool
		broken.Store(true)
		require.NoError(t, b.bus.Consume("c", onNote("h", func(_ context.Context, _ *sql.Tx, e schema.Received[note]) error {
			if broken.Load() && e.Body.Text == "poison" {
				return schema.Permanent(errOops)
			}
			return nil
		})))
		stop := b.run(t)
		b.publish(t, noted.New("k", note{"poison"}), noted.New("k", note{"next"}))
		eventually(t, "the next of the key goes on", func() bool { return b.count(t, `SELECT count(*) FROM effects`) == 1 })
		letter := b.dead(t)[0]
		require.Equal(t, "oops", letter.LastError)
		require.ErrorIs(t, b.bus.Redrive(t.Context(), letter.ID), errOops)
		again := b.dead(t)[0]
		require.Equal(t, []int{2, 1}, []int{again.Attempts, again.Redriven})

		broken.Store(false)
		results := make(chan error, 4)
		for range cap(results) {
			go func() { results <- b.bus.Redrive(t.Context(), letter.ID) }()
		}
		applied := 0
		for range cap(results) {
			if err := await(t, results, "redrive"); err == nil {
				applied++
			} else {
				require.ErrorIs(t, err, schema.ErrNotDead)
			}
		}
		require.GreaterOrEqual(t, applied, 1)
		stop()
		require.Equal(t, 2, b.count(t, `SELECT count(*) FROM effects`))
		require.Empty(t, b.dead(t))
		require.ErrorIs(t, b.bus.Redrive(t.Context(), letter.ID), schema.ErrNotDead)
	})
}

func TestConsume_H24_OrderIsKeptPerKeyAndNotAcross(t *testing.T) {
	db := schematest.SQLite(t, sqlite.DSN, sqlite.Migrate)
	createEffects(t, db)
	b := setup(t, db)
	gate := make(chan struct{})
	var mu sync.Mutex
	var order []string
	require.NoError(t, b.bus.Consume("c", handlers.On(noted, "h", func(ctx context.Context, _ *sql.Tx, e schema.Received[note]) error {
		mu.Lock()
		order = append(order, e.Body.Text)
		mu.Unlock()
		if e.Body.Text == "a1" {
			return schema.Permanent(errOops) // a1 is out of the way, a2 goes on
		}
		if e.Body.Text == "b3" {
			close(gate)
		}
		return nil
	})))
	b.run(t)
	b.publish(t, noted.New("a", note{"a1"}), noted.New("a", note{"a2"}), noted.New("b", note{"b1"}), noted.New("b", note{"b2"}), noted.New("b", note{"b3"}))
	await(t, gate, "b3")
	eventually(t, "all five", func() bool { mu.Lock(); defer mu.Unlock(); return len(order) == 5 })
	mu.Lock()
	defer mu.Unlock()
	perKey := map[byte][]string{}
	for _, text := range order {
		perKey[text[0]] = append(perKey[text[0]], text)
	}
	require.Equal(t, map[byte][]string{'a': {"a1", "a2"}, 'b': {"b1", "b2", "b3"}}, perKey)
}

func TestConsume_FaultsOfRegistrationAreToldAtOnce(t *testing.T) {
	b := setup(t, schematest.SQLite(t, sqlite.DSN, sqlite.Migrate))
	err := b.bus.Consume("Bad Name", onNote("h", nil), onNote("h", nil), handlers.On(schema.Event[note]{}, "x", nil))
	require.ErrorContains(t, err, `"Bad Name"`)
	require.ErrorContains(t, err, `named "h"`)
	require.ErrorIs(t, err, schema.ErrInvalidEvent)
	require.Error(t, b.bus.Consume("none"))
	require.NoError(t, b.bus.Consume("c", onNote("h", nil)))
	require.Error(t, b.bus.Consume("c", onNote("h", nil)), "twice in two calls")
	b.run(t)
	require.ErrorIs(t, b.bus.Consume("c", onNote("late", nil)), eventbus.ErrRunning)
	require.ErrorIs(t, b.bus.RunConsumers(t.Context()), eventbus.ErrRunning)
}

func TestConsume_S32_DuplicatesAreToldBySQLSTATEAndNotByText(t *testing.T) {
	db := schematest.Postgres(t, "postgres", postgres.Migrate)
	createEffects(t, db)
	_, err := db.ExecContext(t.Context(), `CREATE UNIQUE INDEX ON effects (text)`)
	require.NoError(t, err)
	b := setup(t, db, func(cfg *eventbus.Config) { cfg.Consumer.Retry.Budget = cfg.Consumer.Retry.Max })
	require.NoError(t, b.bus.Consume("c", onNote("h", nil)))
	stop := b.run(t)
	b.publish(t, noted.New("k", note{"same"}))
	eventually(t, "first effect", func() bool { return b.count(t, `SELECT count(*) FROM effects`) == 1 })
	b.publish(t, noted.New("k", note{"same"}))
	eventually(t, "the handler's own unique violation is its error", func() bool { return len(b.dead(t)) == 1 })
	stop()
	failures, skips, _ := b.seen.counts()
	require.Positive(t, failures)
	require.Zero(t, skips)
}
