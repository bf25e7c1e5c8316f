package schematest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/schema"
)

// HoldsKeepLanes checks that held records leave the claim, in order, their
// lanes' holds say until when, and a hold on a lane that is held already
// replaces it. A record without a key is a lane of its own.
func HoldsKeepLanes(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	key := keyOn(7)
	alone := alwaysOn(7, "alone")
	b.publish(simple(key, 3)...)
	b.publish(newMessage(alone[0], "orders", "", nil), newMessage(alone[1], "orders", "", nil))
	b.publish(newMessage("elsewhere", "payments", key, nil))
	records := b.waiting()
	shard := b.own("relay")[7]

	due := schema.Hold{Lane: records[0].Lane(), Shard: 7, Head: records[0].ID, Retry: -time.Second, Reason: "no"}
	never := schema.Hold{Lane: records[3].Lane(), Shard: 7, Head: records[3].ID, Retry: schema.Never, Reason: "a person's"}
	b.settle("relay", schema.Settlement{
		Shard: shard, Held: []int64{records[2].ID, records[0].ID, records[1].ID, records[3].ID}, Holds: []schema.Hold{due, never},
	})
	assert.Equal(t, []string{alone[1], "elsewhere"}, b.waitingIDs(), "the other records of the shard are not held")
	assertHolds(t, []schema.Hold{due, never}, b.holds(7))
	assert.Empty(t, b.holds(6))

	held := b.held(2, due, never)
	assert.Equal(t, []string{key + ".0", key + ".1", alone[0]}, messageIDs(held))
	assert.Equal(t, schema.StateHeld, held[0].State)

	later := due
	later.Retry, later.Reason, later.Head = time.Hour, "still no", records[1].ID
	b.settle("relay", schema.Settlement{Shard: shard, Holds: []schema.Hold{due, later}})
	assertHolds(t, []schema.Hold{later, never}, b.holds(7))
}

// HoldsAreLiftedWhenEmpty checks that a hold goes when nothing is held behind
// it any more, and not before.
func HoldsAreLiftedWhenEmpty(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	key, alone := keyOn(7), alwaysOn(7, "alone")
	b.publish(simple(key, 2)...)
	b.publish(newMessage(alone[0], "orders", "", nil), newMessage(alone[1], "orders", "", nil))
	records := b.waiting()
	shard := b.own("relay")[7]
	keyed := schema.Hold{Lane: records[0].Lane(), Shard: 7, Head: records[0].ID}
	one := schema.Hold{Lane: records[2].Lane(), Shard: 7, Head: records[2].ID}
	other := schema.Hold{Lane: records[3].Lane(), Shard: 7, Head: records[3].ID}
	b.settle("relay", schema.Settlement{Shard: shard, Held: recordIDs(records), Holds: []schema.Hold{keyed, one, other}})

	lift := schema.Settlement{Shard: shard, Lifted: []schema.Hold{keyed, one, other}}
	b.settle("relay", lift)
	require.Len(t, b.holds(7), 3, "records are held behind each")

	require.NoError(t, b.d.Sent(b.ctx, []schema.Record{b.held(1, keyed)[0], b.held(1, one)[0]}))
	b.settle("relay", lift)
	assertHolds(t, []schema.Hold{keyed, other}, b.holds(7))

	require.NoError(t, b.d.Sent(b.ctx, b.held(9, keyed, other)))
	for range 2 {
		b.settle("relay", lift)
		assert.Empty(t, b.holds(7))
	}
}

// FailuresAreKept checks that a failed record has its count, its error and its
// new state; a quarantined one is neither claimed nor held; one that is gone is
// no error.
func FailuresAreKept(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	key := keyOn(7)
	b.publish(simple(key, 3)...)
	records := b.waiting()
	shard := b.own("relay")[7]
	hold := schema.Hold{Lane: records[0].Lane(), Shard: 7, Head: records[0].ID}
	fail := func(id int64, state schema.State, attempts int, text string) schema.Failure {
		return schema.Failure{Record: id, State: state, Attempts: attempts, Retry: schema.Never, Error: text}
	}
	b.settle("relay", schema.Settlement{
		Shard:  shard,
		Failed: []schema.Failure{fail(records[0].ID, schema.StateHeld, 1, "first"), fail(records[1].ID, schema.StateQuarantined, 9, "poison")},
		Holds:  []schema.Hold{hold},
	})
	held := b.held(9, hold)
	require.Equal(t, []string{key + ".0"}, messageIDs(held))
	assert.Equal(t, []any{1, "first", schema.StateHeld}, []any{held[0].Attempts, held[0].LastError, held[0].State})
	assert.Equal(t, []string{key + ".2"}, b.waitingIDs())

	require.NoError(t, b.d.Sent(b.ctx, records[2:]))
	b.settle("relay", schema.Settlement{Shard: shard, Failed: []schema.Failure{
		fail(records[0].ID, schema.StateHeld, 2, "second"), fail(records[2].ID, schema.StateHeld, 1, "gone"), fail(1<<40, schema.StateHeld, 1, "never was"),
	}})
	held = b.held(9, hold)
	require.Len(t, held, 1)
	assert.Equal(t, []any{2, "second"}, []any{held[0].Attempts, held[0].LastError})

	b.settle("relay", schema.Settlement{Shard: shard, Failed: []schema.Failure{fail(records[0].ID, schema.StateQuarantined, 3, "third")}})
	assert.Empty(t, b.held(9, hold))
	assert.Equal(t, 2, b.count("SELECT count(*) FROM postbus_outbox WHERE state = 3 AND shard = 7"), "nothing un-sent was deleted")
}

// SettleIsFenced checks that whoever does not own the shard under that very
// epoch changes nothing, whatever its name.
func SettleIsFenced(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	b.publish(simple(keyOn(7), 3)...)
	records := b.waiting()
	old := b.own("old")[7]
	hold := schema.Hold{Lane: records[0].Lane(), Shard: 7, Head: records[0].ID, Retry: time.Hour, Reason: "first"}
	b.settle("old", schema.Settlement{Shard: old, Held: recordIDs(records[:1]), Holds: []schema.Hold{hold}})
	require.NoError(t, b.d.Sent(b.ctx, records[:1])) // the hold could be lifted

	stale := schema.Settlement{
		Shard: old, Held: recordIDs(records[2:]), Lifted: []schema.Hold{hold},
		Failed: []schema.Failure{{Record: records[1].ID, State: schema.StateQuarantined, Attempts: 5}},
		Holds:  []schema.Hold{{Lane: schema.Lane{Topic: "orders", Key: "other"}, Shard: 7, Head: 1}},
	}
	taken := b.takeOver("old", "new")[7]
	before := b.picture(7)
	for _, c := range []struct {
		why, owner string
		epoch      int64
	}{
		{"the epoch has passed", "old", old.Epoch},
		{"the epoch is another's", "old", taken.Epoch},
		{"the owner is right, the epoch is not", "new", old.Epoch},
		{"the epoch is yet to come", "new", taken.Epoch + 1},
	} {
		stale.Shard.Epoch = c.epoch
		require.ErrorIs(t, b.d.Settle(b.ctx, c.owner, stale), schema.ErrFenced, c.why)
		assert.Equal(t, before, b.picture(7), c.why)
	}

	again := b.takeOver("new", "old")[7]
	stale.Shard.Epoch = old.Epoch
	require.ErrorIs(t, b.d.Settle(b.ctx, "old", stale), schema.ErrFenced, "an old tenure of the same name")
	assert.Equal(t, before, b.picture(7))
	require.NoError(t, b.d.Release(b.ctx, "old", []int{7}))
	stale.Shard = again
	require.ErrorIs(t, b.d.Settle(b.ctx, "old", stale), schema.ErrFenced, "the shard was given back")
	assert.Equal(t, before, b.picture(7))
}

// SettleRacesTakeover checks that when a settlement and a new owner meet,
// either the settlement is complete before the new owner has the shard, or it
// is [schema.ErrFenced] and nothing of it is there.
func SettleRacesTakeover(t *testing.T, open OpenFunc) {
	b := setup(t, open)
	for round := range 3 {
		old, another := fmt.Sprintf("relay-%d", round), fmt.Sprintf("relay-%d", round+1)
		if round == 0 {
			b.own(old)
		}
		shards := b.beat(old, time.Hour).Owned
		require.Len(t, shards, schema.DefaultShards)
		var msgs []*message.Message
		for shard := range schema.DefaultShards {
			msgs = append(msgs, newMessage(fmt.Sprintf("%d.%d", round, shard), "orders", keyOn(shard), nil))
		}
		b.publish(msgs...)
		b.race(old, another, shards)
		require.NoError(t, b.d.Sent(b.ctx, b.waiting()))
		b.exec("DELETE FROM postbus_outbox")
		b.exec("DELETE FROM postbus_holds")
	}
}

// race settles each shard of old while another takes them over.
func (b testBundle) race(old, another string, shards []schema.Shard) {
	b.t.Helper()
	records := b.waiting()
	b.beat(another, time.Hour)
	b.beat(old, time.Microsecond)
	faults := make([]error, len(shards))
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := worker; i < len(shards); i += 4 {
				faults[i] = b.d.Settle(b.ctx, old, holdAll(shards[i], records))
			}
		})
	}
	pictures := map[int]picture{}
	b.eventually("all shards are taken over", func() bool {
		for _, s := range b.acquire(another, 5) {
			pictures[s.ID] = b.picture(s.ID)
		}
		return len(pictures) == len(shards)
	})
	wg.Wait()
	for i, s := range shards {
		after := b.picture(s.ID)
		require.Equal(b.t, pictures[s.ID], after, "shard %d changed under its new owner: %v", s.ID, faults[i])
		if faults[i] != nil {
			require.ErrorIs(b.t, faults[i], schema.ErrFenced)
		}
		require.Equal(b.t, faults[i] == nil, len(after.holds) == 1 && len(after.held) == 1, "shard %d is half settled: %v", s.ID, faults[i])
	}
}

func holdAll(shard schema.Shard, records []schema.Record) schema.Settlement {
	s := schema.Settlement{Shard: shard}
	for _, r := range records {
		if r.Shard == shard.ID {
			s.Failed = append(s.Failed, schema.Failure{Record: r.ID, State: schema.StateHeld, Attempts: 1})
			s.Holds = append(s.Holds, schema.Hold{Lane: r.Lane(), Shard: r.Shard, Head: r.ID, Retry: schema.Never})
		}
	}
	return s
}

// picture is all that can be seen of a shard.
type picture struct {
	waiting, held []schema.Record
	holds         []string
}

func (b testBundle) picture(shard int) picture {
	b.t.Helper()
	waiting, err := b.d.Claim(b.ctx, []int{shard}, 1000, 1000)
	holds := b.holds(shard)
	p := picture{waiting: waiting, held: b.held(1000, holds...)}
	for _, h := range holds {
		p.holds = append(p.holds, fmt.Sprintf("%+v head %d never %t: %s", h.Lane, h.Head, h.Retry == schema.Never, h.Reason))
	}
	slices.Sort(p.holds)
	require.NoError(b.t, err)
	return p
}

func (b testBundle) settle(owner string, s schema.Settlement) {
	b.t.Helper()
	require.NoError(b.t, b.d.Settle(b.ctx, owner, s))
}

func (b testBundle) holds(shards ...int) []schema.Hold {
	b.t.Helper()
	holds, err := b.d.Holds(b.ctx, shards)
	require.NoError(b.t, err)
	return holds
}

func (b testBundle) held(perHold int, holds ...schema.Hold) []schema.Record {
	b.t.Helper()
	records, err := b.d.Held(b.ctx, holds, perHold)
	require.NoError(b.t, err)
	return records
}

// assertHolds compares without order; the waits may have become shorter.
func assertHolds(t *testing.T, want, got []schema.Hold) {
	t.Helper()
	require.Len(t, got, len(want))
	for _, w := range want {
		i := slices.IndexFunc(got, func(h schema.Hold) bool { return h.Lane == w.Lane })
		require.GreaterOrEqual(t, i, 0, "no hold on %+v", w.Lane)
		g := got[i]
		if w.Retry != schema.Never {
			assert.LessOrEqual(t, g.Retry, w.Retry)
			assert.Greater(t, g.Retry, w.Retry-patience)
			g.Retry = w.Retry
		}
		assert.Equal(t, w, g)
	}
}

// alwaysOn returns two message ids whose shard it is.
func alwaysOn(shard int, prefix string) []string {
	var ids []string
	for i := 0; len(ids) < 2; i++ {
		if id := fmt.Sprintf("%s-%d", prefix, i); schema.ShardOf(id, schema.DefaultShards) == shard {
			ids = append(ids, id)
		}
	}
	return ids
}

var errOnPurpose = errors.New("rolled back on purpose")
