package load

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/canonical"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/rules"
)

// Options say how a document is loaded. The zero value is for trusted documents.
type Options struct {
	// Evaluator evaluates everything that is not a single JSON source. Optional; nil evaluates in this process without
	// limits, which is for tests and for your own sources. See [ChildEvaluator].
	Evaluator Evaluator

	// Bounds are the limits on the document. Optional; the zero value stands for the limits of every document.
	Bounds Bounds
}

// Document reads the document that the sources form together, checks it and applies all rules. It returns the document,
// or nil and diagnostics of which at least one is an error; warnings may come with a document. At most 100 diagnostics
// are returned, and one more that says how many others there are.
func Document(ctx context.Context, s *kinds.Schema, o Options, sources ...Source) (*schema.Document, Diagnostics) {
	l, ds := load(ctx, s, o, (*rules.Site).Check, sources)
	if l == nil {
		return nil, ds
	}
	return l.result(), ds
}

// A loaded is a valid document as it was read.
type loaded struct {
	doc   map[string]any
	site  *rules.Site
	specs []canonical.Raw // of the resources, as in the document
}

// load reads a document, and has its resources checked together.
func load(ctx context.Context, s *kinds.Schema, o Options, check func(*rules.Site, int) rules.Findings, sources []Source) (*loaded, Diagnostics) {
	in := newIntake(ctx, s)
	defer in.stop()
	origin, doc, ds := read(ctx, o, sources, in.take)
	if doc == nil {
		return nil, ds
	}
	st, specs, found := examine(ctx, s, doc, in)
	if ctx.Err() != nil {
		return nil, interrupted(ctx)
	}
	found.broken(check(st, maxDiagnostics), func(r *rules.Resource) ([]byte, bool) { return specs[r.Number], false })
	ds = append(origin.warnings, origin.diagnostics(found, s.IsSecret)...)
	if ds.HasErrors() {
		return nil, ds
	}
	return &loaded{doc, st, specs}, ds
}

// examine checks everything of a document that is not between resources, of which all have been taken. Specs are those in the document,
// by resource.
func examine(ctx context.Context, s *kinds.Schema, doc map[string]any, in *intake) (st *rules.Site, specs []canonical.Raw, found *findings) {
	found = &findings{}
	for _, p := range s.CheckHead(doc) {
		found.refused(nil, p)
	}
	st, all := in.site(doc)
	acceptAll(ctx, s, st, all, found)
	specs = make([]canonical.Raw, len(all))
	for i, t := range all {
		specs[i] = t.spec
	}
	return st, specs, found
}

func interrupted(ctx context.Context) Diagnostics {
	return Diagnostics{{Severity: Error, Code: codeInterrupted, Summary: summaries[codeInterrupted], Detail: fmt.Sprintf("Loading the document was cancelled: %v.", context.Cause(ctx))}}
}

// chunkSize is how many resources one worker takes at a time.
const chunkSize = 256

// acceptAll lets the site accept the resources that conform to their kinds. It stops early when there are more problems than anyone will
// read; what it found by then does not depend on the number of workers, nor on what the intake has checked.
func acceptAll(ctx context.Context, s *kinds.Schema, st *rules.Site, all []*taken, found *findings) {
	chunks := slices.Collect(slices.Chunk(all, chunkSize))
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
				accept(s, st, chunks[i], &results[i])
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
			break
		}
	}
}

func accept(s *kinds.Schema, st *rules.Site, chunk []*taken, found *findings) {
	for _, t := range chunk {
		t.check(s)
		for _, p := range t.problems {
			found.refused(t.Path, p)
		}
		switch {
		case !t.conforms:
		case s.IsExternal(t.Kind, t.Spec):
			st.AcceptExternal(t.Resource)
		default:
			st.Accept(t.Resource)
		}
	}
}

// result returns the document. Nothing else can be done with l after that.
func (l *loaded) result() *schema.Document {
	rs := l.site.Resources
	d := &schema.Document{Resources: make([]schema.Resource, len(rs))}
	size := 4096
	members := make(canonical.Members, len(rs))
	for i, r := range rs {
		size += len(l.specs[i]) + len(r.Ref.Name) + 8
		d.Resources[i] = r.Resource
		members[i] = canonical.Member{Name: r.Ref.Name, Value: l.specs[i]}
	}
	for from, to := 0, 0; from < len(rs); from = to { // resources of a kind in a scope are sorted already, and all that is there
		first := rs[from]
		for to < len(rs) && rs[to].Ref.Kind == first.Ref.Kind && rs[to].Ref.Scope == first.Ref.Scope {
			to++
		}
		at := l.doc
		for _, name := range first.Path[:len(first.Path)-2] {
			at = at[name].(map[string]any)
		}
		at[first.Path[len(first.Path)-2]] = members[from:to]
	}
	fill(d, l.doc, canonical.Append(make([]byte, 0, size), l.doc))
	return d
}

// fill fills in what a document says besides its resources, and its text.
func fill(d *schema.Document, doc map[string]any, text []byte) {
	if s, ok := doc["site"].(map[string]any); ok {
		d.Site.Name, _ = s["name"].(string)
		d.Site.ID, _ = s["id"].(string)
		d.Site.Serial, _ = s["serial"].(int64)
	}
	if p, ok := doc["policy"].(map[string]any); ok {
		d.Policy = policyOf(p)
	}
	sum := sha256.Sum256(text)
	d.JSON, d.Digest = text, hex.EncodeToString(sum[:])
}

// policyOf reads the policy of a document, which has been checked.
func policyOf(from map[string]any) (p schema.Policy) {
	p.MaxDestroy, _ = from["max_destroy"].(string)
	rules, _ := from["reconcile"].([]any)
	for _, v := range rules {
		rule, _ := v.(map[string]any)
		mode, _ := rule["mode"].(string)
		p.Reconcile = append(p.Reconcile, schema.Reconcile{Mode: mode, Kinds: textsOf(rule["kinds"]), Scopes: textsOf(rule["scopes"])})
	}
	approvals, _ := from["approvals"].(map[string]any)
	count, _ := approvals["count"].(int64)
	p.Approvals = schema.Approvals{Count: int(count), By: textsOf(approvals["by"])}
	return p
}

// textsOf returns the texts of a list.
func textsOf(v any) (list []string) {
	all, _ := v.([]any)
	for _, e := range all {
		if text, ok := e.(string); ok {
			list = append(list, text)
		}
	}
	return list
}
