// Payments runs the payments service of the example in a process of its own,
// until Ctrl-C.
//
//	go run ./examples/payments -database payments.db -config postbus.example.yaml
//
// With the broker of kind memory, which does not reach another process, nobody
// can send it anything: go run ./examples/orders has both services in one.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	_ "modernc.org/sqlite"

	"github.com/postbus-io/postbus/eventbus"
	"github.com/postbus-io/postbus/examples/payments/charging"
	"github.com/postbus-io/postbus/schema/sqlite"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C does not wait
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit code: 0 after a clean stop, 1 after a fault, 2 for a
// command line that cannot be used.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	complain := log.New(stderr, "payments: ", 0)
	o, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		complain.Printf("%v (-h lists the flags)", err)
		return 2
	}
	if err := serve(ctx, o, log.New(stdout, "payments: ", 0)); err != nil {
		complain.Print(err)
		return 1
	}
	return 0
}

// options are what the command line says.
type options struct{ database, config string }

// parse reads the command line. After -h, the answer to which goes to help, it
// returns flag.ErrHelp.
func parse(args []string, help io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("payments", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.database, "database", "payments.db", "the service's SQLite `file`")
	flags.StringVar(&o.config, "config", "", "configuration `file` of the bus, see postbus.example.yaml; empty: the defaults")
	err = flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(help)
		flags.Usage()
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return o, err
}

// serve wires database, bus and service, and runs them until ctx ends.
func serve(ctx context.Context, o options, say *log.Logger) (err error) {
	cfg, err := eventbus.LoadConfig(o.config)
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", sqlite.DSN(o.database))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := errors.Join(eventbus.Migrate(ctx, db, cfg), charging.Migrate(ctx, db)); err != nil {
		return err
	}
	bus, err := eventbus.Open(ctx, db, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bus.Close()) }()
	if _, err := charging.New(bus, db, charging.PlayBank{}); err != nil {
		return err
	}
	say.Printf("running on %s, broker %s; Ctrl-C stops", o.database, bus.Broker().Kind())
	return bus.Run(ctx)
}
