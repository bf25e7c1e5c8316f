package middleware

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	// maxErrorBytes bounds an error's text in a dead letter.
	maxErrorBytes = 4 << 10
	// maxLineBytes bounds a text in a log line and in a [PanicError].
	maxLineBytes = 1 << 10
)

// textOf returns what err says in at most limit bytes. An Error method that
// panics is fmt's to survive.
func textOf(err error, limit int) string { return cleanText(fmt.Sprint(err), limit) }

// cleanText returns s as every database stores it: at most limit bytes of valid
// UTF-8, with U+FFFD for what is not and for NUL.
func cleanText(s string, limit int) string {
	s = strings.ToValidUTF8(s[:min(len(s), limit)], "\uFFFD")
	s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
