package load

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/rogpeppe/go-internal/txtar"

	"converge.dev/converge/internal/loadtest"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/rules"
)

// A pool has resources and policies to make documents from, right ones and wrong ones.
type pool struct {
	schema   *kinds.Schema
	kinds    []string
	refs     map[string][]schema.Ref // by kind
	variants map[schema.Ref][]map[string]any
	policies []any
}

// add takes everything that the documents have which can be decoded.
func (p *pool) add(t *testing.T, documents ...[]Source) *pool {
	for _, sources := range documents {
		var resources []*rules.Resource
		_, doc, _ := read(t.Context(), Options{}, sources, func(path []string, v any) {
			if r := rules.NewResource(p.schema.Kinds(), path, v); r != nil {
				resources = append(resources, r)
			}
		})
		if doc == nil {
			continue
		}
		for _, r := range resources {
			if p.variants[r.Ref] == nil {
				p.refs[r.Ref.Kind] = append(p.refs[r.Ref.Kind], r.Ref)
			}
			p.variants[r.Ref] = append(p.variants[r.Ref], r.Spec)
		}
		if doc["policy"] != nil {
			p.policies = append(p.policies, doc["policy"])
		}
	}
	p.kinds = slices.Sorted(maps.Keys(p.refs))
	return p
}

func newPool(s *kinds.Schema) *pool {
	return &pool{schema: s, refs: map[string][]schema.Ref{}, variants: map[schema.Ref][]map[string]any{}}
}

// draw returns a resource of the pool, sometimes with a field of another of its kind.
func (p *pool) draw(rnd *rand.Rand, kind string) (schema.Ref, map[string]any) {
	any := func() (schema.Ref, map[string]any) {
		ref := p.refs[kind][rnd.IntN(len(p.refs[kind]))]
		return ref, p.variants[ref][rnd.IntN(len(p.variants[ref]))]
	}
	ref, spec := any()
	spec = maps.Clone(spec)
	if _, from := any(); rnd.IntN(2) == 0 && len(from) > 0 {
		names := slices.Sorted(maps.Keys(from))
		name := names[rnd.IntN(len(names))]
		spec[name] = from[name]
	}
	return ref, spec
}

// put puts a resource into a tree.
func put(doc map[string]any, ref schema.Ref, spec map[string]any) {
	at := doc
	for _, name := range strings.Split(strings.TrimSuffix(ref.Path(), "."+ref.Name), ".") { // a PCI address has a dot
		if at[name] == nil {
			at[name] = map[string]any{}
		}
		at = at[name].(map[string]any)
	}
	at[ref.Name] = spec
}

func asJSON(t *testing.T, doc map[string]any) []byte {
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// texts returns what diagnostics say, beginning with the codes.
func texts(ds Diagnostics) map[string]bool {
	texts := map[string]bool{}
	for _, d := range ds {
		texts[d.Code+" "+d.Path+" "+d.Detail] = true
	}
	return texts
}

// Every revision is what the whole text is when it is loaded, and is refused when that is refused, with some of the same errors. It
// warns of what is new.
func TestRevise(t *testing.T) {
	s := embedded(t)
	few, many := 60, 250 // revisions at a time
	if raceEnabled {     // what runs at the same time does so in each of them
		few, many = 8, 30
	}
	broken := map[string]bool{} // codes
	everything := newPool(s).add(t, []Source{{Name: "example.cue", Data: []byte(schema.Example)}}, []Source{{Name: "large.json", Data: loadtest.Site(60)}})
	example := everything.variants
	cases, _ := filepath.Glob("testdata/wrong/*.txtar")
	for _, name := range cases {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var sources []Source
		for _, f := range archive.Files {
			if f.Name != "want" {
				sources = append(sources, Source{Name: f.Name, Data: f.Data})
			}
		}
		everything.add(t, sources)
		if one := newPool(s).add(t, sources); len(one.kinds) > 0 {
			for seed := range uint64(3) {
				revise(t, one, nil, seed, few, broken)
			}
		}
	}
	valid := map[schema.Ref]map[string]any{}
	for ref, variants := range example {
		valid[ref] = variants[0]
	}
	for seed := range uint64(3) {
		if n := revise(t, everything, nil, seed, many, broken) + revise(t, everything, valid, seed, many, broken); n < many/5 {
			t.Errorf("seed %d: only %d revisions were accepted", seed, n)
		}
	}
	for _, r := range rules.All() {
		if !broken[r.Code] && !raceEnabled {
			t.Errorf("%s %s was never broken", r.Code, r.Name)
		}
	}
}

// revise makes revisions of a document that begins with the resources of first, and adds the codes of what is wrong with them to
// broken. It returns how many are accepted.
func revise(t *testing.T, p *pool, first map[schema.Ref]map[string]any, seed uint64, steps int, broken map[string]bool) (accepted int) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 0))
	head := map[string]any{"apiVersion": schema.APIVersion, "site": map[string]any{"name": "a", "id": loadtest.SiteID, "serial": int64(1)}}
	c, ds := NewCurrent(t.Context(), p.schema, Source{Name: "first.json", Data: asJSON(t, head)})
	if c == nil {
		t.Fatal(render(ds))
	}
	again, ds := NewCurrent(t.Context(), p.schema, Source{Name: "first.json", Data: asJSON(t, head)}) // becomes what the other is
	if again == nil {
		t.Fatal(render(ds))
	}
	all, warned := map[schema.Ref]map[string]any{}, map[string]bool{}
	resources, become := map[schema.Ref]schema.Resource{}, map[schema.Ref]schema.Resource{}
	for step := range steps {
		edit, next, nextHead := map[string]any{}, maps.Clone(all), maps.Clone(head)
		var remove []schema.Ref
		write := func(ref schema.Ref, spec map[string]any) {
			put(edit, ref, spec)
			next[ref] = spec
		}
		if step == 0 {
			for ref, spec := range first {
				write(ref, spec)
			}
		}
		if len(all) > 0 && rnd.IntN(4) == 0 {
			refs := slices.SortedFunc(maps.Keys(all), schema.Ref.Compare)
			ref := refs[rnd.IntN(len(refs))]
			remove = append(remove, ref)
			delete(next, ref)
		}
		kind := p.kinds[rnd.IntN(len(p.kinds))]
		for range rnd.IntN(5) {
			if rnd.IntN(3) == 0 {
				kind = p.kinds[rnd.IntN(len(p.kinds))]
			}
			write(p.draw(rnd, kind))
		}
		if rnd.IntN(10) == 0 {
			nextHead["site"] = map[string]any{"name": "a", "id": loadtest.SiteID, "serial": int64(step + 2)}
			edit["site"] = nextHead["site"]
		}
		if rnd.IntN(20) == 0 && len(p.policies) > 0 {
			nextHead["policy"] = p.policies[rnd.IntN(len(p.policies))]
			edit["policy"] = nextHead["policy"]
		}
		doc := maps.Clone(nextHead)
		for ref, spec := range next {
			put(doc, ref, spec)
		}
		fail := func(format string, args ...any) {
			t.Helper()
			t.Fatalf("seed %d, step %d, edit %s without %v: "+format, append([]any{seed, step, asJSON(t, edit), remove}, args...)...)
		}
		before := c.doc.Digest
		want, wantDs := Document(t.Context(), p.schema, Options{}, Source{Name: "whole.json", Data: asJSON(t, doc)})
		rev, gotDs := c.Revise(t.Context(), Source{Name: "edit.json", Data: asJSON(t, edit)}, remove...)
		whole, revised := texts(wantDs), texts(gotDs)
		for text := range revised {
			broken[text[:len("CV0000")]] = true
			if !whole[text] && len(wantDs) < maxDiagnostics {
				fail("only the revision says %s", text)
			}
		}
		if rev == nil || want == nil {
			if rev != nil || want != nil || c.doc.Digest != before {
				fail("the whole is\n%s\nand the revision\n%s", render(wantDs), render(gotDs))
			}
			continue
		}
		accepted++
		for text := range whole {
			if !revised[text] && !warned[text] {
				fail("the revision does not say %s", text)
			}
		}
		all, head, warned = next, nextHead, whole
		keep := func(in map[schema.Ref]schema.Resource, rev *Revision) {
			for ref, r := range rev.Resources {
				if delete(in, ref); r != nil {
					in[ref] = *r
				}
			}
		}
		keep(resources, rev)
		got := c.Document()
		if rev, ds := again.Become(t.Context(), got.JSON); rev == nil {
			fail("it does not become what it is:\n%s", render(ds))
		} else {
			keep(become, rev)
		}
		if is := again.Document(); !reflect.DeepEqual(got, is) {
			fail("it has become something else (-want +got):\n%s", cmp.Diff(got, is))
		}
		if !reflect.DeepEqual(resources, become) {
			fail("what it tells that it becomes adds up to other resources (-want +got):\n%s", cmp.Diff(resources, become))
		}
		told := slices.SortedFunc(maps.Values(resources), func(a, b schema.Resource) int { return a.Ref.Compare(b.Ref) })
		if string(got.JSON) != string(want.JSON) || got.Digest != want.Digest || got.Site != want.Site || !reflect.DeepEqual(got.Policy, want.Policy) {
			fail("the text is\n%s\nwant\n%s", got.JSON, want.JSON)
		}
		if diff := cmp.Diff(want.Resources, got.Resources); diff != "" {
			fail("the resources (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want.Resources, told, cmpopts.EquateEmpty()); diff != "" {
			fail("what all revisions tell adds up to other resources (-want +got):\n%s", diff)
		}
	}
	return accepted
}

// A rule may follow two references: an instance belongs to the tenant of the VPC of the prefix that it is attached to.
func TestReviseAtTwoReferences(t *testing.T) {
	s := embedded(t)
	head := `{"apiVersion":"converge.dev/v1","site":{"name":"a","id":"` + loadtest.SiteID + `"},"carbide":{"tenant":{"acme":{},"umbra":{}},
		"vpc":{"prod":{"tenant":"acme"}},"vpc_prefix":{"links":{"vpc":"prod","prefix":"10.0.0.0/24"}},"instance_type":{"gpu":{}},
		"instance":{"web":{"tenant":"acme","instance_type":"gpu","os":{"ipxe":"#!ipxe"},"interfaces":[{"function":"physical","vpc_prefix":"links"}]}}}}`
	c, ds := NewCurrent(t.Context(), s, Source{Name: "site.json", Data: []byte(head)})
	if c == nil {
		t.Fatal(render(ds))
	}
	rev, ds := c.Revise(t.Context(), Source{Name: "edit.json", Data: []byte(`{"carbide":{"vpc":{"prod":{"tenant":"umbra"}}}}`)})
	if rev != nil || len(ds) != 1 || ds[0].Code != "CV1131" || ds[0].Path != "carbide.instance.web.interfaces.0.vpc_prefix" || ds[0].Range != nil {
		t.Errorf("the revision is %v:\n%s", rev, render(ds))
	}
}

// A document that would be too large is refused, whatever each revision adds.
func TestReviseWithinTheLimits(t *testing.T) {
	if raceEnabled {
		t.Skip("a document at the limit takes a minute with the race detector, and is checked as any other")
	}
	s := embedded(t)
	tenants := func(from, n int) []byte {
		all := map[string]any{}
		for i := range n {
			all[fmt.Sprintf("t%06d", from+i)] = map[string]any{}
		}
		return asJSON(t, map[string]any{"apiVersion": schema.APIVersion, "site": map[string]any{"name": "a", "id": loadtest.SiteID}, "carbide": map[string]any{"tenant": all}})
	}
	c, ds := NewCurrent(t.Context(), s, Source{Name: "site.json", Data: tenants(0, maxResources-1)})
	if c == nil {
		t.Fatal(render(ds))
	}
	if rev, ds := c.Revise(t.Context(), Source{Name: "edit.json", Data: tenants(maxResources-1, 1)}); rev == nil {
		t.Fatal(render(ds))
	}
	rev, ds := c.Revise(t.Context(), Source{Name: "edit.json", Data: tenants(maxResources, 1)})
	if rev != nil || len(ds) != 1 || ds[0].Code != codeTooLarge || len(c.Document().Resources) != maxResources {
		t.Errorf("the revision is %v:\n%s", rev, render(ds))
	}
}

// What would have to be evaluated is no revision: it could take any time and memory of this process.
func TestReviseTakesJSON(t *testing.T) {
	s := embedded(t)
	for _, source := range []Source{{Name: "site.cue", Data: []byte("x: 1")}, {Name: "site.yaml", Data: []byte("x: 1")}, {Name: ".", Dir: true}} {
		if c, ds := NewCurrent(t.Context(), s, source); c != nil || len(ds) != 1 || ds[0].Code != codeSyntax {
			t.Errorf("%s: %v", source.Name, ds)
		}
	}
	c, ds := NewCurrent(t.Context(), s, Source{Name: "site.json", Data: asJSON(t, map[string]any{"apiVersion": schema.APIVersion, "site": map[string]any{"name": "a", "id": loadtest.SiteID}})})
	if c == nil {
		t.Fatal(render(ds))
	}
	if rev, ds := c.Revise(t.Context(), Source{Name: "edit.cue", Data: []byte("carbide: tenant: acme: {}")}); rev != nil || len(ds) != 1 || ds[0].Code != codeSyntax {
		t.Errorf("%v", ds)
	}
}

// A text that is not as documents are stored is read as a whole.
func TestBecomeWhatIsOdd(t *testing.T) {
	s := embedded(t)
	many := func(extra string) string {
		var b strings.Builder
		b.WriteString(`{"apiVersion":"converge.dev/v1","carbide":{"tenant":{`)
		for i := range 40 {
			if i > 0 {
				b.WriteString(",")
			}
			b.WriteString(`"t` + string(rune('a'+i%26)) + string(rune('a'+i/26)) + `":{}`)
		}
		b.WriteString(`}}` + extra + `,"site":{"id":"` + loadtest.SiteID + `","name":"a"}}`)
		return b.String()
	}
	for _, x := range []struct{ from, to string }{
		{`,"policy":{"max_destroy":"3"}`, `,"policy":null`},
		{`,"policy":{"max_destroy":"3"}`, `,"policy":{}`},
		{`,"policy":{"max_destroy":"3"}`, ``},
		{``, `,"policy":{"max_destroy":"3"}`},
		{``, `,"nodes":{}`},
		{``, `,"nodes":null`},
		{``, `,"nodes":{"n1":{}}`},
		{``, `,"nodes":{"n1":{"ovs":{}}}`},
		{``, `,"nodes":{"n1":{"ovs":null}}`},
		{``, `,"nodes":{"n1":{"nothing":{}}}`},
		{``, `,"nodes":{"N 1":{}}`},
		{``, `,"nothing":{}`},
		{``, `,"ovs":{"bridge":{}}`},
		{``, `,"policy":{"max_destroy":3}`},
	} {
		c, ds := NewCurrent(t.Context(), s, Source{Name: "a.json", Data: []byte(many(x.from))})
		if c == nil {
			t.Fatal(ds)
		}
		rev, ds := c.Become(t.Context(), []byte(many(x.to)))
		whole, wholeDs := NewCurrent(t.Context(), s, Source{Name: "document.json", Data: []byte(many(x.to))})
		if (rev == nil) != (whole == nil) {
			t.Errorf("%s -> %s: became %v (%v), anew %v (%v)", x.from, x.to, rev != nil, ds, whole != nil, wholeDs)
			continue
		}
		if whole == nil {
			continue
		}
		a, b := whole.Document(), c.Document()
		a.JSON, b.JSON, a.Digest, b.Digest = nil, nil, "", ""
		if d := cmp.Diff(a, b); d != "" {
			t.Errorf("%s -> %s: %s", x.from, x.to, d)
		}
	}
}
