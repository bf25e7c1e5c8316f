package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/postbus-io/postbus/schema"
)

// Primary result codes that have a meaning here.
// https://www.sqlite.org/rescode.html
const (
	codeError    = 1
	codeBusy     = 5
	codeLocked   = 6
	codeIOErr    = 10
	codeFull     = 13
	codeCantOpen = 14
)

// Classify implements [schema.Database]. It goes by the result code.
func (d *Database) Classify(err error) schema.ErrorClass {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return schema.ErrorOther
	}
	switch resultCode(err) {
	case codeBusy, codeLocked:
		return schema.ErrorConflict
	case codeIOErr, codeFull, codeCantOpen:
		return schema.ErrorUnavailable
	}
	if errors.Is(err, driver.ErrBadConn) {
		return schema.ErrorUnavailable
	}
	return schema.ErrorOther
}

// resultCode returns the primary result code of SQLite's error, or 0.
func resultCode(err error) int {
	var c interface{ Code() int }
	if errors.As(err, &c) {
		return c.Code() & 0xff
	}
	return 0
}
