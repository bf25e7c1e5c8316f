package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/postbus-io/postbus/schema"
)

// SQLSTATEs that have a meaning here; the first two characters are the class.
// https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	stateSerializationFailure = "40001"
	stateDeadlockDetected     = "40P01"
	stateLockNotAvailable     = "55P03"
	stateTooManyConnections   = "53300"
	stateAdminShutdown        = "57P01"
	stateCrashShutdown        = "57P02"
	stateCannotConnectNow     = "57P03"
	stateIdleSessionTimeout   = "57P05"
	stateIdleInTransaction    = "25P03"
	stateUndefinedTable       = "42P01"
	stateUndefinedColumn      = "42703"
	stateClassConnection      = "08"
)

// Classify implements [schema.Database]. It goes by SQLSTATE, as lib/pq's and
// pgx's errors offer it, and by the types of a lost connection.
func (d *Database) Classify(err error) schema.ErrorClass {
	switch state := sqlState(err); {
	case state == stateSerializationFailure, state == stateDeadlockDetected, state == stateLockNotAvailable:
		return schema.ErrorConflict
	case state == stateTooManyConnections, state == stateAdminShutdown, state == stateCrashShutdown,
		state == stateCannotConnectNow, state == stateIdleSessionTimeout, state == stateIdleInTransaction,
		strings.HasPrefix(state, stateClassConnection):
		return schema.ErrorUnavailable
	case state != "":
		return schema.ErrorOther
	}
	return classifyConnection(err)
}

func classifyConnection(err error) schema.ErrorClass {
	var opErr *net.OpError
	if errors.As(err, &opErr) {
		return schema.ErrorUnavailable // a timeout of the network, too, which matches context.DeadlineExceeded
	}
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return schema.ErrorOther
	}
	var netErr net.Error
	// pgx's errors of a connection, which may hide the network's, say whether
	// it is safe to retry.
	var pgxErr interface{ SafeToRetry() bool }
	switch {
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.As(err, &netErr), errors.As(err, &pgxErr):
		return schema.ErrorUnavailable
	}
	return schema.ErrorOther
}

// sqlState returns the SQLSTATE of a server's error, or "".
func sqlState(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	return ""
}
