package providers_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

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

// counting is a kind whose calls wait until told, and that counts how many are under way.
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
