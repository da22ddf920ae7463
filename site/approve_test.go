package site_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
	"converge.dev/converge/state/mem"
)

// waits returns the plan that waits, and fails the test unless the status says that so many have approved it.
func (b *bed) waits(approvals string) state.Waiting {
	b.t.Helper()
	s := b.stands(site.Waiting, "")
	w, err := b.Store.Waiting(context.Background())
	if err != nil {
		b.t.Fatalf("%v\n%s", err, b.logged())
	}
	if s.Given != approvals || s.Digest != w.Approval || s.Steps != w.Steps {
		b.t.Fatalf("it has the approvals %q, want %q: %+v\n%+v", s.Given, approvals, s, w)
	}
	return w
}

// approve approves the plan that waits.
func (b *bed) approve(who string) {
	b.t.Helper()
	synctest.Wait()
	w, err := b.Store.Waiting(context.Background())
	if err == nil {
		err = b.Store.Approve(context.Background(), w, who, time.Now())
	}
	if err != nil {
		b.t.Fatal(err)
	}
	synctest.Wait()
}

// nothingWaits fails the test when a plan waits, or an approval is left.
func (b *bed) nothingWaits() {
	b.t.Helper()
	synctest.Wait()
	if w, err := b.Store.Waiting(context.Background()); !errors.Is(err, state.ErrNotFound) {
		b.t.Errorf("it waits: %+v, %v", w, err)
	}
	if left, err := b.Store.Approvals(context.Background()); len(left) > 0 || err != nil {
		b.t.Errorf("approvals are left: %v, %v", left, err)
	}
}

// In mode approve nothing is done until somebody approves the plan; then it is done at once.
func TestApprove(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		d := b.put(map[string]string{"site/far.net/a": `{"size": 1}`, "n1/near.bridge/br": `{"size": 1}`})
		k := b.start(site.Approve)
		defer k.ends()
		b.stands(site.Waiting, "create site/far.net/a needs approval")
		w := b.waits("0 of 1")
		if want := b.Plan(t, d, plan.Options{}).Approval(); w.Approval != want || w.Steps != 2 || b.status().Counts != "2 to add, 0 to change, 0 to destroy" {
			t.Errorf("%+v, %+v, want the approval %s", w, b.status(), want)
		}
		time.Sleep(time.Hour)
		if b.waits("0 of 1"); len(b.runs()) > 0 || len(b.World.Log()) > 0 {
			t.Fatal("it did something")
		}
		begin := time.Now()
		b.approve("ada@lab")
		b.stands(site.InSync, "")
		b.has("n1", "near.bridge", "br", "size", 1)
		if runs := b.runs(); len(runs) != 1 || runs[0].Plan != w.Plan || !slices.Equal(runs[0].ApprovedBy, []string{"ada@lab"}) || !time.Now().Equal(begin) {
			t.Errorf("the runs are %+v, want one of the plan %s, approved by ada@lab, at once", runs, w.Plan)
		}
		b.nothingWaits()
		entries, err := b.Store.Audits(t.Context())
		if err != nil || len(entries) != 1 || entries[0].Action != "approve" || entries[0].By != "ada@lab" || entries[0].Scope != w.Approval {
			t.Errorf("the audit log has %+v, %v", entries, err)
		}
	})
}

// What enforce leaves to people is done once it is approved, after the rest.
func TestApproveWhatIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.Converge(t, b.put(map[string]string{"site/far.net/a": `{"cidr": "10.0.0.0/8"}`}))
		k := b.start(site.Enforce)
		defer k.ends()
		d := b.put(map[string]string{"site/far.net/a": `{"cidr": "10.1.0.0/16"}`, "n1/near.bridge/br": `{"size": 1}`})
		b.stands(site.Waiting, "cannot be undone exactly")
		b.has("n1", "near.bridge", "br", "size", 1)
		w := b.waits("0 of 1")
		if p := b.Plan(t, d, plan.Options{}); w.Approval != p.Approval() || w.Steps != len(p.Steps) {
			t.Errorf("what waits is not what is left: %+v", w)
		}
		b.approve("ada@lab")
		b.stands(site.InSync, "")
		b.has(schema.ScopeSite, "far.net", "a", "cidr", "10.1.0.0/16")
		b.nothingWaits()
	})
}

// As many different people have to approve as the document says, and only those count whom it names.
func TestApprovalsOfSeveral(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.policy.Approvals = schema.Approvals{Count: 2, By: []string{"ada", "grace@lab"}}
		b.put(map[string]string{"n1/near.bridge/br": `{}`})
		k := b.start(site.Approve)
		defer k.ends()
		b.waits("0 of 2")
		b.approve("ada@lab")
		b.waits("1 of 2: ada@lab")
		b.approve("ada@lab")
		b.approve("ada@desk") // the same person
		b.waits("1 of 2: ada@desk")
		b.approve("mallory@lab")
		b.approve("grace@elsewhere")
		b.waits("1 of 2: ada@desk")
		if n := len(b.runs()); n > 0 {
			t.Fatalf("%d runs", n)
		}
		b.approve("grace@lab")
		b.stands(site.InSync, "")
		b.nothingWaits()
	})
}

// Where two keys name one person, which converge itself does not write, that is one approval.
func TestOnePersonIsOne(t *testing.T) {
	a := schema.Approvals{Count: 2}
	for _, c := range []struct {
		who  []string
		want bool
	}{
		{nil, false}, {[]string{"ada@a"}, false}, {[]string{"ada@a", "ada@b"}, false}, {[]string{"ada@a", "ada"}, false}, {[]string{"ada@a", "grace@a"}, true},
	} {
		if got := a.Enough(c.who...); got != c.want {
			t.Errorf("%v: %v", c.who, got)
		}
	}
}

// An approval is valid for a day.
func TestApprovalExpires(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.policy.Approvals.Count = 2
		b.put(map[string]string{"n1/near.bridge/br": `{}`})
		k := b.start(site.Approve)
		defer k.ends()
		b.approve("ada@lab")
		time.Sleep(state.ApprovalLife - time.Second)
		b.waits("1 of 2: ada@lab")
		time.Sleep(2 * time.Second)
		b.approve("grace@lab")
		b.waits("1 of 2: grace@lab")
		b.approve("ada@lab")
		b.stands(site.InSync, "")
		b.nothingWaits()
	})
}

// An approval is one of a plan: when that changes, it lapses, and the status says so.
func TestApprovalLapses(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.policy.Approvals.Count = 2
		one, other := map[string]string{"n1/near.bridge/br": `{"size": 1}`}, map[string]string{"n1/near.bridge/br": `{"size": 2}`}
		b.put(one)
		k := b.start(site.Approve)
		defer k.ends()
		b.approve("ada@lab")
		old := b.waits("1 of 2: ada@lab")
		b.put(other)
		b.stands(site.Waiting, "the plan has changed since ada@lab approved "+old.Approval[:16])
		if w := b.waits("0 of 2"); w.Approval == old.Approval {
			t.Error("the digest is the same")
		}
		b.approve("grace@lab")
		b.waits("1 of 2: grace@lab")
		if err := b.Store.Approve(t.Context(), old, "grace@lab", time.Now()); !errors.Is(err, state.ErrGuard) {
			t.Errorf("what no longer waits was approved: %v", err)
		}
		if len(b.runs()) > 0 {
			t.Fatal("it was applied")
		}
		b.put(one)
		b.stands(site.Waiting, "the plan has changed since grace@lab approved ")
		if w := b.waits("0 of 2"); w.Approval != old.Approval {
			t.Errorf("the same plan has another digest")
		}
		b.approve("grace@lab")
		b.waits("1 of 2: grace@lab")
		b.approve("ada@lab")
		b.stands(site.InSync, "")
		b.has("n1", "near.bridge", "br", "size", 1)
	})
}

// What is taken back does not count.
func TestUnapprove(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.policy.Approvals.Count = 2
		b.put(map[string]string{"n1/near.bridge/br": `{}`})
		k := b.start(site.Approve)
		defer k.ends()
		b.approve("ada@lab")
		if err := b.Store.Unapprove(t.Context(), b.waits("1 of 2: ada@lab"), "ada@desk", time.Now()); err != nil {
			t.Fatal(err)
		}
		b.waits("0 of 2")
		b.approve("grace@lab")
		b.waits("1 of 2: grace@lab")
	})
}

// Once a run has begun to apply the plan nothing is taken back or added: whoever does is told that it is too late.
func TestUnapproveTooLate(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.policy.Approvals.Count = 2
		b.put(map[string]string{"n1/near.bridge/br": `{}`})
		k := b.start(site.Approve)
		b.approve("ada@lab")
		w := b.waits("1 of 2: ada@lab")
		k.ends()
		if _, err := b.KV.Commit(t.Context(), nil, []state.Op{b.Store.SpentOp(w.Plan, "r7")}); err != nil {
			t.Fatal(err)
		}
		if err := b.Store.Unapprove(t.Context(), w, "ada@lab", time.Now()); !errors.Is(err, state.ErrGuard) {
			t.Errorf("taken back: %v", err)
		}
		if err := b.Store.Approve(t.Context(), w, "grace@lab", time.Now()); !errors.Is(err, state.ErrGuard) {
			t.Errorf("approved: %v", err)
		}
		if all, err := b.Store.Approvals(t.Context()); err != nil || len(all) != 1 {
			t.Errorf("%v, %+v", err, all)
		}
	})
}

// While nothing changes the plan that waits stays as it is, whatever agent looks. What was approved meanwhile is done by the next one.
func TestWaitingStays(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.Converge(t, b.put(map[string]string{"n1/near.bridge/br": `{"size": 1}`, "site/far.net/a": `{}`}))
		b.put(map[string]string{"n1/near.bridge/br": `{"size": 2}`, "site/far.net/a": `{}`})
		k := b.start(site.Approve)
		was := b.waits("0 of 1")
		for range 5 {
			k.Look()
			synctest.Wait()
		}
		time.Sleep(time.Hour)
		k.ends()
		k = b.start(site.Approve)
		if now := b.waits("0 of 1"); now.Plan != was.Plan || !now.Since.Equal(was.Since) {
			t.Errorf("it was %+v and is %+v", was, now)
		}
		k.ends()
		b.approve("ada@lab")
		k = b.start(site.Approve)
		defer k.ends()
		b.stands(site.InSync, "")
		b.has("n1", "near.bridge", "br", "size", 2)
		if runs := b.runs(); runs[0].Plan != was.Plan {
			t.Errorf("the plan that was applied is not the one that was approved: %+v", runs)
		}
	})
}

// What was approved is done once: when the run failed and was undone, the same plan needs a new approval.
func TestApprovedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		if err := b.World.Fail(fake.Fault{Op: "create", Ref: "n1/near.bridge/br", Class: providers.Invalid, Message: "no such mode", Times: 1}); err != nil {
			t.Fatal(err)
		}
		b.put(map[string]string{"n1/near.bridge/br": `{}`})
		k := b.start(site.Approve)
		defer k.ends()
		w := b.waits("0 of 1")
		b.approve("ada@lab")
		b.stands(site.Held, "serial:1 is on hold")
		if err := b.Store.Release(t.Context(), state.SerialScope(1), "ada@lab", ""); err != nil {
			t.Fatal(err)
		}
		again := b.waits("0 of 1")
		if again.Approval != w.Approval || again.Plan == w.Plan {
			t.Logf("it was %+v and is %+v", w, again)
		}
		time.Sleep(time.Hour)
		if n := len(b.runs()); n != 1 {
			t.Errorf("%d runs", n)
		}
		b.approve("ada@lab")
		b.stands(site.InSync, "")
		b.nothingWaits()
	})
}

// The document lowers what the agent may do, kind by kind and scope by scope, and can not raise it.
func TestModesOfTheDocument(t *testing.T) {
	all := map[string]string{"site/far.net/a": `{}`, "n1/near.bridge/b": `{}`, "n2/near.bridge/c": `{}`}
	rules := []schema.Reconcile{
		{Mode: "observe", Kinds: []string{"far.*"}},
		{Mode: "approve", Kinds: []string{"near.bridge"}, Scopes: []string{"n1"}},
		{Mode: "enforce"},
	}
	for mode, want := range map[site.Mode]struct {
		phase         site.Phase
		made, waiting string
		then          site.Phase
	}{
		site.Observe: {site.Differs, "", "", ""},
		site.Approve: {site.Waiting, "", "b c", site.Differs},
		site.Enforce: {site.Waiting, "c", "b", site.Differs},
	} {
		t.Run(string(mode), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bed) {
				made := func() string {
					var names []string
					for _, at := range [][3]string{{"site", "far.net", "a"}, {"n1", "near.bridge", "b"}, {"n2", "near.bridge", "c"}} {
						if b.thing(at[0], at[1], at[2]) != nil {
							names = append(names, at[2])
						}
					}
					return strings.Join(names, " ")
				}
				b.policy.Reconcile = rules
				b.put(all)
				k := b.start(mode)
				defer k.ends()
				b.stands(want.phase, "")
				if got := made(); got != want.made {
					t.Errorf("it made %q, want %q", got, want.made)
				}
				if want.waiting == "" {
					b.nothingWaits()
					return
				}
				w := b.waits("0 of 1")
				body, err := b.Store.WaitingPlan(t.Context(), w)
				if err != nil {
					t.Fatal(err)
				}
				p, err := plan.Decode(body)
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, s := range p.Steps {
					names = append(names, s.Ref.Name)
				}
				if slices.Sort(names); strings.Join(names, " ") != want.waiting {
					t.Errorf("%v waits, want %s", names, want.waiting)
				}
				b.approve("ada@lab")
				if s := b.stands(want.then, ""); s.Steps != 1 {
					t.Errorf("%+v", s)
				}
				if got := made(); got != "b c" {
					t.Errorf("then it made %q", got)
				}
				b.nothingWaits()
			})
		})
	}
}

// A plan that is refused does not wait for approval.
func TestRefusedDoesNotWait(t *testing.T) {
	for _, mode := range site.Modes {
		bubble(t, func(t *testing.T, b *bed) {
			b.Converge(t, b.put(map[string]string{"n1/near.bridge/a": `{}`, "n1/near.bridge/b": `{"lifecycle": {"protect": true}}`}))
			b.put(map[string]string{"n1/near.bridge/a": `{}`})
			k := b.start(mode)
			defer k.ends()
			b.stands(site.Refused, "protected")
			b.nothingWaits()
			if n := len(b.runs()); n != 1 {
				t.Errorf("%d runs", n)
			}
		})
	}
}

// A hold and a freeze stop what was approved; when they end, it is done. The rest need not wait for what is on hold.
func TestApprovedIsHeld(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.policy.Approvals.Count = 2
		b.put(map[string]string{"n1/near.bridge/br": `{}`})
		k := b.start(site.Approve)
		defer k.ends()
		b.approve("ada@lab")
		if err := b.Store.SetFreeze(t.Context(), true, "me@here", "an incident"); err != nil {
			t.Fatal(err)
		}
		b.approve("grace@lab")
		b.stands(site.Held, "frozen: an incident")
		if len(b.runs()) > 0 {
			t.Fatal("it was applied")
		}
		if err := b.Store.SetFreeze(t.Context(), false, "me@here", ""); err != nil {
			t.Fatal(err)
		}
		b.stands(site.InSync, "")

		b.policy.Approvals.Count = 1
		b.put(map[string]string{"n1/near.bridge/br": `{"size": 2}`, "n2/near.bridge/br": `{"size": 2}`})
		if err := b.Store.Hold(t.Context(), "n1", "me@here", "maintenance"); err != nil {
			t.Fatal(err)
		}
		b.stands(site.Waiting, "n1 is on hold")
		b.approve("ada@lab")
		b.stands(site.Held, "n1 is on hold")
		b.has("n2", "near.bridge", "br", "size", 2)
		b.has("n1", "near.bridge", "br", "size", nil)
	})
}

// A run of an approved plan that was interrupted is finished by the next agent, and not begun again.
func TestApprovedRunIsResumed(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		cause := errors.New("it is over")
		b.put(ten())
		k := b.prepare(site.Approve, one)
		b.at(3, func() { k.stop(cause) })
		k.begin()
		b.approve("ada@lab")
		if err := <-k.end; !errors.Is(err, cause) {
			t.Errorf("it ended with: %v", err)
		}
		next := b.start(site.Approve)
		defer next.ends()
		b.finished()
		b.nothingWaits()
	})
}

// An approval is taken back whatever the clocks say: one that seems to be of the future here counts elsewhere, or later.
func TestUnapproveWhateverTheTime(t *testing.T) {
	store := state.New(mem.New(mem.Options{}), "test")
	if err := store.SetWaiting(t.Context(), &state.Waiting{Approval: "9b1f", Plan: "p1", Since: time.Now(), Needs: 1}, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	w, err := store.Waiting(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []time.Duration{-2 * state.ApprovalLife, 0, time.Hour} {
		if err := store.Approve(t.Context(), w, "ada@lab", time.Now().Add(at)); err != nil {
			t.Fatal(err)
		}
		had, err := site.UnapprovePlan(t.Context(), store, &w, "ada@laptop")
		if left, lerr := store.Approvals(t.Context()); !had || len(left) > 0 || err != nil || lerr != nil {
			t.Errorf("at %v: %v, %v, %v, %v", at, had, left, err, lerr)
		}
	}
	if had, err := site.UnapprovePlan(t.Context(), store, &w, "ada@lab"); had || err != nil {
		t.Errorf("%v, %v", had, err)
	}
}
