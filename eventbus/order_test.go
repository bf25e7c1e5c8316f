package eventbus_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/handlers"
	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
	"github.com/postbus-io/postbus/schema/schematest"
)

// noteOrder is a handler that tells the texts in the order of handling.
func noteOrder(texts chan<- string) handlers.Handler {
	return handlers.On(noted, "order", func(_ context.Context, _ *sql.Tx, e schema.Received[note]) error {
		texts <- e.Body.Text
		return nil
	})
}

func expectOrder(t *testing.T, texts <-chan string, want ...string) {
	t.Helper()
	var got []string
	for range want {
		got = append(got, await(t, texts, "message"))
	}
	require.Equal(t, want, got)
}

// TestBus_H03_OrderIsThatOfIDsAndNotOfTransactions lets the transaction with the
// older transaction id change the aggregate second.
func TestBus_H03_OrderIsThatOfIDsAndNotOfTransactions(t *testing.T) {
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			db := schematest.Postgres(t, driver, postgres.Migrate)
			_, err := db.ExecContext(t.Context(), `CREATE TABLE aggregates (key text PRIMARY KEY, v int); INSERT INTO aggregates VALUES ('a', 0), ('z', 0)`)
			require.NoError(t, err)
			b := setup(t, db)
			change := func(tx *sql.Tx, key string) {
				var v int
				require.NoError(t, tx.QueryRowContext(t.Context(), `UPDATE aggregates SET v = v + 1 WHERE key = $1 RETURNING v`, key).Scan(&v))
				require.NoError(t, b.bus.Publish(t.Context(), tx, noted.New(key, note{fmt.Sprintf("%s%d", key, v)})))
			}
			t1, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			t2, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			_, err = t1.ExecContext(t.Context(), `UPDATE aggregates SET v = v WHERE key = 'z'`) // draws the older id
			require.NoError(t, err)
			change(t2, "a")
			require.NoError(t, t2.Commit())
			change(t1, "a")
			require.NoError(t, t1.Commit())

			texts := make(chan string, 2)
			require.NoError(t, b.bus.Consume("c", noteOrder(texts)))
			b.run(t)
			expectOrder(t, texts, "a1", "a2")
		})
	}
}

// TestBus_H14_ClocksAndMessageIDsDecideNoOrder has two producers whose clocks
// are ten seconds apart, and whose ids sort the other way round.
func TestBus_H14_ClocksAndMessageIDsDecideNoOrder(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB) {
		b := setup(t, db)
		var want []string
		for i := range 10 {
			text := fmt.Sprintf("step %d", i)
			skew := time.Duration(i%2) * -10 * time.Second
			b.publish(t, noted.New("k", note{text}).With(
				schema.OccurredAt(time.Now().Add(skew)), schema.MessageID(fmt.Sprintf("id-%d", 9-i))))
			want = append(want, text)
		}
		texts := make(chan string, len(want))
		require.NoError(t, b.bus.Consume("c", noteOrder(texts)))
		b.run(t)
		expectOrder(t, texts, want...)
	})
}

// TestBus_H04_KeyLockMakesTheOrderThatOfCommits publishes before it changes the
// aggregate. Without the lock, the ids would be drawn in that order, and not in
// the one in which the changes commit.
func TestBus_H04_KeyLockMakesTheOrderThatOfCommits(t *testing.T) {
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			db := schematest.Postgres(t, driver, postgres.Migrate)
			b := setup(t, db, withKeyLock)
			t1, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			require.NoError(t, b.bus.Publish(t.Context(), t1, noted.New("k", note{"first to commit"})))
			second := make(chan error, 1)
			go func() {
				second <- b.bus.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
					return b.bus.Publish(ctx, tx, noted.New("k", note{"second to commit"}))
				})
			}()
			eventually(t, "the second waits for the key", func() bool {
				return b.count(t, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
					AND pid IN (SELECT pid FROM pg_stat_activity WHERE application_name = current_setting('application_name'))`) == 1
			})
			// Another key goes on meanwhile.
			b.publish(t, noted.New("other", note{"not held up"}))
			require.NoError(t, t1.Commit())
			require.NoError(t, await(t, second, "second"))
			texts := make(chan string, 3)
			require.NoError(t, b.bus.Consume("c", handlers.On(noted, "order", func(_ context.Context, _ *sql.Tx, e schema.Received[note]) error {
				if e.Key == "k" {
					texts <- e.Body.Text
				}
				return nil
			})))
			b.run(t)
			expectOrder(t, texts, "first to commit", "second to commit")
		})
	}
}

// TestBus_H84_AHotKeyDoesNotStarveTheOthers has nine tenths of the backlog on
// one key, and that the older part. Keys of other shards overtake it; those of
// its own shard come after what was there before them.
func TestBus_H84_AHotKeyDoesNotStarveTheOthers(t *testing.T) {
	const others, hot = 100, 900
	eachDatabase(t, func(t *testing.T, db *sql.DB) {
		b := setup(t, db)
		var events []schema.Outgoing
		for range hot {
			events = append(events, noted.New("hot", note{"x"}))
		}
		hotShard := schema.ShardOf("hot", schema.DefaultShards)
		for i := 0; len(events) < others+hot; i++ {
			if key := fmt.Sprintf("key-%d", i); schema.ShardOf(key, schema.DefaultShards) != hotShard {
				events = append(events, noted.New(key, note{"x"}))
			}
		}
		b.publish(t, events...)
		b.run(t)
		eventually(t, "everything at the broker", func() bool { return len(b.broker.Messages("notes")) == others+hot })
		hotBefore, messages := 0, b.broker.Messages("notes")
		for seen, i := 0, 0; seen < others; i++ {
			if schema.Key(messages[i]) == "hot" {
				hotBefore++
			} else {
				seen++
			}
		}
		require.Less(t, hotBefore, hot/10, "hot records sent before the last of the others")
	})
}
