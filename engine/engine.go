// Package engine is the door to a site: whoever observes it, plans for it, or changes it or what is recorded of it goes through an
// [Engine]. What is stored, such as documents, runs and holds, is read from package state directly.
//
// It reads three things (the desired document, what providers observe, what the store recorded), lets package plan
// decide, and lets package apply carry out the decision under the site lock. Data flows one way; planning changes nothing,
// applying decides nothing.
package engine

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"converge.dev/converge/engine/apply"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/secret"
	"converge.dev/converge/engine/survey"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Options make an engine.
type Options struct {
	Kinds schema.Kinds // required
	Store *state.Store // required
	// Open connects to the providers that are needed, and to no others. Required. A provider that cannot be reached is a
	// Failure of the set, not an error. Open is called again for what is needed later; the engine closes what it returned.
	Open func(ctx context.Context, site schema.Site, needs []providers.Need) (*providers.Set, error)

	Secrets     secret.Options                // where secrets are read; zero: from the environment, by own documents only, and from no file
	Who         string                        // USER@HOST, for locks and runs
	Version     string                        // of converge, for locks
	PID         int                           // for locks
	Parallelism int                           // steps at the same time; 10 when zero
	MaxDestroy  string                        // no plan destroys more than this, whatever its own limit: "3", "10%"; empty: its own limit
	LockTTL     time.Duration                 // how long the lock outlives an unresponsive holder; state.DefaultTTL when zero
	LockWait    time.Duration                 // how long to wait for the lock
	Retry       apply.Retry                   // zero: as package apply says
	Shown       func(survey.Item) survey.Item // what may be shown of an item of the inventory, which is recorded; nil: that is not
	Looks       bool                          // planning writes nothing to the store; what it plans cannot be applied by this engine
	Emit        event.Sink                    // optional
	Logger      *slog.Logger                  // optional
	Now         func() time.Time              // optional; time.Now
	NewID       func(time.Time) string        // optional; names runs and plans: state.NewRunID
}

// An Engine works on one site.
type Engine struct {
	o      Options
	set    *providers.Set          // nil until something is needed
	open   map[providers.Need]bool // what is in the set, or failed to open
	vault  *secret.Vault           // nil until needed
	secret schema.Kinds            // kinds that have secrets; valid with vault

	passing bool // the key of the vault is stored nowhere

	opened   int             // how often providers were opened or closed
	reopened map[string]bool // scopes whose providers were closed since a [Memory] took notice
}

// New makes an engine. Close releases its connections; the store stays open.
func New(o Options) *Engine {
	if o.Parallelism <= 0 {
		o.Parallelism = 10
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	log, emit := event.Log(o.Logger), o.Emit
	o.Emit = func(e event.Event) {
		log(e)
		if emit != nil {
			emit(e)
		}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.NewID == nil {
		o.NewID = state.NewRunID
	}
	return &Engine{o: o}
}

// Close releases the connections to the providers.
func (e *Engine) Close() error {
	if e.set == nil {
		return nil
	}
	return e.set.Close()
}

// ApplyOptions say how a plan is carried out.
type ApplyOptions struct {
	OnFailure    apply.OnFailure // apply.Rollback when empty
	AllowPartial bool            // continue although some scopes are unknown, or some resources are left out
	Approve      string          // the approval of the plan, or a prefix of it: required when a step cannot be undone exactly, and never that of another plan. See Rollback
	Keep         int             // for a rollback: how many of the first steps of the run are not undone
	Confirm      time.Duration   // undo the run unless it is confirmed within that time of its start; zero: it needs no confirmation. Only with Rollback
	Interrupt    <-chan struct{} // when closed, no more steps are started; those in flight finish
	ApprovedBy   []string        // who approved the plan, each USER@HOST, when others did than who applies it; the run keeps it
	Guards       []state.Guard   // of a new run: it begins only if they hold in the transaction that opens it
}

// A Result says how a run ended.
type Result struct {
	Run         state.Run
	Differences []event.Difference // what is not as it should be, when the run is partial
}

// ErrInterrupted reports that a run was stopped before its end; its journal is intact and Resume settles it.
var ErrInterrupted = apply.ErrInterrupted

// A StoppedError says that a run stopped, and stays open, because a freeze or a hold allows none of its next steps.
type StoppedError = journal.StoppedError

// A StaleError says that the site is no longer as it was when the plan was made.
type StaleError struct{ Reasons []event.Difference }

func (e *StaleError) Error() string {
	lines := make([]string, len(e.Reasons))
	for i, r := range e.Reasons {
		lines[i] = r.Ref.String() + ": " + r.Detail
		if r.Ref.IsZero() {
			lines[i] = r.Detail
		}
	}
	return "the plan is stale: " + strings.Join(lines, "; ") + ". Plan again"
}

// A SpentError says that the plan was applied before.
type SpentError struct{ Run string }

func (e *SpentError) Error() string {
	return fmt.Sprintf("the plan was already applied by run %s. Plan again", e.Run)
}

// A RefusedError says why a plan may not be applied.
type RefusedError struct{ Refusals []plan.Refusal }

func (e *RefusedError) Error() string {
	lines := make([]string, len(e.Refusals))
	for i, r := range e.Refusals {
		on := ""
		if !r.Ref.IsZero() {
			on = r.Ref.String() + ": "
		}
		ways := make([]string, len(r.Remedies))
		for j, way := range r.Remedies {
			ways[j] = way.Text
		}
		lines[i] = on + r.Reason + ": " + strings.Join(ways, ", or ")
	}
	return "refused: " + strings.Join(lines, "\n")
}

// An ApprovalError says that the plan has steps that cannot be undone exactly, and that nobody has approved them.
type ApprovalError struct {
	Approval string // the approval that is required
	Given    string // the approval that was given: that of another plan, or of the same plan when the site was different
	Steps    []*plan.Step
}

func (e *ApprovalError) Error() string {
	const shown = 20
	lines := make([]string, 0, shown+2)
	for _, s := range e.Steps[:min(len(e.Steps), shown)] {
		lines = append(lines, fmt.Sprintf("%s %s cannot be undone exactly: %s", s.Action, s.Ref, s.Undo.Meaning()))
	}
	if more := len(e.Steps) - shown; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	if e.Given != "" {
		lines = append(lines, fmt.Sprintf("%q is not the approval of this plan: the document or the site differs from what was approved", e.Given))
	}
	return strings.Join(lines, "\n")
}

// A HeldError says that the site is held, or a run is still open.
type HeldError struct {
	Holds []state.Hold
	Open  string // id of the run that has not ended; empty when there are only holds

	Undoable []string // those of the runs that can also be undone; see [Undoable]
}

func (e *HeldError) Error() string {
	if e.Open != "" {
		return "run " + e.Open + " is still open"
	}
	lines := make([]string, len(e.Holds))
	for i, h := range e.Holds {
		lines[i] = h.Text()
	}
	return strings.Join(lines, "\n")
}

// An UnknownError says which places could not be observed completely, and what is left out because of that or because the far side
// does not support it.
type UnknownError struct {
	Unknown []plan.Unknown
	Omitted []plan.Omission
}

func (e *UnknownError) Error() string {
	var lines []string
	for _, u := range e.Unknown {
		lines = append(lines, fmt.Sprintf("%s/%s is unknown: %s", u.Scope, u.Kind, u.Error))
	}
	for _, o := range e.Omitted {
		lines = append(lines, fmt.Sprintf("%s is skipped: %s", o.Ref, o.Reason))
	}
	return strings.Join(lines, "\n")
}
