package forwarder

import (
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// maxDoublings is after how many attempts every interval has come to its limit.
const maxDoublings = 64

// delay returns the wait after failed attempt n, counted from 1: full jitter,
// a random time between 0 and min(limit, initial * 2^(n-1)). Marc Brooker,
// "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. The library
// spreads an interval by a factor to both sides; a factor of 1 around half of
// the interval is full jitter.
func delay(n int, initial, limit time.Duration) time.Duration {
	b := backoff.ExponentialBackOff{
		InitialInterval: initial / 2, MaxInterval: limit / 2,
		RandomizationFactor: 1, Multiplier: 2,
	}
	b.Reset()
	for range min(n, maxDoublings) - 1 {
		b.NextBackOff()
	}
	return b.NextBackOff()
}

// jittered returns d give or take a tenth, so that relays do not poll in step.
func jittered(d time.Duration) time.Duration {
	tenth := int64(d) / 10
	if tenth == 0 {
		return d
	}
	return d + time.Duration(rand.Int64N(2*tenth)-tenth)
}
