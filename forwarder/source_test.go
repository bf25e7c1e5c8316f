package forwarder_test

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/postbus-io/postbus/schema"
)

// A countingSource counts the calls.
type countingSource struct {
	schema.Source
	calls, claims atomic.Int64
}

func (s *countingSource) Heartbeat(ctx context.Context, owner string, lease time.Duration) (schema.Tenure, error) {
	s.calls.Add(1)
	return s.Source.Heartbeat(ctx, owner, lease)
}

func (s *countingSource) Acquire(ctx context.Context, owner string, most int) ([]schema.Shard, error) {
	s.calls.Add(1)
	return s.Source.Acquire(ctx, owner, most)
}

func (s *countingSource) Release(ctx context.Context, owner string, shards []int) error {
	s.calls.Add(1)
	return s.Source.Release(ctx, owner, shards)
}

func (s *countingSource) Leave(ctx context.Context, owner string) error {
	s.calls.Add(1)
	return s.Source.Leave(ctx, owner)
}

func (s *countingSource) Claim(ctx context.Context, shards []int, perShard, most int) ([]schema.Record, error) {
	s.calls.Add(1)
	s.claims.Add(1)
	return s.Source.Claim(ctx, shards, perShard, most)
}

func (s *countingSource) Sent(ctx context.Context, records []schema.Record) error {
	s.calls.Add(1)
	return s.Source.Sent(ctx, records)
}

func (s *countingSource) Holds(ctx context.Context, shards []int) ([]schema.Hold, error) {
	s.calls.Add(1)
	return s.Source.Holds(ctx, shards)
}

func (s *countingSource) Held(ctx context.Context, holds []schema.Hold, perHold int) ([]schema.Record, error) {
	s.calls.Add(1)
	return s.Source.Held(ctx, holds, perHold)
}

func (s *countingSource) Settle(ctx context.Context, owner string, settlement schema.Settlement) error {
	s.calls.Add(1)
	return s.Source.Settle(ctx, owner, settlement)
}

// errAway is what a database says that is away.
var errAway = errors.New("connection refused")

// A faultySource fails the next calls of a kind, as many as its field says.
type faultySource struct {
	schema.Source
	heartbeat, acquire, release, leave, claim, sent, holds, held, settle atomic.Int64
}

func fails(left *atomic.Int64) error {
	if left.Add(-1) >= 0 {
		return errAway
	}
	left.Store(0)
	return nil
}

func (s *faultySource) Heartbeat(ctx context.Context, owner string, lease time.Duration) (schema.Tenure, error) {
	if err := fails(&s.heartbeat); err != nil {
		return schema.Tenure{}, err
	}
	return s.Source.Heartbeat(ctx, owner, lease)
}

func (s *faultySource) Acquire(ctx context.Context, owner string, most int) ([]schema.Shard, error) {
	if err := fails(&s.acquire); err != nil {
		return nil, err
	}
	return s.Source.Acquire(ctx, owner, most)
}

func (s *faultySource) Release(ctx context.Context, owner string, shards []int) error {
	if err := fails(&s.release); err != nil {
		return err
	}
	return s.Source.Release(ctx, owner, shards)
}

func (s *faultySource) Leave(ctx context.Context, owner string) error {
	if err := fails(&s.leave); err != nil {
		return err
	}
	return s.Source.Leave(ctx, owner)
}

func (s *faultySource) Claim(ctx context.Context, shards []int, perShard, most int) ([]schema.Record, error) {
	if err := fails(&s.claim); err != nil {
		return nil, err
	}
	return s.Source.Claim(ctx, shards, perShard, most)
}

func (s *faultySource) Sent(ctx context.Context, records []schema.Record) error {
	if err := fails(&s.sent); err != nil {
		return err
	}
	return s.Source.Sent(ctx, records)
}

func (s *faultySource) Holds(ctx context.Context, shards []int) ([]schema.Hold, error) {
	if err := fails(&s.holds); err != nil {
		return nil, err
	}
	return s.Source.Holds(ctx, shards)
}

func (s *faultySource) Held(ctx context.Context, holds []schema.Hold, perHold int) ([]schema.Record, error) {
	if err := fails(&s.held); err != nil {
		return nil, err
	}
	return s.Source.Held(ctx, holds, perHold)
}

func (s *faultySource) Settle(ctx context.Context, owner string, settlement schema.Settlement) error {
	if err := fails(&s.settle); err != nil {
		return err
	}
	return s.Source.Settle(ctx, owner, settlement)
}
