package middleware

import (
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/postbus-io/postbus/schema"
)

// Config configures [Standard] for one consumer.
type Config struct {
	// DB is where the handlers' effects and the inbox are. Not closed.
	DB *sql.DB
	// Database knows the inbox and the dead letters in DB.
	Database Database
	// Consumer names the consumer; stored beside every message.
	Consumer string
	// Logger gets what somebody should look at. Defaults to slog.Default().
	Logger *slog.Logger
	// Retry configures the retries. Its zero value means its defaults.
	Retry RetryConfig
	// TxOptions are those of every attempt's transaction. Defaults to the
	// database's own.
	TxOptions *sql.TxOptions
	// CommitTimeout bounds COMMIT and ROLLBACK. Defaults to 10 s
	// (DefaultCommitTimeout).
	CommitTimeout time.Duration
	// BuryTimeout bounds one try to store a dead letter. Defaults to 10 s
	// (DefaultBuryTimeout).
	BuryTimeout time.Duration
	// AfterCommitFunc is called after each commit of a handler's transaction,
	// by many goroutines at once. Optional.
	AfterCommitFunc func()
	// Hooks are told what happens.
	Hooks []Hook
}

// A Chain is the middlewares of one consumer in the one right order. It is safe
// for concurrent use.
type Chain struct{ cfg Config }

// Standard returns the chain of a consumer. Everything that is wrong with cfg
// is one error, wrapping [ErrInvalidConfig].
func Standard(cfg Config) (*Chain, error) {
	faults := append(cfg.receiver("", "").faults(false), cfg.inbox().withDefaults().faults()...)
	for _, fault := range cfg.Retry.withDefaults().faults() {
		faults = append(faults, fmt.Errorf("Retry.%w", fault))
	}
	if cfg.BuryTimeout < 0 {
		faults = append(faults, fmt.Errorf("BuryTimeout: %s is negative", cfg.BuryTimeout))
	}
	if err := configError("standard", faults); err != nil {
		return nil, err
	}
	return &Chain{cfg}, nil
}

// Outer returns the part that runs once per message of a topic, before it is
// known who handles it: Recover, Envelope. An empty topic means the one that
// Watermill's router has subscribed to.
func (c *Chain) Outer(topic string) (message.HandlerMiddleware, error) {
	links, err := c.outer(topic)
	return compose(links, err)
}

// Inner returns the part that runs per handler, for the messages of its type:
// DeadLetter, Retry, Inbox, Recover. The handler's name is stored beside every
// message: under another name it is another handler, which has seen nothing. An
// empty topic means the one that Watermill's router has subscribed to.
func (c *Chain) Inner(handler, topic string) (message.HandlerMiddleware, error) {
	if fault := schema.NameFault(handler); fault != "" {
		return nil, fmt.Errorf("%w: Handler: %s", ErrInvalidConfig, fault)
	}
	links, err := c.inner(handler, topic)
	return compose(links, err)
}

// String names the middlewares, outermost first, for a log line.
func (c *Chain) String() string {
	outer, _ := c.outer("")
	inner, _ := c.inner("", "")
	return names(outer) + " | " + names(inner) + " > handler"
}

// A link is one middleware of a chain.
type link struct {
	name       string
	middleware message.HandlerMiddleware
}

func (c *Chain) outer(topic string) ([]link, error) {
	r := c.cfg.receiver("", topic)
	envelope, err := Envelope(r, EnvelopeConfig{c.cfg.Database, c.cfg.BuryTimeout})
	return []link{
		{"recover", Recover(r.withDefaults().log())},
		{"envelope", envelope},
	}, err
}

func (c *Chain) inner(handler, topic string) ([]link, error) {
	r := c.cfg.receiver(handler, topic)
	deadLetter, deadLetterErr := DeadLetter(r, DeadLetterConfig{c.cfg.Database, c.cfg.BuryTimeout})
	retry, retryErr := Retry(r, c.cfg.Retry)
	inbox, inboxErr := Inbox(r, c.cfg.inbox())
	return []link{
		{"dead letter", deadLetter},
		{"retry", retry},
		{"inbox", inbox},
		{"recover", Recover(r.withDefaults().log())},
	}, errors.Join(deadLetterErr, retryErr, inboxErr)
}

func (c Config) receiver(handler, topic string) Receiver {
	return Receiver{Consumer: c.Consumer, Handler: handler, Topic: topic, Logger: c.Logger, Hooks: c.Hooks}
}

func (c Config) inbox() InboxConfig {
	return InboxConfig{
		DB: c.DB, Database: c.Database, TxOptions: c.TxOptions,
		CommitTimeout: c.CommitTimeout, AfterCommitFunc: c.AfterCommitFunc,
	}
}

// compose returns the links as one middleware, the first one outermost.
func compose(links []link, err error) (message.HandlerMiddleware, error) {
	if err != nil {
		return nil, err
	}
	return func(h message.HandlerFunc) message.HandlerFunc {
		for i := len(links) - 1; i >= 0; i-- {
			h = links[i].middleware(h)
		}
		return h
	}, nil
}

func names(links []link) string {
	all := make([]string, len(links))
	for i, l := range links {
		all[i] = l.name
	}
	return strings.Join(all, " > ")
}
