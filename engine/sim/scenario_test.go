package sim

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
)

// What the simulation found, reduced to the minimum that shows it. The promises that are broken are those that the
// simulation checks at every call and at the end of every run.

type resources = map[string]string

// scenario plays on a site in the given first state.
func scenario(t *testing.T, profile map[string]string, first resources, then func(s *sim)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		all := map[string]string{"far.net": "burned", "far.guard": "burned", "far.host": "burned", "near.bridge": "named", "near.port": "named"}
		maps.Copy(all, profile)
		s := newSim(t, 1, rand.New(rand.NewPCG(1, 0)), all)
		if res, err := s.apply(s.start(1), s.tester.Document(t, first), engine.ApplyOptions{}); err != nil {
			t.Fatal(res.Run.Status, err)
		}
		then(s)
		s.wg.Wait()
		for _, b := range s.broken {
			t.Error(b)
		}
		if t.Failed() || *seedFlag != 0 {
			t.Log("\n" + s.trace.String())
		}
	})
}

func (s *sim) fault(f fake.Fault) {
	if err := s.far.Fail(f); err != nil {
		s.t.Fatal(err)
	}
}

// stays checks that the far side holds what a document says and nothing else, and that it remains so.
func (s *sim) stays(doc resources) {
	time.Sleep(2*late + lag)
	var is, want []string
	_ = s.far.Land() // what is due arrives with the next observation
	for at, th := range s.things() {
		is = append(is, at.scope+"/"+at.kind+"/"+th.Name)
	}
	for ref := range doc {
		want = append(want, ref)
	}
	slices.Sort(is)
	slices.Sort(want)
	if !slices.Equal(is, want) {
		s.wrongly("there are %v, want %v", is, want)
	}
	s.tester.Store = s.raw
	s.tester.Release(s.t)
	p := s.start(1)
	defer p.engine.Close()
	pl, err := p.engine.Plan(p.ctx, s.tester.Document(s.t, doc), plan.Options{Unlimited: true, AllowMissing: true})
	if err != nil || !pl.Empty() {
		s.wrongly("it is not as the document says: %v %s", err, enginetest.Text(pl))
	}
}

var (
	bridge = resources{"n1/near.bridge/br": `{"mode":"1"}`}
	port   = resources{"n1/near.bridge/br": `{"mode":"1"}`, "n1/near.port/p0": `{"bridge":"br","tag":1}`}
)

// S1: a late delete of unknown outcome must not hit what was created again under the same name. Nodes refuse it because of its
// epoch; the site knows no epochs.
func TestLateDeleteMeetsNothingNew(t *testing.T) {
	with := resources{"n1/near.bridge/br": `{"mode":"1"}`, "site/far.guard/g": `{"size":1}`}
	scenario(t, map[string]string{"far.guard": "named-blind"}, with, func(s *sim) {
		s.fault(fake.Fault{Op: "delete", Ref: "site/far.guard/g", Effect: fake.EffectLate, Delay: fake.Duration(20 * time.Second)})
		for _, doc := range []resources{bridge, with} {
			if res, err := s.apply(s.start(1), s.tester.Document(t, doc), engine.ApplyOptions{}); err != nil || res.Run.Status != "applied" {
				t.Fatal(res.Run.Status, err)
			}
		}
		s.stays(with)
	})
}

// S1: a late create of unknown outcome must not bring back what was undone.
func TestLateCreateDoesNotComeBack(t *testing.T) {
	scenario(t, map[string]string{"near.port": "named-late"}, bridge, func(s *sim) {
		s.fault(fake.Fault{Op: "create", Ref: "n1/near.port/p0", Effect: fake.EffectLate, Delay: fake.Duration(20 * time.Second)})
		s.fault(fake.Fault{Op: "create", Ref: "n1/near.port/p1", Class: providers.Invalid})
		doc := resources{"n1/near.port/p1": `{"bridge":"br"}`}
		maps.Copy(doc, port)
		if res, err := s.apply(s.start(1), s.tester.Document(t, doc), engine.ApplyOptions{}); err != nil || res.Run.Status != "reverted" {
			t.Fatal(res.Run.Status, err)
		}
		s.stays(bridge)
	})
}

// Promise 1: a call that is refused after its effect is undone with the rest, or the run does not claim to be reverted.
func TestRefusedAfterTheEffect(t *testing.T) {
	for op, doc := range map[string]resources{
		"create": {"n1/near.bridge/br": `{"mode":"1"}`, "n1/near.port/p0": `{"bridge":"br","tag":1}`, "n1/near.port/p1": `{"bridge":"br"}`},
		"update": {"n1/near.bridge/br": `{"mode":"1"}`, "n1/near.port/p0": `{"bridge":"br","tag":2}`},
		"delete": bridge,
	} {
		for _, class := range []providers.Class{providers.Invalid, providers.Denied, providers.Transient} {
			t.Run(op+" "+string(class), func(t *testing.T) {
				scenario(t, nil, port, func(s *sim) {
					s.fault(fake.Fault{Op: op, Ref: "n1/near.port/*", Effect: fake.EffectAfter, Class: class})
					res, err := s.apply(s.start(1), s.tester.Document(t, doc), engine.ApplyOptions{})
					if err != nil {
						t.Fatal(err)
					}
					if res.Run.Status == "applied" {
						s.stays(doc)
					} else {
						s.stays(port)
					}
				})
			})
		}
	}
}

// W4: a create whose reply was lost is not given a second incarnation because a list lags.
func TestListThatLagsGivesNoSecondThing(t *testing.T) {
	net := resources{"site/far.net/net0": `{"cidr":"10.0.0.0/24"}`}
	scenario(t, map[string]string{"far.net": "burned-eventual"}, bridge, func(s *sim) {
		s.fault(fake.Fault{Op: "create", Ref: "site/far.net/net0", Effect: fake.EffectAfter})
		maps.Copy(net, bridge)
		s.apply(s.start(1), s.tester.Document(t, net), engine.ApplyOptions{})
		s.stays(net)
	})
}

// S1: an unknown create that is settled by repeating it does not count as gone because a list lags.
func TestListThatLagsHidesNothingFromAnUndo(t *testing.T) {
	scenario(t, map[string]string{"far.net": "burned-eventual"}, bridge, func(s *sim) {
		net := resources{"site/far.net/net0": `{"cidr":"10.0.0.0/24"}`}
		maps.Copy(net, bridge)
		p := s.start(1)
		p.farFaults[1] = "die before call"
		s.apply(p, s.tester.Document(t, net), engine.ApplyOptions{})
		if res, err := s.command(s.start(1), nil, "rollback", s.open()); err != nil || res.Run.Status != "reverted" {
			t.Fatal(res.Run.Status, err)
		}
		s.stays(bridge)
	})
}

// F2: a process that was stopped after it wrote an intent, until it cannot prove its lease, makes no call when it wakes.
func TestNothingBeginsAfterStandingStill(t *testing.T) {
	scenario(t, nil, bridge, func(s *sim) {
		calls := 0
		s.far.Hook = func(op string, at fake.Moment, c providers.Call) {
			if op != "observe" && at == fake.Before {
				calls++
			}
		}
		p := s.start(1)
		p.stillAfterIntent = ttl - time.Second // past the margin, and before a heartbeat of the run notices
		_, err := s.apply(p, s.tester.Document(t, port), engine.ApplyOptions{})
		if err == nil || calls > 0 {
			t.Errorf("the process woke after its lease was gone, and made %d calls: %v", calls, err)
		}
	})
}

// Promise 1: what an undo created again is remembered, even when its outcome never becomes known.
func TestWhatAnUndoMakesIsRemembered(t *testing.T) {
	scenario(t, nil, resources{"n1/near.bridge/br": `{"mode":"1"}`, "n1/near.port/p0": `{"bridge":"br","tag":1}`, "n1/near.port/p1": `{"bridge":"br"}`}, func(s *sim) {
		s.fault(fake.Fault{Op: "delete", Ref: "n1/near.port/p1", Class: providers.Invalid})
		p := s.start(1)
		p.farFaults[3] = "panic after call" // deletes p0, fails to delete p1, creates p0 again
		res, err := s.apply(p, s.tester.Document(t, bridge), engine.ApplyOptions{OnFailure: apply.Rollback})
		if err != nil || res.Run.Status != "partial" {
			t.Fatal(res.Run.Status, err)
		}
		s.tester.Store = s.raw
		s.tester.Release(t)
		if res, err = s.apply(s.start(1), s.tester.Document(t, bridge), engine.ApplyOptions{}); err != nil || res.Run.Status != "applied" {
			t.Fatal(res.Run.Status, err)
		}
		s.stays(bridge)
	})
}

// W4: a list that lags does not show yet what an update of unknown outcome has changed; its undo waits for that.
func TestListThatLagsHidesNoUpdateFromAnUndo(t *testing.T) {
	before := resources{"n1/near.bridge/br": `{"mode":"1"}`}
	scenario(t, map[string]string{"near.bridge": "named-eventual"}, before, func(s *sim) {
		p := s.start(1)
		p.farFaults[1] = "panic after call"
		doc := s.tester.Document(t, resources{"n1/near.bridge/br": `{"mode":"2"}`})
		if res, err := s.apply(p, doc, engine.ApplyOptions{}); err != nil || res.Run.Status != "reverted" {
			t.Fatal(res.Run.Status, err)
		}
		s.stays(before)
	})
}

// W4: that a node refuses the calls of an earlier holder does not make its lists show sooner what those have changed.
func TestListThatLagsHidesNoUpdateFromTheNextHolder(t *testing.T) {
	before := resources{"n1/near.bridge/br": `{"mode":"1"}`}
	scenario(t, map[string]string{"near.bridge": "named-eventual"}, before, func(s *sim) {
		p := s.start(1)
		p.farFaults[1] = "lapse after call"
		doc := s.tester.Document(t, resources{"n1/near.bridge/br": `{"mode":"2"}`})
		_ = s.in(p, func() { _, _ = s.apply(p, doc, engine.ApplyOptions{}) })
		time.Sleep(lag / 2) // the call is made, and its effect is not visible
		if res, err := s.command(s.start(1), nil, "rollback", s.open()); err != nil || res.Run.Status != "reverted" {
			t.Fatal(res.Run.Status, err)
		}
		s.stays(before)
	})
}

// Promise 1: an update that failed, and whose undo failed too, may have left what it was to remove. That is still ours:
// the next plan removes it, before what it refers to is deleted.
func TestFailedUpdateLeavesNothingUnowned(t *testing.T) {
	net := map[string]string{"site/far.net/net": `{"cidr":"10.0.0.0/24"}`}
	with := resources{"site/far.guard/g": `{"size":1}`, "site/far.host/h": `{"net":"net","guard":"g"}`}
	without := resources{"site/far.host/h": `{"net":"net"}`}
	maps.Copy(with, net)
	maps.Copy(without, net)
	unowned := func(t *testing.T, replace bool) {
		scenario(t, nil, with, func(s *sim) {
			s.fault(fake.Fault{Op: "update", Ref: "site/far.host/h", Effect: fake.EffectFailed, Times: 2})
			doc := s.tester.Document(t, without)
			if res, err := s.apply(s.start(1), doc, engine.ApplyOptions{}); err != nil || res.Run.Status != "partial" {
				t.Fatal(res.Run.Status, err)
			}
			s.tester.Store = s.raw
			s.tester.Release(t)
			o := plan.Options{Unlimited: true, AllowMissing: true}
			if replace {
				o.Replace = s.mend()
			} else { // an operator repairs it as it is
				for at, th := range s.things() {
					if th.Phase == providers.Failed {
						s.put(at, providers.Thing{ID: at.id, Name: th.Name, Mark: providers.ParseMark(th.Mark), Spec: th.Spec})
					}
				}
			}
			p := s.start(1)
			defer p.engine.Close()
			pl, err := p.engine.Plan(p.ctx, doc, o)
			if err != nil {
				t.Fatal(err)
			}
			if res, err := p.engine.Apply(p.ctx, pl, engine.ApplyOptions{Approve: pl.Approval()}); err != nil || res.Run.Status != "applied" {
				t.Fatal(enginetest.Text(pl), res.Run.Status, err)
			}
			s.stays(without)
		})
	}
	t.Run("kept", func(t *testing.T) { unowned(t, false) })
	t.Run("replaced", func(t *testing.T) { unowned(t, true) })
}

// F2: a process that was stopped right after it took the lock, until it cannot prove its lease, stores nothing when it wakes,
// not even its document, for which nothing but the revision would be checked.
func TestNothingIsStoredAfterStandingStill(t *testing.T) {
	scenario(t, nil, bridge, func(s *sim) {
		head, err := s.raw.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p := s.start(1)
		p.storeFaults[workCommit+" 1"] = "stand still after commit" // of the epoch
		if _, err := s.apply(p, s.tester.Document(t, port), engine.ApplyOptions{}); err == nil {
			t.Error("it was applied without a lock")
		}
		if now, err := s.raw.Head(t.Context()); err != nil || now.Revision != head.Revision {
			t.Errorf("the document is at serial %d, and was at %d: %v", now.Serial, head.Serial, err)
		}
	})
}
