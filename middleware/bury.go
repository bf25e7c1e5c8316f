package middleware

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/postbus-io/postbus/schema"
)

// DefaultBuryTimeout bounds one try to store a dead letter.
const DefaultBuryTimeout = 10 * time.Second

// A gravedigger stores dead letters for one receiver.
type gravedigger struct {
	receiver Receiver
	store    schema.DeadLetters
	timeout  time.Duration
	log      *slog.Logger
}

// hold stores the letter, however long the database is away, and returns nil
// when it is stored or the message was applied meanwhile: then the message may
// be acked. It gives up only when ctx ends, and tries once even then.
func (g *gravedigger) hold(ctx context.Context, letter schema.DeadLetter) error {
	waits := newLadder(holdInitial, holdMax)
	for {
		_, err := g.bury(ctx, letter)
		if err == nil {
			return nil
		}
		wait := waits.next()
		g.log.WarnContext(ctx, "dead letter cannot be stored, message held",
			"message_id", letter.MessageID, "wait", wait, "error", textOf(err, maxLineBytes))
		if !pause(ctx, wait) {
			return interrupted(ctx, err)
		}
	}
}

// bury tries once, on a context of its own: the message's may be dead.
func (g *gravedigger) bury(ctx context.Context, letter schema.DeadLetter) (bool, error) {
	buryCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.timeout)
	defer cancel()
	buried, err := g.store.Bury(buryCtx, letter)
	if err != nil {
		return false, fmt.Errorf("dead letter: %w", err)
	}
	if buried {
		g.log.ErrorContext(ctx, "message became a dead letter", "message_id", letter.MessageID,
			"attempts", letter.Attempts, "error", cleanText(letter.LastError, maxLineBytes))
		notify(g.receiver.Hooks, func(h BuryHook) { h.OnBury(letter) })
	}
	return buried, nil
}
