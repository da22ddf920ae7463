package crash

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/torture"
)

// manyKeysets returns documents with and without more keysets than the provider has slots: most steps wait for one, with
// their intents written.
func manyKeysets(there bool) string {
	var b strings.Builder
	b.WriteString(`{"tenant": {"acme": {"display_name": "Acme"}}`)
	if there {
		b.WriteString(`, "tenant_keyset": {`)
		for i := range 30 {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, `"k%02d": {"tenant": "acme"}`, i)
		}
		b.WriteString("}")
	}
	b.WriteString("}")
	return b.String()
}

// A process that was stopped while most of its steps waited for a slot makes none of their calls when it wakes. Keysets
// reveal it: their ids are names, so that a late delete hits what the next holder has created.
func TestTortureStoodStillInSlots(t *testing.T) {
	t.Parallel()
	if !torture.Full() {
		t.Skip("it waits for leases of ten seconds: set CONVERGE_TORTURE=push")
	}
	url := serveEtcd(t)
	rounds := torture.Scale(0, 12, 200)
	var mu sync.Mutex
	waited, late := 0, 0
	t.Cleanup(func() {
		torture.Report(t, "D", "%d processes stood still with %d steps waiting for a slot, were replaced twice and woken: %d calls that change something after that", rounds, waited, late)
	})
	for round := range rounds {
		verb, method := "delete", "DeleteTenantKeyset"
		sc := scenario{before: manyKeysets(true), after: manyKeysets(false)}
		if round%4 == 3 {
			verb, method = "create", "CreateTenantKeyset"
			sc.before, sc.after = sc.after, sc.before
		}
		t.Run(fmt.Sprintf("%s %d", verb, round), func(t *testing.T) {
			t.Parallel()
			f := newFar(t, fmt.Sprintf("slots-%d", round), url, sc)
			f.flags = []string{"-parallelism=40"}
			defer func() {
				if t.Failed() {
					t.Logf("what was run:\n%s", f.report())
				}
			}()
			// One call fails in a way that is retried, so that its step starts again while others have the slots.
			for _, fault := range []carbidesim.Fault{
				{Method: method, Nth: 2, Effect: carbidesim.Before, Code: codes.Unavailable},
				{Method: method, Times: -1, Effect: carbidesim.Slow, Delay: 300 * time.Millisecond},
			} {
				if err := f.world.Inject(fault); err != nil {
					t.Fatal(err)
				}
			}
			begin := f.effects()
			first, err := start(f.dir, fmt.Sprintf("call.%s.after:%d=stop", verb, 1+round%20), slices.Concat([]string{"apply"}, f.flags, f.approve, []string{"plan"})...)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { f.said = append(f.said, "woken: "+first.report()) }()
			if stopped, err := first.next(); err != nil || !stopped {
				t.Fatalf("it never stood still (%v):\n%s", err, first.report())
			}
			f.world.ClearFaults()
			select { // this delay is what is tested, not a wait for something
			case <-time.After(longest):
			case <-t.Context().Done():
			}
			begun := 0
			for _, point := range first.passed() {
				if point == "call."+verb+".before" {
					begun++
				}
			}
			made := f.effects() - begin
			for _, args := range [][]string{{"resume"}, {"apply", "-auto-approve", "before.json"}} {
				if err := f.must(0, args...); err != nil {
					t.Fatal(err)
				}
			}
			world, effects := string(f.world.DumpAll()), f.effects()
			if err := first.wake(); err != nil {
				t.Fatal(err)
			}
			if _, err := first.next(); err != nil {
				t.Fatal(err)
			}
			calls := f.effects() - effects
			if calls > 0 {
				t.Errorf("after it was woken it made %d calls that change something", calls)
			}
			if now := string(f.world.DumpAll()); now != world {
				t.Errorf("after it was woken it changed the world:\n%s", difference(world, now))
			}
			if code := first.code(); code != 4 && code != 1 {
				t.Errorf("it ended with %d", code)
			}
			f.intact(t, "before.json")
			mu.Lock()
			defer mu.Unlock()
			waited += max(begun-made, 0)
			late += calls
		})
	}
	t.Cleanup(func() {
		if waited == 0 {
			t.Error("no step waited for a slot")
		}
	})
}
