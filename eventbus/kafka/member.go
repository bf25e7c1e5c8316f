package kafka

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

// topicPoll is how often a topic is looked for that does not exist.
const topicPoll = time.Second

// The texts of a member's notices.
const (
	textNoGroup = "kafka cannot be reached: the consumer waits"
	textGroup   = "the consumer is in its group"
	textMissing = "the consumer waits for a kafka topic that it cannot use:"
	textTrouble = "kafka consumer is in trouble"
	textOutside = "the consumer's offset is not in the log any more: it stands still until a person resets the group's offsets"
)

// A member is a subscriber in its consumer group. It joins with the first
// subscription, for all topics, and leaves with the last one.
type member struct {
	s      *subscriber
	config Config
	log    *slog.Logger
	notice *notice

	life    context.Context //nolint:containedctx // ends with stop
	end     context.CancelCauseFunc
	start   func()
	started atomic.Bool
	wake    chan struct{} // what is wanted may have changed
	done    chan struct{} // closed: out of the group, nothing runs any more

	group   sarama.ConsumerGroup // nil when not connected; run's own, as the next two
	client  sarama.Client
	reading sync.WaitGroup
	trouble atomic.Bool // an error has come since the session began

	mu       sync.Mutex
	assigned map[partition]bool
	claims   map[*claim]bool
}

func newMember(s *subscriber) *member {
	m := &member{
		s: s, config: s.config, log: s.config.Logger.With("consumer", s.consumer),
		wake: make(chan struct{}, 1), done: make(chan struct{}),
		assigned: map[partition]bool{}, claims: map[*claim]bool{},
	}
	m.notice = newNotice(m.log, s.config.LogInterval)
	m.life, m.end = context.WithCancelCause(context.Background())
	m.start = sync.OnceFunc(func() {
		m.started.Store(true)
		go m.run()
	})
	return m
}

func (m *member) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// stop leaves the group; false when that takes longer than the limit.
func (m *member) stop(limit time.Duration) bool {
	m.end(errLeaving)
	if !m.started.Load() {
		return true
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-m.done:
		return true
	case <-timer.C:
		return false
	}
}

// run is in the group while topics are wanted.
func (m *member) run() {
	defer close(m.done)
	defer m.disconnect()
	pauses := pacer{}
	for m.life.Err() == nil {
		topics := m.s.wanted()
		if len(topics) == 0 {
			m.disconnect()
			m.sleep()
			continue
		}
		began := time.Now()
		if m.attend(topics) {
			pauses.reset()
			continue
		}
		if time.Since(began) > 2*maxPause {
			pauses.reset()
		}
		pauses.pause(m.life, nil)
	}
}

func (m *member) sleep() {
	select {
	case <-m.wake:
	case <-m.life.Done():
	}
}

// attend is in the group for those of the topics that exist, until something
// changes. It returns false when the next attempt had better wait.
func (m *member) attend(topics []string) bool {
	if err := m.connect(); err != nil {
		m.notice.say(slog.LevelWarn, textNoGroup, "brokers", m.config.Brokers, "error", err)
		return false
	}
	present, err := m.present(topics)
	if err != nil {
		m.notice.say(slog.LevelWarn, textNoGroup, "brokers", m.config.Brokers, "error", err)
		return false
	}
	if len(present) == 0 {
		return false
	}
	m.trouble.Store(false)
	ctx, cancel := context.WithCancelCause(m.life)
	var watching sync.WaitGroup
	watching.Go(func() { m.watch(ctx, cancel, topics, present) })
	err = m.group.Consume(ctx, present, handler{m})
	cancel(nil)
	watching.Wait()
	m.report(err)
	return err == nil && !m.trouble.Load()
}

// watch ends the session when other topics are wanted, or one has appeared.
func (m *member) watch(ctx context.Context, cancel context.CancelCauseFunc, wanted, present []string) {
	poll := time.NewTicker(topicPoll)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
			if !slices.Equal(m.s.wanted(), wanted) {
				cancel(errRejoin)
				return
			}
		case <-poll.C:
			if m.appeared(wanted, present) {
				cancel(errRejoin)
				return
			}
		}
	}
}

// appeared tells whether one of the wanted topics exists now.
func (m *member) appeared(wanted, present []string) bool {
	for _, topic := range wanted {
		if !slices.Contains(present, topic) && m.look(topic) == nil {
			return true
		}
	}
	return false
}

// present returns those of the topics that exist.
func (m *member) present(topics []string) ([]string, error) {
	var present []string
	for _, topic := range topics {
		err := m.look(topic)
		if err == nil {
			present = append(present, topic)
		} else if !isAny(err, destinationFaults) {
			return nil, err
		}
	}
	return present, nil
}

// look returns nil when the topic exists, and creates it if that is wanted.
func (m *member) look(topic string) error {
	err := m.client.RefreshMetadata(topic)
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		err = m.config.ensureTopic(m.life, m.client, topic)
	}
	missing := textMissing + " " + topic
	switch {
	case err == nil, errors.Is(err, sarama.ErrLeaderNotAvailable):
		m.notice.over("kafka topic exists now", missing)
		return nil
	case isAny(err, destinationFaults):
		m.notice.say(slog.LevelWarn, missing, "error", err)
	}
	return err
}

// connect makes a group if there is none.
func (m *member) connect() error {
	if m.group != nil {
		return nil
	}
	client, err := sarama.NewClient(m.config.Brokers, m.config.consumer(newStrategy(m.reassign)))
	if err != nil {
		return err
	}
	group, err := sarama.NewConsumerGroupFromClient(m.s.consumer, client)
	if err != nil {
		return errors.Join(err, client.Close())
	}
	m.client, m.group = client, group
	m.reading.Go(func() {
		for err := range group.Errors() {
			m.report(err)
		}
	})
	return nil
}

// disconnect leaves the group.
func (m *member) disconnect() {
	if m.group == nil {
		return
	}
	if err := m.group.Close(); err != nil && !errors.Is(err, sarama.ErrUnknownMemberId) {
		m.log.Warn("leave the consumer group", "error", err)
	}
	m.reading.Wait()
	_ = m.client.Close() // it says only that it was closed before
	m.group, m.client = nil, nil
}

// report logs what went wrong in the group.
func (m *member) report(err error) {
	switch {
	case err == nil, m.life.Err() != nil, errors.Is(err, context.Canceled):
		return
	case errors.Is(err, sarama.ErrOffsetOutOfRange):
		m.notice.say(slog.LevelError, textOutside, "error", err)
	default:
		m.notice.say(slog.LevelWarn, textTrouble+": "+err.Error())
	}
	m.trouble.Store(true)
}

// reassign is told which partitions are ours from now on.
func (m *member) reassign(topics map[string][]int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.assigned)
	for topic, numbers := range topics {
		for _, number := range numbers {
			m.assigned[partition{topic, number}] = true
		}
	}
	for c := range m.claims {
		if !m.assigned[c.part] {
			c.revoke()
		}
	}
}

func (m *member) enter(c *claim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.claims[c] = true
	if !m.assigned[c.part] {
		c.revoke()
	}
}

func (m *member) exit(c *claim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.claims, c)
}

// A handler is a member in the eyes of the client library.
type handler struct{ m *member }

// Setup implements sarama.ConsumerGroupHandler.
func (h handler) Setup(session sarama.ConsumerGroupSession) error {
	h.m.notice.over(textGroup, textNoGroup)
	h.m.log.Debug(textGroup, "member", session.MemberID(), "partitions", session.Claims())
	return nil
}

// Cleanup implements sarama.ConsumerGroupHandler.
func (handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim implements sarama.ConsumerGroupHandler.
func (h handler) ConsumeClaim(session sarama.ConsumerGroupSession, source sarama.ConsumerGroupClaim) error {
	c := newClaim(h.m.s, session, source)
	h.m.enter(c)
	defer h.m.exit(c)
	c.run()
	return nil
}
