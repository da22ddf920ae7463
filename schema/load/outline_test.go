package load

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/internal/loadtest"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// whole loads a document and its outline.
func whole(t testing.TB, s *kinds.Schema, text []byte) (*schema.Document, *Outline) {
	t.Helper()
	doc, ds := Document(context.Background(), s, Options{}, Source{Name: "site.json", Data: text})
	if ds.HasErrors() {
		t.Fatal(ds, string(text))
	}
	o, err := NewOutline(s, doc.JSON)
	if err != nil {
		t.Fatal(err)
	}
	return doc, o
}

// someSite returns a random document of the schema of [small]. Some names are also values, tags and parts of others, and
// some values contain quotes.
func someSite(r *rand.Rand) []byte {
	names := []string{"a", "b", "c", "size", "a-b", "x1"}
	pick := func() string { return names[r.IntN(len(names))] }
	some := func() (list []string) {
		for _, n := range names {
			if r.IntN(2) == 0 {
				list = append(list, n)
			}
		}
		return list
	}
	owners, things := map[string]any{}, map[string]any{}
	for _, n := range append(some(), "last") {
		owners[n] = map[string]any{}
	}
	owner := func() string {
		for {
			if n := pick(); owners[n] != nil {
				return n
			}
			if r.IntN(4) == 0 {
				return "last"
			}
		}
	}
	for _, n := range some() {
		thing := map[string]any{"owner": owner(), "size": r.IntN(2), "tags": []string{pick(), `"` + pick() + `"`, `\"` + pick()}}
		if r.IntN(3) == 0 {
			thing["depends_on"] = []string{"site/toy.owner/" + owner()}
		}
		things[n] = thing
	}
	nodes := map[string]any{}
	for _, node := range []string{"n1", "n2"} {
		boxes := map[string]any{}
		for _, n := range some() {
			box := map[string]any{}
			if t := pick(); things[t] != nil {
				box["thing"] = t
			}
			if on := pick(); on < n && boxes[on] != nil {
				box["on"] = []string{on}
			}
			boxes[n] = box
		}
		nodes[node] = map[string]any{"toy": map[string]any{"box": boxes}}
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": schema.APIVersion, "site": map[string]any{"name": "x", "id": loadtest.SiteID}, "nodes": nodes,
		"toy": map[string]any{"owner": owners, "thing": things},
	})
	if err != nil {
		panic(err)
	}
	return text
}

// TestOutline compares what an outline finds, and reads, with the same parts of the whole document.
func TestOutline(t *testing.T) {
	s := small(t)
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		doc, o := whole(t, s, someSite(r))
		before, was := whole(t, s, someSite(r))
		if o.Len() != len(doc.Resources) {
			t.Fatalf("%d: %d resources, want %d", seed, o.Len(), len(doc.Resources))
		}
		have, had := map[schema.Ref]schema.Resource{}, map[schema.Ref]schema.Resource{}
		for _, r := range before.Resources {
			had[r.Ref] = r
		}
		var changed, chosen, referring []schema.Ref
		for _, res := range doc.Resources {
			have[res.Ref] = res
			if old, ok := had[res.Ref]; !ok || !reflect.DeepEqual(old, res) {
				changed = append(changed, res.Ref)
			}
			if got := o.After(res.Ref); !slices.Equal(got, res.After) {
				t.Fatalf("%d: %s comes after %v, want %v", seed, res.Ref, got, res.After)
			}
			if r.IntN(4) == 0 {
				chosen = append(chosen, res.Ref)
			}
		}
		for ref := range had {
			if _, ok := have[ref]; !ok {
				changed = append(changed, ref)
			}
		}
		if got := o.Changed(was); !slices.Equal(got, schema.SortRefs(changed)) {
			t.Fatalf("%d: changed are %v, want %v", seed, got, changed)
		}
		for _, res := range doc.Resources {
			if slices.ContainsFunc(res.After, func(to schema.Ref) bool { return slices.Contains(chosen, to) }) {
				referring = append(referring, res.Ref)
			}
		}
		if got := o.Referring(chosen); !slices.Equal(got, referring) {
			t.Fatalf("%d: %v refer to %v, want %v", seed, got, chosen, referring)
		}
		part, ds := o.Part(context.Background(), doc.Digest, append(chosen, schema.Ref{Scope: "site", Kind: "toy.thing", Name: "gone"}))
		if ds.HasErrors() {
			t.Fatalf("%d: %v", seed, ds)
		}
		want := schema.Document{Site: doc.Site, Digest: doc.Digest, JSON: doc.JSON}
		need := slices.Clone(chosen)
		for i := 0; i < len(need); i++ {
			need = append(need, have[need[i]].After...)
		}
		for _, ref := range schema.SortRefs(need) {
			want.Resources = append(want.Resources, have[ref])
		}
		if len(want.Resources) == 0 {
			want.Resources = []schema.Resource{}
		}
		if !reflect.DeepEqual(*part, want) {
			t.Fatalf("%d: the part of %v is\n%v, want\n%v", seed, chosen, part.Resources, want.Resources)
		}
	}
}

// TestOutlineOfEscapes finds a name that the text spells differently.
func TestOutlineOfEscapes(t *testing.T) {
	text := fmt.Sprintf(`{"apiVersion": %q, "site": {"name": "x", "id": %q}, "toy": {
		"owner": {"ann": {}},
		"thing": {"t": {"owner": "\u0061nn", "tags": ["\\", "\"ann"]}, "u": {"owner": "ann"}}}}`, schema.APIVersion, loadtest.SiteID)
	o, err := NewOutline(small(t), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(o.Referring([]schema.Ref{{Scope: "site", Kind: "toy.owner", Name: "ann"}}))
	if want := "[site/toy.thing/t site/toy.thing/u]"; got != want {
		t.Errorf("%s refer to ann, want %s", got, want)
	}
}

// TestOutlineReferring also finds what may refer to something, as far as the document shows.
func TestOutlineReferring(t *testing.T) {
	const id, other = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
	o, err := NewOutline(embedded(t), fmt.Appendf(nil, `{"apiVersion": %q, "site": {"name": "x", "id": %q}, "carbide": {
		"network_security_group": {
			"web": {"tenant": "acme"}, "theirs": {"external": {"id": %[3]q}}, "others": {"external": {"id": %[4]q}}, "called": {"external": true}
		},
		"vpc": {
			"named": {"tenant": "acme", "network_security_group": "web"},
			"by-id": {"tenant": "acme", "network_security_group": %[3]q},
			"aside": {"tenant": "acme", "lifecycle": {"ignore": ["labels.x", "network_security_group"]}},
			"labels": {"tenant": "acme", "lifecycle": {"ignore": ["labels"]}}
		}}}`, schema.APIVersion, loadtest.SiteID, id, other))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"web": "[site/carbide.vpc/aside site/carbide.vpc/named]",
		id:    "[site/carbide.network_security_group/called site/carbide.network_security_group/theirs site/carbide.vpc/aside site/carbide.vpc/by-id]",
	} {
		if got := fmt.Sprint(o.Referring([]schema.Ref{{Scope: "site", Kind: "carbide.network_security_group", Name: name}})); got != want {
			t.Errorf("%s refer to %s, want %s", got, name, want)
		}
	}
}

// TestOutlineChecks checks what it reads: a text that was never accepted gets no further.
func TestOutlineChecks(t *testing.T) {
	s := small(t)
	head := fmt.Sprintf(`{"apiVersion": %q, "site": {"name": "x", "id": %q}, `, schema.APIVersion, loadtest.SiteID)
	o, err := NewOutline(s, []byte(head+`"toy": {"owner": {"ann": {}, "bob": {"nonsense": 1}}, "thing": {"t": {"owner": "nobody"}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"owner/ann": "", "owner/bob": "nonsense", "thing/t": "nobody"} {
		ref, _ := schema.ParseRef("site/toy." + name)
		doc, ds := o.Part(context.Background(), "", []schema.Ref{ref})
		if (doc == nil) != (want != "") || !strings.Contains(fmt.Sprint(ds), want) {
			t.Errorf("%s: %v, want %q", name, ds, want)
		}
	}
	for _, text := range []string{``, `[]`, `{`, `{"toy": 1}`, `{"toy": {"thing": []}}`, `{"nodes": {"n": 1}}`, head + `"toy": {}} {}`, `{"toy": {}, "toy": {}}`} {
		if _, err := NewOutline(s, []byte(text)); err == nil {
			t.Errorf("%s has an outline", text)
		}
	}
}

func BenchmarkOutline(b *testing.B) {
	s := embedded(b)
	for _, n := range []int{10_000, 100_000} {
		text := loadtest.Site(n)
		o, err := NewOutline(s, text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("read/%d", n), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := NewOutline(s, text); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("referring/%d", n), func(b *testing.B) {
			for b.Loop() {
				o.Referring([]schema.Ref{{Scope: "site", Kind: "carbide.vpc", Name: "vpc-0"}})
			}
		})
	}
}
