package story

import (
	"io"
	"log"
)

// A narrator prints the story: numbered chapters, and in each what was done and
// what was observed.
type narrator struct {
	out      *log.Logger
	chapters int
}

func newNarrator(out io.Writer) narrator { return narrator{out: log.New(out, "", 0)} }

func (n *narrator) line(format string, args ...any) { n.out.Printf(format, args...) }

func (n *narrator) chapter(title string) {
	n.chapters++
	n.line("\n%d. %s", n.chapters, title)
}

func (n *narrator) done(format string, args ...any)     { n.line("   done      "+format, args...) }
func (n *narrator) observed(format string, args ...any) { n.line("   observed  "+format, args...) }
