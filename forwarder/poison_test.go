package forwarder_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/forwarder"
	"github.com/postbus-io/postbus/schema"
)

// invalid is what a broker says of a record that it never takes.
func invalid(topic string) error {
	return &schema.PublishError{Class: schema.PublishRecord, Topic: topic, Err: errors.New("too large")}
}

func skip(cfg *forwarder.Config) { cfg.AfterQuarantine = forwarder.PolicySkip }

func TestRelay_H32_PoisonRecordStopsOnlyItsKey(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "bad", 2)
		for i := range 100 {
			b.publish(orders, fmt.Sprint("k", i), 1)
		}
		b.broker.decide = func(try try) error {
			if try.is("orders/bad#1") {
				return fmt.Errorf("no such thing: %w\x00\xff", errRefused)
			}
			return nil
		}
		from := time.Now()
		b.start(func(cfg *forwarder.Config) { cfg.MaxAttempts, cfg.BackoffMax = 5, 2*time.Second })
		b.broker.await(100)
		require.Less(b, time.Since(from), time.Second, "the good ones wait for nothing")
		b.eventually("it is quarantined", func() bool { return b.record("orders/bad#1").State == schema.StateQuarantined })
		b.publish(orders, "bad", 1)
		pass(time.Minute)
		bad := b.record("orders/bad#1")
		require.Equal(b, 5, b.broker.tried("orders/bad#1"))
		require.Equal(b, 5, bad.Attempts)
		require.Equal(b, "no such thing: refused\uFFFD\uFFFD", bad.Error)
		require.Equal(b, []string{"orders/bad#1", "orders/bad#2", "orders/bad#3"}, b.messages(), "its key waits")
		require.Zero(b, b.broker.tried("orders/bad#2"))
		require.Equal(b, 1, b.log.count("record quarantined"))
	})
}

// A row that somebody has written by hand, or damaged, is no message.
func TestRelay_H32_UnreadableRowStopsOnlyItsKey(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "bad", 2)
		for i := range 100 {
			b.publish(orders, fmt.Sprint("k", i), 1)
		}
		b.exec(`UPDATE postbus_outbox SET headers = '{' WHERE message_id = 'orders/bad#1'`)
		b.start()
		b.broker.await(100)
		b.eventually("it is quarantined", func() bool { return b.record("orders/bad#1").State == schema.StateQuarantined })
		require.Contains(b, b.record("orders/bad#1").Error, "headers are unreadable")
		require.Equal(b, []string{"orders/bad#1", "orders/bad#2"}, b.messages(), "its key waits")
		require.Zero(b, b.broker.tried("orders/bad#1"), "the broker was asked")
	})
}

func TestRelay_H32_UnderSkipTheKeyGoesOn(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "bad", 120)
		b.broker.decide = func(try try) error {
			if try.is("orders/bad#1") || try.is("orders/bad#60") {
				return errRefused
			}
			return nil
		}
		b.start(skip, func(cfg *forwarder.Config) { cfg.MaxAttempts = 3 })
		b.broker.await(118)
		b.eventually("two are quarantined", func() bool { return len(b.records()) == 2 && len(b.holds()) == 0 })
		b.publish(orders, "bad", 1)
		b.broker.await(119)
		require.Equal(b, 3, b.broker.tried("orders/bad#60"))
		got := b.broker.of(orders, "bad")
		require.Equal(b, "orders/bad#2", got[0])
		require.Equal(b, []string{"orders/bad#59", "orders/bad#61"}, got[57:59])
		require.Len(b, got, 119)
	})
}

// The second record of the key is refused for good. Under hold a person decides
// about it; the relay sees what that person writes into the tables.
func TestRelay_S08_PolicyHold(t *testing.T) {
	for decision, want := range map[string][]string{
		`UPDATE postbus_outbox SET state = 1 WHERE state = 3`: {"orders/k#1", "orders/k#2", "orders/k#3", "orders/k#4"},
		`DELETE FROM postbus_outbox WHERE state = 3`:          {"orders/k#1", "orders/k#3", "orders/k#4"},
	} {
		t.Run(strings.Fields(decision)[0], func(t *testing.T) {
			virtual(t, func(b *bundle) {
				b.publish(orders, "k", 3)
				b.publish(orders, "j", 100)
				var repaired atomic.Bool
				b.broker.decide = func(try try) error {
					if try.is("orders/k#2") && !repaired.Load() {
						return invalid(try.topic)
					}
					return nil
				}
				b.start()
				b.broker.await(101)
				b.eventually("k is held", func() bool { return len(b.holds()) == 1 })
				require.Equal(b, schema.StateQuarantined, b.record("orders/k#2").State, "at once: no retry can mend it")
				require.Equal(b, 1, b.broker.tried("orders/k#2"))
				b.publish(orders, "k", 1)
				pass(time.Minute)
				require.Equal(b, []string{"orders/k#1"}, b.broker.of(orders, "k"))
				repaired.Store(true)
				b.exec(decision)
				b.exec(`UPDATE postbus_holds SET next_attempt_at = 0`)
				b.eventually("k goes on", func() bool { return len(b.records())+len(b.holds()) == 0 })
				require.Equal(b, want, b.broker.of(orders, "k"))
			})
		})
	}
}

func TestRelay_S08_PolicySkip(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "k", 3)
		b.broker.decide = func(try try) error {
			if try.is("orders/k#2") {
				return invalid(try.topic)
			}
			if try.is("orders/k#3") && b.record("orders/k#2").State != schema.StateQuarantined {
				b.Error("passed before the database knows of the quarantine")
			}
			return nil
		}
		b.start(skip)
		b.broker.await(2)
		b.publish(orders, "k", 1)
		b.broker.await(3)
		require.Equal(b, []string{"orders/k#1", "orders/k#3", "orders/k#4"}, b.broker.of(orders, "k"))
		b.eventually("one is left", func() bool { return len(b.records()) == 1 })
		require.Equal(b, schema.StateQuarantined, b.record("orders/k#2").State)
		b.eventually("nothing is held", func() bool { return len(b.holds()) == 0 })
	})
}

// A record is tried MaxAttempts times, at growing distances, whoever tries it.
func TestRelay_AttemptsOutliveTheRelay(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "k", 1)
		var at []time.Time
		b.broker.decide = func(try) error {
			at = append(at, time.Now())
			return errRefused
		}
		for relay := range 8 {
			r := b.start(func(cfg *forwarder.Config) {
				cfg.BackoffInitial, cfg.BackoffMax, cfg.MaxAttempts = time.Second, 20*time.Second, 8
			})
			b.eventually("an attempt", func() bool { return b.record("orders/k#1").Attempts > relay })
			r.stop()
		}
		require.Equal(b, schema.StateQuarantined, b.record("orders/k#1").State)
		require.Len(b, at, 8)
		for i, most := range []int{1, 2, 4, 8, 16, 20, 20} {
			require.Less(b, at[i+1].Sub(at[i]), time.Duration(most)*time.Second+time.Second, "wait %d", i+1)
		}
	})
}

func TestRelay_HoldOutlivesTheRelay(t *testing.T) {
	virtual(t, func(b *bundle) {
		b.publish(orders, "k", 2)
		b.broker.decide = func(try try) error {
			if try.nth == 1 && try.is("orders/k#1") {
				return errRefused
			}
			return nil
		}
		r := b.start(func(cfg *forwarder.Config) { cfg.BackoffInitial, cfg.BackoffMax = 5*time.Minute, 5*time.Minute })
		b.eventually("k is held", func() bool { return len(b.holds()) == 1 })
		r.stop()
		due := time.Now().Add(b.holds()[0].Retry)
		b.start()
		b.awaitAll()
		require.WithinDuration(b, due, b.broker.log[0].at, 200*time.Millisecond, "not before, and soon after")
	})
}

// For two minutes the broker is not to be reached.
func TestRelay_BrokerDownCostsNoAttempt(t *testing.T) {
	for name, fault := range map[string]error{
		"broker":   &schema.PublishError{Class: schema.PublishBroker, Topic: orders, Err: errors.New("connection refused")},
		"canceled": context.Canceled,
		"deadline": context.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(b *bundle) {
				up := time.Now().Add(2 * time.Minute)
				for i := range 5 {
					b.publish(orders, fmt.Sprint("k", i), 3)
				}
				b.broker.decide = func(try) error {
					if time.Now().Before(up) {
						return fault
					}
					return nil
				}
				b.start()
				b.broker.await(1)
				require.Less(b, time.Since(up), 6*time.Second, "it is found soon after it has come back")
				b.awaitAll()
				require.Zero(b, b.log.count("held")+b.log.count("quarantined"))
				require.Less(b, b.broker.tried("orders/k0#1"), 120, "it waits between tries")
				require.Greater(b, b.broker.tried("orders/k0#1"), 20)
				require.Less(b, b.log.count("waits and tries again"), 30)
			})
		})
	}
}

// One topic takes nothing: its records stay as they are, the other topic goes
// on, and the relay does not spin.
func TestRelay_RefusingTopicCostsNoAttempt(t *testing.T) {
	virtual(t, func(b *bundle) {
		var down atomic.Bool
		down.Store(true)
		b.publish("gone", "k", 3)
		b.publish(orders, "k", 30)
		b.broker.decide = func(try try) error {
			if try.topic == "gone" && down.Load() {
				return &schema.PublishError{Class: schema.PublishDestination, Topic: try.topic, Err: errors.New("unknown topic")}
			}
			return nil
		}
		b.start()
		b.broker.await(30)
		b.publish(orders, "k", 1)
		b.broker.await(31)
		pass(time.Minute)
		require.Equal(b, []string{"gone/k#1", "gone/k#2", "gone/k#3"}, b.messages())
		require.Equal(b, row{ID: b.record("gone/k#1").ID, Message: "gone/k#1"}, b.record("gone/k#1"))
		require.Less(b, b.broker.tried("gone/k#1"), 60)
		require.Positive(b, b.log.count("unknown topic"))
		down.Store(false)
		b.awaitAll()
	})
}

// One topic hangs until the relay's patience is over, and answers with an error
// of its own that knows nothing of contexts.
func TestRelay_HangingTopicCostsNoAttempt(t *testing.T) {
	virtual(t, func(b *bundle) {
		var hangs atomic.Bool
		hangs.Store(true)
		b.publish("slow", "k", 3)
		b.publish(orders, "k", 10)
		b.broker.decide = func(try try) error {
			if try.topic == "slow" && hangs.Load() {
				<-try.ctx.Done()
				return errors.New("request timed out")
			}
			return nil
		}
		from := time.Now()
		b.start()
		b.broker.await(10)
		require.Less(b, time.Since(from), 6*time.Second, "one publish timeout")
		pass(time.Minute)
		require.Equal(b, row{ID: b.record("slow/k#1").ID, Message: "slow/k#1"}, b.record("slow/k#1"))
		hangs.Store(false)
		b.awaitAll()
	})
}

// A broker that stumbles now and then, but takes records in between, is not
// waited for longer and longer.
func TestRelay_StumblingBroker(t *testing.T) {
	virtual(t, func(b *bundle) {
		for i := range 30 {
			b.publish(orders, fmt.Sprint("k", i), 10)
		}
		var tries atomic.Int64
		b.broker.decide = func(try try) error {
			if tries.Add(1)%20 == 0 {
				return &schema.PublishError{Class: schema.PublishBroker, Topic: try.topic, Err: errRefused}
			}
			return nil
		}
		from := time.Now()
		b.start()
		b.awaitAll()
		require.Less(b, time.Since(from), 5*time.Second, "some twenty pauses of a twentieth of a second")
	})
}
