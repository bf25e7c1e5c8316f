// Orders runs the example: the orders service and, in the same process, the
// payments service, with nothing else on the machine. It tells a story of what
// can go wrong, and counts at the end.
//
//	go run ./examples/orders
//	go run ./examples/orders -orders 500 -json
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/postbus-io/postbus/examples/orders/story"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// tell is what run runs.
var tell = story.Tell

// run returns the exit code: 0 when the story was told and its sums agree, 1
// when not, 2 for a command line that cannot be used.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	complain := log.New(stderr, "orders: ", 0)
	o, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		complain.Printf("%v (-h lists the flags)", err)
		return 2
	}
	cfg := story.Config{Orders: o.orders, Out: stdout}
	if o.json {
		cfg.Out = stderr
	}
	if o.verbose {
		cfg.Logger = slog.New(slog.NewTextHandler(stderr, nil))
	}
	summary, err := tell(ctx, cfg)
	if o.json && summary != nil {
		err = errors.Join(err, json.NewEncoder(stdout).Encode(summary))
	}
	if err != nil {
		complain.Print(err)
		return 1
	}
	return 0
}

// options are what the command line says.
type options struct {
	orders        int
	json, verbose bool
}

// parse reads the command line. After -h, the answer to which goes to help, it
// returns flag.ErrHelp.
func parse(args []string, help io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("orders", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.IntVar(&o.orders, "orders", 20, fmt.Sprintf("how many orders are placed, from %d to %d", story.MinOrders, story.MaxOrders))
	flags.BoolVar(&o.json, "json", false, "print the sums as one JSON object on stdout, and the story on stderr")
	flags.BoolVar(&o.verbose, "v", false, "print what the services log, on stderr")
	err = flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(help)
		flags.Usage()
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case err == nil && (o.orders < story.MinOrders || o.orders > story.MaxOrders):
		err = fmt.Errorf("-orders is %d, it must be from %d to %d", o.orders, story.MinOrders, story.MaxOrders)
	}
	return o, err
}
