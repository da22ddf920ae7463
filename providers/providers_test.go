package providers_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

func ExampleMark() {
	ref, _ := schema.ParseRef("site/carbide.vpc/prod")
	m := providers.Mark{Site: "5a2f0c44-7a52-4d2b-9f5e-6f0e6a3f8b21", Ref: ref, Incarnation: 2}
	fmt.Println(m)
	fmt.Println(providers.ParseMark(m.String()) == m, providers.ParseMark("theirs").IsZero())
	// Output:
	// 5a2f0c44-7a52-4d2b-9f5e-6f0e6a3f8b21/site/carbide.vpc/prod#2
	// true true
}

func TestClassOf(t *testing.T) {
	wrapped := fmt.Errorf("while doing: %w", &providers.Error{Op: "create", Class: providers.Busy, Err: errors.New("x")})
	if c := providers.ClassOf(wrapped); c != providers.Busy {
		t.Errorf("got %s", c)
	}
	if c := providers.ClassOf(errors.New("who knows")); c != providers.Unknown {
		t.Errorf("an error without a class is %s: it must never be safe to guess", c)
	}
}

func TestSetRefusesTwoOfAKind(t *testing.T) {
	k := providers.Served{Name: "x.y"}
	if _, err := providers.NewSet(providers.New("x", "site", nil, k), providers.New("x", "site", nil, k)); err == nil {
		t.Error("two providers serve x.y in one scope")
	}
	if _, err := providers.NewSet(providers.New("x", "n1", nil, k), providers.New("x", "n2", nil, k)); err != nil {
		t.Error(err)
	}
}

// counting is a kind whose calls wait until released, and that counts how many are in progress.
type counting struct {
	providers.Kind
	mu        sync.Mutex
	now, most int
	entered   chan struct{}
	release   chan struct{}
}

func (k *counting) Create(context.Context, providers.Call) error {
	k.mu.Lock()
	k.now++
	k.most = max(k.most, k.now)
	k.mu.Unlock()
	k.entered <- struct{}{}
	<-k.release
	k.mu.Lock()
	k.now--
	k.mu.Unlock()
	return nil
}

func TestLimit(t *testing.T) {
	k := &counting{entered: make(chan struct{}, 10), release: make(chan struct{})}
	p := providers.New("x", "site", nil, providers.Served{Name: "x.y", Kind: k})
	p.Limit = 2
	set, err := providers.NewSet(p)
	if err != nil {
		t.Fatal(err)
	}
	served, _, _ := set.Find("site", "x.y")
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if err := served.Kind.Create(context.Background(), providers.Call{}); err != nil {
				t.Error(err)
			}
		})
	}
	<-k.entered
	<-k.entered
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if err := served.Kind.Create(gone, providers.Call{}); providers.ClassOf(err) != providers.Transient {
		t.Errorf("a call that gave up waiting fails with %v", err)
	}
	close(k.release)
	wg.Wait()
	if k.most != 2 {
		t.Errorf("%d calls ran at the same time, want 2", k.most)
	}
}

// A looking kind is one whose lists do something.
type looking struct {
	providers.Kind
	look func(ctx context.Context) error
}

func (k looking) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return providers.Listed(func() ([]providers.Thing, error) { return nil, k.look(ctx) })
}

// limited returns a provider with a kind whose lists do what look does, and the list.
func limited(limit int, look func(ctx context.Context, p *providers.Provider) error) (*providers.Provider, func(context.Context) error) {
	var p *providers.Provider
	p = providers.New("x", "site", nil, providers.Served{Name: "x.y", Kind: looking{look: func(ctx context.Context) error { return look(ctx, p) }}})
	p.Limit = limit
	return p, func(ctx context.Context) error {
		_, err := providers.Collect(p.Kinds[0].Kind.List(ctx))
		return err
	}
}

// TestTogether: verbs that make several calls at the same time use all slots and no more, however many they are, and none waits
// for another one for ever.
func TestTogether(t *testing.T) {
	for limit := range 5 {
		for _, lists := range []int{1, 3, 20} {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				now, most := 0, 0
				count := func(n int) {
					mu.Lock()
					defer mu.Unlock()
					now += n
					most = max(most, now)
				}
				call := func() {
					count(1)
					time.Sleep(time.Second)
					count(-1)
				}
				_, list := limited(limit, func(ctx context.Context, p *providers.Provider) error {
					return p.Together(ctx, 8, func(ctx context.Context, _ int) error {
						call()
						return p.Together(ctx, 2, func(context.Context, int) error {
							call()
							return nil
						})
					})
				})
				var wg sync.WaitGroup
				for range lists {
					wg.Go(func() {
						if err := list(t.Context()); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				want := limit
				if limit == 0 {
					want = 16 * lists
				}
				if most != want {
					t.Errorf("%d lists had %d calls under way at the same time, want %d", lists, most, want)
				}
			})
		}
	}
}

// TestTogetherEnds: after an error, the end of the context or of the permit no call begins.
func TestTogetherEnds(t *testing.T) {
	for _, of := range []string{"error", "context", "permit"} {
		why, calls := errors.New("of the "+of), 0
		var lost atomic.Bool
		ctx, cancel := context.WithCancelCause(t.Context())
		p, list := limited(1, func(ctx context.Context, p *providers.Provider) error {
			return p.Together(ctx, 5, func(context.Context, int) error {
				calls++
				switch of {
				case "error":
					return why
				case "context":
					cancel(why)
				case "permit":
					lost.Store(true)
				}
				return nil
			})
		})
		release := p.Permit.Bind(func() error {
			if lost.Load() {
				return why
			}
			return nil
		})
		if err := list(ctx); !errors.Is(err, why) || calls != 1 {
			t.Errorf("after the end of the %s: %d calls, %v", of, calls, err)
		}
		release()
	}
}

// yields is a kind that has two things, accepts everything, and counts calls.
type yields struct{ calls []string }

func (k *yields) List(context.Context) iter.Seq2[providers.Thing, error] {
	k.calls = append(k.calls, "list")
	return providers.Listed(func() ([]providers.Thing, error) { return []providers.Thing{{ID: "1"}, {ID: "2"}}, nil })
}

func (k *yields) Get(_ context.Context, ids []string) ([]providers.Thing, error) {
	k.calls = append(k.calls, "get")
	return []providers.Thing{{ID: ids[0]}}, nil
}

func (k *yields) change(op string) error {
	k.calls = append(k.calls, op)
	return nil
}
func (k *yields) Create(context.Context, providers.Call) error { return k.change("create") }
func (k *yields) Update(context.Context, providers.Call) error { return k.change("update") }
func (k *yields) Delete(context.Context, providers.Call) error { return k.change("delete") }

// TestGuard: what is refused in the same way for all kinds never reaches one.
func TestGuard(t *testing.T) {
	ctx, far := t.Context(), &yields{}
	k := providers.New("x", "site", nil, providers.Served{Name: "x.y", Kind: far, Traits: providers.Traits{
		Create: providers.Conditional, Update: providers.Never, Delete: providers.Blind,
	}}).Kinds[0].Kind
	ended, cancel := context.WithCancelCause(ctx)
	why := errors.New("the run was stopped")
	cancel(why)
	_, listed := providers.Collect(k.List(ended))
	_, got := k.Get(ended, []string{"1"})
	for op, err := range map[string]error{
		"list": listed, "get": got, "create": k.Create(ended, providers.Call{}), "delete": k.Delete(ended, providers.Call{}),
	} {
		if providers.ClassOf(err) != providers.Transient || !errors.Is(err, why) {
			t.Errorf("%s after the end of its context: %v", op, err)
		}
	}
	if err := k.Update(ctx, providers.Call{}); providers.ClassOf(err) != providers.Unsupported {
		t.Errorf("an update that the traits do not have: %v", err)
	}
	if things, err := k.Get(ctx, nil); err != nil || len(things) != 0 {
		t.Errorf("no ids: %v, %v", things, err)
	}
	if len(far.calls) != 0 {
		t.Fatalf("the kind was called: %q", far.calls)
	}
	things, err := providers.Collect(k.List(ctx))
	if err != nil || len(things) != 2 {
		t.Errorf("listed %v, %v", things, err)
	}
	if err := errors.Join(k.Create(ctx, providers.Call{}), k.Delete(ctx, providers.Call{})); err != nil || len(far.calls) != 3 {
		t.Errorf("%v after %q", err, far.calls)
	}
}

// TestListGivesBack: a list that is left early releases its slot.
func TestListGivesBack(t *testing.T) {
	p := providers.New("x", "site", nil, providers.Served{Name: "x.y", Kind: &yields{}})
	p.Limit = 1
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		for _, err := range p.Kinds[0].Kind.List(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		cancel()
	}
}
