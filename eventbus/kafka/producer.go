package kafka

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/IBM/sarama"
)

// A producer is one connection to the cluster that messages are sent by. It is
// retired, and another one made, when it has come to a state that it does not
// get out of by itself.
type producer struct {
	client sarama.Client
	async  sarama.AsyncProducer

	sending  sync.RWMutex // held for reading while something is handed to async
	retiring chan struct{}
	retire   func()
	drained  chan struct{} // closed: everything that was handed over is settled
	ended    chan struct{} // closed: the connection is, too
}

// dial connects. It takes as long as the cluster keeps it waiting.
func dial(addresses []string, conf *sarama.Config) (*producer, error) {
	client, err := sarama.NewClient(addresses, conf)
	if err != nil {
		return nil, err
	}
	async, err := sarama.NewAsyncProducerFromClient(client)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	p := &producer{client: client, async: async, retiring: make(chan struct{}), drained: make(chan struct{}), ended: make(chan struct{})}
	p.retire = sync.OnceFunc(func() { close(p.retiring) })
	go p.settle()
	go p.end()
	return p, nil
}

// settle passes results on until there are none any more.
func (p *producer) settle() {
	defer close(p.drained)
	var failures sync.WaitGroup
	failures.Go(func() {
		for failed := range p.async.Errors() {
			failed.Msg.Metadata.(*delivery).settle(failed.Err)
		}
	})
	for sent := range p.async.Successes() {
		sent.Metadata.(*delivery).settle(nil)
	}
	failures.Wait()
}

// end closes what is retired, once nobody hands anything over any more.
func (p *producer) end() {
	defer close(p.ended)
	<-p.retiring
	p.sending.Lock()
	defer p.sending.Unlock()
	p.async.AsyncClose()
	<-p.drained
	_ = p.client.Close() // it says only that it was closed before
}

// send hands a record over. Its delivery is settled once, later, also when the
// producer is retired meanwhile; an error means that it never will be.
func (p *producer) send(ctx context.Context, record *sarama.ProducerMessage) error {
	p.sending.RLock()
	defer p.sending.RUnlock()
	select {
	case <-p.retiring:
		return sarama.ErrShuttingDown
	default:
	}
	select {
	case p.async.Input() <- record:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-p.retiring:
		return sarama.ErrShuttingDown
	}
}

// A link keeps one producer connected. A link that was never used has no
// connection.
type link struct {
	addresses []string
	conf      func() *sarama.Config
	notice    *notice
	life      context.Context //nolint:containedctx // ends with the publisher
	waits     *sync.WaitGroup // for what the link starts

	mu         sync.Mutex
	current    *producer
	connecting chan struct{} // closed when the attempts are over; nil: there are none
	lastError  error
}

// The texts of a link's notices.
const (
	textUnreachable = "kafka cannot be reached: messages wait"
	textReachable   = "kafka can be reached again"
)

// get returns a connected producer. It waits for one until ctx ends, and then
// returns what the last attempt failed with.
func (l *link) get(ctx context.Context) (*producer, error) {
	for {
		p, connecting := l.look()
		if p != nil {
			return p, nil
		}
		select {
		case <-connecting:
		case <-ctx.Done():
			return nil, l.failure(ctx)
		}
		if l.life.Err() != nil {
			return nil, ErrClosed
		}
	}
}

func (l *link) failure(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(context.Cause(ctx), l.lastError)
}

// look returns the producer, or what is closed when there may be one.
func (l *link) look() (*producer, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == nil && l.connecting == nil {
		l.connecting = make(chan struct{})
		l.waits.Go(l.connect)
	}
	return l.current, l.connecting
}

// connect tries until it has a producer or the link's life ends.
func (l *link) connect() {
	pauses := pacer{}
	for l.life.Err() == nil {
		p, err := dial(l.addresses, l.conf())
		if l.connected(p, err) {
			l.notice.over(textReachable, textUnreachable)
			return
		}
		l.notice.say(slog.LevelWarn, textUnreachable, "brokers", l.addresses, "error", err)
		pauses.pause(l.life, nil)
	}
	l.connected(nil, ErrClosed)
}

// connected takes the outcome of an attempt; true when it was the last one.
func (l *link) connected(p *producer, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch over := l.life.Err() != nil; {
	case over && p != nil: // too late: nobody would close it
		l.retire(p)
	case p != nil || !over:
		l.current, l.lastError = p, err
	}
	if p == nil && l.life.Err() == nil {
		return false
	}
	if l.connecting != nil {
		close(l.connecting)
		l.connecting = nil
	}
	return true
}

// drop retires a producer that failed, so that the next message gets a new one.
func (l *link) drop(p *producer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != p {
		return
	}
	l.current = nil
	l.retire(p)
}

func (l *link) retire(p *producer) {
	p.retire()
	l.waits.Go(func() { <-p.ended })
}

// close retires what is connected. Nothing is connected afterwards.
func (l *link) close() {
	l.mu.Lock()
	p := l.current
	l.mu.Unlock()
	if p != nil {
		l.drop(p)
	}
}
