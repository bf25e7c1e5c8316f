package rabbitmq

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"

	amqp "github.com/rabbitmq/amqp091-go"
)

// masked stands where a password was.
const masked = "xxxxx"

// A URL is where a broker is and who connects to it:
// amqp[s]://user:password@host:port/vhost. Printed, logged or encoded it shows
// xxxxx for the password; one that does not parse shows as xxxxx altogether.
// string(u) has the password.
type URL string

// String returns the URL without its password.
func (u URL) String() string {
	if u == "" {
		return ""
	}
	parsed, err := url.Parse(string(u))
	if err != nil || parsed.Host == "" {
		return masked
	}
	if _, has := parsed.User.Password(); has {
		parsed.User = url.UserPassword(parsed.User.Username(), masked)
	}
	return parsed.String()
}

// GoString returns the URL without its password, in quotes.
func (u URL) GoString() string { return fmt.Sprintf("%q", u.String()) }

// Format prints the URL without its password for every verb.
func (u URL) Format(state fmt.State, verb rune) {
	text := u.String()
	if verb == 'q' || verb == 'v' && state.Flag('#') {
		text = u.GoString()
	}
	_, _ = io.WriteString(state, text)
}

// LogValue returns the URL without its password.
func (u URL) LogValue() slog.Value { return slog.StringValue(u.String()) }

// MarshalText returns the URL without its password: for JSON, YAML and the
// like.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// check says what is wrong with the URL. It quotes nothing of it: what does not
// parse may have its password anywhere.
func (u URL) check() error {
	const form = "it is to be amqp[s]://user:password@host:port/vhost, special characters percent-encoded"
	if u == "" {
		return errors.New("is empty, " + form)
	}
	parsed, err := url.Parse(string(u))
	if err != nil {
		return errors.New("does not parse, " + form)
	}
	for _, name := range []string{"heartbeat", "connection_timeout"} {
		if parsed.Query().Has(name) {
			return fmt.Errorf("has the parameter %s: set Heartbeat or DialTimeout instead", name)
		}
	}
	if _, err := amqp.ParseURI(string(u)); err != nil || parsed.Host == "" {
		return errors.New("is not an AMQP URL, " + form)
	}
	return nil
}
