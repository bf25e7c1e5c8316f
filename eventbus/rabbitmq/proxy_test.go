//go:build slow

package rabbitmq_test

import (
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/postbus-io/postbus/eventbus/rabbitmq"
)

// A proxy stands before the broker and can go deaf: connections stay open and
// nothing passes any more.
type proxy struct {
	url rabbitmq.URL

	mu    sync.Mutex
	deaf  chan struct{} // closed: what passes now is stopped
	conns []net.Conn
	gone  bool
	work  sync.WaitGroup
}

func newProxy(t *testing.T, broker rabbitmq.URL) *proxy {
	t.Helper()
	u, err := url.Parse(string(broker))
	require.NoError(t, err)
	target := u.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	u.Host = listener.Addr().String()
	p := &proxy{url: rabbitmq.URL(u.String()), deaf: make(chan struct{})}
	p.work.Go(func() { p.accept(listener, target) })
	t.Cleanup(func() {
		_ = listener.Close()
		p.cut(true)
		p.work.Wait()
	})
	return p
}

func (p *proxy) accept(listener net.Listener, target string) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.join(client, server)
	}
}

func (p *proxy) join(client, server net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, client, server)
	if p.gone {
		_ = client.Close()
		_ = server.Close()
		return
	}
	p.work.Go(func() { pass(client, server, p.deaf) })
	p.work.Go(func() { pass(server, client, p.deaf) })
}

func pass(from, to net.Conn, deaf <-chan struct{}) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		select {
		case <-deaf:
			return // open, and nothing is read any more
		default:
		}
		if _, writeErr := to.Write(buffer[:n]); err != nil || writeErr != nil {
			_ = from.Close()
			_ = to.Close()
			return
		}
	}
}

// goDeaf has what is connected now hang; new connections pass.
func (p *proxy) goDeaf() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.deaf)
	p.deaf = make(chan struct{})
}

// cut closes what is connected now.
func (p *proxy) cut(forEver bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = forEver
	for _, conn := range p.conns {
		_ = conn.Close()
	}
	p.conns = nil
}
