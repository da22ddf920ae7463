package retry_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/internal/retry"
)

func take(p retry.Policy, n int) (all []time.Duration) {
	next := p.Pauses()
	for range n {
		all = append(all, next())
	}
	return all
}

func TestPausesDouble(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		p    retry.Policy
		want []time.Duration
	}{
		{retry.Policy{First: s, Cap: 9 * s}, []time.Duration{s, 2 * s, 4 * s, 8 * s, 9 * s, 9 * s}},
		{retry.Policy{First: s, Cap: s}, []time.Duration{s, s, s}},
		{retry.Policy{First: s}, []time.Duration{s, s, s}},
	} {
		if got := take(c.p, len(c.want)); !slices.Equal(got, c.want) {
			t.Errorf("%+v pauses for %v, want %v", c.p, got, c.want)
		}
	}
	if got := take(retry.Policy{First: time.Millisecond, Cap: time.Minute}, 100); got[99] != time.Minute {
		t.Errorf("the hundredth pause is %v", got[99])
	}
}

// TestPausesSpread: with a key they are spread over all of the time, and are the same for the same key.
func TestPausesSpread(t *testing.T) {
	policy := func(key string) retry.Policy { return retry.Policy{First: time.Second, Cap: time.Minute, Key: key} }
	if a, b := take(policy("a"), 10), take(policy("a"), 10); !slices.Equal(a, b) {
		t.Errorf("one key pauses for %v, and then for %v", a, b)
	}
	var early, late int
	for i := range 1000 {
		first := take(policy(time.Duration(i).String()), 1)[0]
		if first <= 0 || first > time.Second {
			t.Fatalf("the first pause is %v", first)
		}
		if first < time.Second/2 {
			early++
		} else {
			late++
		}
	}
	if early < 400 || late < 400 {
		t.Errorf("%d are short and %d long", early, late)
	}
}

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad, why := errors.New("bad"), errors.New("why")
		p := retry.Policy{First: time.Second, Cap: 4 * time.Second}
		begin, calls := time.Now(), 0
		if err := p.Do(t.Context(), func() (bool, error) { calls++; return calls == 4, bad }); err != bad || calls != 4 || time.Since(begin) != 7*time.Second {
			t.Errorf("over with an error: %v after %d calls and %v", err, calls, time.Since(begin))
		}
		p.Tries, calls = 3, 0
		if err := p.Do(t.Context(), func() (bool, error) { calls++; return false, bad }); err != bad || calls != 3 {
			t.Errorf("no tries left: %v after %d calls", err, calls)
		}
		p.Tries = 0
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(90*time.Second, func() { cancel(why) })
		if err := p.Do(ctx, func() (bool, error) { return false, bad }); err != why {
			t.Errorf("its time is over: %v", err)
		}
		calls = 0
		if err := p.Do(ctx, func() (bool, error) { calls++; return true, nil }); err != nil || calls != 1 {
			t.Errorf("over at once, when its time was before: %v after %d calls", err, calls)
		}
	})
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if err := retry.Sleep(t.Context(), time.Hour); err != nil || time.Since(begin) != time.Hour {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("why")
		cancel(why)
		if err := retry.Sleep(ctx, time.Hour); err != why {
			t.Errorf("it ended with %v", err)
		}
	})
}
