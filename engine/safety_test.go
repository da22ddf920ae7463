package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// fails declares that a call is refused, once.
func fails(t *testing.T, s *enginetest.Site, op, ref string) {
	t.Helper()
	if err := s.World.Fail(fake.Fault{Op: op, Ref: ref, Class: providers.Invalid, Message: "no such luck"}); err != nil {
		t.Fatal(err)
	}
}

func scopes(t *testing.T, s *enginetest.Site) []string {
	t.Helper()
	holds, err := s.Store.Holds(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, h := range holds {
		out = append(out, h.Scope)
	}
	return out
}

// W2: every call that changes something carries the idempotency key of its step, the same for all attempts, and the
// epoch of the holder.
func TestCallsCarryKeyAndEpoch(t *testing.T) {
	s := enginetest.New()
	keys := map[string]map[string]bool{} // by ref
	s.World.Hook = func(op string, at fake.Moment, c providers.Call) {
		if at != fake.Before || op == "observe" {
			return
		}
		if c.Epoch != 1 {
			t.Errorf("%s of %s carries the epoch %d", op, c.Ref, c.Epoch)
		}
		if keys[c.Ref.String()] == nil {
			keys[c.Ref.String()] = map[string]bool{}
		}
		keys[c.Ref.String()][c.Key] = true
	}
	if err := s.World.Fail(fake.Fault{Op: "create", Class: providers.Transient, Times: 4}); err != nil {
		t.Fatal(err)
	}
	e := s.Engine(func(o *engine.Options) { o.Parallelism = 1 })
	defer e.Close()
	p := s.Plan(t, s.Document(t, base), plan.Options{})
	if res, err := e.Apply(context.Background(), p, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
		t.Fatal(res.Run.Status, err)
	}
	all := map[string]bool{}
	for ref, ks := range keys {
		if len(ks) != 1 {
			t.Errorf("the attempts at %s had the keys %v", ref, ks)
		}
		for k := range ks {
			all[k] = true
		}
	}
	if len(all) != len(base) || all[""] {
		t.Errorf("%d steps had the keys %v", len(base), all)
	}
}

// W3: a step is done when its result was seen: a call that succeeded with another result is a failure.
func TestDoneMeansSeen(t *testing.T) {
	s := enginetest.New()
	before := s.World.Dump()
	s.World.Hook = func(op string, at fake.Moment, c providers.Call) {
		if op == "create" && at == fake.After && c.Ref.Name == "br0" {
			thing := thingOf(t, s, "n1", "near.bridge", "br0")
			thing.Spec["mode"] = "open"
			if err := s.World.Put("n1", "near.bridge", thing); err != nil {
				t.Error(err)
			}
		}
	}
	d := s.Document(t, map[string]string{"n1/near.bridge/br0": `{"mode":"secure"}`})
	res, err := s.Apply(s.Plan(t, d, plan.Options{}), engine.ApplyOptions{})
	if err != nil || res.Run.Status != state.RunReverted || !strings.Contains(res.Run.Message, "mode") || s.World.Dump() != before {
		t.Fatalf("%s %q %v\n%s", res.Run.Status, res.Run.Message, err, s.World.Dump())
	}
}

// W5: the actual state is compared with what the plan saw right before the call, not once per plan.
func TestChangedSinceLookIsRefused(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	p := s.Plan(t, s.Document(t, with(map[string]string{"n1/near.port/p0": `{"bridge":"br0","tag":20}`, "n1/near.port/p1": `{"bridge":"br0","tag":21}`})), plan.Options{})
	var once sync.Once
	s.World.Hook = func(op string, at fake.Moment, c providers.Call) {
		if op == "update" && at == fake.After {
			once.Do(func() {
				thing := thingOf(t, s, "n1", "near.port", "p1")
				thing.Spec["tag"] = int64(666)
				if err := s.World.Put("n1", "near.port", thing); err != nil {
					t.Error(err)
				}
			})
		}
	}
	e := s.Engine(func(o *engine.Options) { o.Parallelism = 1 })
	defer e.Close()
	res, err := e.Apply(context.Background(), p, engine.ApplyOptions{})
	if err != nil || res.Run.Status != state.RunReverted || res.Run.Failed.Name != "p1" || !strings.Contains(res.Run.Message, "it changed since") {
		t.Fatal(res.Run.Status, res.Run.Message, err)
	}
	if got := thingOf(t, s, "n1", "near.port", "p1").Spec["tag"]; got != int64(666) {
		t.Errorf("what a stranger wrote was overwritten with %v", got)
	}
}

// W5: a freeze in the middle of a run stops it before its next step, forward or back; the run stays open, and resume
// finishes it after the thaw.
func TestFreezeStopsARun(t *testing.T) {
	for _, undo := range []bool{false, true} {
		t.Run(fmt.Sprintf("undo=%v", undo), func(t *testing.T) {
			s := enginetest.New()
			s.Converge(t, s.Document(t, base))
			before := s.World.Dump()
			d := s.Document(t, twelve)
			p := s.Plan(t, d, plan.Options{})
			last := p.Steps[len(p.Steps)-1]
			if undo {
				fails(t, s, string(last.Action), last.Ref.String())
			}
			calls, frozen := 0, 0
			s.World.Hook = func(op string, at fake.Moment, c providers.Call) {
				if at != fake.Before || op == "observe" {
					return
				}
				if frozen > 0 {
					t.Errorf("%s of %s was called while the site was frozen", op, c.Ref)
				}
				calls++
				if undo == strings.HasSuffix(c.Key, "/undo") && calls >= 3 {
					if err := s.Store.SetFreeze(context.Background(), true, "ann", "fire"); err != nil {
						t.Error(err)
					}
					frozen = calls
				}
			}
			e := s.Engine(func(o *engine.Options) { o.Parallelism = 1 })
			defer e.Close()
			res, err := e.Apply(context.Background(), p, engine.ApplyOptions{})
			var held *journal.StoppedError
			if !errors.As(err, &held) || res.Run.Status != state.RunOpen || !strings.Contains(err.Error(), "fire") || frozen == 0 {
				t.Fatalf("%s, %v (frozen at call %d)", res.Run.Status, err, frozen)
			}
			var refused *engine.HeldError
			if _, err := e.Resume(context.Background(), "", engine.ApplyOptions{}); !errors.As(err, &refused) {
				t.Fatalf("resumed while frozen: %v", err)
			}
			if err := s.Store.SetFreeze(context.Background(), false, "ann", ""); err != nil {
				t.Fatal(err)
			}
			frozen, s.World.Hook = 0, nil
			want := state.RunApplied
			if undo {
				want = state.RunReverted
			}
			if res, err := e.Resume(context.Background(), "", engine.ApplyOptions{}); err != nil || res.Run.Status != want {
				t.Fatalf("resume after the thaw: %s, %v; want %s", res.Run.Status, err, want)
			}
			if undo && s.World.Dump() != before {
				t.Error("the world is not as before")
			}
		})
	}
}

// W7: what is open or can still be settled is never removed; an ended run is, with its journal and its plan.
func TestOldRunsAreRemoved(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	open := s.Plan(t, s.Document(t, with(map[string]string{"n1/near.port/p0": `{"bridge":"br0","tag":99}`})), plan.Options{})
	fails(t, s, "update", "n1/near.port/p0")
	res, err := s.Apply(open, engine.ApplyOptions{OnFailure: apply.Stop})
	if err != nil || res.Run.Status != state.RunOpen {
		t.Fatal(res.Run.Status, err)
	}
	stuck := res.Run
	stuck.Status = state.RunPartial // so that others may run
	if _, err := s.KV.Commit(context.Background(), nil, []state.Op{s.Store.PutRunOp(stuck)}); err != nil {
		t.Fatal(err)
	}
	for i := range 130 {
		s.Converge(t, s.Document(t, with(map[string]string{"n2/near.bridge/br0": fmt.Sprintf(`{"mode":"secure","size":%d}`, i+2)})))
	}
	runs, err := s.Store.Runs(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(runs) > 112 || len(runs) < 100 {
		t.Errorf("%d runs are kept", len(runs))
	}
	if !slices.ContainsFunc(runs, func(r state.Run) bool { return r.ID == stuck.ID }) {
		t.Error("the run that can still be settled was removed")
	}
	for _, r := range runs {
		log, err := journal.Read(context.Background(), s.Store, r.ID)
		if err != nil || len(log.Records) == 0 {
			t.Errorf("run %s: %d records, %v", r.ID, len(log.Records), err)
		}
		if _, err := s.Store.Blob(context.Background(), r.Body); err != nil {
			t.Errorf("the plan of run %s: %v", r.ID, err)
		}
	}
	items, err := s.KV.List(context.Background(), s.Store.Path()+"/journal/")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, it := range items {
		rest := strings.TrimPrefix(it.Key, s.Store.Path()+"/journal/")
		seen[rest[:strings.IndexByte(rest, '/')]] = true
	}
	if len(seen) != len(runs) {
		t.Errorf("%d runs have a journal, %d are kept", len(seen), len(runs))
	}
}

// F3: a new holder makes every node that its plan touches store its epoch before it observes anything there.
func TestFenceComesBeforeLooking(t *testing.T) {
	s := enginetest.New()
	d := s.Document(t, base)
	s.Converge(t, d)
	p := s.Plan(t, s.Document(t, twelve), plan.Options{})
	var mu sync.Mutex
	fenced := map[string]int64{}
	s.World.Hook = func(op string, at fake.Moment, c providers.Call) {
		mu.Lock()
		defer mu.Unlock()
		if c.Ref.Scope != "site" && fenced[c.Ref.Scope] == 0 {
			t.Errorf("%s at %s came before the node had stored the epoch", op, c.Ref.Scope)
		}
	}
	e := s.Engine(func(o *engine.Options) {
		o.Open = func(context.Context, schema.Site, []providers.Need) (*providers.Set, error) {
			ps := []*providers.Provider{s.World.Provider("far", "site"), s.World.Provider("near", "n1"), s.World.Provider("near", "n2")}
			for _, p := range ps {
				if fence := p.Fence; fence != nil {
					p.Fence = func(ctx context.Context, epoch int64) error {
						mu.Lock()
						fenced[p.Scope] = epoch
						mu.Unlock()
						return fence(ctx, epoch)
					}
				}
			}
			return providers.NewSet(ps...)
		}
	})
	defer e.Close()
	if res, err := e.Apply(context.Background(), p, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
		t.Fatal(res.Run.Status, err)
	}
	if len(fenced) != 2 {
		t.Errorf("fenced are %v", fenced)
	}
}

// F4: a call of a replaced holder is refused by the node, however late it arrives.
func TestNodeRefusesAnOlderHolder(t *testing.T) {
	s := enginetest.New()
	k := s.World.Provider("near", "n1").Kinds[0]
	if err := s.World.Provider("near", "n1").Fence(context.Background(), 5); err != nil {
		t.Fatal(err)
	}
	ref := schema.Ref{Scope: "n1", Kind: k.Name, Name: "b"}
	err := k.Kind.Create(context.Background(), providers.Call{Ref: ref, ID: "b", Epoch: 4})
	if providers.ClassOf(err) != providers.Denied {
		t.Fatalf("got %v", err)
	}
}

// F5: after a holder that did not release the lock, nothing is deleted without a version until its calls have certainly
// ended; then the thing is observed again.
func TestQuarantineBeforeBlindDeletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := enginetest.New()
		traits := fake.SiteTraits()
		traits.Delete, traits.EffectWithin = providers.Blind, time.Minute
		s.World.Traits = map[string]providers.Traits{"far.guard": traits}
		d := s.Document(t, with(map[string]string{"site/far.guard/old": `{"size":3}`}))
		s.Converge(t, d)
		p := s.Plan(t, s.Document(t, base), plan.Options{})
		dead := s.KV.Connect(mem.Options{})
		if _, err := state.New(dead, "test").Lock(context.Background(), state.LockInfo{}, state.LockOptions{}); err != nil {
			t.Fatal(err)
		}
		dead.Lapse()
		begin := time.Now()
		var deleted, looked time.Time
		s.World.Hook = func(op string, at fake.Moment, c providers.Call) {
			switch {
			case at == fake.Before && op == "observe" && deleted.IsZero():
				looked = time.Now()
			case at == fake.Before && op == "delete":
				deleted = time.Now()
			}
		}
		if res, err := s.Apply(p, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
			t.Fatal(res.Run.Status, err)
		}
		want := state.DefaultTTL + time.Minute + 5*time.Second
		if waited := deleted.Sub(begin); waited < want || looked.Sub(begin) < want {
			t.Errorf("it was deleted after %v, and looked at last after %v; want %v", waited, looked.Sub(begin), want)
		}
	})
}

// A plan that can be undone needs no approval, but the approval of another plan is not taken for one.
func TestApprovalOfAnotherPlan(t *testing.T) {
	s := enginetest.New()
	p, other := s.Plan(t, s.Document(t, base), plan.Options{}), s.Plan(t, s.Document(t, twelve), plan.Options{})
	var wrong *engine.ApprovalError
	if _, err := s.Apply(p, engine.ApplyOptions{Approve: other.Approval()}); !errors.As(err, &wrong) || wrong.Approval != p.Approval() || len(wrong.Steps) != 0 {
		t.Fatal(err)
	}
	if res, err := s.Apply(p, engine.ApplyOptions{Approve: p.Approval()}); err != nil || res.Run.Status != state.RunApplied {
		t.Fatal(res.Run.Status, err)
	}
	empty := s.Plan(t, s.Document(t, base), plan.Options{})
	if res, err := s.Apply(empty, engine.ApplyOptions{Approve: p.Approval()}); err != nil || len(empty.Steps) != 0 { // it was carried out meanwhile
		t.Fatal(res.Run.Status, err)
	}
}

// What cannot be undone exactly needs the approval of that very plan.
func TestIrreversibleNeedsApproval(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	d := s.Document(t, with(map[string]string{"site/far.host/b1": ""}))
	p := s.Plan(t, d, plan.Options{})
	before := s.World.Dump()
	for _, given := range []string{"0123456789abcdef0123456789abcdef", p.Approval()[:8], s.Plan(t, s.Document(t, base), plan.Options{}).Approval()} {
		_, err := s.Apply(p, engine.ApplyOptions{Approve: given})
		var missing *engine.ApprovalError
		if !errors.As(err, &missing) || missing.Approval != p.Approval() || len(missing.Steps) != 1 || s.World.Dump() != before {
			t.Fatalf("with %s: %v", given, err)
		}
	}
	again := s.Plan(t, d, plan.Options{})
	if again.Approval() != p.Approval() {
		t.Error("the same plan made again needs another approval")
	}
	if res, err := s.Apply(again, engine.ApplyOptions{Approve: p.Approval()[:plan.ShortApproval]}); err != nil || res.Run.Status != state.RunApplied {
		t.Fatal(res.Run.Status, err)
	}
}

// A revision that was not reached is not tried again until it is released, or there is a newer one.
func TestRevertedRevisionIsNotTriedAgain(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	d := s.Document(t, twelve)
	fails(t, s, "create", "site/far.net/c")
	if res, err := s.Apply(s.Plan(t, d, plan.Options{}), engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunReverted {
		t.Fatal(res.Run.Status, err)
	}
	if got := scopes(t, s); !slices.Equal(got, []string{"serial:2"}) {
		t.Fatalf("held are %v", got)
	}
	var held *engine.HeldError
	if _, err := s.Apply(s.Plan(t, d, plan.Options{}), engine.ApplyOptions{}); !errors.As(err, &held) {
		t.Fatalf("tried again: %v", err)
	}
	newer := s.Document(t, with(map[string]string{"n1/near.port/p0": `{"bridge":"br0","tag":77}`}))
	s.Converge(t, newer)
	if got := scopes(t, s); len(got) != 0 {
		t.Errorf("after a newer revision %v are held", got)
	}
	s.Converge(t, d) // it is a newer revision by now
}

// Three runs that fail within an hour hold the site; released ones do not count.
func TestThreeFailedRunsHoldTheSite(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	failing := func(i int) {
		t.Helper()
		fails(t, s, "update", "n1/near.port/p0")
		d := s.Document(t, with(map[string]string{"n1/near.port/p0": fmt.Sprintf(`{"bridge":"br0","tag":%d}`, 100+i)}))
		if res, err := s.Apply(s.Plan(t, d, plan.Options{}), engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunReverted {
			t.Fatal(res.Run.Status, err)
		}
	}
	for i := range 2 {
		failing(i)
	}
	if slices.Contains(scopes(t, s), "site") {
		t.Fatal("the site is held after two failures")
	}
	failing(2)
	if !slices.Contains(scopes(t, s), "site") {
		t.Fatal("the site is not held after three failures")
	}
	var held *engine.HeldError
	if _, err := s.Apply(s.Plan(t, s.Document(t, with(map[string]string{"n1/near.port/p0": `{"bridge":"br0","tag":200}`})), plan.Options{}), engine.ApplyOptions{}); !errors.As(err, &held) {
		t.Fatalf("applied while held: %v", err)
	}
	s.Release(t)
	failing(3)
	if slices.Contains(scopes(t, s), "site") {
		t.Error("the site is held again by failures that somebody has seen")
	}
}

// A node that is not as it should be is held by itself; others continue.
func TestPartialHoldsTheNode(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	d := s.Document(t, with(map[string]string{"n2/near.bridge/br0": `{"mode":"open","size":1}`, "n2/near.bridge/br9": `{"mode":"x"}`}))
	fails(t, s, "create", "n2/near.bridge/br9")
	if err := s.World.Fail(fake.Fault{Op: "update", Ref: "n2/near.bridge/br0", Nth: 2, Times: -1, Class: providers.Denied}); err != nil {
		t.Fatal(err)
	}
	e := s.Engine(func(o *engine.Options) { o.Parallelism = 1 })
	defer e.Close()
	res, err := e.Apply(context.Background(), s.Plan(t, d, plan.Options{}), engine.ApplyOptions{})
	if err != nil || res.Run.Status != state.RunPartial {
		t.Fatal(res.Run.Status, res.Run.Message, err)
	}
	if got := scopes(t, s); !slices.Equal(got, []string{"n2", "serial:2"}) {
		t.Fatalf("held are %v", got)
	}
	var held *engine.HeldError
	other := s.Document(t, with(map[string]string{"n2/near.bridge/br0": `{"mode":"third","size":1}`}))
	if _, err := s.Apply(s.Plan(t, other, plan.Options{}), engine.ApplyOptions{}); !errors.As(err, &held) {
		t.Fatalf("the node was touched: %v", err)
	}
	p := s.Plan(t, s.Document(t, with(map[string]string{"n1/near.port/p0": `{"bridge":"br0","tag":5}`, "n2/near.bridge/br0": `{"mode":"open","size":1}`})), plan.Options{})
	if res, err := s.Apply(p, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
		t.Fatalf("another node: %s, %v", res.Run.Status, err)
	}
}

// Nodes take turns: the second waits for all of the first, the rest for a tenth.
func TestNodesTakeTurns(t *testing.T) {
	if got := fmt.Sprint(plan.Stages([]string{"c", "a", "b", "a"})); got != "map[a:1 b:2 c:3]" {
		t.Errorf("three nodes: %s", got)
	}
	s := enginetest.New()
	d := s.Document(t, with(map[string]string{"n1/near.bridge/br1": `{}`, "n1/near.port/p2": `{"bridge":"br1"}`, "n2/near.port/p0": `{"bridge":"br0"}`}))
	s.Converge(t, d)
	first := map[string]int{}
	last := map[string]int{}
	for i, e := range s.World.Log() {
		if _, ok := first[e.Call.Ref.Scope]; !ok {
			first[e.Call.Ref.Scope] = i
		}
		last[e.Call.Ref.Scope] = i
	}
	if first["n2"] < last["n1"] {
		t.Errorf("n2 was begun with call %d, n1 ended with call %d", first["n2"], last["n1"])
	}
	// A failure on the first node keeps the run from all others.
	s = enginetest.New()
	fails(t, s, "create", "n1/near.port/p2")
	if res, err := s.Apply(s.Plan(t, d, plan.Options{}), engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunReverted {
		t.Fatal(res.Run.Status, err)
	}
	for _, e := range s.World.Log() {
		if e.Call.Ref.Scope == "n2" {
			t.Errorf("%s of %s although the first node failed", e.Op, e.Call.Ref)
		}
	}
}

// Of two executors that start at the same moment exactly one runs, and the other is told who holds the lock, since when,
// and what that one is doing.
func TestTwoExecutors(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	d := s.Document(t, twelve)
	gate := make(chan struct{})
	var once sync.Once
	inside := make(chan struct{})
	s.World.Hook = func(op string, at fake.Moment, _ providers.Call) {
		if op != "observe" && at == fake.Before {
			once.Do(func() { close(inside); <-gate })
		}
	}
	type result struct {
		res engine.Result
		err error
	}
	results := make(chan result, 2)
	for range 2 {
		p := s.Plan(t, d, plan.Options{})
		go func() {
			res, err := s.Apply(p, engine.ApplyOptions{})
			results <- result{res, err}
		}()
	}
	<-inside
	lost := <-results
	var locked *state.LockedError
	if !errors.As(lost.err, &locked) {
		t.Errorf("the second: %s, %v", lost.res.Run.Status, lost.err)
	} else if i := locked.Info; i.Who != "test@here" || time.Since(i.Created) > time.Minute {
		t.Errorf("it is told %+v", i)
	}
	if info, err := s.Store.LockInfo(context.Background()); err != nil || !strings.Contains(info.Info, "of 12 steps done") || info.Run == "" {
		t.Errorf("the holder says of itself %+v, %v", info, err)
	}
	close(gate)
	if won := <-results; won.err != nil || won.res.Run.Status != state.RunApplied {
		t.Errorf("the first: %s, %v", won.res.Run.Status, won.err)
	}
}

// Too many failures in one wave stop even a run that is to continue.
func TestManyFailuresStopContinue(t *testing.T) {
	s := enginetest.New()
	many := map[string]string{}
	for i := range 40 {
		many[fmt.Sprintf("site/far.guard/g%02d", i)] = `{}`
	}
	if err := s.World.Fail(fake.Fault{Op: "create", Times: -1, Class: providers.Invalid}); err != nil {
		t.Fatal(err)
	}
	e := s.Engine(func(o *engine.Options) { o.Parallelism = 1 })
	defer e.Close()
	res, err := e.Apply(context.Background(), s.Plan(t, s.Document(t, many), plan.Options{}), engine.ApplyOptions{OnFailure: apply.Continue})
	if err != nil || res.Run.Status != state.RunPartial {
		t.Fatal(res.Run.Status, err)
	}
	if n := s.World.Count("create"); n != 9 { // more than a fifth of forty
		t.Errorf("%d creates were tried", n)
	}
	for _, ev := range s.Events() {
		if end, ok := ev.(event.RunEnded); ok && !slices.ContainsFunc(end.Holds, func(h state.Hold) bool { return h.Scope == "site" }) {
			t.Errorf("the end tells of %v", end.Holds)
		}
	}
}

// F1: a process that lost the lock while it was stopped before it wrote its document does not overwrite that of its
// successor.
func TestReplacedHolderKeepsItsDocument(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, base))
	mine := s.Plan(t, s.Document(t, with(map[string]string{"n1/near.port/p0": `{"bridge":"br0","tag":20}`})), plan.Options{})
	theirs := s.Document(t, with(map[string]string{"n1/near.port/p0": `{"bridge":"br0","tag":30}`}))
	var kv *mem.KV
	var once sync.Once
	kv = s.KV.Connect(mem.Options{Fault: func(c mem.Call) error {
		if c.Name == "commit" && !c.Done && slices.ContainsFunc(c.Keys, func(k string) bool { return strings.HasSuffix(k, "document/head") }) {
			once.Do(func() {
				kv.Lapse()
				s.Converge(t, theirs)
			})
		}
		return nil
	}})
	e := s.Engine(func(o *engine.Options) { o.Store = state.New(kv, "test") })
	defer e.Close()
	if _, err := e.Apply(context.Background(), mine, engine.ApplyOptions{}); err == nil {
		t.Error("it went on")
	}
	if head, err := s.Store.Head(context.Background()); err != nil || head.Digest != theirs.Digest {
		t.Errorf("the newest document is not the one of the holder: %+v, %v", head, err)
	}
}
