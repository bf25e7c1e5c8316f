package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"

	"github.com/lib/pq"
)

// ErrConnect is wrapped by every error of [Connect].
var ErrConnect = errors.New("cannot connect to PostgreSQL")

// Connect opens a pool with lib/pq and asks the server once, so that a wrong
// URL, a wrong password and a server that is not there are one clear error. No
// error has the password in it. The caller closes the pool.
//
// Unless the URL says otherwise it sets binary_parameters=yes, which saves a
// round trip a statement and works through a pooler in transaction mode, and
// connect_timeout=10: lib/pq waits for ever, whatever the context says, for a
// server that accepts the connection and is silent.
func Connect(ctx context.Context, rawURL string) (*sql.DB, error) {
	target, err := url.Parse(rawURL)
	if err != nil || target.Host == "" || (target.Scheme != "postgres" && target.Scheme != "postgresql") {
		// The parser's error quotes the URL, password and all.
		return nil, fmt.Errorf("%w: the URL is not of the form postgres://user:password@host:port/database?sslmode=verify-full", ErrConnect)
	}
	query := target.Query()
	for name, value := range map[string]string{"binary_parameters": "yes", "connect_timeout": "10"} {
		if !query.Has(name) {
			query.Set(name, value)
		}
	}
	target.RawQuery = query.Encode()
	connector, err := pq.NewConnector(target.String())
	if err != nil {
		return nil, fmt.Errorf("%w at %s: the URL has a setting that lib/pq does not take", ErrConnect, place(target))
	}
	db := sql.OpenDB(connector)
	if err := db.PingContext(ctx); err != nil {
		_ = db.Close() // the ping says more
		return nil, fmt.Errorf("%w at %s: %w", ErrConnect, place(target), reason(err))
	}
	return db, nil
}

// place names the server without the password.
func place(u *url.URL) string {
	return fmt.Sprintf("%s%s as %q", u.Host, u.Path, u.User.Username())
}

// reason shortens a network error to what went wrong.
func reason(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
