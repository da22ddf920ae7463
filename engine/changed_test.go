package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// revised is a document beside an earlier one, both already read.
type revised struct {
	was, is *schema.Document
	read    int // resources that were requested last time
}

func byRef(d *schema.Document) map[schema.Ref]*schema.Resource {
	m := map[schema.Ref]*schema.Resource{}
	for i := range d.Resources {
		m[d.Resources[i].Ref] = &d.Resources[i]
	}
	return m
}

func (r *revised) Since() int64 { return 1 }
func (r *revised) Len() int     { return len(r.is.Resources) }

func (r *revised) Changed() (refs []schema.Ref) {
	was, is := byRef(r.was), byRef(r.is)
	for ref := range maps.Keys(is) {
		if !reflect.DeepEqual(was[ref], is[ref]) {
			refs = append(refs, ref)
		}
	}
	for ref := range was {
		if is[ref] == nil {
			refs = append(refs, ref)
		}
	}
	return schema.SortRefs(refs)
}

func (r *revised) Referring(to []schema.Ref) (refs []schema.Ref) {
	kinds := enginetest.Kinds()
	for _, res := range r.is.Resources {
		may := func(path string) bool { // it may refer to something through what it ignores
			f := kinds[res.Ref.Kind].Field(path)
			return f != nil && f.Has(func(f *schema.Field) bool {
				return f.Ref != "" && slices.ContainsFunc(to, func(t schema.Ref) bool { return t.Kind == f.Ref })
			})
		}
		stands := res.External != nil && slices.ContainsFunc(to, func(t schema.Ref) bool {
			return t.Kind == res.Ref.Kind && byRef(r.is)[t] == nil && (res.External.ID == "" || res.External.ID == t.Name)
		})
		if stands || slices.ContainsFunc(slices.Concat(res.After, res.Outside), func(a schema.Ref) bool { return slices.Contains(to, a) }) ||
			slices.ContainsFunc(res.Lifecycle.Ignore, may) {
			refs = append(refs, res.Ref)
		}
	}
	return refs
}

func (r *revised) Read(_ context.Context, refs []schema.Ref) (*schema.Document, error) {
	is := byRef(r.is)
	doc := *r.is
	doc.Resources = nil
	work := slices.Clone(refs)
	for i := 0; i < len(work); i++ {
		if res := is[work[i]]; res != nil {
			work = append(work, res.After...)
		}
	}
	for _, ref := range schema.SortRefs(work) {
		if res := is[ref]; res != nil {
			doc.Resources = append(doc.Resources, *res)
		}
	}
	r.read = len(doc.Resources)
	return &doc, nil
}

// decision returns what a plan would do, and what forbids it.
func decision(tb interface{ Fatal(...any) }, p *plan.Plan) string {
	text, err := json.MarshalIndent(map[string]any{"steps": p.Steps, "refusals": p.Refusals, "no return": p.NoReturn}, "", " ")
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// TestTorturePlanOfTheChanged: where everything is as it was left, a plan of the changed is the plan of the whole site, and has
// the same effect.
func TestTorturePlanOfTheChanged(t *testing.T) {
	torture.Worlds(t, 200, 1000, 50000)
	fewer, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		tb := fataler{TB: nil, t: t}
		s := enginetest.New()
		subnet, host := fake.SiteTraits(), fake.SiteTraits()
		subnet.Exclusive, host.Detach = []providers.Exclusive{{Field: "cidr"}}, []providers.Detachable{{Field: "links"}}
		host.DeleteUnchecked, subnet.DeleteUnchecked = rapid.Bool().Draw(t, "orphans"), rapid.Bool().Draw(t, "orphan subnets")
		s.World.Traits = map[string]providers.Traits{"far.subnet": subnet, "far.host": host, "far.net": subnet}
		for i, id := range strangers {
			if err := s.World.Put("site", "far.net", providers.Thing{ID: id, Name: fmt.Sprintf("net%d", i), Spec: schema.Object{"cidr": fmt.Sprintf("10.8.%d.0/24", i), "labels": map[string]any{}}}); err != nil {
				t.Fatal(err)
			}
		}
		texts := site(t, "first")
		estrange(t, "first", texts, strangers)
		first := s.Document(tb, texts)
		if len(makePlan(t, s, first).Refusals) > 0 {
			return
		}
		run(t, s, first, engine.ApplyOptions{})
		switch p := makePlan(t, s, first); {
		case len(p.Refusals) > 0: // another name has made another thing of what is external
			return
		case !p.Empty():
			t.Fatal("not converged")
		}
		other := site(t, "second")
		edited := maps.Clone(texts)
		for _, ref := range slices.Sorted(maps.Keys(texts)) { // most remain
			if rapid.IntRange(0, 3).Draw(t, "edit "+ref) == 0 {
				delete(edited, ref)
			}
		}
		for _, ref := range slices.Sorted(maps.Keys(other)) {
			if rapid.IntRange(0, 1).Draw(t, "take "+ref) == 0 {
				edited[ref] = other[ref]
			}
		}
		edited = closed(edited, texts, other)
		var ids []string
		for _, served := range s.World.Provider("far", "site").Kinds {
			if served.Name != "far.net" {
				continue
			}
			things, err := providers.Collect(served.Kind.List(context.Background()))
			if err != nil {
				t.Fatal(err)
			}
			for _, th := range things {
				ids = append(ids, th.ID)
			}
		}
		if len(ids) > 0 {
			estrange(t, "second", edited, ids)
		}
		second := s.Document(tb, edited)
		cidrs := map[any]bool{}
		for _, r := range second.Resources {
			if r.Ref.Kind == "far.subnet" && cidrs[r.Spec["cidr"]] {
				return // no document contains it
			}
			cidrs[r.Spec["cidr"]] = true
		}
		e := s.Engine(nil)
		defer e.Close()
		o := plan.Options{Unlimited: true}
		whole := makePlan(t, s, second)
		rev := &revised{was: first, is: second}
		part, err := e.PlanChanged(context.Background(), rev, o)
		if all := (*engine.WholeError)(nil); errors.As(err, &all) && len(whole.Refusals) > 0 {
			refused++
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if a, b := decision(t, part), decision(t, whole); a != b {
			t.Fatalf("the plan of what changed is\n%s\nand of the whole\n%s\n%s", a, b, cmp.Diff(a, b))
		}
		for _, x := range part.Externals {
			if !slices.Contains(whole.Externals, x) {
				t.Fatalf("external is %+v, of the whole %+v", x, whole.Externals)
			}
		}
		if n := part.Narrowed; n == nil || n.Since != 1 || n.Of < len(second.Resources) || n.Resources > n.Of {
			t.Fatalf("it says %+v of %d", n, len(second.Resources))
		}
		if rev.read < len(second.Resources) {
			fewer++
		}
		if part.Empty() || len(part.Refusals) > 0 {
			return
		}
		res, err := s.Apply(part, engine.ApplyOptions{Approve: part.Approval()})
		if err != nil || res.Run.Status != state.RunApplied {
			t.Fatal(res.Run.Status, err, res.Run.Message, res.Run.Partial, enginetest.Text(part))
		}
		if again := makePlan(t, s, second); !again.Empty() {
			t.Fatalf("after it, the whole site needs\n%s", enginetest.Text(again))
		}
	})
	torture.Report(t, "N", "plans of what a revision changes, each like the one of the whole site and followed by an empty one: %d read a part of the document only, and %d were refused, which is for a plan of the whole to say", fewer, refused)
	if fewer == 0 {
		t.Error("every plan read the whole document: the worlds do not try enough")
	}
}

// strangers are things that others have created.
var strangers = []string{"0e0e0e0e-0000-4000-8000-000000000001", "0e0e0e0e-0000-4000-8000-000000000002"}

// estrange makes some nets of a document external or adopted, by one of these ids; some hosts refer to a net by such an id, and
// others ignore their guard.
func estrange(t *rapid.T, label string, texts map[string]string, ids []string) {
	id := func(of string) string { return rapid.SampledFrom(ids).Draw(t, label+" id of "+of) }
	set := func(ref, field string, v any) {
		var spec map[string]any
		if err := json.Unmarshal([]byte(texts[ref]), &spec); err != nil {
			panic(err)
		}
		spec[field] = v
		if v == nil {
			delete(spec, field)
		}
		b, _ := json.Marshal(spec)
		texts[ref] = string(b)
	}
	for _, ref := range slices.Sorted(maps.Keys(texts)) {
		way := rapid.IntRange(0, 7).Draw(t, label+" strange "+ref)
		switch kind := strings.Split(ref, "/")[1]; {
		case kind == "far.net" && way == 1:
			texts[ref] = fmt.Sprintf(`{"external":{"id":%q}}`, id(ref))
		case kind == "far.net" && way == 3:
			texts[ref] = `{"external":true}`
		case kind == "far.net" && way == 2:
			set(ref, "lifecycle", map[string]any{"adopt": "match", "id": id(ref)})
		case kind == "far.host" && way == 1:
			set(ref, "net", id(ref))
		case kind == "far.host" && way == 2:
			set(ref, "guard", nil)
			set(ref, "lifecycle", map[string]any{"ignore": []string{"guard"}})
		}
	}
}

// closed adds to a document what it refers to, as in one of the others.
func closed(m map[string]string, others ...map[string]string) map[string]string {
	missing := func(kind, name, scope string) bool {
		ref := scope + "/" + kind + "/" + name
		if m[ref] != "" {
			return false
		}
		for _, o := range others {
			if o[ref] != "" {
				m[ref] = o[ref]
				return true
			}
		}
		return false
	}
	for again := true; again; {
		again = false
		for _, ref := range slices.Sorted(maps.Keys(m)) {
			scope, _, _ := strings.Cut(ref, "/")
			var spec struct {
				Net, Guard, Bridge string
				Links              []struct{ Subnet string }
			}
			if err := json.Unmarshal([]byte(m[ref]), &spec); err != nil {
				panic(err)
			}
			again = missing("far.net", spec.Net, "site") || missing("far.guard", spec.Guard, "site") || missing("near.bridge", spec.Bridge, scope) || again
			for _, l := range spec.Links {
				again = missing("far.subnet", l.Subnet, "site") || again
			}
		}
	}
	return m
}

// changing applies a first document and has a second one, and compares the plan of the changed with that of the whole.
type changing struct {
	*enginetest.Site
	first, second *schema.Document
}

func changed(t *testing.T, first, second map[string]string) changing {
	t.Helper()
	return changedOn(t, enginetest.New(), first, second)
}

func changedOn(t *testing.T, s *enginetest.Site, first, second map[string]string) changing {
	t.Helper()
	c := changing{s, s.Document(t, first), s.Document(t, second)}
	s.Converge(t, c.first)
	return c
}

// whole returns why the plan of the whole site is needed.
func (c changing) whole(t *testing.T) string {
	t.Helper()
	e := c.Engine(nil)
	defer e.Close()
	_, err := e.PlanChanged(context.Background(), &revised{was: c.first, is: c.second}, plan.Options{})
	whole := (*engine.WholeError)(nil)
	if !errors.As(err, &whole) {
		t.Fatal(err)
	}
	return whole.Reason
}

func (c changing) plan(t *testing.T) (part, whole *plan.Plan, read int) {
	t.Helper()
	e := c.Engine(nil)
	defer e.Close()
	rev := &revised{was: c.first, is: c.second}
	part, err := e.PlanChanged(context.Background(), rev, plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return part, c.Plan(t, c.second, plan.Options{}), rev.read
}

func (c changing) same(t *testing.T) {
	t.Helper()
	part, whole, _ := c.plan(t)
	if a, b := decision(t, part), decision(t, whole); a != b {
		t.Errorf("the plan of what changed is\n%s\nand of the whole\n%s", a, b)
	}
	if part.Empty() {
		t.Error("nothing changed")
	}
}

const (
	aNet  = `{"cidr":"10.0.0.0/8"}`
	aHost = `{"net":"a","size":1}`
)

// A thing that another client made refer to another resource is shown to do so, by the name of that.
func TestPlanOfTheChangedReadsWhatIsReferredTo(t *testing.T) {
	nets := map[string]string{"site/far.net/a": aNet, "site/far.guard/g1": `{}`, "site/far.guard/g2": `{}`, "site/far.host/h": `{"net":"a","guard":"g1"}`}
	then := maps.Clone(nets)
	then["site/far.host/h"] = `{"net":"a","guard":"g1","size":2}`
	c := changed(t, nets, then)
	host := recordOf(t, c.Site, "site/far.host/h")
	thing := thingOf(t, c.Site, "site", "far.host", host.ID)
	thing.Spec["guard"] = recordOf(t, c.Site, "site/far.guard/g2").ID
	if err := c.World.Put("site", "far.host", thing); err != nil {
		t.Fatal(err)
	}
	c.same(t)
}

// A thing that exists under another id is recognized by its mark.
func TestPlanOfTheChangedFindsTheMark(t *testing.T) {
	c := changed(t, map[string]string{"site/far.guard/g": `{}`}, map[string]string{"site/far.guard/g": `{"size":2}`})
	r := recordOf(t, c.Site, "site/far.guard/g")
	thing := thingOf(t, c.Site, "site", "far.guard", r.ID)
	if err := c.World.Remove("site", "far.guard", r.ID); err != nil {
		t.Fatal(err)
	}
	thing.ID = "00000000-0000-4000-8000-000000000001"
	if err := c.World.Put("site", "far.guard", thing); err != nil {
		t.Fatal(err)
	}
	c.same(t)
}

// What refers to something that becomes another thing follows it, and nothing else is read.
func TestPlanOfTheChangedFollows(t *testing.T) {
	first := map[string]string{"site/far.net/a": aNet, "site/far.net/b": aNet, "site/far.host/h": aHost, "site/far.host/i": `{"net":"b"}`, "site/far.guard/g": `{}`}
	second := maps.Clone(first)
	second["site/far.net/a"] = `{"cidr":"11.0.0.0/8"}`
	c := changed(t, first, second)
	c.same(t)
	if part, _, read := c.plan(t); read != 2 || part.Narrowed.Resources != 2 || part.Narrowed.Of != 5 {
		t.Errorf("%d resources were read, and the plan is about %+v", read, part.Narrowed)
	}
}

// External and adopted things, and those that others take over from converge, become other things without a step that creates or
// removes one. What refers to them follows all the same.
func TestPlanOfTheChangedFollowsWhatOthersHave(t *testing.T) {
	host := `{"net":"a"}`
	own := func(s *enginetest.Site) string {
		return fmt.Sprintf(`{"external":{"id":%q}}`, recordOf(t, s, "site/far.net/a").ID)
	}
	theirs := func(n int) string { return fmt.Sprintf(`{"external":{"id":%q}}`, strangers[n]) }
	taken := func(n int) string {
		return fmt.Sprintf(`{"cidr":"10.8.%d.0/24","lifecycle":{"adopt":"match","id":%q}}`, n, strangers[n])
	}
	always := func(text string) func(*enginetest.Site) string { return func(*enginetest.Site) string { return text } }
	for name, c := range map[string]struct {
		was string
		is  func(*enginetest.Site) string
	}{
		"another external":               {theirs(0), always(theirs(1))},
		"an external is taken over":      {theirs(0), always(taken(0))},
		"another than the external":      {theirs(0), always(taken(1))},
		"managed becomes external":       {aNet, own},
		"managed becomes another":        {aNet, always(theirs(0))},
		"an external becomes converge's": {theirs(0), always(aNet)},
	} {
		t.Run(name, func(t *testing.T) {
			s := enginetest.New()
			for i, id := range strangers {
				if err := s.World.Put("site", "far.net", providers.Thing{ID: id, Name: fmt.Sprintf("theirs%d", i), Spec: schema.Object{"cidr": fmt.Sprintf("10.8.%d.0/24", i), "labels": map[string]any{}}}); err != nil {
					t.Fatal(err)
				}
			}
			first := map[string]string{"site/far.net/a": c.was, "site/far.host/h": host, "site/far.guard/g": `{}`}
			s.Converge(t, s.Document(t, first))
			second := maps.Clone(first)
			second["site/far.net/a"] = c.is(s)
			both := changing{s, s.Document(t, first), s.Document(t, second)}
			both.same(t)
			if part, _, _ := both.plan(t); !slices.ContainsFunc(part.Steps, func(s plan.Step) bool { return s.Ref.Kind == "far.host" }) {
				t.Errorf("the host does not follow:\n%s", enginetest.Text(part))
			}
		})
	}
}

// An id instead of the name of something that the document declares is refused, wherever it is.
func TestPlanOfTheChangedKnowsIDs(t *testing.T) {
	first := map[string]string{"site/far.net/a": aNet, "site/far.net/b": aNet, "site/far.host/h": `{"net":"b"}`}
	for _, field := range []string{"site/far.host/h", "site/far.net/b"} {
		c := changed(t, first, first)
		id := recordOf(t, c.Site, "site/far.net/a").ID
		second := maps.Clone(first)
		second[field] = map[string]string{"site/far.host/h": fmt.Sprintf(`{"net":%q}`, id), "site/far.net/b": fmt.Sprintf(`{"external":{"id":%q}}`, id)}[field]
		c.second = c.Document(t, second)
		if why := c.whole(t); !strings.Contains(why, "by its external id, but the document declares it as site/far.net/a") {
			t.Errorf("%s: %s", field, why)
		}
	}
}

// A name that several things have identifies none of them.
func TestPlanOfTheChangedSeesAllOfAName(t *testing.T) {
	s := enginetest.New()
	if err := s.World.Put("site", "far.net", providers.Thing{ID: strangers[0], Name: "a", Spec: schema.Object{"cidr": "10.8.0.0/24", "labels": map[string]any{}}}); err != nil {
		t.Fatal(err)
	}
	c := changedOn(t, s, map[string]string{"site/far.net/a": aNet, "site/far.host/h": aHost}, map[string]string{"site/far.net/a": `{"external":true}`, "site/far.host/h": aHost})
	if why := c.whole(t); !strings.Contains(why, "2 objects of kind far.net have this name") {
		t.Error(why)
	}
}

// A resource may refer to anything through a field that it ignores.
func TestPlanOfTheChangedReadsWhatIsIgnored(t *testing.T) {
	first := map[string]string{"site/far.net/a": aNet, "site/far.guard/g": `{}`, "site/far.host/h": `{"net":"a","guard":"g"}`}
	between := map[string]string{"site/far.net/a": aNet, "site/far.guard/g": `{}`, "site/far.host/h": `{"net":"a","lifecycle":{"ignore":["guard"]}}`}
	last := map[string]string{"site/far.net/a": aNet, "site/far.host/h": between["site/far.host/h"]}
	c := changed(t, first, between)
	c.Converge(t, c.second)
	c.first, c.second = c.second, c.Document(t, last)
	if why := c.whole(t); !strings.Contains(why, "still refers to it") {
		t.Error(why)
	}
}

// What another client made refer to a thing that is deleted keeps it, although the document says nothing of the kind, where the
// far side would leave it behind.
func TestPlanOfTheChangedLeavesNoOrphans(t *testing.T) {
	first := map[string]string{"site/far.net/a": aNet, "site/far.net/b": aNet, "site/far.host/h": aHost}
	second := map[string]string{"site/far.net/a": aNet, "site/far.host/h": aHost}
	c := changed(t, first, second)
	traits := fake.SiteTraits()
	traits.DeleteUnchecked = true
	c.World.Traits = map[string]providers.Traits{"far.net": traits}
	thing := thingOf(t, c.Site, "site", "far.host", recordOf(t, c.Site, "site/far.host/h").ID)
	thing.Spec["net"] = recordOf(t, c.Site, "site/far.net/b").ID
	if err := c.World.Put("site", "far.host", thing); err != nil {
		t.Fatal(err)
	}
	if why := c.whole(t); !strings.Contains(why, "still refers to it") {
		t.Error(why)
	}
}

// What the planner is to choose it chooses among everything.
func TestPlanOfTheChangedDoesNotChoose(t *testing.T) {
	c := changed(t, map[string]string{"site/far.net/a": aNet, "site/far.guard/g": `{}`}, map[string]string{"site/far.net/a": aNet, "site/far.guard/g": `{}`, "site/far.host/h": aHost})
	guard := c.Kinds["far.host"].Field("guard")
	guard.Choose = &schema.Choice{Kind: "far.guard"}
	e := c.Engine(nil)
	defer e.Close()
	_, err := e.PlanChanged(context.Background(), &revised{was: c.first, is: c.second}, plan.Options{})
	if whole := (*engine.WholeError)(nil); !errors.As(err, &whole) || !strings.Contains(whole.Reason, "guard") {
		t.Error(err)
	}
}

// What was chosen by a field is looked for everywhere when that field changes.
func TestPlanOfTheChangedSeesNoChoosers(t *testing.T) {
	c := changed(t, map[string]string{"site/far.net/a": aNet, "site/far.guard/g": `{}`}, map[string]string{"site/far.net/a": aNet, "site/far.guard/g": `{"size":1}`})
	c.Kinds["far.host"].Field("guard").Choose = &schema.Choice{Kind: "far.guard", Same: []string{"size"}}
	e := c.Engine(nil)
	defer e.Close()
	_, err := e.PlanChanged(context.Background(), &revised{was: c.first, is: c.second}, plan.Options{})
	if whole := (*engine.WholeError)(nil); !errors.As(err, &whole) || !strings.Contains(whole.Reason, "may have been chosen for a far.host") {
		t.Error(err)
	}
}

// A share of what may be destroyed is a share of everything.
func TestPlanOfTheChangedKeepsTheBudget(t *testing.T) {
	first := map[string]string{}
	for i := range 30 {
		first[fmt.Sprintf("site/far.guard/g%02d", i)] = `{}`
	}
	for n, refused := range map[int]bool{3: false, 4: true} {
		second := maps.Clone(first)
		for i := range n {
			delete(second, fmt.Sprintf("site/far.guard/g%02d", i))
		}
		c := changed(t, first, second)
		c.second.Policy.MaxDestroy = "10%"
		part, _, read := c.plan(t)
		if read != 0 || (len(part.Refusals) > 0) != refused || len(part.Steps) != n {
			t.Errorf("%d of 30: %d steps, refused %v, %d read", n, len(part.Steps), part.Refusals, read)
		}
	}
}

// A revision that leaves only what others manage has no resources, as a plan of the whole says; one that exchanges all has.
func TestPlanOfTheChangedSeesThatNothingIsLeft(t *testing.T) {
	first := map[string]string{"site/far.net/n": `{"cidr":"10.0.0.0/16"}`, "site/far.guard/always": `{}`}
	c := changed(t, first, map[string]string{"site/far.net/n": `{"external":true}`})
	if why := c.whole(t); !strings.Contains(why, "no longer contains anything for converge to manage") {
		t.Error(why)
	}
	if whole := c.Plan(t, c.second, plan.Options{}); len(whole.Refusals) == 0 {
		t.Error("a plan of the whole is not refused")
	}
	changed(t, first, map[string]string{"site/far.net/other": `{"cidr":"10.1.0.0/16"}`}).same(t)
}

func recordOf(t *testing.T, s *enginetest.Site, ref string) state.Record {
	t.Helper()
	at, err := schema.ParseRef(ref)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Store.Record(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The records of many resources are read all at once.
func TestPlanOfTheChangedOfMany(t *testing.T) {
	first, second := map[string]string{"site/far.guard/last": `{}`}, map[string]string{"site/far.guard/last": `{}`}
	for i := range 600 {
		ref := fmt.Sprintf("site/far.guard/g%03d", i)
		first[ref], second[ref] = `{}`, `{"size":1}`
	}
	c := changed(t, first, second)
	c.same(t)
	if part, _, read := c.plan(t); read != 600 || len(part.Steps) != 600 {
		t.Errorf("%d resources were read, and there are %d steps", read, len(part.Steps))
	}
}
