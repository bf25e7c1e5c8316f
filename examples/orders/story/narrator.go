package story

import (
	"fmt"
	"io"
)

// A narrator prints the story: numbered chapters, and in each what was done and
// what was observed. A line that cannot be printed is nobody's fault.
type narrator struct {
	out      io.Writer
	chapters int
}

func (n *narrator) line(format string, args ...any) { fmt.Fprintf(n.out, format+"\n", args...) }

func (n *narrator) chapter(title string) {
	n.chapters++
	n.line("\n%d. %s", n.chapters, title)
}

func (n *narrator) done(format string, args ...any)     { n.line("   done      "+format, args...) }
func (n *narrator) observed(format string, args ...any) { n.line("   observed  "+format, args...) }
