package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A recollection is a site with a memory of it, and engines whose providers are opened by open.
type recollection struct {
	*testing.T
	s    *enginetest.Site
	open func(set *providers.Set, needs []providers.Need) (*providers.Set, error)
	e    *engine.Engine
	m    *engine.Memory
	doc  *schema.Document
}

// recollect returns a site that is as a document says.
func recollect(t *testing.T, said map[string]string) *recollection {
	r := &recollection{T: t, s: enginetest.New()}
	guards := fake.SiteTraits()
	guards.DeleteUnchecked = true
	r.s.World.Traits = map[string]providers.Traits{"far.guard": guards}
	r.doc = r.s.Document(t, said)
	return r
}

func (r *recollection) engine() *engine.Engine {
	e := r.s.Engine(func(o *engine.Options) {
		o.NewID = func(time.Time) string { return "plan" }
		opens := o.Open
		o.Open = func(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error) {
			set, err := opens(ctx, site, needs)
			if err == nil && r.open != nil {
				return r.open(set, needs)
			}
			return set, err
		}
	})
	r.Cleanup(func() { _ = e.Close() })
	return e
}

// look has the memory look at what the document says now.
func (r *recollection) look(said map[string]string) {
	r.Helper()
	r.doc = r.s.Document(r, said)
	if r.m == nil {
		r.e = r.engine()
		r.m = r.e.Remember(engine.Remembering{Silent: time.Hour, Sweep: time.Hour})
	}
	if err := r.m.Look(r.Context(), r.doc); err != nil {
		r.Fatal(err)
	}
}

// same looks again, and compares the report and the plan with those of everything.
func (r *recollection) same(what string) *plan.Plan {
	r.Helper()
	ctx := r.Context()
	if err := r.m.Look(ctx, r.doc); err != nil {
		r.Fatal(err)
	}
	text := func(v any, err error) string {
		b, jerr := json.MarshalIndent(v, "", " ")
		return fmt.Sprintf("%s %v %v", b, err, jerr)
	}
	is, err := r.m.Drift(ctx)
	want, werr := r.e.Drift(ctx, r.doc.Site)
	if err == nil && werr == nil {
		is.At, want.At = time.Time{}, time.Time{}
	}
	if got, should := text(is, err), text(want, werr); got != should {
		r.Errorf("%s: the report is\n%s\nwant\n%s", what, got, should)
	}
	p, err := r.m.Plan(ctx, plan.Options{})
	due, werr := r.engine().Plan(ctx, r.doc, plan.Options{})
	if got, should := text(p, err), text(due, werr); got != should {
		r.Errorf("%s: the plan is\n%s\nwant\n%s", what, got, should)
	}
	return p
}

// put makes somebody else make a thing; one that is marked bears our mark, and no record.
func (r *recollection) put(scope, kind, id string, marked bool, spec schema.Object) {
	r.Helper()
	th := providers.Thing{ID: id, Name: id, Spec: spec, Phase: providers.Ready}
	if marked {
		th.Mark = providers.Mark{Site: enginetest.SiteID, Ref: schema.Ref{Scope: scope, Kind: kind, Name: "stray"}, Incarnation: 1}
	}
	if err := r.s.World.Put(scope, kind, th); err != nil {
		r.Fatal(err)
	}
}

// The records are amended in several transactions, and the memory looks between two of them.
func TestMemoryOfAmendmentInParts(t *testing.T) {
	said := map[string]string{"site/far.guard/g": `{}`, "site/far.guard/k": `{}`, "n1/near.bridge/b": `{}`}
	r := recollect(t, said)
	r.s.Converge(t, r.doc)
	r.look(said)
	r.same("at first")
	err := r.engine().Amend(t.Context(), "state rm", func(ctx context.Context, lock *state.Lock) error {
		for _, name := range []string{"g", "k"} {
			ops := []state.Op{r.s.Store.ForgetOp(schema.Ref{Scope: "site", Kind: "far.guard", Name: name}), r.s.Store.AmendedOp(state.Amended{Epoch: lock.Epoch(), Action: "state rm"})}
			if _, err := lock.Commit(ctx, nil, ops); err != nil {
				return err
			}
			if err := r.m.Look(ctx, r.doc); name == "g" && err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.same("after both parts")
}

// A provider that could not be opened at first shows, once it can be, where else to look: for strays, and for what refers to a thing
// that is to be deleted.
func TestMemoryOfWhatIsAway(t *testing.T) {
	r := recollect(t, map[string]string{"site/far.guard/g": `{}`, "site/far.guard/k": `{}`})
	r.s.Converge(t, r.doc)
	records, err := r.s.Store.Records(t.Context())
	if err != nil || records[0].Ref.Name != "g" {
		t.Fatal(records, err)
	}
	r.put("site", "far.host", "theirs", false, schema.Object{"guard": records[0].ID})
	r.put("site", "far.net", "x", true, schema.Object{})
	away := true
	r.open = func(set *providers.Set, needs []providers.Need) (*providers.Set, error) {
		if !away {
			return set, nil
		}
		none, err := providers.NewSet()
		for _, n := range needs {
			none.Fail(n.Scope, n.Provider, errors.New("it is away"))
		}
		return none, err
	}
	r.look(map[string]string{"site/far.guard/k": `{}`})
	away = false
	if p := r.same("once it is back"); len(p.Refusals) != 1 {
		t.Errorf("refused: %v", p.Refusals)
	}
}

// A provider that is opened anew may serve a kind more.
func TestMemoryOfAnotherKind(t *testing.T) {
	said := map[string]string{"site/far.guard/g": `{}`}
	r := recollect(t, said)
	r.s.Converge(t, r.doc)
	r.put("site", "far.net", "x", true, schema.Object{})
	old := true
	r.open = func(set *providers.Set, _ []providers.Need) (*providers.Set, error) {
		for _, p := range set.All() {
			p.Kinds = slices.DeleteFunc(p.Kinds, func(k providers.Served) bool { return old && k.Name == "far.net" })
		}
		return providers.NewSet(set.All()...)
	}
	r.look(said)
	old = false
	if err := r.e.Reopen("site"); err != nil {
		t.Fatal(err)
	}
	r.same("at once")
}

// A server that does not say who it is is asked again.
func TestMemoryOfAnotherServer(t *testing.T) {
	said := map[string]string{"site/far.guard/g": `{}`}
	r := recollect(t, said)
	id, mute := "one", false
	r.open = func(set *providers.Set, _ []providers.Need) (*providers.Set, error) {
		for _, p := range set.All() {
			p.Identity = func(context.Context) (string, error) {
				if mute {
					return "", errors.New("busy")
				}
				return id, nil
			}
		}
		return set, nil
	}
	e := r.engine()
	p, err := e.Plan(t.Context(), r.doc, plan.Options{})
	if err == nil {
		_, err = e.Apply(t.Context(), p, engine.ApplyOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	id, mute = "other", true
	r.look(said)
	r.same("while it is mute")
	mute = false
	r.same("once it answers")
}

// What others open shows more of the site.
func TestMemoryOfMoreProviders(t *testing.T) {
	said := map[string]string{"site/far.guard/g": `{}`}
	r := recollect(t, said)
	r.s.Converge(t, r.doc)
	r.look(said)
	r.put("n1", "near.bridge", "b", true, schema.Object{})
	needs := []providers.Need{{Scope: "n1", Provider: "near"}}
	for changes, err := range r.e.Watch(t.Context(), r.doc.Site, engine.Watching{Needs: func() []providers.Need { return needs }}) {
		if err != nil {
			t.Fatal(err)
		}
		r.m.Changed(changes)
		break
	}
	r.same("after the watch")
}

// Runs may be over and removed before they were seen.
func TestMemoryOfManyRuns(t *testing.T) {
	said := map[string]string{"site/far.guard/g": `{}`}
	r := recollect(t, said)
	r.look(said)
	said["n1/near.bridge/b"] = `{"size":1}`
	for i := range 116 {
		said["site/far.guard/g"] = fmt.Sprintf(`{"size":%d}`, i)
		r.s.Converge(t, r.s.Document(t, said))
	}
	r.doc = r.s.Document(t, said)
	r.same("after the runs")
}

// A far side that lists a thing twice is not understood by halves.
func TestMemoryOfTwins(t *testing.T) {
	said := map[string]string{"site/far.guard/g": `{}`}
	r := recollect(t, said)
	r.s.Converge(t, r.doc)
	r.put("site", "far.guard", "x", false, schema.Object{"size": int64(1)})
	r.open = func(set *providers.Set, _ []providers.Need) (*providers.Set, error) {
		set.Wrap(func(_ string, k providers.Served) providers.Kind { return twins{k.Kind} })
		return set, nil
	}
	r.look(said)
	r.same("at first")
	r.put("site", "far.guard", "y", false, schema.Object{"size": int64(2)})
	r.m.Changed([]engine.Changed{{Place: schema.Place{Scope: "site", Kind: "far.guard"}, IDs: []string{"y"}}})
	r.same("after another has come")
}

// twins lists the thing x twice.
type twins struct{ providers.Kind }

func (k twins) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return func(yield func(providers.Thing, error) bool) {
		for th, err := range k.Kind.List(ctx) {
			if !yield(th, err) || th.ID == "x" && !yield(th, err) {
				return
			}
		}
	}
}
