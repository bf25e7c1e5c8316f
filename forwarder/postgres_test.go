package forwarder_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// begin opens a transaction that has published one message and is not over.
func (b *bundle) begin(topic, key string, n int) (*sql.Tx, *message.Message) {
	b.Helper()
	tx, err := b.db.BeginTx(context.Background(), nil)
	require.NoError(b, err)
	msg := newMessage(topic, key, n)
	require.NoError(b, b.database.Insert(context.Background(), tx, []*message.Message{msg}))
	return tx, msg
}

func TestRelay_H01_S01_LateCommitterIsSent(t *testing.T) {
	b := setupPostgres(t)
	b.start()
	late, msg := b.begin(orders, "late", 1)
	b.publish(orders, "b", 1)
	b.broker.await(1)
	b.publish(orders, "c", 100)
	b.broker.await(101)
	require.NoError(t, late.Commit())
	b.committed(schema.Lane{Topic: orders, Key: "late"}, msg)
	from := time.Now()
	b.awaitAll()
	require.Less(t, time.Since(from), 5*time.Second, "a poll interval, and a slow machine")
	require.Equal(t, "orders/late#1", b.broker.ids()[101])
}

func TestRelay_H01_S01_LateRollbackStallsNothing(t *testing.T) {
	b := setupPostgres(t)
	b.start()
	late, _ := b.begin(orders, "late", 1)
	b.publish(orders, "b", 10)
	b.broker.await(10)
	require.NoError(t, late.Rollback())
	b.publish(orders, "b", 10)
	b.awaitAll()
	require.Zero(t, b.broker.tried("orders/late#1"))
}

// A writer publishes in transactions that lock their aggregate first and stay
// open for a while; some are rolled back.
type writer struct {
	*bundle
	*dice
	keys int
}

// createAggregates makes the rows that the transactions lock.
func (w *writer) createAggregates() {
	w.exec(`CREATE TABLE aggregates (key text PRIMARY KEY, version integer NOT NULL DEFAULT 0)`)
	for i := range w.keys {
		w.exec(`INSERT INTO aggregates (key) VALUES ($1)`, fmt.Sprint("k", i))
	}
}

// write runs one transaction.
func (w *writer) write() error {
	ctx := context.Background()
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	key := fmt.Sprint("k", w.n(w.keys))
	var version int
	const lockSQL = `UPDATE aggregates SET version = version + 1 WHERE key = $1 RETURNING version`
	if err := tx.QueryRowContext(ctx, lockSQL, key).Scan(&version); err != nil {
		return err
	}
	msg := newMessage(orders, key, version)
	if err := w.database.Insert(ctx, tx, []*message.Message{msg}); err != nil {
		return err
	}
	pass(w.between(0, 15*time.Millisecond))
	if w.n(10) == 0 {
		return nil // rolled back
	}
	return w.commit(tx, schema.Lane{Topic: orders, Key: key}, msg)
}

// commit notes what was committed in the order of the versions.
func (w *writer) commit(tx *sql.Tx, lane schema.Lane, msg *message.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := tx.Commit(); err != nil {
		return err
	}
	w.published[lane] = append(w.published[lane], msg.UUID)
	return nil
}

// writeAll runs n transactions in each of several writers at once.
func (w *writer) writeAll(writers, n int) {
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for range n {
				if err := w.write(); err != nil {
					w.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func TestRelay_H01_S01_ManyWritersAtRandom(t *testing.T) {
	b := setupPostgres(t)
	w := &writer{bundle: b, dice: newDice(b), keys: 20}
	w.createAggregates()
	b.start()
	b.start()
	w.writeAll(8, 100)
	b.awaitAll()
}

// The same, while relays freeze and are abandoned, records are refused and
// answers are lost.
func TestRelay_H01_H07_ManyWritersAndChaos(t *testing.T) {
	b := setupPostgres(t)
	w := &writer{bundle: b, dice: newDice(b), keys: 20}
	w.createAggregates()
	c := &chaos{bundle: b, dice: w.dice, batch: 100}
	b.broker.decide = c.fault
	done := make(chan struct{})
	c.background.Go(func() {
		defer close(done)
		w.writeAll(8, 300)
	})
	relays := c.run(done)
	b.awaitAll()
	for _, r := range relays {
		r.stop()
	}
	c.background.Wait()
	b.Logf("%d relays abandoned, %d frozen, %d repetitions", c.abandoned.Load(), c.frozen.Load(), b.broker.repeated())
}
