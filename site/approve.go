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

// leave stores what is left to people as the plan that waits for them, or applies that once it is approved. S is how the site stands
// otherwise; apart are the resources that are left alone.
func (a *Agent) leave(ctx context.Context, doc *schema.Document, p *plan.Plan, apart refs, s Status, again time.Duration) (site schema.Site, _ time.Duration, err error) {
	if len(apart) > 0 {
		if p, err = a.seen.Plan(ctx, plan.Options{ExcludeRefs: apart}); err != nil {
			return doc.Site, 0, err
		}
	}
	leave, why := a.left(doc, p)
	if len(leave) == 0 || len(p.Refusals) > 0 { // it was all apart; and a plan that is refused is nothing to approve
		return p.Site, again, cmp.Or(a.nothingWaits(ctx), a.say(ctx, s))
	}
	if err := a.allowed(doc, p, true); err != nil {
		return p.Site, 0, err
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
	if s.Phase == Held || s.Phase == Unknown || s.Phase == Failed {
		why += "; besides, " + s.Detail
	}
	if w.Lapsed != "" {
		why += "; " + w.Lapsed
	}
	c := p.Counts()
	s.Phase, s.Detail, s.Digest, s.Steps = Waiting, why, w.Approval, w.Steps
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
	return a.apply(ctx, doc, saved, consent{w.Approval, given.who, a.o.Store.WaitingGuards(w, given.counted)}, then, again)
}

// outdated drops the plan that was approved and can no longer be applied, with its approvals: what the site has become is not what people
// have approved, even where a new plan has the same digest.
func (a *Agent) outdated(ctx context.Context, err error, then Status) error {
	a.o.Logger.Warn("the plan that was approved can no longer be applied, and needs new approvals", "error", err)
	a.lapsed = "the plan that was approved could no longer be applied, and needs new approvals: " + err.Error()
	a.own = "" // no run was begun
	if err := a.nothingWaits(ctx); err != nil {
		return err
	}
	return a.say(ctx, Status{Site: then.Site, Phase: Waiting, Detail: a.lapsed, Run: then.Run})
}

// given is who has approved the plan that waits.
type given struct {
	who     []string
	people  int
	counted []state.Approval // at most as many as are needed
}

// wait stores a plan as the one that waits, unless it does already, and returns it as stored, with the approvals that count. One that was
// applied is replaced, and needs new approvals: what was approved is done once. Every plan that is stored needs new approvals, also the
// same one after another one has waited.
func (a *Agent) wait(ctx context.Context, doc *schema.Document, p *plan.Plan, why string) (w state.Waiting, saved *plan.Plan, g given, err error) {
	next, err := p.Encode()
	if err != nil {
		return w, nil, g, err
	}
	w, spent, valid, err := a.waiting(ctx)
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
		since, lapsed := a.o.Now().UTC(), a.lapsed
		if !spent {
			lapsed = cmp.Or(lapsed, lapse(valid), w.Lapsed)
			if w.Approval == next.Approval {
				since = w.Since
			}
		}
		w = state.Waiting{
			Approval: next.Approval, Plan: next.Digest, Site: p.Site, Steps: len(p.Steps), Why: clip(why), Since: since, Lapsed: clip(lapsed),
			Needs: policy.Needed(), By: policy.By,
		}
		if err := a.o.Store.SetWaiting(ctx, &w, next.Data); err != nil {
			return w, nil, g, err
		}
		a.lapsed, valid = "", nil
		if saved, err = plan.Decode(next.Data); err != nil {
			return w, nil, g, err
		}
	}
	people := map[string]bool{}
	for _, v := range valid {
		if v.Approves == w.Approval && policy.May(v.By) {
			g.who, g.counted = append(g.who, v.By), append(g.counted, v)
			people[schema.Person(v.By)] = true
		}
	}
	g.people = len(people)
	g.counted = g.counted[:min(len(g.counted), policy.Needed())] // a person has one
	return w, saved, g, nil
}

// lapse says of approvals that they are lost, because another plan waits now.
func lapse(valid []state.Approval) string {
	if len(valid) == 0 {
		return ""
	}
	last := slices.MaxFunc(valid, func(a, b state.Approval) int { return a.At.Compare(b.At) })
	return fmt.Sprintf("the plan has changed since %s approved %s", last.By, last.Approves[:min(len(last.Approves), plan.ShortApproval)])
}

// nothingWaits removes the plan that waits, if there is one, and its approvals.
func (a *Agent) nothingWaits(ctx context.Context) error {
	if _, err := a.o.Store.Waiting(ctx); errors.Is(err, state.ErrNotFound) {
		return nil
	} else if err != nil && !errors.As(err, new(*state.DamagedError)) {
		return err
	}
	return a.o.Store.SetWaiting(ctx, nil, nil)
}

// waiting reads the plan that waits, zero when there is none, whether it was applied, and the approvals that are valid, unless it was.
func (a *Agent) waiting(ctx context.Context) (w state.Waiting, spent bool, valid []state.Approval, err error) {
	w, err = a.o.Store.Waiting(ctx)
	switch {
	case errors.As(err, new(*state.DamagedError)):
		a.o.Logger.Warn("what waits for approval cannot be read, and is replaced", "error", err)
		w = state.Waiting{}
	case errors.Is(err, state.ErrNotFound):
	case err != nil:
		return w, false, nil, err
	}
	if w.Plan != "" {
		if _, spent, err = a.o.Store.Spent(ctx, w.Plan); err != nil {
			return w, false, nil, err
		}
	}
	all, err := a.o.Store.Approvals(ctx)
	for _, v := range all {
		if v.Valid(a.o.Now()) && v.Approves == w.Approval && !spent {
			valid = append(valid, v)
		}
	}
	return w, spent, valid, err
}
