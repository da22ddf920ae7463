package command

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
)

// The values of -refresh, which say what is observed.
const (
	refreshAll     = "all"
	refreshChanged = "changed"
)

// checkRefresh refuses an unknown -refresh, and flags that cannot narrow a plan of a part.
func (f *planning) checkRefresh() error {
	switch {
	case f.refresh == "", f.refresh == refreshAll:
		return nil
	case f.refresh != refreshChanged:
		fix := "Use all or changed." + nearest.DidYouMean(f.refresh, []string{refreshAll, refreshChanged})
		if f.refresh == "false" {
			fix = "A plan always observes the site: changed observes only what the document changes."
		}
		return &view.Problem{What: fmt.Sprintf("invalid -refresh %q", f.refresh), Fix: fix}
	case f.destroy, f.sweep, len(f.target)+len(f.exclude)+len(f.replace) > 0:
		return &view.Problem{What: "-refresh=changed decides what the plan covers: -destroy, -sweep, -target, -exclude and -replace cannot be used with it"}
	}
	return nil
}

// A revised document is read on demand, and knows how it differs from the revision that was applied last.
type revised struct {
	*load.Outline
	doc      *schema.Document // without its resources, which need not be read
	before   *load.Outline
	since    int64
	warnings load.Diagnostics // of the last Read
}

// Since implements engine.Revision.
func (r *revised) Since() int64 { return r.since }

// Changed implements engine.Revision.
func (r *revised) Changed() []schema.Ref { return r.Outline.Changed(r.before) }

// Read implements engine.Revision. Problems in what it reads are reported, with their positions, when the document is loaded as a
// whole.
func (r *revised) Read(ctx context.Context, refs []schema.Ref) (*schema.Document, error) {
	doc, ds := r.Part(ctx, r.doc.Digest, refs)
	for i := range ds { // positions would be those in an excerpt that nobody else has
		ds[i].Range, ds[i].Snippet = nil, ""
	}
	r.warnings = ds
	switch {
	case doc == nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case doc == nil:
		return nil, &engine.WholeError{Reason: "the part that the document changes is not valid on its own"}
	}
	doc.Site, doc.Author = r.doc.Site, r.doc.Author
	return doc, nil
}

// planChanged plans what a document changes; when that alone cannot be planned, it reports so and plans all of it.
func (s *session) planChanged(ctx context.Context, e *engine.Engine, doc *schema.Document, o plan.Options) (*plan.Plan, error) {
	p, err := s.planSince(ctx, e, doc, o)
	whole := (*engine.WholeError)(nil)
	if !errors.As(err, &whole) {
		return p, err
	}
	s.view.Note("Observing the whole site: " + whole.Reason + ".")
	if doc.Resources == nil {
		if doc, err = s.stored(ctx, doc.Site.Serial); err != nil {
			return nil, err
		}
	}
	return e.Plan(ctx, doc, o)
}

// planSince plans what a document changes compared with what was applied last. It fails with an *engine.WholeError when that is
// unknown, or cannot be planned alone.
func (s *session) planSince(ctx context.Context, e *engine.Engine, doc *schema.Document, o plan.Options) (*plan.Plan, error) {
	serial, err := e.Applied(ctx)
	if err != nil {
		return nil, err
	}
	sch, err := s.schema()
	if err != nil {
		return nil, err
	}
	r := &revised{doc: doc, since: serial}
	_, body, err := s.store.Document(ctx, serial)
	if errors.Is(err, state.ErrNotFound) {
		return nil, &engine.WholeError{Reason: fmt.Sprintf("the store no longer has serial %d of the document, which was applied last", serial)}
	}
	if err != nil {
		return nil, err
	}
	var g errgroup.Group
	g.Go(func() (err error) { r.before, err = load.NewOutline(sch, body); return err })
	g.Go(func() (err error) { r.Outline, err = load.NewOutline(sch, doc.JSON); return err })
	if err := g.Wait(); err != nil {
		return nil, &engine.WholeError{Reason: err.Error()}
	}
	p, err := e.PlanChanged(ctx, r, o)
	if err == nil && doc.Resources == nil && len(r.warnings) > 0 { // of a document that was loaded they were shown then
		s.view.Diagnostics(r.warnings)
	}
	return p, err
}
