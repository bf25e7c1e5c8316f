//go:build slow

package kafka_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// parallel is how many tests run at once: they wait for the broker most of the
// time.
const parallel = "8"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m,
		// The client library's metrics start one ticker for the life of the process.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
		// Its circuit breakers forget after 10 s, whatever becomes of their owner.
		goleak.IgnoreAnyFunction("github.com/eapache/go-resiliency/breaker.(*Breaker).timer"))
}
