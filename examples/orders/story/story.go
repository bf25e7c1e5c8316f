package story

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"
)

// The bounds of Config.Orders.
const (
	MinOrders = 5
	MaxOrders = 50_000
)

var (
	// ErrInvalidConfig is returned for a Config that cannot be used.
	ErrInvalidConfig = errors.New("invalid configuration")
	// ErrSums is returned when the story was told and its sums disagree.
	ErrSums = errors.New("the sums disagree")

	errTooLong = errors.New("the story took too long")
	errOver    = errors.New("the story is over")
	errFault   = errors.New("a service has failed")
)

// A Config says how the story is told.
type Config struct {
	// Orders is how many orders are placed, from 5 to 50,000.
	Orders int
	// Out is where the story goes.
	Out io.Writer
	// Logger gets what the services log. Defaults to none.
	Logger *slog.Logger

	// beforeSums, if set, is called when all has stopped and nothing is
	// counted yet.
	beforeSums func(*stage) error
}

// patience bounds the whole story, which takes seconds: a minute, and more for a large load.
func (c Config) patience() time.Duration {
	return time.Minute + time.Duration(c.Orders)*25*time.Millisecond
}

// countPatience bounds the counting at the end, which is done even when the
// story took too long.
const countPatience = 20 * time.Second

// Tell tells the story. When ctx ends, it stops the services, drained, and
// returns. Otherwise it counts, whatever happened before, and returns [ErrSums]
// when the sums disagree. The summary is nil when nothing could be counted.
func Tell(ctx context.Context, cfg Config) (summary *Summary, err error) {
	if cfg.Orders < MinOrders || cfg.Orders > MaxOrders {
		return nil, fmt.Errorf("%w: %d orders, it must be from %d to %d", ErrInvalidConfig, cfg.Orders, MinOrders, MaxOrders)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	storyCtx, cancel := context.WithTimeoutCause(ctx, cfg.patience(), errTooLong)
	defer cancel()
	s, err := setUp(storyCtx, cfg)
	if err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	err = s.play(storyCtx)
	if ctx.Err() != nil {
		stopped := fmt.Errorf("stopped early: %w", context.Cause(ctx))
		return nil, errors.Join(append([]error{stopped}, s.faults...)...)
	}
	ctx, cancel = context.WithTimeout(ctx, countPatience)
	defer cancel()
	summary, sumsErr := s.finish(ctx)
	return summary, errors.Join(err, sumsErr)
}
