package sqlite

import (
	"net/url"
	"strings"
	"time"
)

// BusyTimeout is how long a statement of a pool opened with [DSN] waits for
// the writer in front of it.
const BusyTimeout = 10 * time.Second

// DSN returns the data source name with which modernc.org/sqlite opens the
// file at path as [Database.Check] wants it: WAL mode, synchronous FULL, a busy
// timeout of 10 s and immediate transactions. The file is created when it is
// not there; its folder is not.
func DSN(path string) string {
	settings := url.Values{
		"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)"},
		"_txlock": {"immediate"},
	}
	// A '?' or '%' of the path would be read as part of the settings.
	escaped := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
	return "file:" + escaped + "?" + settings.Encode()
}
