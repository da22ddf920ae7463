package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"converge.dev/converge/internal/torture"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/load"
)

// placeholder marks the hostile text in a template. It is in no document and matches no grammar by chance.
const placeholder = "HERE-STANDS-THE-HOSTILE-TEXT"

// isTarget reports whether a resource of testdata/site.json takes the hostile text. Several of a kind together use every field
// of it; nothing refers to them. Where names have a grammar of their own they cannot say so.
func isTarget(kind, name string) bool {
	return strings.Contains(name, "target") || kind == "carbide.machine" || kind == "host.hugepages" || strings.HasPrefix(name, "0000:7a:")
}

// compiled is the embedded schema, compiled once.
var compiled = sync.OnceValues(kinds.New)

func embedded(tb testing.TB) *kinds.Schema {
	tb.Helper()
	s, err := compiled()
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// A position is a place in a document where the hostile text is put.
type position struct {
	kind  string
	where string     // name, node, key FIELD, value FIELD or head FIELD
	ref   schema.Ref // of the resource; the placeholder in it stands for the text
	path  []string   // in its spec, for key and value; the placeholder in it stands for a key
	isKey bool
	field *schema.Field // of a value; nil for the rest
	doc   []byte        // the document, with the placeholder

	serial      int // among all places
	turn, turns int // among those of its kind, and the number of these
}

func (p *position) String() string { return p.kind + " " + p.where }

// path0 returns the field of the kind that the place is in; "" for names.
func (p *position) path0() string {
	if len(p.path) == 0 {
		return ""
	}
	return p.path[0]
}

// due reports whether a text, given by its number, is tried here: nightly, always; on a push, as every name, and at one more
// place of each kind in turn; in a sample, once in as many combinations.
func (p *position) due(text, sample int) bool {
	switch sort, _, _ := strings.Cut(p.where, " "); torture.Scale(0, 1, 2) {
	case 0:
		return (p.serial*len(hostiles)+text)%sample == 0
	case 1:
		return sort == "name" || sort == "node" || text%p.turns == p.turn
	}
	return true
}

// isSecret reports whether the place says where to find a secret.
func (p *position) isSecret() bool {
	return p.field != nil && len(p.path) > 1 && p.path[len(p.path)-1] == "from"
}

// with returns the document with a hostile text in the place.
func (p *position) with(h hostile) []byte {
	return bytes.Replace(p.doc, []byte(`"`+placeholder+`"`), []byte(h.literal), 1)
}

// at returns the ref and the path with the text in its place.
func (p *position) at(text string) (schema.Ref, []string) {
	put := func(s string) string {
		if s == placeholder {
			return text
		}
		return s
	}
	path := slices.Clone(p.path)
	for i := range path {
		path[i] = put(path[i])
	}
	return schema.Ref{Scope: put(p.ref.Scope), Kind: p.ref.Kind, Name: put(p.ref.Name)}, path
}

// settable lists the kinds of which a document can say anything. What can only be observed is never made or recorded, and has no room
// for text but in names, which are one word or a PCI address.
func settable(s *kinds.Schema) []string {
	return slices.DeleteFunc(s.Kinds().Names(), func(name string) bool { return s.Kinds()[name].Reference() })
}

// positions lists every place where a kind has room for text. It fails when testdata/site.json does not use a field, so
// that a new kind or field cannot be forgotten.
func positions(t testing.TB) []*position {
	t.Helper()
	s := embedded(t)
	text, err := os.ReadFile("testdata/site.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, ds := load.Document(t.Context(), s, load.Options{}, load.Source{Name: "site.json", Data: text})
	if doc == nil {
		t.Fatal(ds.Err())
	}
	resources := map[schema.Ref]*schema.Resource{}
	for i := range doc.Resources {
		resources[doc.Resources[i].Ref] = &doc.Resources[i]
	}

	var all []*position
	for _, name := range settable(s) {
		k := s.Kinds()[name]
		scope := schema.ScopeSite
		if k.Node {
			scope = "gpu-01"
		}
		found := map[string]bool{}
		var targets []schema.Ref
		for ref := range resources {
			if ref.Scope == scope && ref.Kind == name && isTarget(ref.Kind, ref.Name) {
				targets = append(targets, ref)
			}
		}
		for i, ref := range schema.SortRefs(targets) {
			target := ref.Name
			base := pruned(t, text, resources, ref)
			add := func(where string, ref schema.Ref, path []string, f *schema.Field, change func(doc map[string]any)) {
				if found[where] {
					return
				}
				found[where] = true
				p := &position{kind: name, where: where, ref: ref, path: path, isKey: strings.HasPrefix(where, "key "), field: f}
				d := schema.Clone(base).(map[string]any)
				change(d)
				var err error
				if p.doc, err = json.Marshal(d); err != nil {
					t.Fatal(err)
				}
				if n := bytes.Count(p.doc, []byte(placeholder)); n != 1 {
					t.Fatalf("%s: the placeholder is there %d times", p, n)
				}
				all = append(all, p)
			}
			at := place(ref)
			if i == 0 {
				add("name", schema.Ref{Scope: scope, Kind: name, Name: placeholder}, nil, nil, func(d map[string]any) { rename(d, at, placeholder) })
				if k.Node {
					add("node", schema.Ref{Scope: placeholder, Kind: name, Name: target}, nil, nil, func(d map[string]any) { rename(d, at[:2], placeholder) })
				}
				for _, field := range []string{"lifecycle.on_remove", "lifecycle.adopt", "timeouts.create"} {
					outer, inner, _ := strings.Cut(field, ".")
					add("head "+field, ref, nil, nil, func(d map[string]any) {
						set(d, append(slices.Clone(at), outer), map[string]any{inner: placeholder})
					})
				}
				add("head lifecycle.ignore", ref, nil, nil, func(d map[string]any) {
					set(d, append(slices.Clone(at), "lifecycle"), map[string]any{"ignore": []any{placeholder}})
				})
				add("head depends_on", ref, nil, nil, func(d map[string]any) {
					set(d, append(slices.Clone(at), "depends_on"), []any{placeholder})
				})
			}
			spec := lookup(base, at).(map[string]any)
			walk(k.Fields, spec, nil, func(path []string, f *schema.Field, key string) {
				if key != "" {
					add("key "+strings.Join(path, "."), ref, append(slices.Clone(path), placeholder), nil, func(d map[string]any) {
						rename(d, slices.Concat(at, path, []string{key}), placeholder)
					})
					return
				}
				add("value "+strings.Join(path, "."), ref, path, f, func(d map[string]any) { set(d, slices.Concat(at, path), placeholder) })
			})
		}
		every(k.Fields, nil, func(path []string) {
			if where := "value " + strings.Join(path, "."); !found[where] && !slices.ContainsFunc(slices.Collect(maps.Keys(found)), func(w string) bool { return strings.HasPrefix(w, where+".") }) {
				t.Errorf("no target of %s in testdata/site.json uses the field %s", name, strings.Join(path, "."))
			}
		})
	}
	// The head of a document belongs to no kind.
	for _, field := range []string{"apiVersion", "site.name", "site.id", "policy.max_destroy"} {
		d := map[string]any{"apiVersion": schema.APIVersion, "site": map[string]any{"name": "hostile", "id": doc.Site.ID}, "policy": map[string]any{}}
		set(d, strings.Split(field, "."), placeholder)
		b, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &position{kind: "document", where: "head " + field, doc: b})
	}
	turns := map[string]int{}
	for i, p := range all {
		p.serial, p.turn = i, turns[p.kind]
		turns[p.kind]++
	}
	for _, p := range all {
		p.turns = turns[p.kind]
	}
	return all
}

// walk visits every string and every map of a spec, and every computed string that it lacks. A map is visited with the
// name of one of its members, a value with none.
func walk(fields []schema.Field, spec map[string]any, path []string, visit func(path []string, f *schema.Field, key string)) {
	for i := range fields {
		f := &fields[i]
		v, ok := spec[f.Name]
		at := append(slices.Clone(path), f.Name)
		if !ok && !(f.Computed && f.Type == schema.String) {
			continue
		}
		walkValue(f, v, at, visit)
	}
}

func walkValue(f *schema.Field, v any, at []string, visit func(path []string, f *schema.Field, key string)) {
	switch f.Type {
	case schema.String:
		visit(at, f, "")
	case schema.Struct:
		walk(f.Fields, v.(map[string]any), at, visit)
	case schema.List:
		if l := v.([]any); len(l) > 0 {
			walkValue(f.Elem, l[0], append(slices.Clone(at), "0"), visit)
		}
	case schema.Map:
		for key, e := range v.(map[string]any) {
			visit(at, f, key)
			walkValue(f.Elem, e, append(slices.Clone(at), key), visit)
		}
	}
}

// every visits the path of every field below which a document can hold text, as far as names are known.
func every(fields []schema.Field, path []string, visit func(path []string)) {
	for i := range fields {
		f := &fields[i]
		if f.Computed {
			continue
		}
		at := append(slices.Clone(path), f.Name)
		for f.Type == schema.List {
			f, at = f.Elem, append(at, "0")
		}
		switch f.Type {
		case schema.Struct:
			every(f.Fields, at, visit)
		case schema.String, schema.Map:
			visit(at)
		}
	}
}

// pruned returns the document with one resource and what it needs.
func pruned(t testing.TB, text []byte, resources map[schema.Ref]*schema.Resource, ref schema.Ref) map[string]any {
	t.Helper()
	var doc schema.Object
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	keep := map[schema.Ref]bool{}
	var need func(schema.Ref)
	need = func(r schema.Ref) {
		if keep[r] {
			return
		}
		keep[r] = true
		for _, after := range resources[r].After {
			need(after)
		}
	}
	need(ref)
	for r := range resources {
		if at := place(r); !keep[r] {
			delete(lookup(map[string]any(doc), at[:len(at)-1]).(map[string]any), r.Name)
		}
	}
	return doc
}

// place returns the path of a resource in a document.
func place(r schema.Ref) []string {
	provider, noun, _ := strings.Cut(r.Kind, ".")
	if r.Scope == schema.ScopeSite {
		return []string{provider, noun, r.Name}
	}
	return []string{"nodes", r.Scope, provider, noun, r.Name}
}

// lookup returns the value at a path; nil when there is none.
func lookup(v any, path []string) any {
	for _, name := range path {
		switch at := v.(type) {
		case map[string]any:
			v = at[name]
		case schema.Object:
			v = at[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i >= len(at) {
				return nil
			}
			v = at[i]
		default:
			return nil
		}
	}
	return v
}

// set replaces the value at a path.
func set(doc map[string]any, path []string, v any) {
	last := path[len(path)-1]
	switch at := lookup(doc, path[:len(path)-1]).(type) {
	case map[string]any:
		at[last] = v
	case []any:
		i, _ := strconv.Atoi(last)
		at[i] = v
	default:
		panic(fmt.Sprintf("the document has no place for %s", strings.Join(path, ".")))
	}
}

// rename changes the name of the member at a path.
func rename(doc map[string]any, path []string, name string) {
	at := lookup(doc, path[:len(path)-1]).(map[string]any)
	last := path[len(path)-1]
	at[name] = at[last]
	delete(at, last)
}
