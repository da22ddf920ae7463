package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/site"
	"converge.dev/converge/site/api"
	"converge.dev/converge/state"
)

// approveOtherwise says what to do where nobody can be asked.
const approveOtherwise = "Look at the plan with converge approve -show, then use -auto-approve with its digest."

func (a *app) approveCommand() *cobra.Command {
	var unasked, revoke, show bool
	c := &cobra.Command{
		Use:   "approve [DIGEST]",
		Short: "Approve the plan that the site agent waits with",
		Long: `Show the plan that waits for approval, ask, and approve it: the site agent (converge
serve) then applies exactly this plan, once. Without a DIGEST, list what waits, since
when, and who has approved it. The first 16 digits of the digest are enough. -show only
shows the plan that waits, as converge plan does.

An approval is for one plan. It is valid for 24 hours; if the document or the site
changes so that the plan becomes another one, that one needs approvals of its own. Where
the document's policy.approvals wants several people, the plan is applied once that
many have approved it; one person at two machines is one. Approvals are entered in the
audit log (converge audit).

Who approves is USER@HOST of this process. The store cannot verify that: whoever can
write to the store can write any name. Restrict who can.

With -json, print one object: waiting, a list; or approval, by, approvals and needs;
or, with -show, the plan, as converge show does.`,
		Example: `  converge approve
  converge approve -show
  converge approve 9b1f27c04de81a35
  converge approve -auto-approve -json 9b1f27c04de81a35
  converge approve -revoke 9b1f27c04de81a35`,
		Args:              between(0, 1),
		ValidArgsFunction: a.completeWaiting,
	}
	c.Flags().BoolVar(&unasked, "auto-approve", false, "do not show the plan or ask: the digest says which plan is meant")
	c.Flags().BoolVar(&show, "show", false, "only show the plan that waits; nobody is asked")
	c.Flags().BoolVar(&revoke, "revoke", false, "take back your own approval, if the plan has not been applied yet")
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx := c.Context()
		s, err := a.open(ctx, nil, nil)
		if err != nil {
			return err
		}
		w, approvals, err := site.Waits(ctx, s.store)
		if err != nil {
			return err
		}
		if show {
			if revoke || unasked {
				return &view.Problem{What: "-show cannot be combined with -revoke or -auto-approve"}
			}
			if len(args) == 0 && w != nil {
				args = []string{w.Approval}
			}
		}
		if len(args) == 0 {
			if revoke || unasked {
				return &view.Problem{What: "a digest is required", Fix: "converge approve lists what waits."}
			}
			return s.listWaiting(w, approvals)
		}
		if w == nil || !plan.Approves(args[0], w.Approval) {
			return notWaiting(args[0], w)
		}
		if show {
			return s.printWaiting(ctx, w)
		}
		if revoke {
			return s.unapprove(ctx, w)
		}
		return s.approve(ctx, w, unasked)
	}
	return c
}

// notWaiting says that no plan with that digest waits.
func notWaiting(digest string, w *state.Waiting) error {
	p := &view.Problem{What: "no plan with the digest " + digest + " waits for approval", Fix: "Nothing does. The plan may have been applied, or the site may have changed."}
	switch {
	case len(digest) < plan.ShortApproval:
		p.Fix = fmt.Sprintf("Give at least the first %d digits; converge approve lists what waits.", plan.ShortApproval)
	case w != nil:
		p.Fix = fmt.Sprintf("Another plan waits, %s: the document or the site has changed. Look at it with: converge approve -show", w.Approval[:plan.ShortApproval])
	}
	return refusal{p}
}

func (s *session) approve(ctx context.Context, w *state.Waiting, unasked bool) error {
	by := who()
	if err := site.MayApprove(w, by); err != nil { // before anybody is asked
		return refusal{&view.Problem{What: "your approval would not count", Where: "you are " + by + "; the document's policy.approvals names " + strings.Join(w.By, ", "), Fix: "Have one of them approve it.", Err: err}}
	}
	if err := s.mayAsk(unasked, approveOtherwise); err != nil {
		return err
	}
	if !unasked {
		if err := s.showWaiting(ctx, w); err != nil {
			return err
		}
		question := "Do you approve this plan?\n  The site agent performs the actions shown above"
		if w.Needs > 1 {
			question += fmt.Sprintf(" once %d people have approved them", w.Needs)
		}
		if err := s.ask(ctx, question+".", "Not approved."); err != nil {
			return err
		}
	}
	given, err := site.ApprovePlan(ctx, s.store, w, by)
	if errors.Is(err, state.ErrGuard) {
		return refusal{&view.Problem{What: "the plan has changed meanwhile", Fix: "Nothing was approved. Look at the new one with: converge approve -show", Err: err}}
	}
	if err != nil {
		return err
	}
	text := "Approved."
	stops, serr := s.store.Stops(ctx)
	switch keeper, err := s.store.Kept(ctx); {
	case len(given) < w.Needs:
		text += fmt.Sprintf(" %d of %d people have approved the plan.", len(given), w.Needs)
	case serr == nil && len(stops.All()) > 0:
		text = "Approved, but " + stops.All()[0].Text() + ". The plan is applied once nothing that it changes is on hold; see: converge hold list"
	case err == nil && keeper == nil:
		text += " No site agent is running: the next one applies the plan."
	default:
		text += " The site agent applies the plan; see: converge runs"
	}
	return s.did(false, api.ApprovedView{Approval: w.Approval, By: by, Approvals: given, Needs: w.Needs}, text+"\n")
}

func (s *session) unapprove(ctx context.Context, w *state.Waiting) error {
	had, err := site.UnapprovePlan(ctx, s.store, w, who())
	if errors.Is(err, state.ErrGuard) {
		return refusal{&view.Problem{What: "the plan no longer waits", Fix: "See: converge runs", Err: err}}
	}
	if err != nil {
		return err
	}
	text := "You had not approved it.\n"
	if had {
		text = "Your approval is taken back.\n"
	}
	return s.did(!had, api.UnapprovedView{Approval: w.Approval, Revoked: had}, text)
}

// showWaiting shows the plan that waits.
func (s *session) showWaiting(ctx context.Context, w *state.Waiting) error {
	p, err := s.waitingPlan(ctx, w)
	if err == nil {
		s.view.Plan(p)
	}
	return err
}

// printWaiting prints the plan that waits, as the result of the command.
func (s *session) printWaiting(ctx context.Context, w *state.Waiting) error {
	p, err := s.waitingPlan(ctx, w)
	if err != nil {
		return err
	}
	if s.flags.json {
		return s.printJSON(s.planDocument(p, w))
	}
	s.print(view.PlanText(p, s.kinds, s.style(s.sys.Stdout), s.flags.layout))
	return nil
}

// planDocument is the plan that waits as JSON shows it.
func (s *session) planDocument(p *plan.Plan, w *state.Waiting) any {
	return view.PlanDocument(p, view.PlanOrigin{Digest: w.Plan, At: w.Since, Converge: s.sys.Version, Kinds: s.kinds})
}

// waitingPlan reads the plan that waits.
func (s *session) waitingPlan(ctx context.Context, w *state.Waiting) (*plan.Plan, error) {
	if _, err := s.schema(); err != nil { // the view needs to know which fields are secret
		return nil, err
	}
	p, err := site.WaitingPlan(ctx, s.store, w)
	if err != nil {
		return nil, &view.Problem{What: "the plan that waits cannot be read", Where: err.Error(), Fix: "Try again: the site agent may have replaced it.", Err: err}
	}
	return p, nil
}

func (s *session) listWaiting(w *state.Waiting, approvals []state.Approval) error {
	if s.flags.json {
		return s.printJSON(api.ViewPlans(w, approvals))
	}
	s.print(view.WaitingText(w, approvals, s.style(s.sys.Stdout)))
	return nil
}

// completeWaiting completes the digest of what waits.
func (a *app) completeWaiting(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(c, func(ctx context.Context, s *session) (words []string, err error) {
		w, _, err := site.Waits(ctx, s.store)
		if w != nil {
			words = append(words, w.Approval[:plan.ShortApproval]+"\t"+view.Count(w.Steps, "step")+": "+w.Why)
		}
		return words, err
	})
}
