package load

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/internal/loadtest"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// embedded compiles the embedded schema.
func embedded(t testing.TB) *kinds.Schema {
	t.Helper()
	s, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// small compiles a schema of two kinds of the site and one of nodes.
func small(t testing.TB) *kinds.Schema {
	t.Helper()
	core, err := schema.Files.ReadFile("core/core.cue")
	if err != nil {
		t.Fatal(err)
	}
	s, err := kinds.NewFrom(fstest.MapFS{
		"core/core.cue": {Data: core},
		"toy/toy.cue": {Data: []byte(`package converge

#Site: toy?: owner?: [#LabelName]: #ToyOwner
#Site: toy?: thing?: [#LabelName]: #ToyThing
#Node: toy?: box?: [#LabelName]: #ToyBox

// An owner.
#ToyOwner: {
	#Resource
	password?: #Secret @secret()
}

// A thing.
#ToyThing: {
	#Resource
	owner!: #LabelName @ref(toy.owner)
	size:   *7 | int
	tags?: [...string] @set()
}

// A box on a node.
#ToyBox: {
	#Resource
	thing?: #LabelName @ref(toy.thing)
	on?: [...#LabelName] @ref(toy.box)
}
`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const head = `apiVersion: "converge.dev/v1"
site: {name: "x", id: "` + loadtest.SiteID + `"}
`

func loadCUE(t *testing.T, s *kinds.Schema, text string) (*schema.Document, Diagnostics) {
	t.Helper()
	return Document(context.Background(), s, Options{}, Source{Name: "site.cue", Data: []byte(head + text)})
}

func TestDocument(t *testing.T) {
	doc, ds := loadCUE(t, small(t), `
site: serial: 42
policy: max_destroy: "10%"
toy: owner: acme: {}
toy: thing: c: {owner: "0a1b2c3d-0000-4000-8000-00000000000f", lifecycle: id: "7"}
toy: thing: {
	b: {owner: "acme", tags: ["z", "a"], depends_on: ["site/toy.thing/a", "n2/toy.box/x"]}
	a: {
		owner: "acme", size: 1
		lifecycle: {protect: true, on_remove: "forget", adopt: "match", ignore: ["size"]}
		timeouts: {create: "90s", delete: "1h"}
	}
}
nodes: n2: toy: box: x: {thing: "a", on: ["y"]}
nodes: n2: toy: box: y: {}
nodes: n1: toy: box: y: {}
`)
	if doc == nil || len(ds) > 0 {
		t.Fatal(ds)
	}
	ref := func(s string) schema.Ref {
		r, err := schema.ParseRef(s)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	want := []schema.Resource{
		{Ref: ref("site/toy.owner/acme"), Spec: schema.Object{}},
		{
			Ref: ref("site/toy.thing/a"), Spec: schema.Object{"owner": "acme", "size": int64(1)}, After: []schema.Ref{ref("site/toy.owner/acme")},
			Lifecycle: schema.Lifecycle{Protect: true, OnRemove: schema.Forget, Adopt: schema.AdoptMatch, Ignore: []string{"size"}},
			Timeouts:  schema.Timeouts{Create: 90 * time.Second, Delete: time.Hour},
		},
		{
			Ref: ref("site/toy.thing/b"), Spec: schema.Object{"owner": "acme", "size": int64(7), "tags": []any{"a", "z"}},
			After: []schema.Ref{ref("site/toy.owner/acme"), ref("site/toy.thing/a"), ref("n2/toy.box/x")},
		},
		{ // refers to what no document declares, by its external id
			Ref: ref("site/toy.thing/c"), Spec: schema.Object{"owner": "0a1b2c3d-0000-4000-8000-00000000000f", "size": int64(7)},
			Outside: []schema.Ref{ref("site/toy.owner/0a1b2c3d-0000-4000-8000-00000000000f")}, Lifecycle: schema.Lifecycle{ID: "7"},
		},
		{Ref: ref("n1/toy.box/y"), Spec: schema.Object{}},
		{Ref: ref("n2/toy.box/x"), Spec: schema.Object{"thing": "a", "on": []any{"y"}}, After: []schema.Ref{ref("site/toy.thing/a"), ref("n2/toy.box/y")}},
		{Ref: ref("n2/toy.box/y"), Spec: schema.Object{}},
	}
	if diff := cmp.Diff(want, doc.Resources); diff != "" {
		t.Errorf("resources (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(schema.Site{Name: "x", ID: loadtest.SiteID, Serial: 42}, doc.Site); diff != "" {
		t.Error(diff)
	}
	if doc.Policy.MaxDestroy != "10%" {
		t.Errorf("policy %+v", doc.Policy)
	}
	// The text has no defaults, but everything that the author wrote, with lists in the original order.
	if text := string(doc.JSON); strings.Contains(text, `"size":7`) || !strings.Contains(text, `"tags":["z","a"]`) || !strings.Contains(text, `"timeouts":{"create":"90s","delete":"1h"}`) {
		t.Errorf("text %s", text)
	}
}

// TestOneDigest writes one document in every form and expects a single text of it.
func TestOneDigest(t *testing.T) {
	s := small(t)
	var first *schema.Document
	for _, sources := range [][]Source{
		{{Name: "a.json", Data: []byte(`{"toy": {"thing": {"a": {"size": 3.0, "owner": "o1"}}, "owner": {"o1": {}}}, "site": {"id": "` + loadtest.SiteID + `", "name": "x"}, "apiVersion": "converge.dev/v1"}`)}},
		{{Name: "a.yaml", Data: []byte("apiVersion: converge.dev/v1\nsite:\n  name: x\n  id: " + loadtest.SiteID + "\ntoy:\n  owner: &none {o1: {}}\n  thing:\n    a: {owner: o1, size: 3}\n")}},
		{{Name: "a.cue", Data: []byte(head + `_n: 1, toy: {owner: "o\(_n)": {}, thing: a: {owner: "o1", size: _n + 2}}`)}},
		{
			{Name: "a.cue", Data: []byte("package site\n" + head + "toy: thing: a: _base\n")}, {Name: "b.cue", Data: []byte("package site\n_base: {owner: \"o1\"}")},
			{Name: "c.yml", Data: []byte("toy: {owner: {o1: {}}}")}, {Name: "d.json", Data: []byte(`{"toy":{"thing":{"a":{"size":3}}}}`)},
		},
		{{Name: "<stdin>", Data: []byte(`{"toy": {"thing": {"a": {"size": 3, "owner": "o1"}}, "owner": {"o1": {}}}, "site": {"id": "` + loadtest.SiteID + `", "name": "x"}, "apiVersion": "converge.dev/v1"}`)}},
	} {
		doc, ds := Document(context.Background(), s, Options{}, sources...)
		if doc == nil {
			t.Fatalf("%s: %v", sources[0].Name, ds)
		}
		if first == nil {
			first = doc
		}
		if diff := cmp.Diff(first, doc); diff != "" {
			t.Errorf("%s differs (-JSON +this):\n%s", sources[0].Name, diff)
		}
	}
	again, ds := Document(context.Background(), s, Options{}, Source{Name: "again.json", Data: first.JSON})
	if again == nil || again.Digest != first.Digest || !bytes.Equal(again.JSON, first.JSON) {
		t.Errorf("the text of a document loads to another: %v", ds)
	}
}

// TestSecretIsNotShown writes the secret itself where the place of a secret belongs: no diagnostic may repeat it.
// A text that is as documents are stored stays as it is, also where objects are empty.
func TestStoredFormStays(t *testing.T) {
	t.Parallel()
	text := `{"apiVersion":"converge.dev/v1","nodes":{"n1":{},"n2":{"toy":{}},"n3":{"toy":{"box":{}}},"n4":{"toy":{"box":{"a-1":{},"a1":{},"b":{"on":["a1"]}}}}},` +
		`"site":{"id":"` + loadtest.SiteID + `","name":"x"},"toy":{"owner":{"o-1":{},"o1":{"lifecycle":{"protect":true}}},"thing":{"a":{"owner":"o1"}}}}`
	doc, ds := Document(context.Background(), small(t), Options{}, Source{Name: "a.json", Data: []byte(text)})
	if doc == nil {
		t.Fatal(ds)
	}
	if string(doc.JSON) != text {
		t.Errorf("got  %s\nwant %s", doc.JSON, text)
	}
}

func TestSecretIsNotShown(t *testing.T) {
	s := small(t)
	for _, password := range []string{`"hunter2"`, `{from: "hunter2"}`, `{form: "hunter2"}`, `["hunter2"]`} {
		_, ds := loadCUE(t, s, "toy: owner: acme: password: "+password)
		if !ds.HasErrors() {
			t.Fatalf("%s is accepted", password)
		}
		out, err := json.Marshal([]any{ds, NewReport(ds)})
		if err != nil || strings.Contains(string(out)+ds.Err().Error(), "hunter2") {
			t.Errorf("%s is shown: %s, %v", password, out, err)
		}
	}
	for _, text := range []string{
		`toy: owner: acme: pasword: "hunter2"`,                                        // misspelt
		`toy: {owner: acme: password: "hunter2", thing: a: {owner: "acme", sise: 1}}`, // on the line of another problem
	} {
		_, ds := loadCUE(t, s, text)
		out, err := json.Marshal([]any{ds, NewReport(ds)})
		if err != nil || !ds.HasErrors() || strings.Contains(string(out)+ds.Err().Error(), "hunter2") {
			t.Errorf("%s is shown: %s, %v", text, out, err)
		}
	}
	doc, ds := loadCUE(t, s, `toy: owner: acme: password: from: "env:PASSWORD"`)
	if doc == nil || !cmp.Equal(doc.Resources[0].Spec, schema.Object{"password": map[string]any{"from": "env:PASSWORD"}}) {
		t.Errorf("the place of a secret: %v %v", doc, ds)
	}
}

// TestExternal reads external resources, which need no fields, not even required ones.
func TestExternal(t *testing.T) {
	s := embedded(t)
	doc, ds := loadCUE(t, s, `carbide: {
	vpc: shared: external: true
	tenant: acme: external: id: "acme-1"
	vpc: prod: tenant: "acme"
	vpc_peering: both: vpcs: ["shared", "prod"]
}`)
	if doc == nil {
		t.Fatal(ds)
	}
	got := map[string]any{}
	for _, r := range doc.Resources {
		if r.External != nil {
			got[r.Ref.String()] = *r.External
		} else {
			got[r.Ref.String()] = len(r.After)
		}
	}
	want := map[string]any{
		"site/carbide.vpc/shared": schema.External{}, "site/carbide.tenant/acme": schema.External{ID: "acme-1"},
		"site/carbide.vpc/prod": 1, "site/carbide.vpc_peering/both": 2,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for text, says := range map[string]string{
		`carbide: vpc: x: external: false`:                            "true",
		`carbide: vpc: x: external: {}`:                               "id",
		`carbide: vpc: x: {external: true, virtualization: "fnn"}`:    "virtualization",
		`carbide: vpc: x: {external: true, lifecycle: protect: true}`: "lifecycle",
	} {
		if doc, ds := loadCUE(t, s, text); doc != nil || !strings.Contains(ds.Err().Error(), says) {
			t.Errorf("%s: %v", text, ds)
		}
	}
}

// TestManyProblems checks that the first hundred are shown, in a reproducible order, and the rest counted.
func TestManyProblems(t *testing.T) {
	s := small(t)
	things := 5_000
	if raceEnabled {
		things = 2_000 // with more problems than are counted
	}
	var b strings.Builder
	for i := range things {
		fmt.Fprintf(&b, "toy: thing: \"t-%04d\": {owner: \"nobody\", sise: 1}\n", i)
	}
	var first Diagnostics
	for range 3 {
		_, ds := loadCUE(t, s, b.String())
		if first == nil {
			first = ds
		}
		if diff := cmp.Diff(first, ds); diff != "" {
			t.Fatalf("another time (-first +now):\n%s", diff)
		}
	}
	if len(first) != 101 {
		t.Fatalf("%d diagnostics", len(first))
	}
	for i, d := range first[:100] {
		if want := fmt.Sprintf("toy.thing.t-%04d.sise", i); d.Path != want || d.Range.Start.Line != i+3 {
			t.Errorf("diagnostic %d is %v, want %s", i, d, want)
		}
	}
	if last := first[100]; last.Code != codeTooMany || !strings.Contains(last.Detail, "at least 9") {
		t.Errorf("the last is %v", last)
	}
	few := strings.Join(strings.SplitAfter(b.String(), "\n")[:103], "")
	if _, ds := loadCUE(t, s, few); len(ds) != 101 || !strings.HasPrefix(ds[100].Detail, "And 3 more.") {
		t.Errorf("of 103: %d, the last %v", len(ds), ds[len(ds)-1])
	}
}

// TestErrorAmongWarnings hides one error behind more warnings than are shown: the document is still refused.
func TestErrorAmongWarnings(t *testing.T) {
	s := embedded(t)
	var b strings.Builder
	port := func(node int, name string) {
		fmt.Fprintf(&b, "nodes: \"n-%03d\": ovs: {bridge: br: {}, port: %s: {bridge: \"br\", interface: {type: \"internal\", mac: \"02:00:00:00:00:01\"}}}\n", node, name)
	}
	for i := range 200 {
		port(i, "p1")
	}
	doc, ds := loadCUE(t, s, b.String())
	if doc == nil || len(ds) != 101 || ds[100].Severity != Warning {
		t.Fatalf("warnings alone: %d, the last %v", len(ds), ds[len(ds)-1])
	}
	port(199, "p2")
	doc, ds = loadCUE(t, s, b.String())
	if doc != nil || len(ds) != 101 || ds[100].Severity != Error {
		t.Errorf("with an error: %d, the last %v", len(ds), ds[len(ds)-1])
	}
}

func TestLoadIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	doc, ds := Document(ctx, embedded(t), Options{}, Source{Name: "site.json", Data: loadtest.Site(1000)})
	if doc != nil || len(ds) != 1 || ds[0].Code != codeInterrupted {
		t.Errorf("%v %v", doc, ds)
	}
}

func TestNoSource(t *testing.T) {
	if doc, ds := Document(context.Background(), embedded(t), Options{}); doc != nil || !ds.HasErrors() {
		t.Errorf("%v %v", doc, ds)
	}
}

func TestSiteLoads(t *testing.T) {
	s := embedded(t)
	for _, n := range []int{1, 7, 20, 1000} {
		doc, ds := Document(context.Background(), s, Options{}, Source{Name: "site.json", Data: loadtest.Site(n)})
		if len(ds) > 0 || doc == nil {
			t.Fatalf("site of %d: %v", n, ds)
		}
		if len(doc.Resources) != n {
			t.Errorf("site of %d has %d resources", n, len(doc.Resources))
		}
	}
	for _, n := range []int{4, 1000} {
		doc, ds := Document(context.Background(), s, Options{}, Source{Name: "site.cue", Data: loadtest.SiteCUE(n)})
		if len(ds) > 0 || doc == nil {
			t.Fatalf("CUE site of %d: %v", n, ds)
		}
		if len(doc.Resources) != n+1 {
			t.Errorf("CUE site of %d has %d resources", n, len(doc.Resources))
		}
	}
}

// TestLoadIsLinear counts the allocations for one more resource: as many in a large site as in a small one.
func TestLoadIsLinear(t *testing.T) {
	if raceEnabled {
		t.Skip("the bytes are those of the race detector")
	}
	s := embedded(t)
	per := func(n int) float64 {
		source := Source{Name: "site.json", Data: loadtest.Site(n)}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, ds := Document(context.Background(), s, Options{}, source); ds.HasErrors() {
			t.Fatal(ds)
		}
		runtime.ReadMemStats(&after)
		return float64(after.TotalAlloc-before.TotalAlloc) / float64(n)
	}
	per(100) // for what is created once
	if few, many := per(2_000), per(20_000); many > 1.3*few {
		t.Errorf("a resource of 20 000 costs %.0f bytes, of 2 000 %.0f", many, few)
	}
}

func BenchmarkLoad(b *testing.B) {
	s := embedded(b)
	for _, n := range []int{1_000, 10_000, 100_000} {
		source := Source{Name: "site.json", Data: loadtest.Site(n)}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(len(source.Data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, ds := Document(context.Background(), s, Options{}, source); ds.HasErrors() {
					b.Fatal(ds[0])
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/resource")
		})
	}
}

func BenchmarkEvaluateCUE(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		source := Source{Name: "site.cue", Data: loadtest.SiteCUE(n)}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if _, ds := child(Limits{Time: time.Minute, Memory: 4 << 30})(context.Background(), []Source{source}); ds.HasErrors() {
					b.Fatal(ds[0])
				}
			}
		})
	}
}
