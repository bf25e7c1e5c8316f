package forwarder

import (
	"log/slog"
	"sync"
	"time"
)

// complaintInterval is how often a fault that goes on is logged.
const complaintInterval = 5 * time.Second

// complaints log faults that are waited for: each at once when it is new, and
// then once an interval while it goes on.
type complaints struct {
	log  *slog.Logger
	mu   sync.Mutex
	last map[string]complaint // by what was being done
}

type complaint struct {
	text string
	at   time.Time
}

func newComplaints(log *slog.Logger) *complaints {
	return &complaints{log: log, last: map[string]complaint{}}
}

func (c *complaints) add(doing, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, now := c.last[doing], time.Now()
	if last.text == text && now.Sub(last.at) < complaintInterval {
		return
	}
	c.last[doing] = complaint{text: text, at: now}
	c.log.Warn("relay waits and tries again", "doing", doing, "error", text)
}
