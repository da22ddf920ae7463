package engine_test

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

var theBridge = schema.Ref{Scope: "n1", Kind: "near.bridge", Name: "br0"}

// beside returns a document of what is given, and of another bridge that nobody touches.
func beside(t *testing.T, s *enginetest.Site, resources map[string]string) *schema.Document {
	t.Helper()
	all := map[string]string{"n1/near.bridge/keep": `{"mode":"secure"}`}
	maps.Copy(all, resources)
	return s.Document(t, all)
}

// bridged returns a site with one bridge that converge made, of a kind with a place for marks or without, and its document.
func bridged(t *testing.T, marks bool) (*enginetest.Site, *schema.Document) {
	t.Helper()
	s := enginetest.New()
	if !marks {
		traits := fake.NodeTraits()
		traits.Mark = false
		s.World.Traits = map[string]providers.Traits{theBridge.Kind: traits}
	}
	d := beside(t, s, map[string]string{theBridge.String(): `{"mode":"secure"}`})
	s.Converge(t, d)
	return s, d
}

// remake makes another client delete the bridge and create one that looks the same.
func remake(t *testing.T, s *enginetest.Site) providers.Thing {
	t.Helper()
	th := thingOf(t, s, theBridge.Scope, theBridge.Kind, theBridge.Name)
	th.Mark = providers.Mark{}
	if err := s.World.Remove(theBridge.Scope, theBridge.Kind, th.ID); err != nil {
		t.Fatal(err)
	}
	if err := s.World.Put(theBridge.Scope, theBridge.Kind, th); err != nil {
		t.Fatal(err)
	}
	is := thingOf(t, s, theBridge.Scope, theBridge.Kind, theBridge.Name)
	if is.UID == th.UID {
		t.Fatalf("it still has the uid %q", is.UID)
	}
	return is
}

// What another client made under the name of what was ours is not ours: it is neither changed nor deleted unasked.
func TestRemade(t *testing.T) {
	for _, marks := range []bool{true, false} {
		t.Run(map[bool]string{true: "marked", false: "unmarked"}[marks], func(t *testing.T) {
			s, d := bridged(t, marks)
			theirs := remake(t, s)
			untouched := func() {
				t.Helper()
				if is := thingOf(t, s, theBridge.Scope, theBridge.Kind, theBridge.Name); is.UID != theirs.UID || is.Version != theirs.Version {
					t.Errorf("theirs was changed: %+v", is)
				}
			}
			changed := beside(t, s, map[string]string{theBridge.String(): `{"mode":"standalone"}`})
			for name, doc := range map[string]*schema.Document{"as it is": d, "changed": changed} {
				p := s.Plan(t, doc, plan.Options{})
				if len(p.Steps) > 0 || len(p.Refusals) != 1 || !strings.Contains(p.Refusals[0].Reason, "another one with its name was created outside converge") {
					t.Errorf("%s:\n%s", name, enginetest.Text(p))
				}
			}
			e := s.Engine(nil)
			defer e.Close()
			if r, err := e.Drift(t.Context(), d.Site); err != nil || len(r.Drifted) != 1 || !r.Drifted[0].Remade || r.Drifted[0].Missing {
				t.Errorf("drift: %+v %v", r, err)
			}

			p := s.Plan(t, d, plan.Options{Destroy: true})
			if len(p.Steps) != 2 || p.Steps[0].Action != plan.Forget || len(p.Refusals) > 0 || len(p.Unmanaged) != 1 {
				t.Fatalf("destroyed:\n%s", enginetest.Text(p))
			}
			if res, err := s.Apply(p, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
				t.Errorf("%v %v", res.Run, err)
			}
			untouched()
			if p := s.Plan(t, d, plan.Options{}); len(p.Refusals) != 1 || !strings.Contains(p.Refusals[0].Reason, "was not created by converge") {
				t.Errorf("once it is forgotten:\n%s", enginetest.Text(p))
			}
		})
	}
}

// What another client made in place of ours is taken over on request, and given back when the run fails.
func TestRemadeIsAdopted(t *testing.T) {
	for _, marks := range []bool{true, false} {
		for _, by := range []string{`"adopt":"match"`, `"id":"br0"`} {
			t.Run(map[bool]string{true: "marked ", false: "unmarked "}[marks]+by, func(t *testing.T) {
				s, _ := bridged(t, marks)
				theirs := remake(t, s)
				resources := map[string]string{theBridge.String(): `{"mode":"secure","lifecycle":{` + by + `}}`, "n1/near.port/p0": `{"bridge":"br0"}`}
				d := beside(t, s, resources)
				if err := s.World.Fail(fake.Fault{Op: "create", Class: providers.Invalid}); err != nil {
					t.Fatal(err)
				}
				p := s.Plan(t, d, plan.Options{})
				if len(p.Steps) != 2 || p.Steps[0].Ref != theBridge || len(p.Refusals) > 0 {
					t.Fatal(enginetest.Text(p))
				}
				if res, err := s.Apply(p, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunReverted {
					t.Fatalf("%+v %v", res.Run, err)
				}
				if is := thingOf(t, s, theBridge.Scope, theBridge.Kind, theBridge.Name); !is.Mark.IsZero() {
					t.Errorf("it is still marked %s", is.Mark)
				}
				if err := s.World.Mend(); err != nil {
					t.Fatal(err)
				}
				without := beside(t, s, map[string]string{theBridge.String(): `{"mode":"secure"}`})
				if p := s.Plan(t, without, plan.Options{}); len(p.Refusals) != 1 {
					t.Errorf("the reverted run took it over:\n%s", enginetest.Text(p))
				}
				s.Release(t)
				s.Converge(t, d)
				if p := s.Plan(t, d, plan.Options{}); !p.Empty() || len(p.Refusals) > 0 || len(p.Drift) > 0 {
					t.Errorf("adopted:\n%s", enginetest.Text(p))
				}
				if is := thingOf(t, s, theBridge.Scope, theBridge.Kind, theBridge.Name); is.UID != theirs.UID || is.Mark.IsZero() == marks {
					t.Errorf("it is %+v", is)
				}
				s.Converge(t, beside(t, s, nil))
				if strings.Contains(s.World.Dump(), "br0") {
					t.Error("what was adopted was not deleted")
				}
			})
		}
	}
}

// A plan is for the things that it was made for: what takes their place afterwards is left alone.
func TestRemadeAfterThePlan(t *testing.T) {
	for name, after := range map[string]map[string]string{
		"update":  {theBridge.String(): `{"mode":"standalone"}`},
		"delete":  nil,
		"adopted": {theBridge.String(): `{"mode":"secure","lifecycle":{"protect":true}}`},
	} {
		for _, marks := range []bool{true, false} {
			for when, is := range map[string]func(event.Event) bool{"before the run": nil, "as it starts": started} {
				t.Run(name+map[bool]string{true: ", marked, ", false: ", "}[marks]+when, func(t *testing.T) {
					s, _ := bridged(t, marks)
					p := s.Plan(t, beside(t, s, after), plan.Options{})
					if len(p.Steps) != 1 {
						t.Fatal(enginetest.Text(p))
					}
					var theirs providers.Thing
					if is == nil {
						theirs = remake(t, s)
					}
					e := s.Engine(func(o *engine.Options) {
						o.Emit = func(ev event.Event) {
							if is != nil && is(ev) {
								theirs = remake(t, s)
							}
						}
					})
					defer e.Close()
					res, err := e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval()})
					if err == nil && res.Run.Status == state.RunApplied {
						t.Errorf("the run was applied")
					}
					if is := thingOf(t, s, theBridge.Scope, theBridge.Kind, theBridge.Name); is.UID != theirs.UID || is.Version != theirs.Version {
						t.Errorf("theirs was changed: %+v", is)
					}
				})
			}
		}
	}
}

// A mark that another client removed is written again. The bridge is known to be ours by its uid.
func TestUnmarked(t *testing.T) {
	s, d := bridged(t, true)
	th := thingOf(t, s, theBridge.Scope, theBridge.Kind, theBridge.Name)
	th.Mark = providers.Mark{}
	if err := s.World.Put(theBridge.Scope, theBridge.Kind, th); err != nil {
		t.Fatal(err)
	}
	e := s.Engine(nil)
	defer e.Close()
	if r, err := e.Drift(t.Context(), d.Site); err != nil || len(r.Drifted) != 1 || !r.Drifted[0].Unmarked {
		t.Errorf("drift: %+v %v", r, err)
	}
	if p := s.Plan(t, beside(t, s, nil), plan.Options{}); len(p.Steps) != 1 || p.Steps[0].Action != plan.Delete || p.Steps[0].UID != th.UID {
		t.Error(enginetest.Text(p)) // a delete says which thing is ours
	}
	p := s.Converge(t, d)
	if len(p.Steps) != 1 || p.Steps[0].Reason != "its ownership mark was removed outside converge" {
		t.Error(enginetest.Text(p))
	}
	if is := thingOf(t, s, theBridge.Scope, theBridge.Kind, theBridge.Name); is.Mark.IsZero() || is.UID != th.UID {
		t.Errorf("it is %+v", is)
	}
	if p := s.Plan(t, d, plan.Options{}); !p.Empty() {
		t.Error(enginetest.Text(p))
	}
}

// What a revert made again is ours under its new uid.
func TestMadeAgainIsOurs(t *testing.T) {
	for _, marks := range []bool{true, false} {
		s, d := bridged(t, marks)
		was := thingOf(t, s, theBridge.Scope, theBridge.Kind, theBridge.Name)
		s.Converge(t, beside(t, s, nil))
		e := s.Engine(nil)
		defer e.Close()
		if res, err := e.Rollback(t.Context(), "", engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunReverted {
			t.Fatalf("%+v %v", res.Run, err)
		}
		if is := thingOf(t, s, theBridge.Scope, theBridge.Kind, theBridge.Name); is.UID == was.UID {
			t.Fatalf("it was not made again")
		}
		if p := s.Plan(t, d, plan.Options{}); !p.Empty() || len(p.Refusals)+len(p.Drift) > 0 {
			t.Error(enginetest.Text(p))
		}
		remake(t, s)
		if p := s.Plan(t, d, plan.Options{}); len(p.Refusals) != 1 {
			t.Errorf("what was made again is not known:\n%s", enginetest.Text(p))
		}
	}
}

// What a later run deleted, and its undo made again, is ours also for the undo of an earlier run.
func TestMadeAgainIsUndoneFurther(t *testing.T) {
	for _, marks := range []bool{true, false} {
		s, d := bridged(t, marks)
		before := s.World.Dump()
		s.Converge(t, beside(t, s, map[string]string{theBridge.String(): `{"mode":"standalone"}`}))
		s.Converge(t, beside(t, s, nil))
		for range 2 {
			e := s.Engine(nil)
			if res, err := e.Rollback(t.Context(), "", engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunReverted {
				t.Fatalf("marked %t: %+v %v %v", marks, res.Run, res.Differences, err)
			}
			e.Close()
			s.Release(t)
		}
		if is := s.World.Dump(); is != before && marks { // the world keeps a mark that the kind does not show
			t.Errorf("it was\n%s\nand is\n%s", before, is)
		}
		if p := s.Plan(t, d, plan.Options{}); !p.Empty() || len(p.Refusals)+len(p.Drift) > 0 {
			t.Error(enginetest.Text(p))
		}
	}
}

// A bridge that others have renamed is neither created a second time nor changed, and still removed with the rest. A copy of it is not ours.
func TestRenamedByOthers(t *testing.T) {
	s, d := bridged(t, true)
	th := thingOf(t, s, theBridge.Scope, theBridge.Kind, theBridge.Name)
	rename := func(uid string) {
		t.Helper()
		world := s.World.Snapshot()
		world = strings.ReplaceAll(strings.ReplaceAll(world, `"br0": {`, `"mine": {`), `"name": "br0"`, `"name": "mine"`)
		world = strings.ReplaceAll(world, `"uid": "`+th.UID+`"`, `"uid": "`+uid+`"`)
		file := filepath.Join(t.TempDir(), "world.json")
		if err := os.WriteFile(file, []byte(world), 0o600); err != nil {
			t.Fatal(err)
		}
		w, err := fake.Open(file, s.Kinds)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Close() })
		s.World = w
	}
	rename(th.UID)
	if p := s.Plan(t, d, plan.Options{}); len(p.Steps) > 0 || len(p.Refusals) != 1 || !strings.Contains(p.Refusals[0].Reason, "was renamed to mine outside converge") {
		t.Errorf("renamed:\n%s", enginetest.Text(p))
	}
	e := s.Engine(nil)
	defer e.Close()
	if r, err := e.Drift(t.Context(), d.Site); err != nil || len(r.Drifted) != 1 || r.Drifted[0].Renamed != "mine" {
		t.Errorf("drift: %+v %v", r, err)
	}
	if p := s.Plan(t, beside(t, s, nil), plan.Options{}); len(p.Steps) != 1 || p.Steps[0].Action != plan.Delete || p.Steps[0].ExternalID != "mine" {
		t.Errorf("removed:\n%s", enginetest.Text(p))
	}
	if err := s.World.Put(theBridge.Scope, theBridge.Kind, providers.Thing{ID: "br0", Name: "br0", Spec: schema.Object{"mode": "secure"}}); err != nil {
		t.Fatal(err)
	}
	if p := s.Plan(t, d, plan.Options{}); len(p.Steps) > 0 || len(p.Refusals) != 1 || !strings.Contains(p.Refusals[0].Reason, "was renamed to mine") {
		t.Errorf("renamed, and another one has its name:\n%s", enginetest.Text(p))
	}

	s, d = bridged(t, true)
	th = thingOf(t, s, theBridge.Scope, theBridge.Kind, theBridge.Name)
	rename("of a copy")
	if p := s.Plan(t, d, plan.Options{}); len(p.Steps) != 1 || p.Steps[0].Action != plan.Create || len(p.Refusals) > 0 || len(p.Unmanaged) != 1 {
		t.Errorf("ours is gone, and a copy of it is there:\n%s", enginetest.Text(p))
	}
}

// What is within a bridge that others have made anew is theirs: it is not deleted with ours.
func TestWithinWhatWasRemade(t *testing.T) {
	s := enginetest.New()
	ports := fake.NodeTraits()
	ports.ID, ports.Mark = "{bridge}/{name}", false
	s.World.Traits = map[string]providers.Traits{"near.port": ports}
	d := beside(t, s, map[string]string{theBridge.String(): `{"mode":"secure"}`, "n1/near.port/p0": `{"bridge":"br0"}`, "n1/near.port/p1": `{"bridge":"keep"}`})
	s.Converge(t, d)
	port := thingOf(t, s, "n1", "near.port", "br0/p0")
	if err := s.World.Remove("n1", "near.port", port.ID); err != nil {
		t.Fatal(err)
	}
	remake(t, s)
	if err := s.World.Put("n1", "near.port", port); err != nil {
		t.Fatal(err)
	}
	// Its own uid is left out, for there are things without: what it is in says enough.
	rec, err := s.Store.Record(t.Context(), schema.Ref{Scope: "n1", Kind: "near.port", Name: "p0"})
	if err != nil {
		t.Fatal(err)
	}
	rec.UID = ""
	if _, err := s.Store.Commit(t.Context(), nil, []state.Op{s.Store.RecordOp(rec)}); err != nil {
		t.Fatal(err)
	}
	p := s.Plan(t, d, plan.Options{Destroy: true})
	deleted := 0
	for _, step := range p.Steps {
		if step.Action == plan.Delete {
			deleted++
		}
	}
	if deleted != 2 || len(p.Steps) != 4 || len(p.Refusals) > 0 {
		t.Fatal(enginetest.Text(p))
	}
	if res, err := s.Apply(p, engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunApplied {
		t.Fatalf("%+v %v", res.Run, err)
	}
	thingOf(t, s, "n1", "near.port", "br0/p0")
}

// What refers to a thing that is gone, and whose id contains more than its name, does not make a plan outdated.
func TestMissingIsMadeAgain(t *testing.T) {
	s := enginetest.New()
	bridges := fake.NodeTraits()
	bridges.ID = "sw/{name}"
	s.World.Traits = map[string]providers.Traits{theBridge.Kind: bridges}
	d := beside(t, s, map[string]string{theBridge.String(): `{"mode":"secure"}`, "n1/near.port/p0": `{"bridge":"br0","tag":1}`})
	s.Converge(t, d)
	if err := s.World.Remove(theBridge.Scope, theBridge.Kind, "sw/br0"); err != nil {
		t.Fatal(err)
	}
	if p := s.Converge(t, d); len(p.Steps) != 1 || p.Steps[0].Ref != theBridge {
		t.Error(enginetest.Text(p))
	}
	if err := s.World.Remove(theBridge.Scope, theBridge.Kind, "sw/br0"); err != nil {
		t.Fatal(err)
	}
	s.Converge(t, beside(t, s, map[string]string{theBridge.String(): `{"mode":"secure"}`, "n1/near.port/p0": `{"bridge":"br0","tag":2}`}))
}

// A delete whose answer was lost is done when somebody else has taken the name since.
func TestSuccessorOfWhatWasDeleted(t *testing.T) {
	for _, marks := range []bool{true, false} {
		s, _ := bridged(t, marks)
		p := s.Plan(t, beside(t, s, nil), plan.Options{})
		if err := s.World.Fail(fake.Fault{Op: "delete", Ref: "near.bridge", Class: providers.Unknown, Effect: fake.EffectAfter, Times: 1}); err != nil {
			t.Fatal(err)
		}
		var once sync.Once
		s.World.Hook = func(op string, m fake.Moment, c providers.Call) {
			if op == "delete" && m == fake.After {
				once.Do(func() {
					th := providers.Thing{ID: "br0", Name: "br0", Spec: schema.Object{"mode": "theirs"}}
					if err := s.World.Put(theBridge.Scope, theBridge.Kind, th); err != nil {
						t.Error(err)
					}
				})
			}
		}
		res, err := s.Apply(p, engine.ApplyOptions{})
		if err != nil || res.Run.Status != state.RunApplied {
			t.Errorf("marked %t: %+v %v %v", marks, res.Run, res.Differences, err)
		}
		if is := thingOf(t, s, theBridge.Scope, theBridge.Kind, "br0"); is.Spec["mode"] != "theirs" {
			t.Errorf("theirs is %+v", is)
		}
	}
}

// A revert says what it could only create again.
func TestRecreated(t *testing.T) {
	for _, undo := range []providers.Revert{providers.Restart, providers.Exact} {
		s := enginetest.New()
		traits := fake.NodeTraits()
		traits.UndoDelete = undo
		s.World.Traits = map[string]providers.Traits{theBridge.Kind: traits}
		s.Converge(t, beside(t, s, map[string]string{theBridge.String(): `{"mode":"secure"}`}))
		if err := s.World.Fail(fake.Fault{Op: "create", Ref: "near.port", Class: providers.Invalid}); err != nil {
			t.Fatal(err)
		}
		p := s.Plan(t, beside(t, s, map[string]string{"n1/near.port/p": `{"bridge":"keep"}`}), plan.Options{})
		e := s.Engine(func(o *engine.Options) { o.Parallelism = 1 }) // the delete, and then what fails
		res, err := e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval()})
		e.Close()
		if err != nil || res.Run.Status != state.RunReverted {
			t.Fatalf("%+v %v\n%s", res.Run, err, enginetest.Text(p))
		}
		var recreated []schema.Ref
		for _, ev := range s.Events() {
			if v, ok := ev.(event.Verified); ok && v.Undo {
				recreated = v.Recreated
			}
		}
		if (len(recreated) == 1 && recreated[0] == theBridge) != (undo == providers.Restart) {
			t.Errorf("%s: %v", undo, recreated)
		}
	}
}

// What is within a bridge that others have made anew is theirs also when that bridge is adopted, or left to others: it is neither changed nor
// deleted unless it is taken over as well.
func TestWithinWhatWasAdopted(t *testing.T) {
	const bridge, port = "n1/near.bridge/br0", "n1/near.port/p0"
	for name, c := range map[string]struct {
		after   map[string]string
		refused bool
		taken   bool // the plan changes the port
	}{
		"removed":      {after: map[string]string{bridge: `{"mode":"secure","lifecycle":{"adopt":"match"}}`}},
		"changed":      {after: map[string]string{bridge: `{"mode":"secure","lifecycle":{"adopt":"match"}}`, port: `{"bridge":"br0","tag":2}`}, refused: true},
		"of others":    {after: map[string]string{bridge: `{"external":true}`, port: `{"bridge":"br0","tag":2}`}, refused: true},
		"taken over":   {after: map[string]string{bridge: `{"mode":"secure","lifecycle":{"adopt":"match"}}`, port: `{"bridge":"br0","tag":2,"lifecycle":{"adopt":"match"}}`}, taken: true},
		"both removed": {},
	} {
		t.Run(name, func(t *testing.T) {
			s := enginetest.New()
			ports := fake.NodeTraits()
			ports.ID, ports.Mark, ports.Vanishes = "{bridge}/{name}", false, true // so it has no uid
			s.World.Traits = map[string]providers.Traits{"near.port": ports}
			s.Converge(t, beside(t, s, map[string]string{bridge: `{"mode":"secure"}`, port: `{"bridge":"br0","tag":1}`}))
			th := thingOf(t, s, "n1", "near.port", "br0/p0")
			if err := s.World.Remove("n1", "near.port", th.ID); err != nil {
				t.Fatal(err)
			}
			remake(t, s)
			if err := s.World.Put("n1", "near.port", th); err != nil {
				t.Fatal(err)
			}
			p := s.Plan(t, beside(t, s, c.after), plan.Options{})
			if (len(p.Refusals) > 0) != c.refused {
				t.Error(enginetest.Text(p))
			}
			for _, step := range p.Steps {
				if step.Ref.Kind == "near.port" && (step.Action == plan.Delete || (step.Action == plan.Update) != c.taken) && step.Action != plan.Forget {
					t.Errorf("theirs is to be changed:\n%s", enginetest.Text(p))
				}
			}
		})
	}
}

// What others made in place of what a run created is not deleted when the run is undone.
func TestUndoneCreateOfWhatWasRemade(t *testing.T) {
	for _, marks := range []bool{true, false} {
		s := enginetest.New()
		traits := fake.NodeTraits()
		traits.Mark = marks
		s.World.Traits = map[string]providers.Traits{theBridge.Kind: traits}
		s.Converge(t, beside(t, s, nil))
		p := s.Plan(t, beside(t, s, map[string]string{theBridge.String(): `{"mode":"secure"}`, "n1/near.port/p0": `{"bridge":"br0"}`}), plan.Options{})
		if err := s.World.Fail(fake.Fault{Op: "create", Ref: "near.port", Class: providers.Invalid}); err != nil {
			t.Fatal(err)
		}
		var theirs providers.Thing
		e := s.Engine(func(o *engine.Options) {
			o.Emit = func(ev event.Event) {
				if d, ok := ev.(event.StepDone); ok && !d.Undo && d.Step.Ref == theBridge {
					theirs = remake(t, s)
				}
			}
		})
		res, err := e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval()})
		e.Close()
		if err != nil || res.Run.Status == state.RunApplied {
			t.Fatalf("%+v %v", res.Run, err)
		}
		if is := thingOf(t, s, theBridge.Scope, theBridge.Kind, theBridge.Name); is.UID != theirs.UID {
			t.Errorf("marked %t: theirs was deleted: %+v", marks, is)
		}
	}
}

// A run that only took over the record is undone to the uid that the bridge has now.
func TestAdoptIsUndoneFurther(t *testing.T) {
	for _, marks := range []bool{true, false} {
		s, d := bridged(t, marks)
		s.Converge(t, beside(t, s, map[string]string{theBridge.String(): `{"mode":"secure","lifecycle":{"ignore":["size"]}}`}))
		s.Converge(t, beside(t, s, nil))
		for range 2 {
			e := s.Engine(nil)
			if res, err := e.Rollback(t.Context(), "", engine.ApplyOptions{}); err != nil || res.Run.Status != state.RunReverted {
				t.Fatalf("marked %t: %+v %v %v", marks, res.Run, res.Differences, err)
			}
			e.Close()
			s.Release(t)
		}
		if p := s.Plan(t, d, plan.Options{}); !p.Empty() || len(p.Refusals)+len(p.Drift) > 0 {
			t.Errorf("marked %t:\n%s", marks, enginetest.Text(p))
		}
	}
}

// What refers to a thing that others have deleted does not make a plan outdated, whichever id it gets.
func TestMissingGetsAnotherID(t *testing.T) {
	s := enginetest.New()
	d := s.Document(t, map[string]string{"site/far.net/n": `{"cidr":"10.0.0.0/24"}`, "site/far.net/m": `{"cidr":"10.1.0.0/24"}`, "site/far.host/h": `{"guard":"g"}`, "site/far.guard/g": `{"size":1}`})
	s.Converge(t, d)
	r, err := s.Store.Record(t.Context(), schema.Ref{Scope: "site", Kind: "far.guard", Name: "g"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.World.Remove("site", "far.guard", r.ID); err != nil {
		t.Fatal(err)
	}
	s.Converge(t, d)
	if p := s.Plan(t, d, plan.Options{}); !p.Empty() {
		t.Error(enginetest.Text(p))
	}
}
