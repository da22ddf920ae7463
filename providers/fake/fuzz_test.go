package fake_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"converge.dev/converge/e2e/hostile/fuzzed"
	"converge.dev/converge/internal/budget"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
)

// FuzzOpen opens arbitrary worlds, file and journal. One that opens can be observed, and is the same when it is closed and
// opened again.
func FuzzOpen(tf *testing.F) {
	f := fuzzed.New(tf)
	kinds := schema.Kinds{
		"far.net": {Name: "far.net", Fields: []schema.Field{
			{Name: "cidr", Type: schema.String, Immutable: true}, {Name: "size", Type: schema.Int, Default: int64(7)},
		}},
		"far.host": {Name: "far.host", Fields: []schema.Field{
			{Name: "net", Type: schema.String, Ref: "far.net"}, {Name: "tags", Type: schema.List, Set: true, Elem: &schema.Field{Type: schema.String}},
		}},
		"near.port": {Name: "near.port", Node: true, Fields: []schema.Field{{Name: "labels", Type: schema.Map, Elem: &schema.Field{Type: schema.String}}}},
	}
	worlds := []string{
		``, `{}`, `null`, `[]`, `{"things":{}}`, `{"things":{"site":{"far.net":{"a":{"spec":{"cidr":"x"}},"b":{"name":"n","phase":"pending","spec":{}}}}}}`,
		`{"things":{"site":{"far.host":{"h":{"spec":{"net":"a","tags":["x"]},"mark":"s/site/far.host/h#1"}},"far.net":{"a":{"spec":{}}}},"n1":{"near.port":{"p":{"spec":{"labels":{"a":"b"}}}}}}}`,
		`{"things":{"site":{"far.net":{"a":null}}}}`, `{"things":{"site":{"no.kind":{"a":{"spec":{}}}}}}`, `{"things":{"n1":{"far.net":{"a":{"spec":{}}}}}}`, `{"things":{"site":{"far.net":{"":{"spec":{}}}}}}`,
		`{"things":{"site":{"far.net":{"a":{"spec":{"size":1.5}}}}}}`, `{"things":{"site":{"far.net":{"a":{"spec":{"nope":1}}}}}}`, `{"burned":{"site":{"far.net":["a","a"]}},"things":{}}`, `{"burned":{"x":{"no.kind":["a"]}}}`,
		`{"faults":[{"op":"create","ref":"site/far.net/a","class":"invalid"}],"things":{}}`, `{"faults":[{"op":"x"}]}`, `{"late":[{"op":"create","ref":"site/far.net/a","id":"i","due":"2026-11-21T10:00:00Z"}]}`,
		`{"late":[{"op":"create","ref":"site/no.kind/a"}]}`, `{"late":[{"op":"create","ref":"sipe/far.net/a","id":"i","due":"2026-11-21T10:00:00Z"}]}`, `{"late":[{"op":"delete","ref":"n1/far.net/a","id":"a"}]}`, `{"serial":-1}`, `{"nope":1}`, `{}{}`, "\xff",
		`{"things":{"site":{"far.net":{"a":{"phase":"leaving","until":"2026-01-01T00:00:00Z","spec":{}}}}}}`,
	}
	journals := []string{
		"", "\n", "{}\n", "{}", `{"serial":5,"at":{"scope":"site","kind":"far.net","id":"a"},"thing":{"spec":{"cidr":"y"},"version":"5"}}` + "\n",
		`{"at":{"scope":"site","kind":"far.net","id":"a"},"burned":true}` + "\n", `{"faults":[]}` + "\n" + `{"late":[]}` + "\n", `{"at":{"scope":"site","kind":"far.net","id":"a"}`, "null\n", "[]\n", `{"nope":1}` + "\n",
	}
	for i, w := range worlds {
		f.Add([]byte(w), []byte(journals[i%len(journals)]))
		f.Add([]byte(w), []byte(nil))
	}
	for _, j := range journals {
		f.Add([]byte(`{}`), []byte(j))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, world, journal []byte) {
		if len(world)+len(journal) > budget.Largest {
			return
		}
		path := filepath.Join(dir, "world.json")
		for name, text := range map[string][]byte{path: world, path + ".journal": journal} {
			if err := os.WriteFile(name, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var w *fake.World
		var err error
		budget.Spend(t, func() { w, err = fake.Open(path, kinds) })
		if err != nil {
			if w != nil {
				t.Errorf("refused with %v, and there is a world", err)
			}
			return
		}
		inspect(t, w)
		before := w.Snapshot()
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		again, err := fake.Open(path, kinds)
		if err != nil {
			t.Fatalf("world %q with journal %q closes as what does not open: %v", world, journal, err)
		}
		if now := again.Snapshot(); now != before {
			t.Errorf("world %q with journal %q was\n%s\nand is\n%s", world, journal, before, now)
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// inspect observes everything.
func inspect(t *testing.T, w *fake.World) {
	t.Helper()
	for _, at := range [][2]string{{"far", "site"}, {"near", "n1"}} {
		for _, k := range w.Provider(at[0], at[1]).Kinds {
			_, _ = providers.Collect(k.Kind.List(context.Background())) // a fault may refuse it
		}
	}
}
