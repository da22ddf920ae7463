package load

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/canonical"
	"converge.dev/converge/schema/kinds"
)

// Options say how a document is loaded. The zero value is good for documents one trusts.
type Options struct {
	// Evaluator evaluates everything that is not a single JSON source. Optional; nil evaluates in this process without
	// limits, which is for tests and for sources that one wrote oneself. See [ChildEvaluator].
	Evaluator Evaluator

	// Bounds are the limits on the document. Optional; the zero value stands for those that hold for every document.
	Bounds Bounds
}

// Document reads, checks and rules on the document that the sources make together. It returns the document, or nil and
// diagnostics of which at least one is an error; warnings may come with a document. At most 100 diagnostics are
// returned, the last of them saying how many more there are.
func Document(ctx context.Context, s *kinds.Schema, o Options, sources ...Source) (*schema.Document, Diagnostics) {
	origin, doc, ds := read(ctx, o, sources)
	if doc == nil {
		return nil, ds
	}
	found := &findings{}
	for _, v := range s.CheckHead(doc) {
		found.violation(nil, v)
	}
	st := split(s, doc)
	checkAll(ctx, s, st, found)
	if err := ctx.Err(); err != nil {
		return nil, Diagnostics{{Severity: Error, Code: codeInterrupted, Summary: summaries[codeInterrupted], Detail: fmt.Sprintf("Loading the document was cancelled: %v.", context.Cause(ctx))}}
	}
	for _, r := range rules {
		r.check(st, &reporter{findings: found, rule: r})
	}
	ds = append(origin.warnings, origin.diagnostics(found, s.IsSecret)...)
	if ds.HasErrors() {
		return nil, ds
	}
	return st.document(doc), ds
}

// A site is what rules look at: every resource of a document. What rules must not trust is marked.
type site struct {
	doc       map[string]any
	kinds     schema.Kinds
	resources []*resource            // sorted by ref
	byKind    map[string][]*resource // the same by kind, in the same order
	index     map[schema.Ref]*resource
	macs      map[string]bool // by kind: see macKinds
}

// A resource is a resource of the document while it is being loaded.
type resource struct {
	schema.Resource
	kind     *schema.Kind
	path     []string
	json     canonical.Raw  // the spec as the document has it
	sound    bool           // its fields have the types that the kind says; never of what is external, which states none
	depends  []string       // depends_on
	waits    map[string]any // timeouts
	number   int            // place in the site
	dangling bool           // some of After is not in the document
}

// split finds the resources in a document. What is not where a resource can be has been reported by checkHead.
func split(s *kinds.Schema, doc map[string]any) *site {
	st := &site{doc: doc, kinds: s.Kinds(), byKind: make(map[string][]*resource)}
	st.add(schema.ScopeSite, nil, doc)
	for node, at := range sorted(doc["nodes"]) {
		if node != schema.ScopeSite {
			st.add(node, []string{"nodes", node}, at)
		}
	}
	slices.SortFunc(st.resources, func(a, b *resource) int { return a.Ref.Compare(b.Ref) })
	st.index = make(map[schema.Ref]*resource, len(st.resources))
	for i, r := range st.resources {
		r.number = i
		st.index[r.Ref] = r
		st.byKind[r.Ref.Kind] = append(st.byKind[r.Ref.Kind], r)
	}
	return st
}

// add finds the resources of one scope.
func (st *site) add(scope string, path []string, at any) {
	for provider, nouns := range sorted(at) {
		for noun, resources := range sorted(nouns) {
			kind := st.kinds[provider+"."+noun]
			if kind == nil || kind.Node != (scope != schema.ScopeSite) {
				continue
			}
			for name, spec := range sorted(resources) {
				if spec, ok := spec.(map[string]any); ok {
					st.resources = append(st.resources, &resource{
						Resource: schema.Resource{Ref: schema.Ref{Scope: scope, Kind: kind.Name, Name: name}, Spec: spec},
						kind:     kind,
						path:     slices.Concat(path, []string{provider, noun, name}),
					})
				}
			}
		}
	}
}

// sorted ranges over an object in the order of its names; over nothing when v is none.
func sorted(v any) func(yield func(string, any) bool) {
	m, _ := v.(map[string]any)
	return func(yield func(string, any) bool) {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if !yield(name, m[name]) {
				return
			}
		}
	}
}

// chunkSize is how many resources one worker checks at a time.
const chunkSize = 256

// checkAll checks every resource against its kind and finds what it refers to. It stops early when there is more to say
// than anyone will read; what it found by then does not depend on the number of workers.
func checkAll(ctx context.Context, s *kinds.Schema, st *site, found *findings) {
	chunks := slices.Collect(slices.Chunk(st.resources, chunkSize))
	results := make([]findings, len(chunks))
	var next, total atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(chunks)) {
		wg.Go(func() {
			for ctx.Err() == nil && total.Load() < enough {
				i := int(next.Add(1)) - 1
				if i >= len(chunks) {
					return
				}
				checkChunk(s, st, chunks[i], &results[i])
				total.Add(int64(len(results[i].problems)))
			}
		})
	}
	wg.Wait()
	for i := range results {
		found.problems = append(found.problems, results[i].problems...)
		if results[i].more != "" {
			found.drop(results[i].more)
		}
		if len(found.problems) >= enough { // chunks are taken in order, so all up to here are complete
			if i+1 < len(chunks) {
				found.drop(Error)
			}
			return
		}
	}
}

func checkChunk(s *kinds.Schema, st *site, chunk []*resource, found *findings) {
	var text []byte
	ends := make([]int, len(chunk))
	for i, r := range chunk {
		text = canonical.Append(text, map[string]any(r.Spec)) // before defaults are filled in
		ends[i] = len(text)
		if v := s.CheckName(r.kind, r.Ref.Name); v != nil {
			found.violation(r.path, *v)
		}
		violations := s.CheckSpec(r.kind, r.Spec)
		for _, v := range violations {
			found.violation(r.path, v)
		}
		r.sound = len(violations) == 0
		switch {
		case !r.sound:
		case s.IsExternal(r.kind, r.Spec):
			r.External, r.Spec, r.sound = external(r.Spec), schema.Object{}, false
		default:
			r.detach()
			st.refer(r)
		}
	}
	start := 0
	for i, r := range chunk {
		r.json = canonical.Raw(text[start:ends[i]:ends[i]])
		start = ends[i]
	}
}

// external reads what a document says of a thing that nobody declares.
func external(spec schema.Object) *schema.External {
	id := textOf(objectOf(spec["external"]), "id")
	return &schema.External{ID: id}
}

// detach moves what every resource may carry from the spec into the fields of the resource.
func (r *resource) detach() {
	if l, ok := r.Spec["lifecycle"].(map[string]any); ok {
		r.Lifecycle.Protect, _ = l["protect"].(bool)
		onRemove, _ := l["on_remove"].(string)
		adopt, _ := l["adopt"].(string)
		r.Lifecycle.OnRemove, r.Lifecycle.Adopt = schema.OnRemove(onRemove), schema.Adopt(adopt)
		r.Lifecycle.ID, _ = l["id"].(string)
		r.Lifecycle.Ignore = stringsOf(l["ignore"])
	}
	if t, ok := r.Spec["timeouts"].(map[string]any); ok {
		r.waits = t
		r.Timeouts = schema.Timeouts{Create: duration(t["create"]), Update: duration(t["update"]), Delete: duration(t["delete"])}
	}
	r.depends = stringsOf(r.Spec["depends_on"])
	delete(r.Spec, "lifecycle")
	delete(r.Spec, "timeouts")
	delete(r.Spec, "depends_on")
}

func stringsOf(v any) []string {
	l, _ := v.([]any)
	var out []string
	for _, e := range l {
		if s, ok := e.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// duration reads a wait; one that cannot be read is zero here and reported by the rule timeout-range.
func duration(v any) time.Duration {
	s, _ := v.(string)
	d, _ := time.ParseDuration(s)
	return d
}

// document makes the result of a site in which nothing is wrong.
func (st *site) document(doc map[string]any) *schema.Document {
	d := &schema.Document{Resources: make([]schema.Resource, len(st.resources))}
	size := 4096
	for i, r := range st.resources {
		size += len(r.json) + len(r.Ref.Name) + 8
		d.Resources[i] = r.Resource
		at := doc
		for _, name := range r.path[:len(r.path)-1] {
			at = at[name].(map[string]any)
		}
		at[r.Ref.Name] = r.json
	}
	if s, ok := doc["site"].(map[string]any); ok {
		d.Site.Name, _ = s["name"].(string)
		d.Site.ID, _ = s["id"].(string)
		d.Site.Serial, _ = s["serial"].(int64)
	}
	if p, ok := doc["policy"].(map[string]any); ok {
		d.Policy.MaxDestroy, _ = p["max_destroy"].(string)
	}
	d.JSON = canonical.Append(make([]byte, 0, size), doc)
	sum := sha256.Sum256(d.JSON)
	d.Digest = hex.EncodeToString(sum[:])
	return d
}
