package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/secret"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A remembered is a site that a memory follows, while others work on it.
type remembered struct {
	t     *rapid.T
	s     *enginetest.Site
	e     *engine.Engine // of the memory
	m     *engine.Memory
	doc   *schema.Document
	token string // a secret of the document
	docs  int
}

func (r *remembered) options(o *engine.Options) {
	o.NewID = func(time.Time) string { return "plan" }
	o.Secrets = secret.Options{Source: secret.Source{Lookup: func(string) (string, bool) { return r.token, r.token != "" }}}
}

// told returns what a plan and a report say, or why there is none.
func tellPlan(t *rapid.T, p *plan.Plan, err error) string {
	if err != nil {
		return err.Error()
	}
	b, jerr := json.MarshalIndent(struct {
		Plan      *plan.Plan
		Drift     []plan.Drift
		Unmanaged []plan.Unmanaged
		Remarks   []plan.Remark
	}{p, p.Drift, p.Unmanaged, p.Remarks}, "", " ")
	if jerr != nil {
		t.Fatal(jerr)
	}
	return string(b)
}

func tellDrift(t *rapid.T, r *drift.Report, err error) string {
	if err != nil {
		return err.Error()
	}
	timeless := *r
	timeless.At = time.Time{}
	b, jerr := json.MarshalIndent(timeless, "", " ")
	if jerr != nil {
		t.Fatal(jerr)
	}
	return string(b)
}

// check compares what is remembered with what everything shows.
func (r *remembered) check(what string) (p *plan.Plan) {
	ctx := context.Background()
	if err := r.m.Look(ctx, r.doc); err != nil {
		r.t.Fatalf("after %s: %v", what, err)
	}
	var outside []schema.Resource
	for _, d := range r.doc.Resources {
		if d.External != nil {
			outside = append(outside, d)
		}
	}
	is, err := r.m.Drift(ctx)
	want, werr := r.e.Drift(ctx, r.doc.Site, outside...) // strays are looked for with what is open
	if got, should := tellDrift(r.t, is, err), tellDrift(r.t, want, werr); got != should {
		r.t.Fatalf("after %s, the report of a memory:\n%s\nof everything:\n%s", what, got, should)
	}
	o := plan.Options{}
	if len(r.doc.Resources) > 1 && rapid.IntRange(0, 5).Draw(r.t, "left out") == 0 {
		o.ExcludeRefs = map[schema.Ref]bool{r.doc.Resources[0].Ref: true}
	}
	p, err = r.m.Plan(ctx, o)
	due, werr := r.e.Plan(ctx, r.doc, o)
	if got, should := tellPlan(r.t, p, err), tellPlan(r.t, due, werr); got != should {
		r.t.Fatalf("after %s, the plan of a memory:\n%s\nof everything:\n%s", what, got, should)
	}
	return p
}

// reported tells the memory of a change, as the watch of a provider does.
func (r *remembered) reported(at schema.Place, ids ...string) {
	r.m.Changed([]engine.Changed{{Place: at, IDs: ids}})
}

// happen makes something happen, and says what.
func (r *remembered) happen() string {
	ctx := context.Background()
	draw := func(what string, n int) int { return rapid.IntRange(0, n-1).Draw(r.t, what) }
	at := []schema.Place{{Scope: "site", Kind: "far.net"}, {Scope: "site", Kind: "far.subnet"}, {Scope: "site", Kind: "far.host"}, {Scope: "site", Kind: "far.guard"}, {Scope: "n1", Kind: "near.bridge"}, {Scope: "n1", Kind: "near.port"}, {Scope: "n2", Kind: "near.bridge"}}[draw("place", 7)]
	person := func(do func(e *engine.Engine)) {
		e := r.s.Engine(r.options)
		if draw("by itself", 2) == 0 {
			e = r.e
		} else {
			defer e.Close()
		}
		do(e)
	}
	switch what := draw("what", 12); what {
	case 0, 1:
		r.docs++
		said := site(r.t, fmt.Sprint("document ", r.docs))
		if draw("with an account", 3) == 0 {
			said["site/far.account/a"] = `{"login":"bob","password":{"from":"env:TOKEN"}}`
		}
		if draw("with an external", 3) == 0 {
			said["site/far.guard/theirs"] = `{"external":{}}`
		}
		if draw("with nothing", 8) == 0 {
			said = nil
		}
		r.doc = r.s.Document(fataler{TB: nil, t: r.t}, said)
		return "a document"
	case 2:
		r.token = []string{"", "hunter-one", "hunter-two"}[draw("token", 3)]
		return "another secret"
	case 3, 4: // somebody else changes something
		id := []string{"x", "y", "theirs"}[draw("id", 3)]
		var err error
		switch known := r.things(at); {
		case len(known) > 0 && draw("delete", 3) == 0:
			id = known[draw("which", len(known))].ID
			err = r.s.World.Remove(at.Scope, at.Kind, id)
		case len(known) > 0 && draw("change", 2) == 0:
			th := known[draw("which", len(known))]
			id, th.Spec = th.ID, th.Spec.Clone()
			th.Spec["labels"] = map[string]any{"by": fmt.Sprint(draw("by", 3))}
			err = r.s.World.Put(at.Scope, at.Kind, th)
		case at.Kind == "far.guard" || at.Kind == "near.bridge" || at.Kind == "far.net":
			th := providers.Thing{ID: id, Name: id, Spec: schema.Object{"labels": map[string]any{"n": "1"}}, Phase: providers.Ready}
			if draw("marked", 4) == 0 {
				th.Mark = providers.Mark{Site: enginetest.SiteID, Ref: schema.Ref{Scope: at.Scope, Kind: at.Kind, Name: "stray"}, Incarnation: 1}
			}
			err = r.s.World.Put(at.Scope, at.Kind, th)
		}
		if err != nil {
			r.t.Logf("%s: %v", at.Kind, err)
		}
		if draw("which is not told", 3) == 0 {
			r.reported(at)
		} else {
			r.reported(at, id)
		}
		return "a change of " + at.Scope + "/" + at.Kind
	case 5:
		if err := r.s.World.Fail(fake.Fault{Op: "observe", Ref: []string{"far.guard", "near.port", "far.net"}[draw("blind", 3)], Times: -1, Class: []providers.Class{providers.Denied, providers.Unsupported}[draw("class", 2)]}); err != nil {
			r.t.Fatal(err)
		}
		for _, at := range []schema.Place{{Scope: "site", Kind: "far.guard"}, {Scope: "site", Kind: "far.net"}, {Scope: "n1", Kind: "near.port"}, {Scope: "n2", Kind: "near.port"}} {
			r.reported(at)
		}
		return "blindness"
	case 6:
		if err := r.s.World.Mend(); err != nil {
			r.t.Fatal(err)
		}
		return "the end of faults"
	case 7:
		if err := r.e.Reopen([]string{"site", "n1", "n2"}[draw("scope", 3)]); err != nil {
			r.t.Fatal(err)
		}
		return "providers that are opened anew"
	case 8:
		said := "the end of a run"
		person(func(e *engine.Engine) {
			runs, err := r.s.Store.Runs(ctx)
			if err != nil || len(runs) == 0 {
				return
			}
			if runs[0].Status == state.RunOpen {
				_, err = e.Resume(ctx, runs[0].ID, engine.ApplyOptions{AllowPartial: true})
			} else {
				_, err = e.Rollback(ctx, runs[0].ID, engine.ApplyOptions{AllowPartial: true})
				said = "a rollback"
			}
			r.t.Logf("%s: %v", said, err)
		})
		return said
	case 9:
		person(func(e *engine.Engine) {
			_ = e.Amend(ctx, "forget", func(ctx context.Context, lock *state.Lock) error {
				records, err := r.s.Store.Records(ctx)
				if err != nil || len(records) == 0 {
					return err
				}
				_, err = lock.Commit(ctx, nil, []state.Op{r.s.Store.ForgetOp(records[draw("record", len(records))].Ref), r.s.Store.AmendedOp(state.Amended{Epoch: lock.Epoch(), Action: "forget"})})
				return err
			})
		})
		return "a record that is gone"
	default:
		said := "a run"
		person(func(e *engine.Engine) {
			p, err := e.Plan(ctx, r.doc, plan.Options{})
			if err != nil {
				return
			}
			fails := draw("fails", 3) == 0
			if fails {
				if err := r.s.World.Fail(fake.Fault{Op: []string{"create", "update", "delete"}[draw("op", 3)], Nth: 1 + draw("nth", 3), Class: providers.Invalid}); err != nil {
					r.t.Fatal(err)
				}
			}
			for i := range p.Refusals {
				r.t.Log(p.Refusals[i].Reason)
			}
			policy := []apply.OnFailure{apply.Rollback, apply.Stop, apply.Continue}[draw("policy", 3)]
			res, err := e.Apply(ctx, p, engine.ApplyOptions{AllowPartial: true, OnFailure: policy, Approve: p.Approval()})
			said = fmt.Sprintf("a run that is %s (%v)", res.Run.Status, err)
		})
		return said
	}
}

// things returns what is at a place.
func (r *remembered) things(at schema.Place) []providers.Thing {
	for _, k := range r.s.World.Provider(schema.Ref{Kind: at.Kind}.Provider(), at.Scope).Kinds {
		if k.Name == at.Kind {
			things, _ := providers.Collect(k.Kind.List(context.Background()))
			return things
		}
	}
	return nil
}

// TestTortureMemory: whatever happens at a site, in its store and to its document, the report and the plan of a memory are those of
// everything.
func TestTortureMemory(t *testing.T) {
	torture.Worlds(t, 60, 400, 20000)
	looks, steps := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		r := &remembered{t: t, s: enginetest.New(), token: "hunter-one"}
		subnet, host := fake.SiteTraits(), fake.SiteTraits()
		subnet.Exclusive, host.Detach = []providers.Exclusive{{Field: "cidr"}}, []providers.Detachable{{Field: "links"}}
		guard := fake.SiteTraits()
		guard.DeleteUnchecked = true
		r.s.World.Traits = map[string]providers.Traits{"far.subnet": subnet, "far.host": host, "far.guard": guard}
		r.e = r.s.Engine(r.options)
		defer r.e.Close()
		r.m = r.e.Remember(engine.Remembering{Silent: time.Hour, Sweep: time.Hour})
		r.doc = r.s.Document(fataler{TB: nil, t: t}, nil)
		if rapid.IntRange(0, 5).Draw(t, "begins with something") > 0 {
			r.doc = r.s.Document(fataler{TB: nil, t: t}, site(t, "first"))
		}
		var said []string
		for range rapid.IntRange(1, 14).Draw(t, "looks") {
			if p := r.check(strings.Join(said, ", then ")); p != nil {
				steps += len(p.Steps)
			}
			looks++
			for range rapid.IntRange(1, 2).Draw(t, "happens") {
				said = append(said, r.happen())
			}
		}
		r.check(strings.Join(said, ", then "))
	})
	torture.Report(t, "N", "a memory that goes on, while a site, its store and its document change: %d plans and reports, each equal to the one of everything; %d steps in them", looks, steps)
}

// differs returns variants of a value, each of which differs in one field.
func differs[T any](t *testing.T, v T) map[string]T {
	variants := map[string]T{}
	for i := range reflect.TypeFor[T]().NumField() {
		is := v
		f := reflect.ValueOf(&is).Elem().Field(i)
		name := reflect.TypeFor[T]().Field(i).Name
		switch x := f.Addr().Interface().(type) {
		case *string:
			*x += "x"
		case *bool:
			*x = !*x
		case *[]string:
			*x = append(slices.Clone(*x), "x")
		case *[]schema.Ref:
			*x = append(slices.Clone(*x), schema.Ref{Name: "x"})
		case *schema.Object:
			*x = maps.Clone(*x)
			if *x == nil {
				*x = schema.Object{}
			}
			(*x)["x"] = "x"
		case *providers.Phase:
			*x = providers.Failed
		case *providers.Mark:
			x.Site = "x"
		case *schema.Timeouts:
			x.Delete = time.Second
		case **schema.External:
			*x = &schema.External{ID: "x"}
		case *schema.Lifecycle:
			for field, l := range differs(t, *x) {
				with := v
				reflect.ValueOf(&with).Elem().Field(i).Set(reflect.ValueOf(l))
				variants[name+"."+field] = with
			}
			continue
		case *schema.OnRemove:
			*x = schema.Forget
		case *schema.Adopt:
			*x = schema.AdoptMatch
		case *schema.Ref: // by which it was found
			continue
		default:
			t.Fatalf("%s is of type %T", name, x)
		}
		variants[name] = is
	}
	return variants
}

// A memory sees a difference in every field of a resource and of a thing.
func TestMemoryComparesEverything(t *testing.T) {
	r := schema.Resource{Ref: schema.Ref{Scope: "site", Kind: "far.net", Name: "a"}, Spec: schema.Object{"size": int64(1)}}
	for name, other := range differs(t, r) {
		if engine.SameResource(&r, &other) || engine.SameResource(&other, &r) {
			t.Errorf("a resource with another %s is the same", name)
		}
	}
	th := providers.Thing{ID: "a", Name: "a", Spec: schema.Object{"size": int64(1)}, Status: schema.Object{}, Phase: providers.Ready}
	for name, other := range differs(t, th) {
		if engine.SameThing(&th, &other) || engine.SameThing(&other, &th) {
			t.Errorf("a thing with another %s is the same", name)
		}
	}
	again := th
	again.Spec = th.Spec.Clone()
	if !engine.SameThing(&th, &again) || !engine.SameResource(&r, &r) {
		t.Error("nothing differs")
	}
}
