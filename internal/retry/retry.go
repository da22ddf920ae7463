// Package retry repeats calls that may succeed and checks that may change: with pauses that double, by one policy.
package retry

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// A Policy says how something is repeated.
type Policy struct {
	First time.Duration // the first pause; each one after it is twice as long
	Cap   time.Duration // the longest pause; when it is less than First, all are like First
	Tries int           // maximum number of tries; zero: until it is over or ctx ends

	// Key spreads the pauses of concurrent callers: each is between zero and what it would be otherwise, evenly over all
	// keys, and always the same for one key, so that a failure can be reproduced. Empty: the pauses are not spread.
	Key string
}

// Pauses returns a function that returns the pauses one after the other.
func (p Policy) Pauses() (next func() time.Duration) { return newPauses(p).NextBackOff }

// pauses is a [backoff.BackOff] with reproducible jitter.
type pauses struct {
	backoff.ExponentialBackOff
	key string
	try int
}

func newPauses(p Policy) *pauses {
	all := &pauses{key: p.Key, ExponentialBackOff: backoff.ExponentialBackOff{
		InitialInterval: p.First, Multiplier: 2, MaxInterval: max(p.First, p.Cap), Stop: backoff.Stop, Clock: backoff.SystemClock,
	}}
	all.Reset()
	return all
}

func (p *pauses) Reset() {
	p.try = 0
	p.ExponentialBackOff.Reset()
}

func (p *pauses) NextBackOff() time.Duration {
	p.try++
	d := p.ExponentialBackOff.NextBackOff()
	if p.key == "" || d <= 0 {
		return d
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%d", p.key, p.try)
	return time.Duration(h.Sum64()%uint64(d)) + 1
}

// errAgain is all that the library sees of a failed try: errors are the caller's affair.
var errAgain = errors.New("once more")

// Do calls f until it is over. It returns what f returned then, or last when the tries are used up; the cause of ctx when that
// ends during a pause.
func (p Policy) Do(ctx context.Context, f func() (over bool, err error)) error {
	var b backoff.BackOff = newPauses(p)
	if p.Tries > 0 {
		b = backoff.WithMaxRetries(b, uint64(p.Tries-1))
	}
	var over bool
	var last error
	_ = backoff.Retry(func() error {
		if over, last = f(); over {
			return nil
		}
		return errAgain
	}, backoff.WithContext(b, ctx))
	if !over && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return last
}

// Sleep pauses once, not at all when d is not positive. It returns the cause of ctx when that ends before.
func Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
