package eventbus_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus"
	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/schematest"
	"github.com/postbus-io/postbus/schema/sqlite"
)

const outboxCount = `SELECT count(*) FROM postbus_outbox`

var errOops = errors.New("oops")

func TestPublish_H63_RolledBackTransactionLeavesNothing(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB) {
		b := setup(t, db)
		err := b.bus.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			return errors.Join(b.bus.Publish(ctx, tx, noted.New("k", note{"x"})), errOops)
		})
		require.ErrorIs(t, err, errOops)
		require.Panics(t, func() {
			_ = b.bus.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				if err := b.bus.Publish(ctx, tx, noted.New("k", note{"x"})); err != nil {
					return err
				}
				panic("in the middle")
			})
		})
		require.ErrorIs(t, b.bus.Publish(t.Context(), nil, noted.New("k", note{"x"})), schema.ErrNoTransaction)
		require.Zero(t, b.count(t, outboxCount))
		b.publish(t, noted.New("k", note{"y"}))
		require.Equal(t, 1, b.count(t, outboxCount))
	})
}

func TestPublish_H64_EndedTransactionIsAnError(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB) {
		b := setup(t, db)
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
		require.ErrorIs(t, b.bus.Publish(t.Context(), tx, noted.New("k", note{"late"})), sql.ErrTxDone)
		require.Zero(t, b.count(t, outboxCount))
	})
}

func TestPublish_H64_TransactionOfAnotherDatabaseWritesThereOrFails(t *testing.T) {
	b := setup(t, schematest.SQLite(t, sqlite.DSN, sqlite.Migrate))
	bare := schematest.SQLite(t, sqlite.DSN, nil)
	tx, err := bare.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // nothing is left to lose
	require.Error(t, b.bus.Publish(t.Context(), tx, noted.New("k", note{"lost?"})))
	require.Zero(t, b.count(t, outboxCount), "written beside the transaction")
}

func TestPublish_H74_TheCallersContextCountsAndNoOther(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB) {
		b := setup(t, db)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		err := b.bus.InTx(t.Context(), func(_ context.Context, tx *sql.Tx) error {
			return b.bus.Publish(ended, tx, noted.New("k", note{"x"}))
		})
		require.ErrorIs(t, err, context.Canceled)

		// A message that came with a dead context of its own is published all
		// the same: it is the caller's that counts.
		msg := message.NewMessageWithContext(ended, "id-1", []byte("{}"))
		require.NoError(t, b.bus.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			return b.bus.Publisher(ctx, tx).Publish("notes", msg)
		}))
		require.Equal(t, 1, b.count(t, outboxCount))
	})
}

func TestPublish_PlainWatermillCodePublishesThroughTheTransaction(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB) {
		b := setup(t, db)
		err := b.bus.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			publisher := b.bus.Publisher(ctx, tx)
			named := message.NewMessage("named", []byte("1"))
			named.Metadata.Set("origin", "plain")
			if err := publisher.Publish("plain", named, message.NewMessage("", []byte("2"))); err != nil {
				return err
			}
			require.Empty(t, named.Metadata.Get(schema.HeaderTopic), "the caller's message was changed")
			require.NoError(t, publisher.Close())
			require.Error(t, publisher.Publish("plain", named), "after Close")
			return nil
		})
		require.NoError(t, err)
		b.run(t)
		eventually(t, "both at the broker", func() bool { return len(b.broker.Messages("plain")) == 2 })
		ids := map[string]*message.Message{}
		for _, msg := range b.broker.Messages("plain") {
			require.NotEmpty(t, msg.UUID)
			ids[msg.UUID] = msg
		}
		require.Equal(t, message.Metadata{"origin": "plain"}, ids["named"].Metadata)
	})
}

func TestPublish_BadInputIsOneClearErrorAndWritesNothing(t *testing.T) {
	b := setup(t, schematest.SQLite(t, sqlite.DSN, sqlite.Migrate))
	good := noted.New("k", note{"good"})
	for name, test := range map[string]struct {
		event schema.Outgoing
		says  []string
	}{
		"3 MB payload":       {noted.New("k", note{strings.Repeat("x", 3<<20)}), []string{"payload", "3145", "921600", "outbox.max_payload_bytes"}},
		"header with NUL":    {good.With(schema.Header("a", "b\x00c")), []string{`header "a"`, "NUL"}},
		"header not UTF-8":   {good.With(schema.Header("a", "\xff")), []string{`header "a"`, "UTF-8"}},
		"reserved header":    {good.With(schema.Header("postbus_key", "x")), []string{"postbus_key", "reserved"}},
		"watermill's header": {good.With(schema.Header("_watermill_message_uuid", "x")), []string{"_watermill_message_uuid", "reserved"}},
		"nobody defined it":  {schema.Event[note]{}.New("k", note{"x"}), []string{"schema.Define"}},
		"bad event name":     {schema.Define[note]("Noted", 1).New("k", note{"x"}), []string{`"Noted"`, "nouns.verbed"}},
		"no key":             {noted.New("", note{"x"}), []string{"empty key", "Unordered"}},
		"another Go type":    {schema.Define[int]("notes.noted", 1).New("k", 1), []string{"notes.noted v1", "int", "note"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, b.bus.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				err := b.bus.Publish(ctx, tx, good, test.event)
				require.Error(t, err)
				for _, word := range test.says {
					require.ErrorContains(t, err, word)
				}
				require.Less(t, len(err.Error()), 400, "one line that a person can read")
				return nil
			}), "the transaction is still usable")
			require.Zero(t, b.count(t, outboxCount))
		})
	}
}

func TestInTx_H67_ConflictsRunTheFunctionAgainAndPublishOnce(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB) {
		b := setup(t, db)
		tries := 0
		require.NoError(t, b.bus.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			tries++
			if err := b.bus.Publish(ctx, tx, noted.New("k", note{"x"}), noted.New("k", note{"y"})); err != nil {
				return err
			}
			if tries <= 3 {
				return conflict{}
			}
			return nil
		}))
		require.Equal(t, 4, tries)
		require.Equal(t, 2, b.count(t, outboxCount))
	})
}

// conflict is a serialization failure to PostgreSQL and a busy file to SQLite.
type conflict struct{}

func (conflict) Error() string    { return "conflict" }
func (conflict) SQLState() string { return "40001" }
func (conflict) Code() int        { return 5 }

func TestInTx_SerializableTransactionsOnAHotRowAllPass(t *testing.T) {
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			db := schematest.Postgres(t, driver, migratePostgres)
			b := setup(t, db)
			_, err := db.ExecContext(t.Context(), `CREATE TABLE hot (n int); INSERT INTO hot VALUES (0)`)
			require.NoError(t, err)
			errs := make(chan error, 4)
			for range cap(errs) {
				go func() {
					var err error
					for i := 0; i < 10 && err == nil; i++ {
						err = b.bus.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
							if _, err := tx.ExecContext(ctx, `UPDATE hot SET n = n + 1`); err != nil {
								return err
							}
							return b.bus.Publish(ctx, tx, noted.New("k", note{"x"}))
						}, sql.TxOptions{Isolation: sql.LevelSerializable})
					}
					errs <- err
				}()
			}
			for range cap(errs) {
				require.NoError(t, await(t, errs, "writer"))
			}
			require.Equal(t, 40, b.count(t, `SELECT n FROM hot`))
			require.Equal(t, 40, b.count(t, outboxCount))
		})
	}
}

func TestInTx_NestedIsRefusedAndEndedContextRollsBack(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB) {
		b := setup(t, db)
		require.NoError(t, b.bus.InTx(t.Context(), func(ctx context.Context, _ *sql.Tx) error {
			err := b.bus.InTx(ctx, func(context.Context, *sql.Tx) error { return nil })
			require.ErrorIs(t, err, eventbus.ErrNestedTx)
			return nil
		}))
		ctx, cancel := context.WithCancel(t.Context())
		err := b.bus.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
			defer cancel()
			return b.bus.Publish(ctx, tx, noted.New("k", note{"x"}))
		})
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, eventbus.ErrCommitUnknown)
		eventually(t, "rolled back", func() bool { return b.count(t, outboxCount) == 0 })
	})
}

func TestInTx_H66_CommitAnsweredByRollbackIsAnError(t *testing.T) {
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			b := setup(t, schematest.Postgres(t, driver, migratePostgres))
			err := b.bus.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				if err := b.bus.Publish(ctx, tx, noted.New("k", note{"x"})); err != nil {
					return err
				}
				_, _ = tx.ExecContext(ctx, `SELECT 1/0`) // swallowed
				return nil
			})
			require.Error(t, err)
			require.NotErrorIs(t, err, eventbus.ErrCommitUnknown)
			require.Zero(t, b.count(t, outboxCount))
		})
	}
}

// TestBus_H70_EverythingWorksInAPoolOfOne runs publisher, relay and consumer on
// one connection.
func TestBus_H70_EverythingWorksInAPoolOfOne(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB) {
		createEffects(t, db)
		db.SetMaxOpenConns(1)
		b := setup(t, db)
		require.NoError(t, b.bus.Consume("one", onNote("chain", func(ctx context.Context, tx *sql.Tx, e schema.Received[note]) error {
			if e.Body.Text == "last" {
				return nil
			}
			return b.bus.Publish(ctx, tx, noted.Unordered(note{"last"}))
		})))
		b.run(t)
		for range 20 {
			b.publish(t, noted.New("k", note{"first"}), noted.Unordered(note{"first"}).With(schema.Header("h", "1")))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.Eventually(t, func() bool {
			var n int
			return db.QueryRowContext(ctx, `SELECT count(*) FROM effects`).Scan(&n) == nil && n == 80
		}, patience, 20*time.Millisecond)
		require.Empty(t, b.seen.buried)
	})
}
