package view

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

// A Problem is an error in the form in which it is shown: what is wrong, where, and how to fix it.
type Problem struct {
	What  string
	Where string     // optional; may have several lines
	Fix   string     // optional
	Ref   schema.Ref // optional
	Err   error      // optional cause
}

// Error implements error.
func (p *Problem) Error() string {
	text := p.What
	if p.Where != "" {
		text += ": " + p.Where
	}
	return text
}

// Unwrap returns the cause.
func (p *Problem) Unwrap() error { return p.Err }

// Text returns the problem for people.
func (p *Problem) Text(s Style) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", s.paint(red, "Error:"), s.paint(bold, clean(p.What)))
	for _, part := range []string{p.Where, p.Fix} {
		if part != "" {
			b.WriteString(indent(cleanLines(part), "  ") + "\n")
		}
	}
	return b.String()
}

// Detail returns everything but What.
func (p *Problem) Detail() string {
	if p.Where == "" || p.Fix == "" {
		return p.Where + p.Fix
	}
	return p.Where + "\n" + p.Fix
}

// Explain returns any error in the form of a problem, with what to do where that is known.
func Explain(err error) *Problem {
	var (
		problem  *Problem
		locked   *state.LockedError
		silent   *etcd.NoAnswerError
		away     *etcd.AwayError
		conflict *state.ConflictError
		stale    *engine.StaleError
		spent    *engine.SpentError
		refused  *engine.RefusedError
		held     *engine.HeldError
		approve  *engine.ApprovalError
		unknown  *engine.UnknownError

		unmatched *plan.UnmatchedError
		damaged   *state.DamagedError
		data      *etcd.DamagedDataError
	)
	switch {
	case errors.As(err, &problem):
		return problem
	case errors.As(err, &locked):
		what, where, _ := strings.Cut(locked.Error(), "\n\n")
		return &Problem{What: what, Where: where, Fix: fmt.Sprintf("Wait for it with -lock-timeout=5m. Only if that process is gone for good: converge force-unlock %s", locked.Info.ID), Err: err}
	case errors.As(err, &silent):
		return &Problem{What: "the store does not answer", Where: silent.Error(), Fix: "If that process is suspended, continue it (fg, or kill -CONT) or terminate it. Once it exits, for whatever reason, the next command takes over.", Err: err}
	case errors.As(err, &away):
		return &Problem{
			What: "the store is no longer available", Where: away.Error(), Err: err,
			Fix: "Nothing more was started. Put it back where it was, or mount it again, then finish any open run with converge resume. If it is lost, put a backup in its place and run converge state restored.",
		}
	case errors.As(err, &conflict):
		return &Problem{What: "the document was not written", Where: conflict.Error(), Fix: "To see the current document: converge get. Then write your changes on top of it: with its current revision, and with a higher site.serial, or none to get the next one.", Err: err}
	case errors.As(err, &stale):
		var lines []string
		for _, d := range stale.Reasons {
			if d.Ref.IsZero() {
				lines = append(lines, d.Detail)
			} else {
				lines = append(lines, d.Ref.String()+": "+d.Detail)
			}
		}
		return &Problem{What: "the plan is stale: the site has changed since the plan was made", Where: strings.Join(lines, "\n"), Fix: "Nothing was changed. Plan again.", Err: err}
	case errors.As(err, &spent):
		return &Problem{What: "the plan was already applied", Where: fmt.Sprintf("run %s applied it", spent.Run), Fix: "Nothing was changed. Plan again.", Err: err}
	case errors.As(err, &refused):
		var lines []string
		for _, r := range refused.Refusals {
			on := ""
			if !r.Ref.IsZero() {
				on = r.Ref.String() + ": "
			}
			lines = append(lines, on+r.Reason, "  "+Advice(r.Remedies))
		}
		return &Problem{What: "refused: nothing was changed", Where: strings.Join(lines, "\n"), Err: err}
	case errors.As(err, &approve):
		return &Problem{
			What: "this plan needs its own approval: nothing was changed", Where: approve.Error(), Err: err,
			Fix: "To approve it: -approve=" + approve.Approval[:plan.ShortApproval],
		}
	case errors.As(err, &held):
		p := &Problem{What: "on hold: nothing was changed", Where: Held(held), Err: err}
		if held.Open != "" {
			p.What = "a run is still open: nothing was changed"
		}
		return p
	case errors.As(err, &unknown):
		p := explainUnknown(unknown)
		p.Err = err
		return p
	case errors.As(err, &unmatched):
		return explainUnmatched(unmatched)
	case errors.As(err, &damaged):
		return &Problem{What: "the store is corrupt", Where: err.Error(), Fix: mending(damaged.Key), Err: err}
	case errors.As(err, &data):
		what, where, _ := strings.Cut(err.Error(), "\n")
		return &Problem{What: what, Where: where, Fix: "Once the copy is in place, run: converge state restored", Err: err}
	case errors.Is(err, engine.ErrInterrupted):
		return &Problem{What: err.Error(), Fix: fix(remedy.Remedies(err)), Err: err}
	case errors.Is(err, context.Canceled):
		return &Problem{What: "interrupted", Err: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &Problem{What: "timed out waiting for an answer", Where: err.Error(), Err: err}
	case errors.Is(err, state.ErrFenced):
		return &Problem{What: err.Error(), Fix: "Another process may be running; to check: converge lock status. When it has finished, try again; to see what was started: converge runs", Err: err}
	}
	what, where, _ := strings.Cut(err.Error(), "\n")
	return &Problem{What: what, Where: where, Fix: fix(remedy.Remedies(err)), Err: err}
}

// mending returns what makes a store with a damaged key usable again.
func mending(key string) string {
	_, key, _ = strings.Cut(strings.TrimPrefix(key, "/converge/"), "/")
	switch part, _, _ := strings.Cut(key, "/"); {
	case key == "leader":
		return "This is the site lock. Only if no other process is working on the site: converge force-unlock " + state.DamagedLock
	case key == "epoch":
		return "Restore a backup. If there is none: converge state restored"
	case slices.Contains([]string{"run", "resource", "server", "spent", "audit", "amended", "rebuilt", "cancel", "confirm"}, part), key == "inbox/result", key == "document/head", strings.HasPrefix(key, "document/log/"):
		return "Restore a backup. Or see what can be repaired from the rest of the store: converge state repair -dry-run"
	}
	return "Restore a backup."
}

// explainUnmatched returns what a pattern that matches nothing probably meant.
func explainUnmatched(e *plan.UnmatchedError) *Problem {
	refs := make([]string, len(e.Refs))
	for i, r := range e.Refs {
		refs[i] = r.String()
	}
	fix := strings.TrimSpace(nearest.DidYouMeanRef(e.Pattern, refs) + " Nothing was changed. To list the recorded resources: converge state list")
	return &Problem{What: e.Error(), Fix: fix, Err: e}
}

func upper(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
