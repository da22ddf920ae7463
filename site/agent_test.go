package site_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
)

// Without a document there is nothing to do; one that is put wakes the agent, which applies it at once.
func TestDocumentIsApplied(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		k := b.start(site.Enforce)
		defer k.ends()
		b.stands(site.NoDocument, "")
		begin := time.Now()
		b.put(map[string]string{"site/far.net/a": `{"size": 1}`, "n1/near.bridge/br": `{"size": 2}`})
		s := b.stands(site.InSync, "")
		if !time.Now().Equal(begin) {
			t.Error("it was not done at once")
		}
		b.has(schema.ScopeSite, "far.net", "a", "size", 1)
		b.has("n1", "near.bridge", "br", "size", 2)
		if s.Site.Serial != 1 || s.Site.ID != enginetest.SiteID || s.Mode != site.Enforce || s.Run != b.runs()[0].ID || s.Plan != "" || s.Steps != 0 {
			t.Errorf("%+v", s)
		}
		if r := b.drift(); !r.Clean() || r.Recorded != 2 {
			t.Errorf("%+v", r)
		}
		b.put(map[string]string{"site/far.net/a": `{"size": 3}`, "n1/near.bridge/br": `{"size": 2}`})
		if s := b.stands(site.InSync, ""); s.Site.Serial != 2 {
			t.Errorf("%+v", s)
		}
		b.has(schema.ScopeSite, "far.net", "a", "size", 3)
		if got := strings.Join(b.phases, " "); got != "no-document applying in-sync applying in-sync" {
			t.Errorf("the phases were %s", got)
		}
	})
}

// An agent that only observes says what it would do, and with which approval, and does nothing.
func TestObserve(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		k := b.start(site.Observe)
		defer k.ends()
		d := b.put(map[string]string{"site/far.net/a": `{}`, "n1/near.bridge/br": `{}`})
		s := b.stands(site.Differs, "")
		if want := b.Plan(t, d, plan.Options{}).Approval(); s.Digest != want || s.Steps != 2 {
			t.Errorf("%+v, want the approval %s", s, want)
		}
		time.Sleep(time.Hour)
		b.stands(site.Differs, "")
		if len(b.runs()) > 0 || len(b.World.Log()) > 0 {
			t.Errorf("it changed something: %v", b.World.Log())
		}
		b.Converge(t, d)
		time.Sleep(sweep)
		b.stands(site.InSync, "")
	})
}

// What is changed behind the agent's back is reported, and put right by an agent that may.
func TestDrift(t *testing.T) {
	for _, mode := range []site.Mode{site.Observe, site.Enforce} {
		t.Run(string(mode), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bed) {
				b.Converge(t, b.put(map[string]string{"n1/near.bridge/br": `{"size": 1}`, "site/far.net/a": `{"size": 1}`}))
				var mu sync.Mutex
				var reports []string
				seen := func() string {
					r := b.drift()
					var refs []string
					for _, d := range r.Drifted {
						refs = append(refs, d.Ref.String())
					}
					return fmt.Sprintf("%v %v", r.Clean(), refs)
				}
				b.World.Hook = func(op string, at fake.Moment, _ providers.Call) {
					if op == "update" && at == fake.Before { // it has been reported before anything is done about it
						body, err := b.Store.Published(context.Background(), "drift/latest")
						mu.Lock()
						defer mu.Unlock()
						reports = append(reports, fmt.Sprint(string(body), err))
					}
				}
				k := b.start(mode)
				defer k.ends()
				b.stands(site.InSync, "")
				if got := seen(); got != "true []" {
					t.Fatalf("drift: %s", got)
				}
				begin := time.Now()
				b.meddle("n1", "near.bridge", "br", schema.Object{"size": int64(7)})
				synctest.Wait()
				if !time.Now().Equal(begin) {
					t.Error("it was not seen at once")
				}
				if mode == site.Observe {
					b.stands(site.Differs, "")
					if got := seen(); got != "false [n1/near.bridge/br]" {
						t.Errorf("drift: %s", got)
					}
					time.Sleep(time.Hour)
					b.has("n1", "near.bridge", "br", "size", 7)
					if n := len(b.runs()); n != 1 {
						t.Errorf("%d runs", n)
					}
					return
				}
				b.stands(site.InSync, "")
				b.has("n1", "near.bridge", "br", "size", 1)
				if got := seen(); got != "true []" {
					t.Errorf("drift: %s", got)
				}
				if n := len(b.runs()); n != 2 {
					t.Errorf("%d runs, want one more", n)
				}
				if len(reports) != 1 || !strings.Contains(reports[0], `"ref":"n1/near.bridge/br"`) {
					t.Errorf("when it was put right, the report was %v", reports)
				}
			})
		})
	}
}

// A provider that reports no changes is looked at from time to time.
func TestSweep(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.wrap = func(p *providers.Provider) {
			for i := range p.Kinds {
				p.Kinds[i].Watch = nil
			}
		}
		b.put(map[string]string{"n1/near.bridge/br": `{"size": 1}`})
		k := b.start(site.Enforce)
		defer k.ends()
		b.stands(site.InSync, "")
		b.meddle("n1", "near.bridge", "br", schema.Object{"size": int64(7)})
		time.Sleep(sweep*9/10 - time.Second)
		b.has("n1", "near.bridge", "br", "size", 7)
		time.Sleep(sweep/10 + 2*time.Second)
		synctest.Wait()
		b.has("n1", "near.bridge", "br", "size", 1)
	})
}

// What cannot be undone exactly, and what interrupts, is left to a person; the rest is done.
func TestLeftToPeople(t *testing.T) {
	const restarts = "restart of the bridge"
	for name, c := range map[string]struct {
		before, after string
		why           string
	}{
		"cannot be undone": {`{"cidr": "10.0.0.0/8"}`, `{"cidr": "10.1.0.0/16"}`, "cannot be undone exactly"},
		"interrupts":       {`{"mode": "a"}`, `{"mode": "b"}`, "interrupts: " + restarts},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bed) {
				fields := b.Kinds["near.bridge"].Fields
				for i := range fields {
					if fields[i].Name == "mode" {
						fields[i].Disruption = restarts
					}
				}
				ref := "site/far.net/a"
				if name == "interrupts" {
					ref = "n1/near.bridge/a"
				}
				b.Converge(t, b.put(map[string]string{ref: c.before}))
				k := b.start(site.Enforce)
				defer k.ends()
				d := b.put(map[string]string{ref: c.after, "n2/near.bridge/rest": `{"size": 1}`})
				s := b.stands(site.Waiting, c.why)
				b.has("n2", "near.bridge", "rest", "size", 1)
				if _, ok := enginetest.Standing(t, b.Store, d.Resources[0].Ref); len(b.runs()) != 2 || ok && d.Resources[0].Ref.String() == ref {
					t.Errorf("what is left to people was in the run")
				}
				time.Sleep(time.Hour)
				if n := len(b.runs()); n != 2 {
					t.Errorf("%d runs", n)
				}
				if s = b.status(); !strings.Contains(s.Detail, ref) {
					t.Errorf("it does not say what: %+v", s)
				}
				p := b.Plan(t, d, plan.Options{})
				if s.Digest != p.Approval() {
					t.Errorf("the approval is %s, want %s", s.Digest, p.Approval())
				}
				if res, err := b.Apply(p, engine.ApplyOptions{Approve: s.Digest}); err != nil || res.Run.Status != state.RunApplied {
					t.Fatal(res, err)
				}
				time.Sleep(sweep)
				b.stands(site.InSync, "")
			})
		})
	}
}

// A part of the site that cannot be reached does not keep the rest from being done.
func TestUnknown(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		n2 := providers.Need{Scope: "n2", Provider: "near"}
		b.fail(n2, "the node is off")
		k := b.start(site.Enforce)
		defer k.ends()
		b.put(map[string]string{"n1/near.bridge/a": `{"size": 1}`, "n2/near.bridge/b": `{"size": 1}`})
		s := b.stands(site.Unknown, "the node is off")
		if !strings.HasPrefix(s.Detail, "n2/near.") {
			t.Errorf("it does not say what: %q", s.Detail)
		}
		b.has("n1", "near.bridge", "a", "size", 1)
		time.Sleep(time.Minute)
		b.stands(site.Unknown, "the node is off")
		b.fail(n2, "")
		time.Sleep(10 * time.Second)
		b.stands(site.InSync, "")
		b.has("n2", "near.bridge", "b", "size", 1)
		if n := len(b.runs()); n != 2 {
			t.Errorf("%d runs", n)
		}
	})
}

// However often it was woken meanwhile, an agent that has to look again does so at its pace.
func TestPace(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		n2 := providers.Need{Scope: "n2", Provider: "near"}
		b.fail(n2, "the node is off")
		k := b.start(site.Enforce)
		defer k.ends()
		b.put(map[string]string{"n2/near.bridge/b": `{}`})
		for range 7 {
			time.Sleep(time.Second)
			k.Look()
		}
		synctest.Wait()
		looks := func() (n int) {
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, o := range b.opened {
				if o == n2 {
					n++
				}
			}
			b.opened = nil
			return n
		}
		k.Look()
		synctest.Wait()
		looks()
		k.Look()
		synctest.Wait()
		round := looks()
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if n := looks(); n != 6*round {
			t.Errorf("in a minute it was looked at %d times, want 6 rounds of %d", n, round)
		}
	})
}

// A hold and a freeze stop the agent; when they end it goes on by itself.
func TestHeld(t *testing.T) {
	for name, c := range map[string]struct {
		hold, release func(*bed) error
		why           string
	}{
		"site": {
			func(b *bed) error { return b.Store.Hold(b.t.Context(), schema.ScopeSite, "me@here", "maintenance") },
			func(b *bed) error { return b.Store.Release(b.t.Context(), schema.ScopeSite, "me@here", "") }, "site is on hold: maintenance (me@here)",
		},
		"node": {
			func(b *bed) error { return b.Store.Hold(b.t.Context(), "n1", "me@here", "maintenance") },
			func(b *bed) error { return b.Store.Release(b.t.Context(), "n1", "me@here", "") }, "n1 is on hold: maintenance (me@here)",
		},
		"freeze": {
			func(b *bed) error { return b.Store.SetFreeze(b.t.Context(), true, "me@here", "an incident") },
			func(b *bed) error { return b.Store.SetFreeze(b.t.Context(), false, "me@here", "") }, "frozen: an incident",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bed) {
				b.Converge(t, b.put(map[string]string{"n1/near.bridge/br": `{"size": 1}`}))
				k := b.start(site.Enforce)
				defer k.ends()
				if err := c.hold(b); err != nil {
					t.Fatal(err)
				}
				b.meddle("n1", "near.bridge", "br", schema.Object{"size": int64(7)})
				b.stands(site.Held, c.why)
				if digest := b.status().Digest; digest != "" {
					t.Errorf("it names %s for approval, and nothing waits", digest)
				}
				if r := b.drift(); len(r.Drifted) != 1 {
					t.Errorf("what drifts is not reported meanwhile: %+v", r)
				}
				time.Sleep(time.Hour)
				b.has("n1", "near.bridge", "br", "size", 7)
				begin := time.Now()
				if err := c.release(b); err != nil {
					t.Fatal(err)
				}
				b.stands(site.InSync, "")
				b.has("n1", "near.bridge", "br", "size", 1)
				if !time.Now().Equal(begin) {
					t.Error("it did not go on at once")
				}
			})
		})
	}
}

// A hold of a node, or of one resource, does not keep the rest from being done.
func TestHeldInPart(t *testing.T) {
	for _, scope := range []string{"n1", "n1/near.bridge/a"} {
		bubble(t, func(t *testing.T, b *bed) {
			if err := b.Store.Hold(t.Context(), scope, "me@here", "maintenance"); err != nil {
				t.Fatal(err)
			}
			k := b.start(site.Enforce)
			defer k.ends()
			b.put(map[string]string{"n1/near.bridge/a": `{"size": 1}`, "n2/near.bridge/b": `{"size": 1}`, "site/far.net/c": `{}`})
			b.stands(site.Held, scope+" is on hold: maintenance")
			b.has("n1", "near.bridge", "a", "", nil)
			b.has("n2", "near.bridge", "b", "size", 1)
			time.Sleep(time.Hour)
			if n := len(b.runs()); n != 1 {
				t.Errorf("%d runs", n)
			}
			b.meddle("n2", "near.bridge", "b", schema.Object{"size": int64(7)})
			b.stands(site.Held, scope+" is on hold: maintenance")
			b.has("n2", "near.bridge", "b", "size", 1)
			if err := b.Store.Release(t.Context(), scope, "me@here", ""); err != nil {
				t.Fatal(err)
			}
			b.stands(site.InSync, "")
			b.has("n1", "near.bridge", "a", "size", 1)
		})
	}
}

// A run that fails is undone, and its revision not tried again; the next one is.
func TestFailedRun(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		if err := b.World.Fail(fake.Fault{Op: "create", Ref: "n2/near.bridge/bad", Class: providers.Invalid, Message: "no such mode", Times: -1}); err != nil {
			t.Fatal(err)
		}
		k := b.start(site.Enforce)
		defer k.ends()
		b.put(map[string]string{"n1/near.bridge/good": `{}`, "n2/near.bridge/bad": `{}`})
		s := b.stands(site.Held, "serial:1 is on hold")
		t.Log(s.Detail)
		if got := strings.Join(b.phases, " "); got != "no-document applying failed held" {
			t.Errorf("the phases were %s", got)
		}
		b.has("n1", "near.bridge", "good", "", nil)
		time.Sleep(time.Hour)
		b.stands(site.Held, "until another revision is put, be it the one before, or the hold is released")
		if all := b.runs(); len(all) != 1 || all[0].Status != state.RunReverted || all[0].ID != s.Run {
			t.Errorf("the runs are %+v", all)
		}
		b.put(map[string]string{"n1/near.bridge/good": `{}`})
		b.stands(site.InSync, "")
		if n := len(b.runs()); n != 2 {
			t.Errorf("%d runs", n)
		}
	})
}

// While somebody else works on the site, the agent does nothing; then it goes on.
func TestLocked(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		lock, err := b.Store.Lock(t.Context(), state.LockInfo{Operation: "apply", Who: "me@here"}, state.LockOptions{})
		if err != nil {
			t.Fatal(err)
		}
		k := b.start(site.Enforce)
		defer k.ends()
		b.put(map[string]string{"n1/near.bridge/br": `{"size": 1}`})
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if n := len(b.World.Log()); n > 0 || len(b.runs()) > 0 {
			t.Fatalf("it made %d changes", n)
		}
		if err := lock.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		b.stands(site.InSync, "")
		b.has("n1", "near.bridge", "br", "size", 1)
	})
}

// ten are bridges of a node.
func ten() map[string]string {
	all := map[string]string{}
	for i := range 10 {
		all[fmt.Sprintf("n1/near.bridge/b%d", i)] = `{"size": 1}`
	}
	return all
}

// one makes an engine take one step after the other.
func one(o *engine.Options) { o.Parallelism = 1 }

// at calls f, once, before the nth change of the world.
func (b *bed) at(nth int, f func()) {
	var mu sync.Mutex
	n := 0
	b.World.Hook = func(op string, at fake.Moment, _ providers.Call) {
		if op == "observe" || at != fake.Before {
			return
		}
		mu.Lock()
		n++
		now := n == nth
		mu.Unlock()
		if now {
			f()
		}
	}
}

// An agent that is stopped finishes the step that it is at, and begins no other; the next one finishes the run.
func TestStopped(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		cause := errors.New("it is over")
		b.put(ten())
		k := b.prepare(site.Enforce, one)
		b.at(3, func() { k.stop(cause) })
		k.begin()
		if err := <-k.end; !errors.Is(err, cause) {
			t.Errorf("it ended with: %v", err)
		}
		if all := b.runs(); len(all) != 1 || all[0].Status != state.RunOpen || len(b.World.Log()) != 3 {
			t.Fatalf("the runs are %+v after %d changes", all, len(b.World.Log()))
		}
		if holder, err := b.Store.LockInfo(t.Context()); holder != nil || err != nil {
			t.Errorf("it still has the lock: %v, %v", holder, err)
		}
		next := b.start(site.Enforce)
		defer next.ends()
		b.finished()
	})
}

// finished fails the test unless the site has the ten bridges, made by one run, each once.
func (b *bed) finished() {
	b.t.Helper()
	b.stands(site.InSync, "")
	if all := b.runs(); len(all) != 1 || all[0].Status != state.RunApplied {
		b.t.Errorf("the runs are %+v", all)
	}
	if n := len(b.World.Log()); n != 10 {
		b.t.Errorf("%d changes were made", n)
	}
	if s := b.status(); s.Plan != "" || s.Run != b.runs()[0].ID {
		b.t.Errorf("%+v", s)
	}
}

// killed runs an agent that is killed before its third step.
func (b *bed) killed() {
	b.t.Helper()
	b.put(ten())
	k := b.prepare(site.Enforce, one)
	b.at(3, func() { close(k.dead) })
	k.begin()
	<-k.dead
	k.kv.Lapse()
	k.stop(nil)
	<-k.end
	b.World.Hook = nil
	if all := b.runs(); len(all) != 1 || all[0].Status != state.RunOpen {
		b.t.Fatalf("the runs are %+v", all)
	}
}

// The run of an agent that was killed is finished by the next one; it is the same run.
func TestKilled(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.killed()
		k := b.start(site.Enforce)
		defer k.ends()
		b.finished()
	})
}

// The run of an agent that was killed is undone when it fails in the hands of the next one.
func TestKilledAndFails(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.killed()
		if err := b.World.Fail(fake.Fault{Op: "create", Ref: "n1/near.bridge/b9", Class: providers.Invalid, Times: -1}); err != nil {
			t.Fatal(err)
		}
		k := b.start(site.Enforce)
		defer k.ends()
		b.stands(site.Held, "serial:1 is on hold")
		if all := b.runs(); len(all) != 1 || all[0].Status != state.RunReverted {
			t.Errorf("the runs are %+v", all)
		}
		b.has("n1", "near.bridge", "b0", "", nil)
	})
}

// A run that cannot be resumed yet is resumed later.
func TestKilledAndAway(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.killed()
		n1 := providers.Need{Scope: "n1", Provider: "near"}
		b.fail(n1, "the node is off")
		k := b.start(site.Enforce)
		defer k.ends()
		b.stands(site.Failed, "the node is off")
		k.ends() // also by a third agent
		k = b.start(site.Enforce)
		defer k.ends()
		time.Sleep(time.Minute)
		b.stands(site.Failed, "the node is off")
		b.fail(n1, "")
		time.Sleep(10 * time.Second)
		b.finished()
	})
}

// Runs that are open are left to people where the agent may do nothing, has not begun them, or was told to end them.
func TestOpenRunIsLeftToPeople(t *testing.T) {
	held := func(b *bed, mode site.Mode) {
		b.t.Helper()
		k := b.start(mode)
		defer k.ends()
		time.Sleep(time.Hour)
		run := b.runs()[0]
		b.stands(site.Held, "run "+run.ID+" is open: it has to be resumed or rolled back")
		if run.Status != state.RunOpen {
			b.t.Errorf("it was resumed: %+v", run)
		}
	}
	t.Run("it only observes", func(t *testing.T) {
		bubble(t, func(_ *testing.T, b *bed) { b.killed(); held(b, site.Observe) })
	})
	t.Run("of a person", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *bed) {
			p := b.Plan(t, b.put(ten()), plan.Options{})
			stop := make(chan struct{})
			b.at(3, func() { close(stop) })
			e := b.Engine(one)
			defer e.Close()
			if _, err := e.Apply(t.Context(), p, engine.ApplyOptions{Interrupt: stop}); !errors.Is(err, engine.ErrInterrupted) {
				t.Fatal(err)
			}
			// An agent was about to begin another run when it was killed.
			if err := b.Store.Publish(t.Context(), "status", []byte(`{"phase":"applying","plan":"another"}`)); err != nil {
				t.Fatal(err)
			}
			held(b, site.Enforce)
		})
	})
	t.Run("cancelled", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *bed) {
			b.put(ten())
			b.at(3, func() {
				holder, err := b.Store.LockInfo(context.Background())
				if err == nil {
					err = b.Store.Ask(context.Background(), state.ToCancel, *holder, "me@here")
				}
				if err != nil {
					t.Error(err)
				}
				time.Sleep(time.Minute) // until it has been heard
			})
			k := b.start(site.Enforce, one)
			time.Sleep(time.Hour)
			b.stands(site.Held, "is open")
			k.ends()
			if run := b.runs()[0]; run.Cancelled == 0 {
				t.Fatalf("%+v", run)
			}
			held(b, site.Enforce)
		})
	})
}

// A document in the inbox that is refused changes nothing, and is looked at again when something is written.
func TestInboxRefused(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.put(map[string]string{"n1/near.bridge/br": `{"size": 1}`})
		k := b.start(site.Enforce)
		defer k.ends()
		b.mu.Lock()
		b.refused = errors.New("line 3: unknown field")
		b.mu.Unlock()
		if _, err := b.KV.Commit(t.Context(), nil, []state.Op{{Key: b.Store.Path() + "/inbox", Value: []byte("{")}}); err != nil {
			t.Fatal(err)
		}
		b.stands(site.InSync, "")
		if !strings.Contains(b.logged(), "line 3: unknown field") {
			t.Errorf("the log does not say why:\n%s", b.logged())
		}
		b.meddle("n1", "near.bridge", "br", schema.Object{"size": int64(7)})
		b.stands(site.InSync, "")
		b.has("n1", "near.bridge", "br", "size", 1)
	})
}

// What has not become different is not written again, also not by the next agent.
func TestWritesOnlyWhatIsDifferent(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		b.put(map[string]string{"n1/near.bridge/br": `{}`})
		k := b.start(site.Enforce)
		b.stands(site.InSync, "")
		before, since := b.writes(), b.status().Since
		time.Sleep(24 * time.Hour)
		for range 10 {
			k.Look()
			synctest.Wait()
		}
		if after := b.writes(); !maps.Equal(before, after) {
			t.Errorf("it wrote %v, and after a day %v", before, after)
		}
		k.ends()
		k = b.start(site.Enforce)
		defer k.ends()
		time.Sleep(24 * time.Hour)
		if after := b.writes(); after["status"] != before["status"] {
			t.Errorf("the next one wrote %v after %v", after, before)
		}
		if s := b.status(); !s.Since.Equal(since) {
			t.Errorf("it stands so since %v, not %v", s.Since, since)
		}
	})
}

// What can be reached may change: it is watched from then on. What a scope serves may change: it is opened anew.
func TestReachedAndRenewed(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		n1, n2 := b.reached[0], b.reached[1]
		b.reached = []providers.Need{n1}
		b.put(map[string]string{"n1/near.bridge/a": `{"size": 1}`, "n2/near.bridge/b": `{"size": 1}`})
		k := b.start(site.Enforce)
		defer k.ends()
		b.stands(site.InSync, "")
		b.meddle("n2", "near.bridge", "b", schema.Object{"size": int64(7)})
		synctest.Wait()
		b.has("n2", "near.bridge", "b", "size", 7) // nobody watches it

		b.mu.Lock()
		b.reached, b.opened = []providers.Need{n1, n2}, nil
		b.mu.Unlock()
		k.Look()
		synctest.Wait()
		b.has("n2", "near.bridge", "b", "size", 1)
		b.meddle("n2", "near.bridge", "b", schema.Object{"size": int64(8)})
		synctest.Wait()
		b.has("n2", "near.bridge", "b", "size", 1)
		if len(b.opened) > 0 {
			t.Errorf("%v were opened anew", b.opened)
		}

		b.mu.Lock()
		b.renewed = []string{"n2"}
		b.mu.Unlock()
		k.Look()
		synctest.Wait()
		if fmt.Sprint(b.opened) != fmt.Sprint([]providers.Need{n2}) {
			t.Errorf("%v were opened anew, want %v", b.opened, n2)
		}
		b.meddle("n2", "near.bridge", "b", schema.Object{"size": int64(9)})
		synctest.Wait()
		b.has("n2", "near.bridge", "b", "size", 1)
	})
}
