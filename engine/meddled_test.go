package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A meddler changes one thing between two steps of a run, in a field that documents state or in one that they do not.
type meddler struct {
	t     *rapid.T
	s     *enginetest.Site
	after int // steps, done, failed or undone
	label bool
	kind  schema.Place
	was   providers.Thing
	did   bool
	young bool // nothing had yet recorded that the thing was created
	made  map[schema.Ref]bool
}

// watch waits for its turn; nothing is in progress then, because the run does one thing at a time.
func (m *meddler) watch(ev event.Event) {
	switch ev := ev.(type) {
	case event.StepDone:
		m.made[ev.Step.Ref] = true
	case event.StepFailed:
	default:
		return
	}
	if m.after--; m.after == 0 {
		m.meddle()
	}
}

// meddle changes a thing, once.
func (m *meddler) meddle() {
	type at struct {
		schema.Place
		thing providers.Thing
	}
	var all []at
	for _, kind := range []string{"far.host", "far.guard", "far.net", "near.bridge"} {
		for _, scope := range []string{schema.ScopeSite, "n1", "n2"} {
			for _, t := range m.things(schema.Place{Scope: scope, Kind: kind}) {
				if t.Mark.Ref.Name != "always" {
					all = append(all, at{schema.Place{Scope: scope, Kind: kind}, t})
				}
			}
		}
	}
	if len(all) == 0 || m.did {
		return
	}
	slices.SortFunc(all, func(a, b at) int { return a.thing.Mark.Ref.Compare(b.thing.Mark.Ref) })
	x := rapid.SampledFrom(all).Draw(m.t, "meddled with")
	m.kind, m.was, m.did = x.Place, x.thing, true
	m.young = !m.made[x.thing.Mark.Ref]
	m.put(m.theirs(x.thing.Spec))
}

// theirs returns a spec as the meddler changes it.
func (m *meddler) theirs(spec schema.Object) schema.Object {
	spec = spec.Clone()
	if m.label && m.kind.Kind != "near.bridge" {
		labels, _ := spec["labels"].(map[string]any)
		if labels == nil {
			labels = map[string]any{}
		}
		labels["by"] = "others"
		spec["labels"] = labels
		return spec
	}
	spec["size"] = int64(77)
	return spec
}

func (m *meddler) put(spec schema.Object) {
	t := m.was
	t.Spec = spec
	must(m.t, m.s.World.Put(m.kind.Scope, m.kind.Kind, t))
}

// things returns the existing things of a kind.
func (m *meddler) things(at schema.Place) []providers.Thing {
	set, err := providers.NewSet(m.s.World.Provider(strings.Split(at.Kind, ".")[0], at.Scope))
	if err != nil {
		m.t.Fatal(err)
	}
	served, _, ok := set.Find(at.Scope, at.Kind)
	if !ok {
		return nil
	}
	found, err := providers.Collect(served.Kind.List(m.t.Context()))
	must(m.t, err)
	return found
}

// Whatever a run does, and whatever goes wrong, what another client changes between two of its steps stays: it is neither overwritten
// nor removed, and no run that stated it claims to be applied. Unstated fields of a thing that may just have been created can be
// the far side's doing as well.
func TestTortureAnyWorldMeddledWith(t *testing.T) {
	torture.Worlds(t, 100, 500, 100000)
	ends, deaths := map[state.RunStatus]int{}, 0
	rapid.Check(t, func(t *rapid.T) {
		s := enginetest.New()
		host := fake.SiteTraits()
		host.Detach = []providers.Detachable{{Field: "links"}}
		s.World.Traits = map[string]providers.Traits{"far.host": host}
		run(t, s, s.Document(fataler{TB: nil, t: t}, site(t, "first")), engine.ApplyOptions{})
		p := makePlan(t, s, s.Document(fataler{TB: nil, t: t}, site(t, "second")))
		if len(p.Steps) == 0 || len(p.Refusals) > 0 {
			return
		}
		for i := range rapid.IntRange(0, 2).Draw(t, "faults") {
			f := fault(t, i)
			if f.Op == "observe" {
				f.Op = "update"
			}
			if f.Class == providers.Unknown && rapid.Bool().Draw(t, fmt.Sprint("effect", i)) {
				f.Effect = fake.EffectAfter
			}
			must(t, s.World.Fail(f))
		}
		m := &meddler{t: t, s: s, after: rapid.IntRange(1, 2*len(p.Steps)).Draw(t, "after"), label: rapid.Bool().Draw(t, "label"), made: map[schema.Ref]bool{}}
		watched := func(o *engine.Options) { o.Parallelism, o.Emit = 1, m.watch }
		e, kv, died := dying(s, int64(rapid.IntRange(0, 4*len(p.Steps)).Draw(t, "dies")), rapid.Bool().Draw(t, "dies after"), watched)
		defer e.Close()
		policy := rapid.SampledFrom([]apply.OnFailure{apply.Rollback, apply.Stop, apply.Continue})
		res, err := e.Apply(t.Context(), p, engine.ApplyOptions{OnFailure: policy.Draw(t, "policy"), Approve: p.Approval()})
		if died.Load() {
			deaths++
			kv.Lapse()
			m.meddle()
			runs, _ := s.Store.Runs(t.Context())
			if runs[0].Status != state.RunOpen {
				return // it died before there was a run, or after its end
			}
			res.Run, err = runs[0], nil
		}
		for i := range 4 {
			if res.Run.Status != state.RunOpen {
				break
			}
			o := engine.ApplyOptions{OnFailure: policy.Draw(t, fmt.Sprint("policy", i))}
			if i == 3 { // the far side is well: it ends
				o.OnFailure = apply.Rollback
				must(t, s.World.Mend())
			}
			e := s.Engine(watched)
			res, err = e.Resume(t.Context(), res.Run.ID, o)
			e.Close()
		}
		if err != nil || res.Run.Status == state.RunOpen {
			t.Fatalf("ended %s: %s %v", res.Run.Status, res.Run.Message, err)
		}
		ends[res.Run.Status]++
		if !m.did {
			return
		}
		stated, created := false, false
		for _, s := range p.Steps {
			_, size := s.Want["size"]
			stated = stated || s.ExternalID == m.was.ID && size && !m.label
			created = created || s.Ref == m.was.Mark.Ref && s.Action == plan.Create
		}
		i := slices.IndexFunc(m.things(m.kind), func(th providers.Thing) bool { return th.ID == m.was.ID })
		switch {
		case i < 0 && created && m.young && !stated:
			return // as far as anything shows, the far side has filled it in
		case i < 0:
			t.Fatalf("%s of %s was removed with what others had made of it; ended %s\n%s", m.was.ID, m.was.Mark.Ref, res.Run.Status, enginetest.Text(p))
		}
		have := m.things(m.kind)[i]
		if theirs := m.theirs(have.Spec); theirs.Digest() != have.Spec.Digest() {
			t.Fatalf("what others had made of %s was written over: %v; ended %s\n%s", m.was.Mark.Ref, have.Spec, res.Run.Status, enginetest.Text(p))
		}
		if stated && res.Run.Status == state.RunApplied {
			t.Fatalf("applied, although others changed %s\n%s", m.was.Mark.Ref, enginetest.Text(p))
		}
	})
	torture.Report(t, "N", "worlds meddled with: %v, %d died", ends, deaths)
}

func must(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}
