package forwarder_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/forwarder"
	"github.com/postbus-io/postbus/schema"
)

// stopIn starts a relay and ends its context inside the nth try of the broker.
func (b *bundle) stopIn(nth int, cause error, changes ...func(*forwarder.Config)) *running {
	b.Helper()
	var tries atomic.Int64
	reached, reach := b.gate()
	ended, end := b.gate()
	b.broker.decide = func(try) error {
		if tries.Add(1) == int64(nth) {
			reach()
			<-ended
		}
		return nil
	}
	r := b.start(changes...)
	<-reached
	r.cancel(cause)
	end()
	<-r.done
	return r
}

// plain sends one message at a time, so that a batch has positions.
func (b *bundle) plain(cfg *forwarder.Config) { cfg.Publisher = b.broker.plain() }

// The relay is stopped at every position of a batch. What was confirmed is
// marked, nothing else is; the rest goes with the next relay, nothing twice.
func TestRelay_H31_StopAtEveryPosition(t *testing.T) {
	for _, keys := range []int{1, 3, 10} {
		for position := 1; position <= 10; position++ {
			t.Run(fmt.Sprintf("%d keys, %d", keys, position), func(t *testing.T) {
				virtual(t, func(b *bundle) {
					for i := range 10 {
						b.publish(orders, fmt.Sprint("k", i%keys), 1)
					}
					r := b.stopIn(position, nil, b.plain)
					require.NoError(b, r.err)
					sent := b.broker.ids()
					require.GreaterOrEqual(b, len(sent), position, "what was in flight came to its end")
					if keys == 1 {
						require.Len(b, sent, position, "and nothing was begun")
					}
					require.Len(b, b.records(), 10-len(sent), "exactly what was confirmed is marked")
					require.NotSubset(b, append(b.messages(), "none"), sent)
					require.Equal(b, map[string]int{"": 64}, b.owners())
					b.start()
					b.awaitAll()
					require.Zero(b, b.broker.repeated())
				})
			})
		}
	}
}

// snapshot is everything that a relay writes.
func (b *bundle) snapshot() string {
	return fmt.Sprint(b.records(), b.holds(), b.owners())
}

// Between confirm and mark the relay dies: the message comes again with the
// same id and bytes, which the broker checks, and the dead relay has touched
// nothing since.
func TestRelay_H49_AbandonedBetweenConfirmAndMark(t *testing.T) {
	for position := 1; position <= 5; position++ {
		t.Run(fmt.Sprint(position), func(t *testing.T) {
			virtual(t, func(b *bundle) {
				b.publish(orders, "k", 5)
				source := &countingSource{Source: b.database}
				r := b.stopIn(position, forwarder.ErrAbandoned, func(cfg *forwarder.Config) { cfg.Source = source })
				require.NoError(b, r.err)
				before, calls := b.snapshot(), source.calls.Load()
				require.Len(b, b.records(), 5, "nothing is marked")
				require.Equal(b, map[string]int{r.Owner(): 64}, b.owners(), "nothing is released")
				pass(time.Minute)
				require.Equal(b, before, b.snapshot())
				require.Equal(b, calls, source.calls.Load())
				b.start()
				b.awaitAll()
				require.Equal(b, position, b.broker.repeated())
			})
		})
	}
}

// A publisher that does not come back keeps a relay from stopping no longer
// than it may, and not from marking and releasing.
func TestRelay_StopsInTime(t *testing.T) {
	for name, kind := range map[string]func(b *bundle, cfg *forwarder.Config){
		"batch": func(*bundle, *forwarder.Config) {},
		"plain": func(b *bundle, cfg *forwarder.Config) { b.plain(cfg) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(b *bundle) {
				b.publish(orders, "k", 2)
				hung, hang := b.gate()
				hangs, release := b.gate()
				b.broker.decide = func(try try) error {
					if try.is("orders/k#2") && try.nth == 1 {
						hang()
						<-hangs
					}
					return nil
				}
				r := b.start(func(cfg *forwarder.Config) { kind(b, cfg) }, func(cfg *forwarder.Config) { cfg.StopTimeout = 4 * time.Second })
				<-hung
				from := time.Now()
				r.stop()
				require.LessOrEqual(b, time.Since(from), 4*time.Second)
				require.Equal(b, []string{"orders/k#2"}, b.messages())
				require.Equal(b, map[string]int{"": 64}, b.owners())
				release()
				synctest.Wait()
				b.start()
				b.awaitAll()
				require.Equal(b, 1, b.broker.repeated(), "what it sent after all")
			})
		})
	}
}

// What fails while the relay stops is no attempt.
func TestRelay_StopIsNoAttempt(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "k", 2)
		begun := make(chan struct{})
		b.broker.decide = func(try try) error {
			if try.nth == 1 {
				close(begun)
				<-try.ctx.Done()
				return errRefused
			}
			return nil
		}
		r := b.start(func(cfg *forwarder.Config) { cfg.Lease, cfg.PublishTimeout = time.Hour, time.Hour/2 })
		<-begun
		r.stop()
		require.Equal(b, row{ID: b.record("orders/k#1").ID, Message: "orders/k#1"}, b.record("orders/k#1"))
		require.Empty(b, b.holds())
	})
}

func TestRelay_StopSaysWhatItCouldNotDo(t *testing.T) {
	virtual(t, func(b *bundle) {
		source := &faultySource{Source: b.database}
		r := b.start(func(cfg *forwarder.Config) { cfg.Source = source })
		b.publish(orders, "k", 1)
		source.sent.Store(1000)
		b.broker.await(1)
		source.leave.Store(1000)
		err := r.end(nil)
		require.ErrorIs(b, err, errAway)
		require.Equal(b, 2, strings.Count(err.Error(), errAway.Error()), "neither marked nor left: %v", err)
		require.Equal(b, []string{"orders/k#1"}, b.messages())
	})
}

func TestRelay_RunsOnce(t *testing.T) {
	virtual(t, func(b *bundle) {
		r := b.start()
		require.ErrorIs(b, r.Run(context.Background()), forwarder.ErrRunning)
		r.stop()
		require.ErrorIs(b, r.Run(context.Background()), forwarder.ErrRunning)
	})
}

func TestRelay_StoppedBeforeItStarts(t *testing.T) {
	virtual(t, func(b *bundle) {
		source := &countingSource{Source: b.database}
		relay, err := forwarder.New(forwarder.Config{Source: source, Publisher: b.broker.batches()})
		require.NoError(b, err)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		require.NoError(b, relay.Run(ctx))
		require.Zero(b, source.calls.Load(), "it has not asked the database for anything")
	})
}

// A stubbornSource has its heartbeats carried out, late, even when nobody waits
// for the answer any more, as a server does.
type stubbornSource struct {
	schema.Source
	beats atomic.Int64
}

func (s *stubbornSource) Heartbeat(ctx context.Context, owner string, lease time.Duration) (tenure schema.Tenure, err error) {
	s.beats.Add(1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		pass(time.Second)
		tenure, err = s.Source.Heartbeat(context.WithoutCancel(ctx), owner, lease)
	}()
	select {
	case <-done:
		return tenure, err
	case <-ctx.Done():
		return schema.Tenure{}, context.Cause(ctx)
	}
}

// A relay that has left stays away: its last heartbeat is not carried out
// afterwards.
func TestRelay_LastHeartbeatIsBeforeItLeaves(t *testing.T) {
	virtual(t, func(b *bundle) {
		source := &stubbornSource{Source: b.database}
		r := b.start(func(cfg *forwarder.Config) { cfg.Source = source })
		b.eventually("a second heartbeat is under way", func() bool { return source.beats.Load() == 2 })
		r.stop()
		pass(5 * time.Second)
		require.Equal(b, map[string]int{"": 64}, b.owners())
		require.Empty(b, query(b, `SELECT owner FROM postbus_relays`, func(rows *sql.Rows, s *string) error { return rows.Scan(s) }))
	})
}
