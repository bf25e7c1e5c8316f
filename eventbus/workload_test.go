package eventbus_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus"
	"github.com/postbus-io/postbus/eventbus/memory"
	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/schema"
)

// stepped is the event of the workload: step N of aggregate Key.
type stepped struct {
	Key string `json:"key"`
	N   int64  `json:"n"`
}

var steppedV1 = schema.Define[stepped]("steps.stepped", 1)

// workloadSQL creates the workload's own tables. The ledger says what was
// committed; effects has no unique key, so that a double is seen.
const workloadSQL = `
CREATE TABLE aggregates (key text PRIMARY KEY, n bigint NOT NULL);
CREATE TABLE ledger (message_id text NOT NULL, key text NOT NULL, n bigint NOT NULL);
CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY, handler text NOT NULL,
                      message_id text NOT NULL, key text NOT NULL, n bigint NOT NULL);`

// workload commits steps: each transaction locks an aggregate, notes the step in
// the ledger, publishes it, waits a random while and commits, or rolls back one
// time in ten.
type workload struct {
	db      *sql.DB
	keys    int
	events  int // to be committed
	writers int
	pause   time.Duration // the longest pause before a commit

	committed atomic.Int64
	undone    sync.Map // message ids of transactions that were rolled back
}

var errUndo = errors.New("rolled back on purpose")

func newWorkload(t *testing.T, db *sql.DB, keys, events int) *workload {
	t.Helper()
	w := &workload{db: db, keys: keys, events: events, writers: 8, pause: 6 * time.Millisecond}
	_, err := db.ExecContext(t.Context(), workloadSQL)
	require.NoError(t, err)
	for i := range keys {
		_, err := db.ExecContext(t.Context(), `INSERT INTO aggregates (key, n) VALUES ($1, 0)`, w.key(i))
		require.NoError(t, err)
	}
	return w
}

func (w *workload) key(i int) string { return fmt.Sprintf("key-%03d", i) }

// run returns when enough is committed or ctx ends. Faults of the database are
// expected; what they did is read from the ledger.
func (w *workload) run(ctx context.Context, bus *eventbus.Bus) {
	var writers sync.WaitGroup
	for range w.writers {
		writers.Go(func() {
			for ctx.Err() == nil && w.committed.Load() < int64(w.events) {
				w.step(ctx, bus)
			}
		})
	}
	writers.Wait()
}

func (w *workload) step(ctx context.Context, bus *eventbus.Bus) {
	key, count := w.key(rand.IntN(w.keys)), 1+rand.IntN(6)
	undo := rand.IntN(10) == 0
	var ids []string
	err := bus.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		ids = nil
		for range count {
			id, err := publishStep(ctx, bus, tx, key)
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		pause(ctx, time.Duration(rand.Int64N(int64(w.pause))))
		if undo {
			return errUndo
		}
		return nil
	})
	switch {
	case err == nil:
		w.committed.Add(int64(count))
	case errors.Is(err, errUndo):
		for _, id := range ids {
			w.undone.Store(id, true)
		}
	}
}

func publishStep(ctx context.Context, bus *eventbus.Bus, tx *sql.Tx, key string) (string, error) {
	var n int64
	err := tx.QueryRowContext(ctx, `UPDATE aggregates SET n = n + 1 WHERE key = $1 RETURNING n`, key).Scan(&n)
	if err != nil {
		return "", err
	}
	event := steppedV1.New(key, stepped{Key: key, N: n})
	if _, err := tx.ExecContext(ctx, `INSERT INTO ledger (message_id, key, n) VALUES ($1, $2, $3)`, event.ID, key, n); err != nil {
		return "", err
	}
	return event.ID, bus.Publish(ctx, tx, event)
}

// pause is a part of the load, not a wait for something.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// applyStep is the handler: it notes the effect in its transaction.
func applyStep(name string) handlers.Handler {
	return handlers.On(steppedV1, name, func(ctx context.Context, tx *sql.Tx, e schema.Received[stepped]) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO effects (handler, message_id, key, n) VALUES ($1, $2, $3, $4)`,
			name, e.ID, e.Body.Key, e.Body.N)
		return err
	})
}

// A step is a row of the ledger or of the effects.
type step struct {
	id, key string
	n       int64
}

func readSteps(t *testing.T, db *sql.DB, query string, args ...any) []step {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rows, err := db.QueryContext(ctx, query, args...)
	require.NoError(t, err)
	defer rows.Close()
	var steps []step
	for rows.Next() {
		var s step
		require.NoError(t, rows.Scan(&s.id, &s.key, &s.n))
		steps = append(steps, s)
	}
	require.NoError(t, rows.Err())
	return steps
}

// settled waits until the handler has as many distinct effects as the ledger
// has rows and the outbox is empty. When that does not come about, the oracle
// says what is missing.
func (w *workload) settled(t *testing.T, handler string, patience time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for ctx.Err() == nil {
		var owed, outbox int64
		err := w.db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM ledger)
			- (SELECT count(DISTINCT message_id) FROM effects WHERE handler = $1), (SELECT count(*) FROM postbus_outbox)`,
			handler).Scan(&owed, &outbox)
		if err == nil && owed == 0 && outbox == 0 {
			return
		}
		pause(ctx, 100*time.Millisecond)
	}
	w.check(t, handler)
	t.Fatalf("not settled within %s, although everything was applied", patience)
}

// check is the oracle for one handler: every committed step applied once, none
// of the rolled-back ones, in order per key without a gap.
func (w *workload) check(t *testing.T, handler string) {
	t.Helper()
	ledger := map[string]step{}
	for _, s := range readSteps(t, w.db, `SELECT message_id, key, n FROM ledger`) {
		ledger[s.id] = s
	}
	effects := readSteps(t, w.db, `SELECT message_id, key, n FROM effects WHERE handler = $1 ORDER BY id`, handler)
	applied, last := map[string]int{}, map[string]int64{}
	var lost, doubled, invented, inverted []string
	for _, s := range effects {
		applied[s.id]++
		if ledger[s.id] != s {
			invented = append(invented, s.id)
		}
		if applied[s.id] == 2 {
			doubled = append(doubled, s.id)
		}
		if s.n != last[s.key]+1 {
			inverted = append(inverted, fmt.Sprintf("%s: %d after %d", s.key, s.n, last[s.key]))
		}
		last[s.key] = s.n
	}
	for id := range ledger {
		if applied[id] == 0 {
			lost = append(lost, id)
		}
		if _, undone := w.undone.Load(id); undone {
			invented = append(invented, id)
		}
	}
	require.Empty(t, first(lost), "lost %d", len(lost))
	require.Empty(t, first(doubled), "doubled %d", len(doubled))
	require.Empty(t, first(invented), "invented %d", len(invented))
	require.Empty(t, first(inverted), "out of order %d", len(inverted))
	require.NotEmpty(t, effects)
}

// checkBroker says that first occurrences at the broker are in order per key,
// and how many copies there were beyond them.
func (w *workload) checkBroker(t *testing.T, broker *memory.Broker) (messages, copies int) {
	t.Helper()
	order := map[string]int64{}
	for _, s := range readSteps(t, w.db, `SELECT message_id, key, n FROM ledger`) {
		order[s.id] = s.n
	}
	seen, last := map[string]bool{}, map[string]int64{}
	for _, msg := range broker.Messages("steps") {
		messages++
		if seen[msg.UUID] {
			copies++
			continue
		}
		seen[msg.UUID] = true
		n, committed := order[msg.UUID]
		require.True(t, committed, "message %s was not committed", msg.UUID)
		key := schema.Key(msg)
		require.Equal(t, last[key]+1, n, "first occurrences of %s at the broker", key)
		last[key] = n
	}
	return messages, copies
}

func first(faults []string) []string {
	slices.Sort(faults)
	return faults[:min(len(faults), 3)]
}
