package load

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/rules"
)

// A Current is the current revision of a document, held in memory with what is needed to make the next one at the cost of what
// that changes. It is not for concurrent use.
type Current struct {
	schema  *kinds.Schema
	site    *rules.Site
	head    map[string]any // apiVersion, site and policy
	outline *Outline       // of the text
	values  int            // how many JSON values the resources have
	doc     schema.Document
}

// A Revision is what a document has become, and how it differs from what it was.
type Revision struct {
	Document  *schema.Document                // without Resources
	Resources map[schema.Ref]*schema.Resource // those that are new or differ, also in what they refer to; nil for one that is gone
}

// onlyJSON refuses what would have to be evaluated, which takes a process with limits.
func onlyJSON(_ context.Context, sources []Source) (*Evaluated, Diagnostics) {
	return nil, Diagnostics{{Severity: Error, Code: codeSyntax, Summary: summaries[codeSyntax], Detail: fmt.Sprintf("A revision can only be created from JSON, and %s is not JSON.", sources[0].Name)}}
}

// NewCurrent loads a document from one JSON source, as [Document] does, and keeps it.
func NewCurrent(ctx context.Context, s *kinds.Schema, source Source) (*Current, Diagnostics) {
	l, ds := load(ctx, s, Options{Evaluator: onlyJSON}, func(st *rules.Site, most int) rules.Findings {
		st.Keep()
		return st.Check(most)
	}, []Source{source})
	if l == nil {
		return nil, ds
	}
	c := &Current{schema: s, site: l.site, head: map[string]any{}, doc: *l.result()}
	c.doc.Resources = nil
	for name, v := range l.doc {
		if isHead(name) {
			c.head[name] = v
		}
	}
	var err error
	if c.outline, err = NewOutline(s, c.doc.JSON); err != nil {
		panic(err) // the text was just written
	}
	for _, e := range c.outline.resources {
		c.values += count(e.value)
	}
	return c, ds
}

// Document returns the whole document.
func (c *Current) Document() *schema.Document {
	d := c.doc
	d.Resources = make([]schema.Resource, len(c.site.Resources))
	for i, r := range c.site.Resources {
		d.Resources[i] = r.Resource
	}
	return &d
}

// Revise makes the next revision. Put is a JSON document with only those resources that are new or differ, and of apiVersion, site
// and policy those that differ; each replaces as a whole what was there. Remove lists resources that are gone, unless put has them; one
// that does not exist has no effect. The result is what [Document] returns for the whole text, in which no kind, provider or node is
// left without resources. When that has errors, they are returned, and the current revision stays. Warnings are only about what is
// put, and what that concerns; after a change of the policy, they are about everything.
func (c *Current) Revise(ctx context.Context, put Source, remove ...schema.Ref) (*Revision, Diagnostics) {
	return c.revise(ctx, put, remove, nil)
}

// Become makes a document that was accepted before the current revision: text is its JSON form, as documents are stored. Only what differs is
// read and checked. When that has errors, they are returned, and the current revision stays.
func (c *Current) Become(ctx context.Context, text []byte) (*Revision, Diagnostics) {
	next, err := NewOutline(c.schema, text)
	if err != nil || next.odd { // which is not how a document is stored
		return c.anew(ctx, text)
	}
	put, remove := map[schema.Ref]bool{}, []schema.Ref(nil)
	for _, ref := range next.Changed(c.outline) {
		if next.Has(ref) {
			put[ref] = true
		} else {
			remove = append(remove, ref)
		}
	}
	if len(put)+len(remove) > next.Len()/4 {
		return c.anew(ctx, text)
	}
	differs := Outline{schema: c.schema, resources: next.resources}
	for _, m := range next.head {
		if !slices.ContainsFunc(c.outline.head, func(was member) bool { return was.name == m.name && bytes.Equal(was.value, m.value) }) {
			differs.head = append(differs.head, m)
		}
	}
	if len(next.head) != len(c.outline.head) {
		return c.anew(ctx, text)
	}
	return c.revise(ctx, Source{Name: "document.json", Data: differs.excerpt(put)}, remove, next)
}

// anew replaces the current revision by another document, of which everything is read.
func (c *Current) anew(ctx context.Context, text []byte) (*Revision, Diagnostics) {
	whole, ds := NewCurrent(ctx, c.schema, Source{Name: "document.json", Data: text})
	if whole == nil {
		return nil, ds
	}
	rev := &Revision{Resources: map[schema.Ref]*schema.Resource{}}
	for _, r := range c.site.Resources {
		rev.Resources[r.Ref] = nil
	}
	*c = *whole
	for _, r := range c.site.Resources {
		rev.Resources[r.Ref] = &r.Resource
	}
	doc := c.doc
	rev.Document = &doc
	return rev, ds
}

// revise makes the next revision, whose outline is next; nil when its text has yet to be written.
func (c *Current) revise(ctx context.Context, put Source, remove []schema.Ref, next *Outline) (*Revision, Diagnostics) {
	in := newIntake(ctx, c.schema)
	defer in.stop()
	origin, doc, ds := read(ctx, Options{Evaluator: onlyJSON}, []Source{put}, in.take)
	if doc == nil {
		return nil, ds
	}
	policy, head := doc["policy"], map[string]any{}
	for name, v := range c.head {
		if doc[name] == nil {
			doc[name] = v
		}
	}
	for name, v := range doc {
		if isHead(name) {
			head[name] = v
		}
	}
	part, specs, found := examine(ctx, c.schema, doc, in)
	if ctx.Err() != nil {
		return nil, interrupted(ctx)
	}
	if len(found.problems) > 0 {
		return nil, append(origin.warnings, origin.diagnostics(found, c.schema.IsSecret)...)
	}
	remove = slices.DeleteFunc(slices.Clone(remove), func(ref schema.Ref) bool { return part.Get(ref) != nil || !c.outline.Has(ref) })
	edits, by := make([]entry, 0, len(specs)+len(remove)), make(map[schema.Ref][]byte, len(specs))
	for i, r := range part.Resources {
		edits, by[r.Ref] = append(edits, entry{r.Ref, jsontext.Value(specs[i])}), specs[i]
	}
	for _, ref := range remove {
		edits = append(edits, entry{ref, nil})
	}
	values := c.values
	for _, e := range edits {
		if was := c.outline.find(e.Ref); was != nil {
			values -= count(was)
		}
		if e.value != nil {
			values += count(e.value)
		}
	}
	if next == nil {
		var others int
		next, others = c.outline.assemble(head, c.outline.with(edits), len(c.outline.text)+len(put.Data))
		if f := next.excess(values + others); f != nil {
			return nil, origin.fault(f)
		}
	}
	if policy != nil { // which rules about any resource may read
		whole, ds := NewCurrent(ctx, c.schema, Source{Name: put.Name, Data: next.text})
		if whole == nil {
			return nil, ds
		}
		*c = *whole
		return c.revision(part.Resources, remove), ds
	}
	touched := c.site.Revise(part.Resources, remove)
	found.broken(c.site.CheckAgain(touched, maxDiagnostics), func(r *rules.Resource) (spec []byte, elsewhere bool) {
		if spec = by[r.Ref]; spec != nil {
			return spec, false
		}
		return c.outline.find(r.Ref), true
	})
	ds = append(origin.warnings, origin.diagnostics(found, c.schema.IsSecret)...)
	if ds.HasErrors() {
		c.site.Undo(touched)
		return nil, ds
	}
	c.head, c.outline, c.values = head, next, values
	fill(&c.doc, head, next.text)
	return c.revision(touched.Changed, remove), ds
}

// revision returns what has become of the document.
func (c *Current) revision(changed []*rules.Resource, removed []schema.Ref) *Revision {
	doc := c.doc
	rev := &Revision{Document: &doc, Resources: make(map[schema.Ref]*schema.Resource, len(changed)+len(removed))}
	for _, r := range changed {
		now := c.site.Get(r.Ref).Resource
		rev.Resources[r.Ref] = &now
	}
	for _, ref := range removed {
		rev.Resources[ref] = nil
	}
	return rev
}
