package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/schematest"
)

// heldSQLs and waitingSQL make 100,000 held records, 20,000 of them of one
// key, and a backlog of 50,000 waiting ones.
const (
	fillHeldSQL = `
INSERT INTO postbus_outbox (message_id, topic, key, shard, state, payload)
SELECT 'm-' || n, 'orders', 'key-' || n % 500, n % 500 % 64, 1, ''::bytea FROM generate_series(1, 80000) AS n
UNION ALL
SELECT 'h-' || n, 'orders', 'huge', 1, 1, ''::bytea FROM generate_series(1, 20000) AS n;
INSERT INTO postbus_holds (shard, topic, key, head) SELECT n % 64, 'orders', 'key-' || n, 0 FROM generate_series(0, 499) AS n`

	fillWaitingSQL = `
INSERT INTO postbus_outbox (message_id, topic, key, shard, payload)
SELECT 'w-' || n, 'orders', 'key-' || n % 500, n % 64, ''::bytea FROM generate_series(1, 50000) AS n`
)

// planNode is a node of EXPLAIN (FORMAT JSON).
type planNode struct {
	Type     string     `json:"Node Type"`
	Relation string     `json:"Relation Name"`
	Index    string     `json:"Index Name"`
	Removed  int        `json:"Rows Removed by Filter"`
	Hit      int        `json:"Shared Hit Blocks"`
	Read     int        `json:"Shared Read Blocks"`
	Rows     float64    `json:"Actual Rows"`
	Loops    int        `json:"Actual Loops"`
	Children []planNode `json:"Plans"`
}

// text is the plan, a line a node.
func (n planNode) text(indent string) string {
	line := fmt.Sprintf("%s%s %s %s: %g rows x %d, %d removed, %d blocks\n", indent, n.Type, n.Relation, n.Index, n.Rows, n.Loops, n.Removed, n.Hit+n.Read)
	for _, child := range n.Children {
		line += child.text(indent + "  ")
	}
	return line
}

func (n planNode) walk(f func(planNode)) {
	f(n)
	for _, child := range n.Children {
		child.walk(f)
	}
}

// 100,000 records that are held cost a claim nothing, and neither does any
// statement of the relay read them all: with fresh statistics, with those of an
// empty table, and with the plan that a prepared statement gets after a while.
func TestPostgres_H08_HeldRecordsCostNothing(t *testing.T) {
	t.Parallel()
	for when, fills := range map[string][3]string{
		"empty": {"", fillHeldSQL, fillWaitingSQL}, "held": {fillHeldSQL, "", fillWaitingSQL},
		"waiting": {fillWaitingSQL, "", fillHeldSQL}, "full": {fillHeldSQL + ";" + fillWaitingSQL},
	} {
		t.Run("analyzed "+when, func(t *testing.T) {
			t.Parallel()
			db := schematest.Postgres(t, "postgres", Migrate)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			conn, err := db.Conn(ctx)
			require.NoError(t, err)
			defer conn.Close()
			exec := func(statement string) {
				_, err := conn.ExecContext(ctx, statement)
				require.NoError(t, err, statement)
			}
			exec("ALTER TABLE postbus_outbox SET (autovacuum_enabled = off);" + fills[0])
			exec("ANALYZE postbus_outbox;" + fills[1])
			exec("ANALYZE postbus_holds;" + fills[2])
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				exec("SET plan_cache_mode = " + mode)
				assertPlans(ctx, t, conn, "analyzed "+when+", "+mode)
			}
		})
	}
}

// assertPlans looks at the plan of every statement of the relay that touches
// the outbox.
func assertPlans(ctx context.Context, t *testing.T, conn *sql.Conn, when string) {
	t.Helper()
	all := make([]int, schema.DefaultShards)
	for i := range all {
		all[i] = i
	}
	shards, ids := intArray(all), pq.Int64Array{100001, 100065, 7, 9}
	keys := pq.StringArray{"key-1", "huge", "key-3"}
	three := pq.Int64Array{1, 1, 3}
	for name, c := range map[string]struct {
		query, index string
		blocks       int
		args         []any
	}{
		"claim":        {claimSQL, "idx_postbus_outbox_claim", 1100, []any{shards, 100, 1000}},
		"held":         {heldSQL, "idx_postbus_outbox_aside_lane", 300, []any{three, pq.StringArray{"orders", "orders", "orders"}, keys, pq.Int64Array{0, 0, 0}, 50}},
		"sent waiting": {sentWaitingSQL, "idx_postbus_outbox_claim", 100, []any{pq.Int64Array{1, 2, 7, 9}, ids}},
		"sent aside":   {sentAsideSQL, "idx_postbus_outbox_aside_id", 100, []any{ids}},
		"hold records": {holdRecordsSQL, "idx_postbus_outbox_claim", 100, []any{1, ids}},
		"fail":         {failSQL, "idx_postbus_outbox_claim", 200, []any{ids, pq.Int64Array{1, 1, 1, 1}, ids, ids, pq.StringArray{"", "", "", ""}, 1}},
		"lift huge":    {liftSQL, "idx_postbus_outbox_aside_lane", 100, []any{1, "orders", "huge", 0}},
		"lift":         {liftSQL, "idx_postbus_outbox_aside_lane", 100, []any{1, "orders", "key-1", 0}},
	} {
		plan := explain(ctx, t, conn, c.query, c.args)
		text := plan.text("")
		uses := false
		plan.walk(func(n planNode) {
			if n.Relation == "postbus_outbox" {
				assert.NotEqual(t, "Seq Scan", n.Type, "%s, %s:\n%s", name, when, text)
				assert.Less(t, n.Removed, 1000, "%s, %s:\n%s", name, when, text)
			}
			uses = uses || n.Index == c.index
		})
		assert.True(t, uses, "%s, %s does not use %s:\n%s", name, when, c.index, text)
		assert.Less(t, plan.Hit+plan.Read, c.blocks, "%s, %s reads too much:\n%s", name, when, text)
	}
}

// explain runs the statement as a prepared one, and undoes what it did.
func explain(ctx context.Context, t *testing.T, conn *sql.Conn, query string, args []any) planNode {
	t.Helper()
	tx, err := conn.BeginTx(ctx, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback()) }()
	_, err = tx.ExecContext(ctx, "PREPARE statement AS "+query)
	require.NoError(t, err)
	defer func() { _, _ = tx.ExecContext(ctx, "DEALLOCATE statement") }()
	literals := make([]string, len(args))
	for i, arg := range args {
		literals[i] = literal(t, arg)
	}
	var text string
	row := tx.QueryRowContext(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE statement("+strings.Join(literals, ", ")+")")
	require.NoError(t, row.Scan(&text), query)
	var plans []struct{ Plan planNode }
	require.NoError(t, json.Unmarshal([]byte(text), &plans))
	return plans[0].Plan
}

func literal(t *testing.T, arg any) string {
	t.Helper()
	if valuer, ok := arg.(driver.Valuer); ok {
		value, err := valuer.Value()
		require.NoError(t, err)
		return pq.QuoteLiteral(fmt.Sprint(value))
	}
	return pq.QuoteLiteral(fmt.Sprint(arg))
}
