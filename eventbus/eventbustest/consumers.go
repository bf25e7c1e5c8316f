package eventbustest

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// exerciseConsumers: each consumer gets everything, whatever another one acks.
func exerciseConsumers(t *testing.T, s *stage) {
	other := freshName("consumer")
	s.introduce(t, other)
	published := newMessages("key", 10)
	s.publish(t, published...)
	_, mine := s.consume(t)
	s.requireInOrder(t, mine, idsOf(published))
	theirs := s.subscribe(t, s.subscriber(t, other, s.features.Window))
	s.requireInOrder(t, theirs, idsOf(published))

	more := newMessages("key", 5)
	s.publish(t, more...)
	s.requireInOrder(t, theirs, idsOf(more))
	s.requireInOrder(t, mine, idsOf(more))
}

// exerciseMembers: members of one consumer share the work while members come
// and go: nothing is lost, and no two of them have messages of one key in hand.
func exerciseMembers(t *testing.T, s *stage) {
	exerciseSharing(t, s, false, func(_ *testing.T, sub message.Subscriber) message.Subscriber { return sub })
}

// exerciseIntakeMembers: the same through lanes, where a key has one message in
// hand.
func exerciseIntakeMembers(t *testing.T, s *stage) {
	exerciseSharing(t, s, true, s.intake)
}

func exerciseSharing(t *testing.T, s *stage, serial bool, decorate func(*testing.T, message.Subscriber) message.Subscriber) {
	const keys, each = 16, 15
	w := newWitness(serial)
	join := func(name string) (leave func()) {
		sub := decorate(t, s.subscriber(t, s.consumer, s.features.Window))
		ended := w.work(s.subscribe(t, sub), name, 2*s.features.Window)
		return func() {
			require.NoError(t, sub.Close())
			s.requireEnd(t, ended, name)
		}
	}
	more := func() { // returns when the work on them has begun
		batches := newBatches(keys, each)
		w.expect(batches)
		s.publishBatches(t, batches)
		s.eventually(t, w.leaves(keys*(each-1)), "some messages done")
	}

	leaveA := join("A")
	more()
	leaveB := join("B")
	more()
	leaveA()
	more()
	leaveC := join("C")
	more()
	s.eventually(t, w.leaves(0), "all messages done")
	leaveB()
	leaveC()
	w.report(t)
}

// exerciseJoin: a member that joins gets no message of a key while the old
// member has one in hand, unless that one was revoked; afterwards all goes on.
func exerciseJoin(t *testing.T, s *stage) {
	keys := s.features.Window / 2
	w := newWitness(false)
	more := func(batches [][]*message.Message) {
		w.expect(batches)
		s.publishBatches(t, batches)
	}
	_, old := s.consume(t)
	more(newBatches(keys, 2))
	inHand := make([]*message.Message, 2*keys)
	for i := range inHand {
		inHand[i] = s.receive(t, old)
		w.take("old", inHand[i])
	}

	joined, msgs := s.consume(t)
	w.work(msgs, "joined", 1)
	more(newBatches(keys, 2))
	<-time.After(quiet)
	for _, msg := range inHand {
		w.finish("old", msg)
	}
	w.work(old, "old", 1)
	s.eventually(t, w.leaves(0), "all messages done")
	require.NoError(t, joined.Close())
	w.report(t)
}
