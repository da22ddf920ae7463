package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
	"converge.dev/converge/site"
	"converge.dev/converge/state"
)

// caution returns what a site agent that keeps the site is going to do against a plan once that has been carried out, and what to do
// about it first; nothing when it leaves that as it is. The plan destroys what is recorded, or undoes a run.
func (s *session) caution(ctx context.Context, p *plan.Plan) string {
	text, err := s.against(ctx, p)
	if err != nil { // nobody is kept from it: it is only advice
		return "A site agent may keep the site, and then may do this again: what it does could not be found out: " + err.Error()
	}
	return text
}

func (s *session) against(ctx context.Context, p *plan.Plan) (string, error) {
	keeper, err := s.store.Kept(ctx)
	if err != nil || keeper == nil || p.Empty() {
		return "", err
	}
	head, err := s.store.Head(ctx)
	if errors.Is(err, state.ErrNotFound) { // nothing is desired
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if p.Undoes != "" {
		run, err := s.store.Run(ctx, p.Undoes)
		if err != nil {
			return "", err
		}
		if run.Op != "destroy" && run.Serial == head.Serial { // it ends with a hold on this revision
			return "", nil
		}
	}
	mode, err := s.keeping(ctx)
	if err != nil || mode == site.Observe {
		return "", err
	}
	declared, err := s.declared(ctx)
	if err != nil {
		return "", err
	}
	in := make(map[schema.Ref]bool, len(declared))
	for _, r := range declared {
		in[r] = true
	}
	differs := map[schema.Ref]bool{}
	for i := range p.Steps {
		switch step := &p.Steps[i]; step.Action {
		case plan.Create:
			if !in[step.Ref] {
				differs[step.Ref] = true
			}
		case plan.Update, plan.Delete:
			if in[step.Ref] {
				differs[step.Ref] = true
			}
		}
	}
	if len(differs) == 0 {
		return "", nil
	}
	says, does, first := "still declares %d of these", "makes them", "one without them"
	if p.Undoes != "" {
		says, does, first = "says otherwise about %d of these", "changes them", "one that says the same"
	}
	then := "unless it only observes, it " + does + " again"
	switch mode {
	case site.Enforce:
		then = "it " + does + " again at once, as far as it may without asking"
	case site.Approve:
		then = "it " + does + " again once that is approved"
	}
	return fmt.Sprintf("The document in the store, serial %d, "+says+", and the site agent of %s (PID %d) keeps the site as it says: %s. Put %s first (converge put), or stop the site agent.",
		head.Serial, len(differs), keeper.Who, keeper.PID, then, first), nil
}

// keeping returns the mode of the site agent according to the status that it has published; empty when that does not say it.
func (s *session) keeping(ctx context.Context) (site.Mode, error) {
	body, err := s.store.Published(ctx, "status")
	if errors.Is(err, state.ErrNotFound) {
		return "", nil
	}
	var said site.Status
	if err != nil || json.Unmarshal(body, &said) != nil {
		return "", err
	}
	return said.Mode, nil
}

// cautious returns a question with a caution below it, if there is one.
func cautious(question, caution string) string {
	if caution == "" {
		return question
	}
	return question + "\n\n  " + caution
}
