//go:build slow

package kafka

import "net"

// WithDialer returns a config whose connections the function opens.
func (c Config) WithDialer(dial func(network, address string) (net.Conn, error)) Config {
	c.dialer = dialFunc(dial)
	return c
}

type dialFunc func(network, address string) (net.Conn, error)

func (f dialFunc) Dial(network, address string) (net.Conn, error) { return f(network, address) }

// The texts that tests look for in the log.
const (
	TextUnreachable = textUnreachable
	TextReachable   = textReachable
	TextNoGroup     = textNoGroup
	TextMissing     = textMissing
	TextOutside     = textOutside
)
