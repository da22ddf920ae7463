package site

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// mode returns the mode in which a resource is kept: that of the document, or its own if that is the more careful one.
func (a *Agent) mode(doc *schema.Document, ref schema.Ref) Mode {
	own := slices.Index(Modes, a.o.Mode)
	if wanted := slices.Index(Modes, Mode(doc.Policy.Mode(ref))); wanted >= 0 {
		return Modes[min(own, wanted)]
	}
	return a.o.Mode
}

// observed lists the resources of a plan about which nothing may be done, when there are others.
func (a *Agent) observed(doc *schema.Document, p *plan.Plan) (refs []string) {
	if a.o.Mode == Observe { // all
		return nil
	}
	for i := range p.Steps {
		if ref := p.Steps[i].Ref; a.mode(doc, ref) == Observe {
			refs = append(refs, ref.String())
		}
	}
	return refs
}

// leave stores what is left to people as the plan that waits for them, or applies that once it is approved. S is how the site stands
// otherwise; apart are the resources that are left alone.
func (a *Agent) leave(ctx context.Context, doc *schema.Document, p *plan.Plan, apart []string, s Status, again time.Duration) (site schema.Site, _ time.Duration, err error) {
	if len(apart) > 0 {
		if p, err = a.o.Engine.Plan(ctx, doc, plan.Options{Exclude: apart}); err != nil {
			return doc.Site, 0, err
		}
	}
	leave, why := a.left(doc, p)
	if len(leave) == 0 || len(p.Refusals) > 0 { // it was all apart; and a plan that is refused is nothing to approve
		return p.Site, again, cmp.Or(a.nothingWaits(ctx), a.say(ctx, s))
	}
	var held *engine.HeldError
	if err := a.o.Engine.Held(ctx, p); errors.As(err, &held) {
		s.Phase, s.Detail = Held, describe(held)
		return p.Site, again, a.say(ctx, s)
	} else if err != nil {
		return p.Site, 0, err
	}
	w, saved, given, err := a.wait(ctx, doc, p, why)
	if err != nil {
		return p.Site, 0, err
	}
	then := s
	if len(apart) == 0 {
		then = Status{Site: p.Site, Phase: InSync, Run: s.Run}
	}
	if s.Phase == Held || s.Phase == Unknown {
		why += "; besides, " + s.Detail
	}
	c := p.Counts()
	s.Phase, s.Detail, s.Digest, s.Steps = Waiting, why+given.lapsed, w.Approval, w.Steps
	s.Counts = fmt.Sprintf("%d to add, %d to change, %d to destroy", c.Create, c.Update, c.Delete)
	s.Given = fmt.Sprintf("%d of %d", given.people, w.Needs)
	if len(given.who) > 0 {
		s.Given += ": " + strings.Join(given.who, ", ")
	}
	if !doc.Policy.Approvals.Enough(given.who...) {
		return p.Site, again, a.say(ctx, s)
	}
	a.o.Logger.Info("the plan that waits was approved, and is applied", "approval", w.Approval, "by", strings.Join(given.who, ", "))
	saved.Document = p.Document
	return a.apply(ctx, saved, w.Approval, then, again)
}

// given is who has approved the plan that waits.
type given struct {
	who    []string
	people int
	lapsed string // what to say of approvals of another plan
}

// wait stores a plan as the one that waits, unless it does already, and returns it as stored, with the approvals that count. One that was
// applied is replaced, and needs new approvals: what was approved is done once.
func (a *Agent) wait(ctx context.Context, doc *schema.Document, p *plan.Plan, why string) (w state.Waiting, saved *plan.Plan, g given, err error) {
	next, err := p.Encode()
	if err != nil {
		return w, nil, g, err
	}
	w, spent, over, valid, err := a.waiting(ctx)
	if err != nil {
		return w, nil, g, err
	}
	if w.Approval == next.Approval && !spent && w.Site == p.Site {
		body, err := a.o.Store.WaitingPlan(ctx, w)
		if err == nil {
			saved, err = plan.Decode(body)
		}
		if err == nil && saved.Approval() != w.Approval {
			err = fmt.Errorf("it is another one")
		}
		if err != nil {
			a.o.Logger.Warn("the plan that waits cannot be read, and is stored again", "error", err)
			saved = nil
		}
	}
	policy := &doc.Policy.Approvals
	if saved == nil {
		since := a.o.Now().UTC()
		if w.Approval == next.Approval && !spent {
			since = w.Since
		}
		w = state.Waiting{
			Approval: next.Approval, Plan: next.Digest, Site: p.Site, Steps: len(p.Steps), Why: clip(why), Since: since, Needs: policy.Needed(), By: policy.By,
		}
		if err := a.o.Store.SetWaiting(ctx, &w, next.Data, over); err != nil {
			return w, nil, g, err
		}
		if saved, err = plan.Decode(next.Data); err != nil {
			return w, nil, g, err
		}
	}
	people := map[string]bool{}
	for _, v := range valid {
		switch {
		case v.Plan != w.Approval:
			g.lapsed = fmt.Sprintf("; the plan has changed since %s approved %s", v.By, v.Plan[:min(len(v.Plan), plan.ShortApproval)])
		case policy.May(v.By):
			g.who = append(g.who, v.By)
			people[schema.Person(v.By)] = true
		}
	}
	g.people = len(people)
	return w, saved, g, nil
}

// nothingWaits removes the plan that waits, if there is one.
func (a *Agent) nothingWaits(ctx context.Context) error {
	w, _, over, _, err := a.waiting(ctx)
	if err != nil || w.Approval == "" {
		return err
	}
	return a.o.Store.SetWaiting(ctx, nil, nil, over)
}

// waiting reads the plan that waits, zero when there is none, whether it was applied, and the approvals: those that are over, because they
// have expired or were used, and those that are valid.
func (a *Agent) waiting(ctx context.Context) (w state.Waiting, spent bool, over, valid []state.Approval, err error) {
	w, err = a.o.Store.Waiting(ctx)
	switch {
	case errors.As(err, new(*state.DamagedError)):
		a.o.Logger.Warn("what waits for approval cannot be read, and is replaced", "error", err)
		w = state.Waiting{}
	case errors.Is(err, state.ErrNotFound):
	case err != nil:
		return w, false, nil, nil, err
	}
	if w.Plan != "" {
		if _, spent, err = a.o.Store.Spent(ctx, w.Plan); err != nil {
			return w, false, nil, nil, err
		}
	}
	all, err := a.o.Store.Approvals(ctx)
	for _, v := range all {
		if !v.Valid(a.o.Now()) || spent && v.Plan == w.Approval {
			over = append(over, v)
		} else {
			valid = append(valid, v)
		}
	}
	return w, spent, over, valid, err
}
