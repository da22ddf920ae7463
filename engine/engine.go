// Package engine is the door: everything a command does with a site goes through an [Engine].
//
// It reads three things (the desired document, what providers observe, what the store recorded), lets package plan
// decide, and package apply carry the decision out under the site lock. Data goes one way; planning changes nothing,
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
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A Need is a provider that a document or a record asks for in a scope.
type Need struct{ Scope, Provider string }

// Options make an engine.
type Options struct {
	Kinds schema.Kinds // required
	Store *state.Store // required
	// Open connects to the providers that are needed. Required. One that cannot be reached is a Failure of the set, not
	// an error. The engine closes the set.
	Open func(ctx context.Context, site schema.Site, needs []Need) (*providers.Set, error)

	Who         string           // USER@HOST, for locks and runs
	Version     string           // of converge, for locks
	PID         int              // for locks
	Parallelism int              // steps at the same time; 10 when zero
	LockTTL     time.Duration    // how long the lock outlives a holder that does not answer; state.DefaultTTL when zero
	LockWait    time.Duration    // how long to wait for the lock
	Retry       apply.Retry      // zero: as package apply says
	Emit        event.Sink       // optional
	Logger      *slog.Logger     // optional
	Now         func() time.Time // optional; time.Now
}

// An Engine works on one site.
type Engine struct {
	o    Options
	set  *providers.Set
	have map[Need]bool
}

// New makes an engine. Close releases its connections; the store stays open.
func New(o Options) *Engine {
	if o.Parallelism <= 0 {
		o.Parallelism = 10
	}
	if o.Emit == nil {
		o.Emit = func(event.Event) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
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
	AllowPartial bool            // go on although some scopes are unknown
	Interrupt    <-chan struct{} // when closed, no more steps are started; those under way end
}

// A Result is how a run ended.
type Result struct {
	Run         state.Run
	Differences []event.Difference // what is not as it should be, when the run is partial
}

// ErrInterrupted says that a run was stopped before its end; its journal is intact and Resume settles it.
var ErrInterrupted = apply.ErrInterrupted

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
	return fmt.Sprintf("the plan is spent: run %s applied it. Plan again", e.Run)
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
		lines[i] = on + r.Reason + ": " + r.Remedy
	}
	return "refused: " + strings.Join(lines, "\n")
}

// A HeldError says that the site is held, or a run is still open.
type HeldError struct {
	Holds []state.Hold
	Open  string // id of the run that has not ended; empty when there are only holds
}

func (e *HeldError) Error() string {
	if e.Open != "" {
		return fmt.Sprintf("run %s has not ended; settle it with: converge resume %s, or undo it with: converge rollback %s", e.Open, e.Open, e.Open)
	}
	lines := make([]string, len(e.Holds))
	for i, h := range e.Holds {
		lines[i] = h.Scope + " is held: " + h.Reason
		if h.Run != "" {
			lines[i] += fmt.Sprintf(" (run %s: settle it with converge resume %s or converge rollback %s)", h.Run, h.Run, h.Run)
		}
	}
	return strings.Join(lines, "\n")
}

// An UnknownError says which places could not be seen whole.
type UnknownError struct{ Unknown []plan.Unknown }

func (e *UnknownError) Error() string {
	lines := make([]string, len(e.Unknown))
	for i, u := range e.Unknown {
		lines[i] = fmt.Sprintf("%s/%s is unknown: %s", u.Scope, u.Kind, u.Error)
	}
	return strings.Join(lines, "\n") + "\nnothing is decided about what cannot be seen; mend the connection, or go on with the rest with -allow-partial"
}
