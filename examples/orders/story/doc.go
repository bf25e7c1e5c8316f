// Package story runs the two services of the example through what goes wrong
// in systems of this kind, tells what it does and what it observes, and counts
// at the end.
//
// Everything is in one process and gone afterwards: two SQLite files in a
// temporary folder and a broker in memory. What the story says that it
// observed it has looked up: in the databases, at the broker, or from the bank
// that payments asks. Nothing of the services is changed for it; the faults come
// from outside, through the context of a relay, the broker, the bank and a
// missing row.
package story
