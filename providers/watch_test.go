package providers_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"
	"testing/synctest"

	"converge.dev/converge/providers"
)

// watched returns a kind with a watch, as it is found in a set after its verbs were wrapped.
func watched(t *testing.T, p *providers.Provider) providers.Served {
	t.Helper()
	set, err := providers.NewSet(p)
	if err != nil {
		t.Fatal(err)
	}
	set.Wrap(func(_ string, k providers.Served) providers.Kind { return looking{Kind: k.Kind} })
	k, _, _ := set.Find("site", "x.y")
	return k
}

// TestWatchGuard: a watch has complete errors and never ends without one, whatever the kind does.
func TestWatchGuard(t *testing.T) {
	denied := &providers.Error{Op: "watch", Kind: "x.y", Class: providers.Denied, Err: errors.New("no")}
	why := errors.New("the run was stopped")
	for name, c := range map[string]struct {
		watch providers.Watch
		class providers.Class
		is    error
	}{
		"over": {func(context.Context) iter.Seq2[[]string, error] { return func(func([]string, error) bool) {} }, providers.Transient, nil},
		"lost": {func(context.Context) iter.Seq2[[]string, error] {
			return func(y func([]string, error) bool) { y(nil, why) }
		}, providers.Transient, why},
		"denied": {func(context.Context) iter.Seq2[[]string, error] {
			return func(y func([]string, error) bool) { y(nil, denied) }
		}, providers.Denied, denied},
	} {
		k := watched(t, providers.New("x", "site", nil, providers.Served{Name: "x.y", Kind: &yields{}, Watch: c.watch}))
		events, last := 0, error(nil)
		for _, err := range k.Watch(t.Context()) {
			events, last = events+1, err
		}
		var e *providers.Error
		if events != 1 || !errors.As(last, &e) || e.Op != "watch" || e.Kind != "x.y" || e.Class != c.class || !errors.Is(last, c.is) && c.is != nil {
			t.Errorf("%s: %d events, the last with %v", name, events, last)
		}
		ended, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		for _, err := range k.Watch(ended) {
			if !errors.Is(err, why) || providers.ClassOf(err) != providers.Transient {
				t.Errorf("%s: when its context has ended: %v", name, err)
			}
		}
	}
	if k := watched(t, providers.New("x", "site", nil, providers.Served{Name: "x.y", Kind: &yields{}})); k.Watch != nil {
		t.Error("a kind without a watch has one")
	}
}

// TestWatchNeedsNothing: a watch goes on while all slots are taken, and after the permit has ended.
func TestWatchNeedsNothing(t *testing.T) {
	changes := providers.NewChanges()
	p := providers.New("x", "site", nil, providers.Served{Name: "x.y", Kind: &yields{}, Watch: func(ctx context.Context) iter.Seq2[[]string, error] {
		return func(yield func([]string, error) bool) { changes.Each(ctx, yield) }
	}})
	p.Limit = 1
	for _, err := range p.Kinds[0].Kind.List(t.Context()) { // it has the slot
		if err != nil {
			t.Fatal(err)
		}
		defer p.Permit.Bind(func() error { return errors.New("the lock was lost") })()
		events := 0
		for ids, err := range p.Kinds[0].Watch(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if events++; events == 2 {
				if !slices.Equal(ids, []string{"a"}) {
					t.Errorf("the second event has %q", ids)
				}
				break
			}
			changes.Add("a")
		}
		break
	}
}

// TestChanges: what happens while nobody takes an event becomes one event, of at most some ids.
func TestChanges(t *testing.T) {
	many := make([]string, 2000)
	for i := range many {
		many[i] = fmt.Sprintf("%04d", i)
	}
	over := errors.New("over")
	changes, step := providers.NewChanges(), 0
	steps := []struct {
		then func()
		want []string
	}{
		{func() { changes.Add("b"); changes.Add("a", "c"); changes.Add("b") }, nil},
		{func() { changes.Add("a"); changes.Add(); changes.Add("b") }, []string{"a", "b", "c"}},
		{func() { changes.Add(many[:1000]...) }, nil},
		{func() {
			for _, id := range many {
				changes.Add(id)
			}
		}, many[:1000]},
		{func() { changes.Add("d") }, nil},
		{func() { changes.End(over) }, []string{"d"}},
	}
	changes.Each(t.Context(), func(ids []string, err error) bool {
		if step == len(steps) {
			if !errors.Is(err, over) {
				t.Errorf("it ended with %v", err)
			}
			step++
			return true
		}
		if err != nil || !slices.Equal(ids, steps[step].want) {
			t.Errorf("event %d: %.80q, %v", step+1, ids, err)
		}
		steps[step].then()
		step++
		return true
	})
	if step != len(steps)+1 {
		t.Errorf("%d events", step)
	}
}

// What was reported since one look is reported once more by the next: the thing may have changed and changed back, while others looked.
func TestLook(t *testing.T) {
	synctest.Test(t, look)
}

func look(t *testing.T) {
	changes := providers.NewChanges()
	event := func() string {
		got := ""
		changes.Each(t.Context(), func(ids []string, err error) bool {
			got = fmt.Sprint(ids, err)
			return false
		})
		return got
	}
	nothing := func(what string) {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		go changes.Each(ctx, func(ids []string, err error) bool {
			if err == nil {
				t.Errorf("%s: %v is told", what, ids)
			}
			return false
		})
		synctest.Wait()
		stop()
		synctest.Wait()
	}
	seen := map[string]string{"a": "1", "b": "1"}
	look := func(now map[string]string) {
		t.Helper()
		var err error
		if seen, err = changes.Look(seen, func() (map[string]string, error) { return now, nil }); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what, want string) {
		t.Helper()
		if got := event(); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	same := map[string]string{"a": "1", "b": "1"}
	want("at first", "[] <nil>")
	look(same)
	want("the first event once more", "[] <nil>")
	look(same)
	nothing("nothing has changed")
	changes.Add("a")
	want("an event", "[a] <nil>")
	look(same)
	want("that event once more", "[a] <nil>")
	look(same)
	nothing("not for a third time")
	look(map[string]string{"a": "1", "b": "2", "c": "1"})
	want("what differs", "[b c] <nil>")
	look(map[string]string{"a": "1", "b": "2", "c": "1"})
	want("what differed once more", "[b c] <nil>")
	look(map[string]string{"a": "1", "b": "2", "c": "1"})
	nothing("nothing differs")
	look(map[string]string{"a": "1", "b": "2"})
	want("what is gone", "[c] <nil>")
	if _, err := changes.Look(seen, func() (map[string]string, error) { return nil, errors.New("no reply") }); err == nil {
		t.Error("a look that failed counts")
	}
}
