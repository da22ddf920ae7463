package engine

import (
	"context"
	"errors"
	"fmt"

	"converge.dev/converge/engine/drift"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Plan observes the site and decides what would make it as doc says. It changes nothing. What may not be done, and what
// could not be observed, is in the plan.
func (e *Engine) Plan(ctx context.Context, doc *schema.Document, o plan.Options) (*plan.Plan, error) {
	if !o.Destroy && !o.Sweep { // nothing is set, so nothing need be read
		var err error
		if doc, err = e.readable(ctx, doc); err != nil {
			return nil, err
		}
	}
	worked, err := e.worked(ctx)
	if err != nil {
		return nil, err
	}
	in, err := e.look(ctx, doc, o.Sweep)
	if err != nil {
		return nil, err
	}
	p, err := e.decide(ctx, &in, o)
	if err != nil {
		return nil, err
	}
	p.Worked = worked
	e.obstruct(ctx, p)
	return p, e.judge(ctx, p, doc, state.Live(in.Recorded))
}

// obstruct adds to a plan the refusals of the far sides that are known before anything is deleted. One that cannot tell now may do so when the plan
// is applied.
func (e *Engine) obstruct(ctx context.Context, p *plan.Plan) {
	if e.set == nil {
		return
	}
	found, err := p.Obstructions(ctx, e.set, func(int) bool { return true })
	if err != nil {
		e.o.Logger.Warn("not known whether some deletes would be refused", "error", err)
	}
	for _, o := range found {
		p.Refusals = append(p.Refusals, plan.Refuse(o.Step.Ref, "it cannot be deleted: "+o.Why, "take it out of use first, keep it declared, or leave it out of the plan"))
	}
}

// readable returns a document with the digests of its secrets in the specs. It fails when the document names a secret that its
// author may not name, or one that cannot be read.
func (e *Engine) readable(ctx context.Context, doc *schema.Document) (*schema.Document, error) {
	if !doc.Author.Own {
		if err := CheckSecrets(e.o.Kinds, e.o.Secrets.Source, doc); err != nil {
			return nil, err
		}
	}
	return e.sealed(ctx, doc)
}

// decide makes a plan from what was observed.
func (e *Engine) decide(ctx context.Context, in *plan.Input, o plan.Options) (*plan.Plan, error) {
	if !o.AllowMissing {
		if err := e.distrust(ctx, in); err != nil {
			return nil, err
		}
	}
	in.ID, in.Options = e.o.NewID(e.o.Now()), o
	p, err := plan.Make(*in)
	if err != nil {
		return nil, err
	}
	p.Author, p.Passing = in.Document.Author, e.passing
	return p, nil
}

// worked returns the highest epoch of any run, or of any change of the records beside runs; a higher one later shows that something
// was done since. It is -1 while a run is open, which may do more.
func (e *Engine) worked(ctx context.Context) (epoch int64, err error) {
	runs, err := e.o.Store.Runs(ctx)
	if err != nil {
		return 0, err
	}
	amended, err := e.o.Store.Amended(ctx)
	return workedBy(runs, amended), err
}

func workedBy(runs []state.Run, amended state.Amended) int64 {
	epoch := amended.Epoch
	for i := range runs {
		if runs[i].Status == state.RunOpen {
			return -1
		}
		epoch = max(epoch, runs[i].Epoch)
	}
	return epoch
}

// judge adds to a plan the refusals that concern the document and the store as a whole. Live is how many things are recorded as
// existing.
func (e *Engine) judge(ctx context.Context, p *plan.Plan, doc *schema.Document, live int) error {
	head, err := e.o.Store.Head(ctx)
	switch {
	case err == nil:
		p.Revision = head.Revision
		if doc.Site.Serial == 0 && !p.Destroy && !p.Sweep && head.Serial >= schema.MaxSerial && doc.Digest != head.Digest {
			p.Refusals = append(p.Refusals, plan.Refusal{
				Rule: plan.RuleSerial, Reason: fmt.Sprintf("the newest revision of the document has serial %d, which is the maximum", head.Serial),
				Remedies: []remedy.Remedy{remedy.Say("no revision can follow it in this store: create a new store, and record there what carries this site's mark", remedy.Action{Verb: remedy.Rebuild})},
			})
		}
		if n := doc.Site.Serial; !p.Destroy && n != 0 && n <= head.Serial && doc.Digest != head.Digest {
			p.Refusals = append(p.Refusals, plan.Refusal{
				Rule: plan.RuleSerial, Reason: fmt.Sprintf("site.serial is %d, but the newest revision of the document has %d", n, head.Serial),
				Remedies: []remedy.Remedy{remedy.Say("raise site.serial, or omit it to have it assigned automatically")},
			})
		}
	case !errors.Is(err, state.ErrNotFound):
		return err
	}
	forbidden, err := e.forbidden(ctx, p, live, head)
	p.Refusals = append(p.Refusals, forbidden...)
	return err
}

// Drift observes the site and reports how it differs from what was applied last, leaving to others what is external. It changes
// nothing.
func (e *Engine) Drift(ctx context.Context, site schema.Site, external ...schema.Resource) (*drift.Report, error) {
	in, err := e.look(ctx, &schema.Document{Site: site, Resources: external}, true)
	if err != nil {
		return nil, err
	}
	if err := e.distrust(ctx, &in); err != nil {
		return nil, err
	}
	return drift.Compare(in, e.o.Now().UTC())
}
