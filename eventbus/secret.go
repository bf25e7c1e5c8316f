package eventbus

import (
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strings"
)

// masked stands where a secret was.
const masked = "xxxxx"

// A Secret is a password or a token of a configuration. Printed, logged or
// encoded, alone or in an exported field, it shows as xxxxx, an empty one as "".
// Keep it out of unexported fields of what may be printed, and of JSON's keys:
// there Go asks no method. string(s) is the secret.
type Secret string

// String returns xxxxx.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return masked
}

// GoString returns xxxxx in quotes.
func (s Secret) GoString() string { return `"` + s.String() + `"` }

// Format prints xxxxx for every verb.
func (s Secret) Format(state fmt.State, verb rune) {
	text := s.String()
	if verb == 'q' || verb == 'v' && state.Flag('#') {
		text = s.GoString()
	}
	_, _ = io.WriteString(state, text)
}

// LogValue returns xxxxx.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText returns xxxxx: for JSON, YAML and the like.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// RedactURL returns text with xxxxx for the password of each URL in it and for
// each value of password= (and passwd, pwd, secret, token), as DSNs and query
// strings have it. The URL need not parse, and may stand anywhere in the text.
// Where it is unclear how far a password goes, too much is masked rather than
// too little; white space in a URL's password is masked along, unless what
// stands before it looks like a port.
func RedactURL(text string) string { return redactPairs(redactUserinfo(text)) }

func redactUserinfo(text string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "://")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		out.WriteString("://")
		text = rest
		if from, to := userinfoPassword(rest); from < to {
			out.WriteString(rest[:from] + masked)
			text = rest[to:]
		}
	}
}

var (
	// nextURLPattern matches where another URL begins in a list of them.
	nextURLPattern = regexp.MustCompile("[\\s,;|\"'`][a-zA-Z][a-zA-Z0-9+.-]*://")
	// hostPattern matches a host, or a list of them, behind which no password
	// is to be looked for.
	hostPattern = regexp.MustCompile("^(\\[[^\\]]*\\]|[^:@/?#]*)(:\\d{1,5})?(:?$|[/?#,;\"'`<>)\\]}])")
)

// userinfoPassword returns where the password lies in what follows ://, between
// the first colon and the last @ of the URL; to is 0 when there is none.
func userinfoPassword(rest string) (from, to int) {
	line, _, _ := strings.Cut(rest, "\n")
	if next := nextURLPattern.FindStringIndex(line); next != nil {
		line = line[:next[0]]
	}
	word := line
	if i := strings.IndexAny(line, " \t\r"); i >= 0 {
		word = line[:i]
	}
	if !strings.Contains(word, "@") && !hostPattern.MatchString(word) {
		word = line
	}
	colon, at := strings.IndexByte(word, ':'), strings.LastIndexByte(word, '@')
	if colon < 0 || at < colon {
		return 0, 0
	}
	return colon + 1, at
}

var pairPattern = regexp.MustCompile(`(?i)[\w.]*(?:password|passwd|pwd|secret|token)\s*=\s*`)

func redactPairs(text string) string {
	var out strings.Builder
	for {
		at := pairPattern.FindStringIndex(text)
		if at == nil || at[1] == len(text) {
			out.WriteString(text)
			return out.String()
		}
		stop := " \t\r\n"
		if at[0] > 0 {
			stop += separator(text[at[0]-1])
		}
		out.WriteString(text[:at[1]] + masked)
		text = text[at[1]+valueLen(text[at[1]:], stop):]
	}
}

// separator returns what ends a pair that follows the byte before.
func separator(before byte) string {
	switch before {
	case '?', '&':
		return "&#"
	case ';':
		return ";"
	}
	return ""
}

// valueLen returns how long the value at the start of text is: to the closing
// quote when it begins with one, else to one of the bytes in stop; a backslash
// before either takes it along.
func valueLen(text, stop string) int {
	start := 0
	switch {
	case text[0] == '\'' || text[0] == '"':
		start, stop = 1, text[:1]
	case strings.HasPrefix(text, `\"`) || strings.HasPrefix(text, `\'`):
		return len(text) // quoted inside a quotation: no telling where it ends
	}
	for i := start; i < len(text); i++ {
		if strings.IndexByte(stop, text[i]) >= 0 && (i == 0 || text[i-1] != '\\') {
			return i + start
		}
	}
	return len(text)
}
