package postgres_test

import (
	"database/sql"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
)

type received struct {
	verdict schema.Verdict
	err     error
}

func (b testBundle) receiveAsync(tx *sql.Tx, id string) <-chan received {
	return async(func() received {
		verdict, err := b.Receive(b.ctx, tx, delivery(id))
		return received{verdict, err}
	})
}

// Two consumers hold one message at the same instant: the second waits for the
// end of the first, and neither fails.
func TestPostgres_H55_S32_TwinWaits(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		for round := range 6 {
			commits := round%2 == 0
			id := fmt.Sprintf("m-%d", round)
			first, second := b.begin(), b.begin()
			verdict, err := b.Receive(b.ctx, first, delivery(id))
			require.NoError(t, err)
			require.Equal(t, schema.VerdictFresh, verdict)

			twin := b.receiveAsync(second, id)
			b.awaitBlocked(1)
			end(t, first, commits)
			want := map[bool]schema.Verdict{true: schema.VerdictDuplicate, false: schema.VerdictFresh}[commits]
			assert.Equal(t, received{verdict: want}, await(t, "the twin", twin))
			require.NoError(t, second.Commit())
			assert.Equal(t, 1, b.count("SELECT count(*) FROM postbus_inbox WHERE message_id = $1", id))
		}
	})
}

// Under stricter isolation the twin cannot be told "duplicate" in a transaction
// that does not see the first one's row: it is a conflict, and a duplicate in
// its next transaction.
func TestPostgres_H55_TwinUnderStricterIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			b := setup(t, "postgres", postgres.Config{})
			options := &sql.TxOptions{Isolation: level}
			first, second := begin(b.ctx, t, b.db, options), begin(b.ctx, t, b.db, options)
			_, err := b.Receive(b.ctx, first, delivery("m1"))
			require.NoError(t, err)
			twin := b.receiveAsync(second, "m1")
			b.awaitBlocked(1)
			require.NoError(t, first.Commit())
			got := await(t, "the twin", twin)
			require.Error(t, got.err)
			assert.Equal(t, schema.ErrorConflict, b.Classify(got.err))
			require.NoError(t, second.Rollback())

			verdict, err := b.Receive(b.ctx, begin(b.ctx, t, b.db, options), delivery("m1"))
			require.NoError(t, err)
			assert.Equal(t, schema.VerdictDuplicate, verdict)
		})
	}
}

// A message is given up while its twin waits for the key, in a transaction whose
// snapshot is older than the letter: it is never fresh.
func TestPostgres_H55_ReceiveBehindBuryUnderAnyIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			b := setup(t, "postgres", postgres.Config{})
			options := &sql.TxOptions{Isolation: level}
			gate := b.begin()
			b.exec(gate, "LOCK TABLE postbus_parked IN SHARE MODE") // Bury may read, not write
			buried := async(func() error {
				_, err := b.Bury(b.ctx, letter("m1"))
				return err
			})
			b.awaitBlocked(1)
			handler := begin(b.ctx, t, b.db, options)
			result := b.receiveAsync(handler, "m1")
			b.awaitBlocked(2)
			require.NoError(t, gate.Rollback())
			require.NoError(t, await(t, "bury", buried))
			got := await(t, "receive", result)
			if got.err == nil {
				assert.Equal(t, schema.VerdictDead, got.verdict)
			} else {
				assert.Equal(t, schema.ErrorConflict, b.Classify(got.err), "%v", got.err)
			}
			require.NoError(t, handler.Rollback())

			verdict, err := b.Receive(b.ctx, begin(b.ctx, t, b.db, options), delivery("m1"))
			require.NoError(t, err)
			assert.Equal(t, schema.VerdictDead, verdict)
			verdict, err = b.Receive(b.ctx, begin(b.ctx, t, b.db, options), delivery("m2"))
			require.NoError(t, err)
			assert.Equal(t, schema.VerdictFresh, verdict)
			assert.Equal(t, 1, b.count("SELECT count(*) FROM postbus_parked"))
		})
	}
}

// Handlers of one key do not wait for each other, nor for those of another.
func TestPostgres_HandlersShareTheKey(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres", postgres.Config{})
	for _, id := range []string{"m1", "m2", "m3"} {
		verdict, err := b.Receive(b.ctx, b.begin(), delivery(id))
		require.NoError(t, err)
		assert.Equal(t, schema.VerdictFresh, verdict)
	}
}

// A handler that swallows an SQL error has no effect, and COMMIT says so: with
// both drivers, although the server answers it without an error.
func TestPostgres_H66_SwallowedErrorFailsTheCommit(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		b := setup(t, driver, postgres.Config{})
		tx := b.begin()
		_, err := b.Receive(b.ctx, tx, delivery("m1"))
		require.NoError(t, err)
		b.insert(tx, "k", "event")
		_, _ = tx.ExecContext(b.ctx, "SELECT 1/0")
		err = tx.Commit()
		require.Error(t, err)
		assert.Equal(t, schema.ErrorOther, b.Classify(err))
		assert.Empty(t, b.claimed("k"))
		assert.Equal(t, 0, b.count("SELECT count(*) FROM postbus_inbox"))
	})
}
