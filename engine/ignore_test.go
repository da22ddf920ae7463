package engine_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
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

// What a document ignores is never drift: neither where it states a value nor where it states none, neither in a report
// nor in a plan, and an import does not ask for it either.
func TestIgnoredIsNoDrift(t *testing.T) {
	const spec = `{"size": 1, "labels": {"fra1.example/who": "us", "ours": "yes"}, "lifecycle": {"ignore": ["size", "labels.fra1.example/who", "labels.unstated", "guard"]}}`
	s := enginetest.New()
	net, guard := `{"cidr": "10.0.0.0/8"}`, `{"size": 1}`
	document := func(host string) *schema.Document {
		return s.Document(t, map[string]string{"site/far.net/n": net, "site/far.guard/g": guard, "site/far.host/h": host})
	}
	host := `{"net": "n", ` + spec[1:]
	s.Converge(t, document(host))
	thing := func(kind, name string) providers.Thing {
		t.Helper()
		r, err := s.Store.Record(t.Context(), schema.Ref{Scope: schema.ScopeSite, Kind: kind, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return thingOf(t, s, schema.ScopeSite, kind, r.ID)
	}
	stranger := func(changes map[string]any) {
		t.Helper()
		th := thing("far.host", "h")
		for field, v := range changes {
			th.Spec[field] = v
		}
		if err := s.World.Put(schema.ScopeSite, "far.host", th); err != nil {
			t.Fatal(err)
		}
	}
	labels := map[string]any{"fra1.example/who": "a stranger", "ours": "yes", "unstated": "too"}
	stranger(map[string]any{"size": int64(7), "guard": thing("far.guard", "g").ID, "labels": labels})
	e := s.Engine(nil)
	defer e.Close()
	report, err := e.Drift(t.Context(), schema.Site{Name: "test", ID: enginetest.SiteID})
	if err != nil || !report.Clean() {
		t.Errorf("drift %+v, unstated %+v, %v", report.Drifted, report.Unstated, err)
	}
	if p := s.Plan(t, document(host), plan.Options{}); !p.Empty() || len(p.Drift) > 0 {
		t.Errorf("planned:\n%s", enginetest.Text(p))
	}
	found := s.Document(t, nil)
	for _, f := range surveyed(t, s) {
		found.Resources = append(found.Resources, f.Resource)
	}
	slices.SortFunc(found.Resources, func(a, b schema.Resource) int { return a.Ref.Compare(b.Ref) })
	if p := s.Plan(t, found, plan.Options{}); !p.Empty() {
		t.Errorf("of what is imported:\n%s", enginetest.Text(p))
	}

	// What differs beside it is drift, and correcting that leaves alone what is ignored.
	labels["ours"] = "no"
	stranger(map[string]any{"labels": labels})
	p := s.Plan(t, document(host), plan.Options{})
	if len(p.Drift) != 1 || len(p.Drift[0].Changes) != 1 || p.Drift[0].Changes[0].Path != "labels.ours" {
		t.Errorf("planned:\n%s", enginetest.Text(p))
	}
	s.Converge(t, document(host))
	if have := thing("far.host", "h"); have.Spec["size"] != int64(7) || have.Spec["labels"].(map[string]any)["fra1.example/who"] != "a stranger" {
		t.Errorf("left as %v", have.Spec)
	}

	// It is drift again once nothing is ignored; until that is applied, the report uses what was applied.
	bare := `{"net": "n", "size": 1, "labels": {"fra1.example/who": "us", "ours": "yes"}}`
	if p := s.Plan(t, document(bare), plan.Options{}); len(p.Steps) != 1 || len(p.Steps[0].Changes) != 2 {
		t.Errorf("planned:\n%s", enginetest.Text(p))
	}
	s.Converge(t, document(bare))
	stranger(map[string]any{"size": int64(9)})
	if report, err = e.Drift(t.Context(), schema.Site{Name: "test", ID: enginetest.SiteID}); err != nil || len(report.Drifted) != 1 {
		t.Errorf("drift %+v, %v", report, err)
	}
}

// That something is ignored from now on is remembered, although nothing changes.
func TestIgnoringIsRemembered(t *testing.T) {
	s := enginetest.New()
	s.Converge(t, s.Document(t, map[string]string{"site/far.guard/g": `{"size": 1}`}))
	p := s.Converge(t, s.Document(t, map[string]string{"site/far.guard/g": `{"size": 1, "lifecycle": {"ignore": ["size", "labels"]}}`}))
	if len(p.Steps) != 1 || p.Steps[0].Action != plan.Adopt {
		t.Errorf("planned:\n%s", enginetest.Text(p))
	}
	if p := s.Plan(t, s.Document(t, map[string]string{"site/far.guard/g": `{"size": 1, "lifecycle": {"ignore": ["labels", "size"]}}`}), plan.Options{}); !p.Empty() {
		t.Errorf("in another order:\n%s", enginetest.Text(p))
	}
}

// A change leaves what is ignored as it is, even where the document no longer states anything beside it.
func TestChangeLeavesIgnored(t *testing.T) {
	const spare = `, "lifecycle": {"ignore": ["labels.b", "labels.c", "size"]}}`
	s := enginetest.New()
	s.Converge(t, s.Document(t, map[string]string{"site/far.net/n": `{"cidr": "10.0.0.0/8", "labels": {"a": "1"}, "size": 1` + spare}))
	r, err := s.Store.Record(t.Context(), theNet)
	if err != nil {
		t.Fatal(err)
	}
	th := thingOf(t, s, theNet.Scope, theNet.Kind, r.ID)
	th.Spec = schema.Object{"cidr": "10.0.0.0/8", "labels": map[string]any{"a": "1", "b": "theirs", "c": "too"}, "size": int64(9)}
	if err := s.World.Put(theNet.Scope, theNet.Kind, th); err != nil {
		t.Fatal(err)
	}
	s.Converge(t, s.Document(t, map[string]string{"site/far.net/n": `{"cidr": "10.0.0.0/8"` + spare}))
	want := schema.Object{"cidr": "10.0.0.0/8", "labels": map[string]any{"b": "theirs", "c": "too"}, "size": int64(9)}
	if have := thingOf(t, s, theNet.Scope, theNet.Kind, r.ID).Spec; !have.Equal(want) {
		t.Errorf("left as %v", have)
	}
}

// An undo leaves what is ignored as it then is, and restores what only an earlier document ignored: a stranger's change either way.
func TestUndoLeavesIgnored(t *testing.T) {
	const (
		one   = `{"cidr": "10.0.0.0/8", "labels": {"a": "1", "b": "ours"}, "size": 1`
		two   = `{"cidr": "10.0.0.0/8", "labels": {"a": "2", "b": "ours"}, "size": 1`
		bare  = `{"cidr": "10.0.0.0/8", "labels": {}`
		spare = `, "lifecycle": {"ignore": ["labels.b", "labels.c", "size"]}}`
	)
	for name, c := range map[string]struct {
		before, after string
		late          bool // the stranger comes when the run has done its step, not before the run
	}{
		"ignored by both":                     {one + spare, two + spare, true},
		"ignored by both, set before the run": {one + spare, two + spare, false},
		"ignored by what was done":            {one + "}", two + spare, true},
		"ignored before":                      {one + spare, two + "}", false},
		"handed over":                         {one + spare, `{"external": true}`, true},
		"only remembered":                     {one + "}", one + spare, true},
		"stated anew":                         {bare + spare, one + spare, true},
		"stated no more":                      {one + spare, bare + spare, false},
	} {
		for _, asked := range []bool{true, false} { // on request, or because a later step fails
			t.Run(fmt.Sprintf("%s, asked %v", name, asked), func(t *testing.T) {
				s := enginetest.New()
				s.Converge(t, s.Document(t, map[string]string{"site/far.net/n": c.before}))
				find := func() providers.Thing {
					r, err := s.Store.Record(t.Context(), theNet)
					if err != nil {
						r.ID = plan.ExternalID(enginetest.SiteID, providers.Traits{}, theNet, 1, nil)
					}
					return thingOf(t, s, theNet.Scope, theNet.Kind, r.ID)
				}
				stranger := func() {
					th := find()
					th.Spec = th.Spec.Clone()
					th.Spec["size"], th.Spec["labels"].(map[string]any)["b"], th.Spec["labels"].(map[string]any)["c"] = int64(9), "theirs", "too"
					if err := s.World.Put(theNet.Scope, theNet.Kind, th); err != nil {
						t.Fatal(err)
					}
				}
				if !c.late {
					stranger()
				}
				doc := s.Document(t, map[string]string{"site/far.guard/g": `{"size": 1}`, "site/far.net/n": c.after})
				doc.Resources[0].After = []schema.Ref{theNet}
				e := s.Engine(func(o *engine.Options) {
					o.Emit = func(ev event.Event) {
						if c.late && done(ev) {
							stranger()
						}
					}
				})
				defer e.Close()
				p := s.Plan(t, doc, plan.Options{})
				if !asked {
					if err := s.World.Fail(fake.Fault{Op: "create", Ref: "far.guard", Class: providers.Invalid}); err != nil {
						t.Fatal(err)
					}
				}
				res, err := e.Apply(t.Context(), p, engine.ApplyOptions{})
				if asked && err == nil {
					res, err = e.Rollback(t.Context(), res.Run.ID, engine.ApplyOptions{})
				}
				if err != nil || res.Run.Status != state.RunReverted {
					t.Fatalf("%s: %s, %v", res.Run.Status, res.Run.Message, err)
				}
				want := schema.Object{"cidr": "10.0.0.0/8", "labels": map[string]any{"a": "1", "b": "theirs", "c": "too"}, "size": int64(9)}
				if c.before == bare+spare {
					delete(want["labels"].(map[string]any), "a")
				}
				if have := find().Spec; !have.Equal(want) {
					t.Errorf("left as %v", have)
				}
				if p := s.Plan(t, s.Document(t, map[string]string{"site/far.net/n": c.before}), plan.Options{}); strings.HasSuffix(c.before, spare) && !p.Empty() {
					t.Errorf("planned:\n%s", enginetest.Text(p))
				}
			})
		}
	}
}

// What others made a thing refer to, where the document ignores that, is still removed after it.
func TestRemovedAfterWhatIsSeenToReferToIt(t *testing.T) {
	for _, parallel := range []int{1, 8} {
		s := enginetest.New()
		s.Converge(t, s.Document(t, map[string]string{
			theNet.String(): `{}`, "site/far.guard/a": `{}`, "site/far.guard/b": `{}`, "site/far.guard/z": `{}`,
			"site/far.host/h": `{"net":"n","guard":"b","lifecycle":{"ignore":["guard"]}}`,
		}))
		rec := func(kind, name string) string {
			r, err := s.Store.Record(t.Context(), schema.Ref{Scope: schema.ScopeSite, Kind: kind, Name: name})
			if err != nil {
				t.Fatal(err)
			}
			return r.ID
		}
		host := thingOf(t, s, schema.ScopeSite, "far.host", rec("far.host", "h"))
		host.Spec = host.Spec.Clone()
		host.Spec["guard"] = rec("far.guard", "a")
		if err := s.World.Put(schema.ScopeSite, "far.host", host); err != nil {
			t.Fatal(err)
		}
		p := s.Plan(t, s.Document(t, map[string]string{theNet.String(): `{}`, "site/far.guard/z": `{}`}), plan.Options{})
		e := s.Engine(func(o *engine.Options) { o.Parallelism = parallel })
		res, err := e.Apply(t.Context(), p, engine.ApplyOptions{Approve: p.Approval()})
		if err != nil || res.Run.Status != state.RunApplied {
			t.Errorf("%d at a time it ended %s: %s %v\n%s", parallel, res.Run.Status, res.Run.Message, err, enginetest.Text(p))
		}
		e.Close()
	}
}

// A replaced thing is created again with the actual values of ignored fields, not with the document's; and after what those refer
// to. A reference to something that is deleted is not kept.
func TestReplacedWithWhatIsIgnored(t *testing.T) {
	const ignoring = `,"lifecycle":{"ignore":["size","labels.by","labels.more","guard"]}}`
	for name, c := range map[string]struct {
		next        map[string]string // beside the host and the nets
		guard       string
		wantedGuard string
	}{
		"what it refers to stays":   {map[string]string{"site/far.guard/a": `{}`, "site/far.guard/b": `{}`}, "a", "a"},
		"what it refers to changes": {map[string]string{"site/far.guard/a": `{"size":5}`, "site/far.guard/b": `{}`}, "a", "a"},
		"what it refers to goes":    {map[string]string{"site/far.guard/b": `{}`}, "a", "b"},
		"a stranger's":              {map[string]string{"site/far.guard/a": `{}`, "site/far.guard/b": `{}`}, "", "stranger"},
	} {
		t.Run(name, func(t *testing.T) {
			s := enginetest.New()
			doc := func(net string, more map[string]string) *schema.Document {
				d := map[string]string{theNet.String(): `{}`, "site/far.net/m": `{}`, "site/far.host/h": `{"net":"` + net + `","guard":"b","size":1,"labels":{"by":"us","env":"prod"}` + ignoring}
				maps.Copy(d, more)
				return s.Document(t, d)
			}
			rec := func(kind, name string) string {
				r, err := s.Store.Record(t.Context(), schema.Ref{Scope: schema.ScopeSite, Kind: kind, Name: name})
				if err != nil {
					t.Fatal(err)
				}
				return r.ID
			}
			s.Converge(t, doc("n", map[string]string{"site/far.guard/a": `{}`, "site/far.guard/b": `{}`}))
			if err := s.World.Put(schema.ScopeSite, "far.guard", providers.Thing{ID: "stranger", Name: "x", Spec: schema.Object{}, Phase: providers.Ready}); err != nil {
				t.Fatal(err)
			}
			guard := "stranger"
			if c.guard != "" {
				guard = rec("far.guard", c.guard)
			}
			host := thingOf(t, s, schema.ScopeSite, "far.host", rec("far.host", "h"))
			host.Spec = host.Spec.Clone()
			host.Spec["guard"], host.Spec["size"], host.Spec["labels"] = guard, int64(9), map[string]any{"by": "others", "more": "theirs", "env": "prod"}
			if err := s.World.Put(schema.ScopeSite, "far.host", host); err != nil {
				t.Fatal(err)
			}
			next := doc("m", c.next)
			p := s.Plan(t, next, plan.Options{Unlimited: true})
			res, err := s.Apply(p, engine.ApplyOptions{Approve: p.Approval()})
			if err != nil || res.Run.Status != state.RunApplied {
				t.Fatalf("%s %s %v\n%s", res.Run.Status, res.Run.Message, err, enginetest.Text(p))
			}
			want := schema.Object{"net": rec("far.net", "m"), "size": int64(9), "labels": map[string]any{"by": "others", "more": "theirs", "env": "prod"}, "guard": "stranger"}
			if c.wantedGuard != "stranger" {
				want["guard"] = rec("far.guard", c.wantedGuard)
			}
			if have := thingOf(t, s, schema.ScopeSite, "far.host", rec("far.host", "h")).Spec; !have.Equal(want) {
				t.Errorf("made anew as %v, want %v", have, want)
			}
			if again := s.Plan(t, next, plan.Options{}); !again.Empty() {
				t.Errorf("planned again:\n%s", enginetest.Text(again))
			}
		})
	}
}

// The same where something must first be detached from what is deleted: until then the order is a cycle.
func TestRemovedAfterWhatLetsGoFirst(t *testing.T) {
	s := enginetest.New()
	subnet, host := fake.SiteTraits(), fake.SiteTraits()
	subnet.Exclusive, host.Detach = []providers.Exclusive{{Field: "cidr"}}, []providers.Detachable{{Field: "links"}}
	s.World.Traits = map[string]providers.Traits{"far.subnet": subnet, "far.host": host, "far.net": subnet}
	if err := s.World.Put("site", "far.net", providers.Thing{ID: strangers[0], Name: "theirs", Spec: schema.Object{"cidr": "10.8.0.0/24", "labels": map[string]any{}}}); err != nil {
		t.Fatal(err)
	}
	doc := map[string]string{
		"site/far.net/a": fmt.Sprintf(`{"external":{"id":%q}}`, strangers[0]), "site/far.net/b": `{"cidr":"10.2.0.0/24"}`,
		"site/far.subnet/s": `{"cidr":"10.9.0.0/24","net":"a"}`, "site/far.host/h": `{"net":"b","links":[{"port":0,"subnet":"s"}]}`,
		"site/far.host/i": `{"net":"b","links":[{"port":0,"subnet":"s"}]}`,
	}
	s.Converge(t, s.Document(t, doc))
	delete(doc, "site/far.host/i")
	doc["site/far.net/a"] = fmt.Sprintf(`{"cidr":"10.1.0.0/24","lifecycle":{"adopt":"match","id":%q}}`, strangers[0])
	s.Converge(t, s.Document(t, doc))
}
