package eventbus_test

import (
	"bytes"
	"context"
	"database/sql"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus"
	"github.com/postbus-io/postbus/schema"
	"github.com/postbus-io/postbus/schema/postgres"
	"github.com/postbus-io/postbus/schema/schematest"
)

// cutter is a TCP proxy that can swallow the server's answer to a COMMIT and
// then end the connection.
type cutter struct {
	listener net.Listener
	server   string
	armed    atomic.Bool
	cut      atomic.Int32
	conns    sync.WaitGroup
}

func newCutter(t *testing.T, server string) *cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &cutter{listener: listener, server: server}
	c.conns.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			c.conns.Go(func() { c.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		c.conns.Wait()
	})
	return c
}

func (c *cutter) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.server)
	if err != nil {
		return
	}
	defer server.Close()
	var deaf atomic.Bool
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(writerFunc(func(p []byte) (int, error) {
			if deaf.Load() {
				_ = client.Close() // the server has answered; nobody will hear it
				return 0, net.ErrClosed
			}
			return client.Write(p)
		}), server)
		_ = client.Close()
	})
	_, _ = io.Copy(writerFunc(func(p []byte) (int, error) {
		if bytes.Contains(bytes.ToUpper(p), []byte("COMMIT")) && c.armed.CompareAndSwap(true, false) {
			deaf.Store(true)
			c.cut.Add(1)
		}
		return server.Write(p)
	}), client)
	_ = server.Close()
	back.Wait()
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// through returns the URL with the host replaced.
func through(t *testing.T, rawURL, host string) (string, string) {
	t.Helper()
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	server := u.Host
	u.Host = host
	return u.String(), server
}

func TestInTx_H48_UnknownOutcomeOfCommitIsToldAndARetryWithTheSameIDIsAppliedOnce(t *testing.T) {
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			direct := schematest.PostgresURL(t)
			_, server := through(t, direct, "")
			proxy := newCutter(t, server)
			proxied, _ := through(t, direct, proxy.listener.Addr().String())
			db := schematest.Open(t, driver, direct)
			require.NoError(t, postgres.Migrate(t.Context(), db, schema.Tables{}))
			createEffects(t, db)

			writer := setup(t, schematest.Open(t, driver, proxied))
			event := noted.New("k", note{"x"}).With(schema.MessageID("fixed"))
			place := func() error {
				return writer.bus.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
					return writer.bus.Publish(ctx, tx, event)
				})
			}
			proxy.armed.Store(true)
			require.ErrorIs(t, place(), eventbus.ErrCommitUnknown)
			require.EqualValues(t, 1, proxy.cut.Load())
			require.NoError(t, place(), "again, with the same id")

			reader := setup(t, db)
			eventually(t, "both committed", func() bool { return reader.count(t, outboxCount) == 2 })
			require.NoError(t, reader.bus.Consume("c", onNote("h", nil)))
			stop := reader.run(t)
			eventually(t, "duplicate absorbed", func() bool { _, skips, _ := reader.seen.counts(); return skips == 1 })
			stop()
			require.Equal(t, 1, reader.count(t, `SELECT count(*) FROM effects`))
		})
	}
}

// TestBus_S03_ForeignTransactionsStallNothing holds transactions of all kinds
// open for ten seconds, while events are published and applied.
func TestBus_S03_ForeignTransactionsStallNothing(t *testing.T) {
	url := schematest.PostgresURL(t)
	db := schematest.Open(t, "postgres", url)
	require.NoError(t, postgres.Migrate(t.Context(), db, schema.Tables{}))
	createEffects(t, db)
	_, err := db.ExecContext(t.Context(), `CREATE TABLE unrelated (n int)`)
	require.NoError(t, err)
	b := setup(t, db)
	require.NoError(t, b.bus.Consume("c", onNote("h", nil)))
	b.run(t)

	writer, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer writer.Rollback() //nolint:errcheck // it only had to be open
	_, err = writer.ExecContext(t.Context(), `INSERT INTO unrelated VALUES (1)`)
	require.NoError(t, err)
	reader, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	require.NoError(t, err)
	defer reader.Rollback() //nolint:errcheck // it only had to be open
	var n int
	require.NoError(t, reader.QueryRowContext(t.Context(), `SELECT count(*) FROM effects`).Scan(&n))
	holdPrepared(t, db)
	holdElsewhere(t, url)

	held, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	published := 0
	for held.Err() == nil {
		b.publish(t, noted.New("k", note{"x"}), noted.Unordered(note{"y"}))
		published += 2
		eventually(t, "applied while the others hold on", func() bool { return b.count(t, `SELECT count(*) FROM effects`) == published })
	}
	t.Logf("%d events applied one pair after the other", published)
}

// holdPrepared leaves a prepared transaction behind until the test ends.
func holdPrepared(t *testing.T, db *sql.DB) {
	t.Helper()
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	name := strings.ReplaceAll(t.Name(), "/", "_") + time.Now().Format("150405.000000")
	_, err = conn.ExecContext(t.Context(), `BEGIN; INSERT INTO unrelated VALUES (2); PREPARE TRANSACTION '`+name+`'`)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := conn.ExecContext(context.Background(), `ROLLBACK PREPARED '`+name+`'`)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	})
}

// holdElsewhere keeps a writing transaction open in another database of the
// cluster.
func holdElsewhere(t *testing.T, rawURL string) {
	t.Helper()
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	u.Path = "/template1"
	db := schematest.Open(t, "postgres", u.String())
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	_, err = tx.ExecContext(t.Context(), `SELECT pg_current_xact_id()`)
	require.NoError(t, err)
}

func TestOpen_UnusableDatabaseIsOneClearError(t *testing.T) {
	server := schematest.PostgresURL(t)
	u, err := url.Parse(server)
	require.NoError(t, err)
	wrong := *u
	wrong.User = url.UserPassword(u.User.Username(), "S3cr3t!")
	nobody := *u
	nobody.Host = "127.0.0.1:1"
	for name, test := range map[string]struct {
		url, says string
	}{
		"wrong password":          {wrong.String(), "password authentication failed"},
		"nothing behind the port": {nobody.String(), "127.0.0.1:1"},
	} {
		for _, driver := range []string{"postgres", "pgx"} {
			t.Run(name+"/"+driver, func(t *testing.T) {
				db := schematest.Open(t, driver, test.url)
				_, err := eventbus.Open(t.Context(), db, eventbus.DefaultConfig())
				require.ErrorIs(t, err, eventbus.ErrDatabase)
				require.ErrorContains(t, err, test.says)
				require.NotContains(t, err.Error(), "S3cr3t")
				require.NotContains(t, err.Error(), "S3cr3t%21")
				require.Less(t, len(err.Error()), 400)
			})
		}
	}
	t.Run("not migrated", func(t *testing.T) {
		_, err := eventbus.Open(t.Context(), schematest.Open(t, "postgres", server), eventbus.DefaultConfig())
		require.ErrorIs(t, err, schema.ErrNotMigrated)
		require.ErrorContains(t, err, "Migrate")
	})
	t.Run("another kind", func(t *testing.T) {
		cfg := eventbus.DefaultConfig()
		cfg.Database.Kind = eventbus.DatabaseSQLite
		_, err := eventbus.Open(t.Context(), schematest.Open(t, "pgx", server), cfg)
		require.ErrorContains(t, err, "database.kind is sqlite")
		require.ErrorContains(t, err, "PostgreSQL")
	})
	t.Run("nil", func(t *testing.T) {
		_, err := eventbus.Open(t.Context(), nil, eventbus.DefaultConfig())
		require.ErrorIs(t, err, eventbus.ErrDatabase)
	})
}

// TestBus_PostgresStoppedAndStartedInMidStream needs a server of its own, since
// other tests use the common one.
func TestBus_PostgresStoppedAndStartedInMidStream(t *testing.T) {
	schematest.PostgresURL(t) // skips or fails where there is no PostgreSQL
	server := startServer(t)
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			t.Setenv(schematest.PostgresEnv, server.url)
			db := schematest.Postgres(t, driver, migratePostgres)
			b := setup(t, db, func(cfg *eventbus.Config) {
				cfg.Relay.Lease, cfg.Relay.Heartbeat, cfg.Relay.PublishTimeout = 2*time.Second, 500*time.Millisecond, time.Second
			})
			w := newWorkload(t, db, 20, 2000)
			require.NoError(t, b.bus.Consume("counter", applyStep("count")))
			b.run(t)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			var load sync.WaitGroup
			load.Go(func() { w.run(ctx, b.bus) })
			for i, mode := range []string{"--immediate", ""} {
				eventually(t, "some load", func() bool { return w.committed.Load() > int64(500*(i+1)) })
				server.restart(t, mode)
			}
			load.Wait()
			require.NoError(t, ctx.Err())
			w.settled(t, "count", patience)
			w.check(t, "count")
			require.Empty(t, b.dead(t))
		})
	}
}

// A server is a PostgreSQL that one test may stop.
type server struct {
	env []string
	url string
}

func startServer(t *testing.T) *server {
	t.Helper()
	port := freePort(t)
	s := &server{
		env: append(os.Environ(), "POSTBUS_SERVICES_DIR="+filepath.Join(os.TempDir(), "postbus-test-services-"+port), "POSTBUS_PG_PORT="+port),
		url: "postgres://postbus:postbus@127.0.0.1:" + port + "/postbus?sslmode=disable",
	}
	s.services(t, "up", "postgres")
	t.Cleanup(func() { s.services(t, "down", "--immediate", "--purge", "postgres") })
	return s
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	return port
}

func (s *server) restart(t *testing.T, mode string) {
	t.Helper()
	args := []string{"down", "postgres"}
	if mode != "" {
		args = []string{"down", mode, "postgres"}
	}
	s.services(t, args...)
	s.services(t, "up", "postgres")
}

func (s *server) services(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "../dev/services", args...)
	cmd.Env = s.env
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "dev/services %v: %s", args, out)
}
