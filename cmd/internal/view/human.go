package view

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"time"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/load"
	"converge.dev/converge/state"
)

// A Human view writes for people. On a terminal, work in progress is redrawn in place; in a pipe each line is written
// once, and long-running work is repeated every 30 s.
type Human struct {
	o Options

	mu       sync.Mutex
	running  []*running // in the order in which they started
	looking  []event.Observing
	lock     *state.LockInfo // the lock that is waited for
	waited   time.Time       // start of the wait for the lock, or of the first observation
	began    time.Time       // the run
	needed   [][]int         // by step of the plan: those that need it; nil until needed
	told     map[string]bool // why things cannot be observed; each cause is reported once
	done     int
	total    int
	undo     bool
	plan     *plan.Plan // the plan that is carried out
	shown    *plan.Plan // the plan that was shown last
	verified *event.Verified
	drawn    int // lines on the terminal that the next drawing replaces
	ended    bool

	stop chan struct{}
	tick sync.WaitGroup
}

// running is a step that has not ended.
type running struct {
	step  *plan.Step
	undo  bool
	since time.Time
	phase string

	dependants *int // steps that wait for it; nil until needed
}

// NewHuman returns a view for people. Close must be called.
func NewHuman(o Options) *Human {
	h := &Human{o: o, stop: make(chan struct{})}
	if !o.Quiet {
		h.tick.Go(h.beat)
	}
	return h
}

// How often work in progress is shown: where it is redrawn, so that its times advance, and where each time is one more line.
const (
	redraw    = 200 * time.Millisecond
	heartbeat = 30 * time.Second
)

// beat repeatedly shows work in progress.
func (h *Human) beat() {
	pause := heartbeat
	if h.o.Live != nil {
		pause = redraw
	}
	t := time.NewTicker(pause)
	defer t.Stop()
	for {
		select {
		case <-h.stop:
			return
		case <-t.C:
			h.mu.Lock()
			if h.o.Live == nil {
				h.say()
			}
			h.erase()
			h.draw()
			h.mu.Unlock()
		}
	}
}

// Close implements [View].
func (h *Human) Close() {
	h.mu.Lock()
	if h.ended {
		h.mu.Unlock()
		return
	}
	h.ended = true
	h.erase()
	h.mu.Unlock()
	close(h.stop)
	h.tick.Wait()
}

// Plan implements [View].
func (h *Human) Plan(p *plan.Plan) {
	h.mu.Lock()
	h.lock, h.shown = nil, p
	h.mu.Unlock()
	h.result(PlanText(p, h.o.Kinds, h.o.OutStyle, h.o.Layout))
}

// Diagnostics implements [View].
func (h *Human) Diagnostics(ds load.Diagnostics) {
	h.print(h.o.Err, DiagnosticsText(ds, h.o.ErrStyle))
}

// Error implements [View].
func (h *Human) Error(err error) {
	h.print(h.o.Err, h.explain(err).Text(h.o.ErrStyle))
}

// explain returns an error as a problem, without the reasons that the plan shown above it already gave.
func (h *Human) explain(err error) *Problem {
	p := Explain(err)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.o.Together || h.shown == nil {
		return p
	}
	var refused *engine.RefusedError
	var unknown *engine.UnknownError
	above := *p
	above.Where = "See the plan above for the reason."
	switch {
	case errors.As(err, &refused) && len(refused.Refusals) > 0 && reflect.DeepEqual(refused.Refusals, h.shown.Refusals),
		errors.As(err, &unknown) && len(h.shown.Unknown)+len(h.shown.Omitted) > 0:
		return &above
	}
	return p
}

// Warn implements [View].
func (h *Human) Warn(text string) {
	h.print(h.o.Err, h.o.ErrStyle.paint(yellow, "Warning: ")+cleanLines(text)+"\n")
}

// Note implements [View].
func (h *Human) Note(text string) {
	if !h.o.Quiet {
		h.print(h.o.Err, cleanLines(text)+"\n")
	}
}

// result writes text to standard output.
func (h *Human) result(text string) { h.print(h.o.Out, text) }

func (h *Human) print(w io.Writer, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.erase()
	_, _ = io.WriteString(w, text) // the writer records its own error
	h.draw()
}

// progress writes one line about the work to standard error. The lock is held.
func (h *Human) progress(format string, args ...any) {
	if !h.o.Quiet {
		fmt.Fprintf(h.o.Err, format+"\n", args...)
	}
}

// Event implements [View].
func (h *Human) Event(e event.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.erase()
	h.tell(e)
	h.draw()
}

func (h *Human) tell(e event.Event) {
	s := h.o.ErrStyle
	if _, waits := e.(event.LockWait); !waits {
		h.lock = nil
	}
	switch e := e.(type) {
	case event.Observing:
		if e.Elapsed > 0 { // which is shown as work in progress
			break
		}
		if len(h.looking) == 0 {
			h.waited = h.o.now()
		}
		h.looking = append(h.looking, e)
	case event.Observed:
		h.seen(e)
	case event.LockWait:
		if h.lock == nil {
			h.waited = h.o.now()
		}
		h.lock = &e.Holder
		h.progress("Waiting for the site lock, held by %s", holder(e.Holder))
	case event.RunStarted:
		h.plan, h.total, h.done = e.Plan, len(e.Plan.Steps), e.Done
		h.began, h.needed = h.o.now().Add(-e.Ago), nil
		text := fmt.Sprintf("Run %s: %s", e.Run.ID, count(h.total, "step"))
		if e.Done > 0 {
			text += fmt.Sprintf(", %d already done", e.Done)
		}
		h.progress("%s", s.paint(bold, text))
	case event.StepStarted:
		h.running = append(h.running, &running{step: e.Step, undo: e.Undo, since: h.o.now().Add(-e.Ago)})
		if h.o.Live == nil {
			h.progress("%s: %s…", clean(e.Step.Ref.String()), verbsOf(e.Step, e.Undo).doing)
		}
	case event.StepProgress:
		h.phase(e)
	case event.StepDone:
		h.finish(e.Step)
		h.done++
		text := verbsOf(e.Step, e.Undo).done + " after " + took(e.Took)
		if e.ID != "" && e.ID != e.Step.Ref.Name && e.Step.Action == plan.Create && !e.Undo {
			text += " [id " + clean(e.ID) + "]"
		}
		h.progress("%s: %s", clean(e.Step.Ref.String()), s.paint(green, text))
	case event.StepFailed:
		h.finish(e.Step)
		text := fmt.Sprintf("%s failed after %s: %s", verbsOf(e.Step, e.Undo).noun, took(e.Took), clean(plain(e.Err, e.Step.Ref)))
		if e.Effect {
			text += " (changes were made, or may have been)"
		}
		h.progress("%s: %s", clean(e.Step.Ref.String()), s.paint(red, text))
	case event.ConfirmWait:
		h.progress("%s", s.paint(yellow, fmt.Sprintf("All steps are done. Confirm the run within %s, or it is rolled back: converge confirm %s", e.Within.Round(time.Second), clean(e.Run))))
	case event.Confirmed:
		h.progress("%s", s.paint(green, "Confirmed by "+clean(e.By)))
	case event.PointOfNoReturn:
		h.progress("%s", s.paint(yellow, "Point of no return: "+h.late(e.Steps)))
	case event.Interrupted:
		if e.By != "" {
			h.progress("%s", s.paint(yellow, fmt.Sprintf("Cancelled by %s: finishing what is in progress (%s); nothing more is started.", clean(e.By), count(e.InFlight, "step"))))
			return
		}
		h.progress("%s", s.paint(yellow, fmt.Sprintf("Gracefully shutting down: finishing what is in progress (%s); nothing more is started. A second Ctrl-C or signal exits immediately.", count(e.InFlight, "step"))))
	case event.RevertStarted:
		h.undo, h.done, h.total = true, 0, e.Steps
		text := revertText(e)
		if e.Cause != nil {
			text += ": " + clean(e.Cause.Error())
		}
		h.progress("%s", s.paint(yellow, text))
	case event.Verified:
		h.verified = &e
		if e.Things > 0 || len(e.Differences) > 0 {
			h.progress("Verified %s: %s", count(e.Things, "object"), differences(e))
		}
	case event.RunEnded:
		h.report(e)
	}
}

// revertText returns what is begun when a run is undone.
func revertText(e event.RevertStarted) string {
	switch {
	case e.Steps == 0 && e.Keep == 0:
		return "Nothing left to revert"
	case e.Steps == 0:
		return fmt.Sprintf("Nothing left to revert after step %d", e.Keep)
	case e.Keep == 0:
		return "Reverting " + count(e.Steps, "step")
	}
	return fmt.Sprintf("Reverting %s, back to step %d", count(e.Steps, "step"), e.Keep)
}

// late returns what is beyond the point of no return, with the number that the plan showed.
func (h *Human) late(steps int) string {
	if h.plan == nil {
		return count(steps, "step") + " to go"
	}
	return count(len(h.plan.Irreversible()), "step") + " from here on cannot be undone exactly"
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// plain returns the text of an error about ref without repeating the ref.
func plain(err error, ref schema.Ref) string {
	var e *providers.Error
	if errors.As(err, &e) && e.Ref == ref && e.Err != nil {
		return strings.Replace(err.Error(), e.Error(), e.Err.Error(), 1)
	}
	return message(err)
}

func differences(e event.Verified) string {
	switch {
	case len(e.Differences) > 0:
		return count(len(e.Differences), "difference")
	case e.Undo:
		return "all as before"
	}
	return "all as planned"
}

func (h *Human) seen(e event.Observed) {
	for i, l := range h.looking {
		if l.Scope == e.Scope && l.Kind == e.Kind {
			h.looking = append(h.looking[:i], h.looking[i+1:]...)
			break
		}
	}
	switch {
	case errors.Is(e.Err, context.Canceled): // the interruption is known
	case e.Err != nil && providers.ClassOf(e.Err) == providers.Unsupported: // the result reports it where it matters
	case e.Err != nil:
		why := reason(e.Kind, e.Err.Error())
		if h.told[why] {
			return
		}
		if h.told == nil {
			h.told = map[string]bool{}
		}
		h.told[why] = true
		if h.o.Together && h.plan == nil { // what is shown next reports it
			return
		}
		h.progress("%s", h.o.ErrStyle.paint(yellow, fmt.Sprintf("%s/%s could not be observed: %s", clean(e.Scope), clean(e.Kind), clean(why))))
	}
}

// phase records the phase of a step. In a pipe it is printed when it changes.
func (h *Human) phase(e event.StepProgress) {
	for _, r := range h.running {
		if r.step != e.Step {
			continue
		}
		on := clean(e.Step.Ref.String())
		if e.Phase == event.Acting { // its duration is shown with everything else
			return
		}
		text := phaseText(e)
		if text != r.phase && h.o.Live == nil {
			h.progress("%s: %s", on, text)
		}
		r.phase = text
		return
	}
}

func (h *Human) finish(s *plan.Step) {
	for i, r := range h.running {
		if r.step == s {
			h.running = append(h.running[:i], h.running[i+1:]...)
			return
		}
	}
}

// report prints how a run ended, on standard output.
func (h *Human) report(e event.RunEnded) {
	s := h.o.OutStyle
	var b strings.Builder
	fmt.Fprintln(&b)
	op := operation(e)
	switch e.Run.Status {
	case state.RunApplied:
		var c plan.Counts
		if h.plan != nil {
			c = h.plan.Counts()
		}
		fmt.Fprintln(&b, s.paint(green, fmt.Sprintf("%s complete! Resources: %s. All verified as planned. [run %s, %s]", op, counted(c), e.Run.ID, took(e.Took))))
		if h.plan != nil && len(h.plan.Omitted) > 0 {
			fmt.Fprintf(&b, "Skipped: %s; converge plan shows which, and why.\n", count(len(h.plan.Omitted), "resource"))
		}
	case state.RunReverted, state.RunRolledBack:
		text, of := op+" failed and was reverted", "this run"
		switch {
		case e.Run.Status == state.RunRolledBack:
			text, of = "Run "+e.Run.ID+" was "+e.Run.Stands(), "the steps after it"
		case e.Run.Unconfirmed:
			text = op + " was not confirmed and was reverted"
		case e.Asked, e.Run.Failed.IsZero():
			text = "Run " + e.Run.ID + " was reverted"
		}
		switch {
		case (h.verified == nil || h.verified.Things == 0) && e.Run.Kept > 0:
			text += ": the site is unchanged by " + of
		case h.verified == nil || h.verified.Things == 0:
			text += ": the site is unchanged"
			if len(e.Run.Remains) > 0 {
				text += " but for what stays"
			}
		case h.verified.Things == 1:
			text += ": the one object of " + of + " is as it was before, verified by observing again"
		default:
			text += fmt.Sprintf(": the %d objects of %s are as they were before, verified by observing again", h.verified.Things, of)
		}
		fmt.Fprintln(&b, s.paint(yellow, text+"."))
		if n := e.Run.Kept; n > 0 {
			fmt.Fprintf(&b, "Changes up to step %d are kept, and were not observed again.\n", n)
		}
		if h.verified != nil {
			for _, r := range h.verified.Recreated {
				fmt.Fprintf(&b, "  %s was deleted and created again: anything that was running in it is lost.\n", clean(r.String()))
			}
		}
		for _, r := range e.Run.Remains {
			fmt.Fprintf(&b, "  %s stays: it can never be deleted. It is no longer managed.\n", clean(r.String()))
		}
		if !e.Asked {
			h.cause(&b, e.Run)
		}
	case state.RunPartial:
		fmt.Fprintln(&b, s.paint(red, op+" failed and left the site in an intermediate state."))
		h.cause(&b, e.Run)
		listDifferences(&b, e.Differences)
	default:
		text := fmt.Sprintf("%s stopped after %d of %s.", op, e.Run.Done, count(e.Run.Steps, "step"))
		if e.Asked {
			text = op + " stopped before it finished."
		}
		fmt.Fprintln(&b, s.paint(yellow, text+" The journal is intact."))
		h.cause(&b, e.Run)
		listDifferences(&b, e.Differences)
	}
	own := func(hold state.Hold) bool { return hold.Run == e.Run.ID } // blocks only other runs
	for _, hold := range e.Holds {
		if !own(hold) {
			b.WriteString(holdText(hold))
		}
	}
	b.WriteString(Settling(e.Run, e.Undoable))
	for _, hold := range e.Holds {
		if own(hold) {
			b.WriteString(holdText(hold))
		}
	}
	_, _ = io.WriteString(h.o.Out, b.String())
}

func (h *Human) cause(b *strings.Builder, r state.Run) {
	switch {
	case r.Message == "":
	case r.Failed.IsZero(), strings.Contains(r.Message, r.Failed.String()):
		fmt.Fprintf(b, "  %s\n", clean(r.Message))
	default:
		fmt.Fprintf(b, "  %s: %s\n", clean(r.Failed.String()), clean(r.Message))
	}
}

func listDifferences(b *strings.Builder, ds []event.Difference) {
	if len(ds) == 0 {
		return
	}
	fmt.Fprintln(b, "Not as expected:")
	for _, d := range ds {
		on := ""
		if !d.Ref.IsZero() {
			on = clean(d.Ref.String()) + ": "
		}
		fmt.Fprintf(b, "  %s%s\n", on, clean(d.Detail))
	}
}

// holdText returns what is held, and how to release it.
func holdText(h state.Hold) string {
	if h.Scope == state.FrozenScope {
		return fmt.Sprintf("The site is frozen (%s). To unfreeze: converge freeze -off\n", clean(h.Reason))
	}
	return fmt.Sprintf("On hold: %s (%s). To release: converge hold release %s\n", clean(h.Scope), clean(h.Reason), clean(h.Scope))
}

// Settling returns how to continue a run that did not end as intended; empty for one that did.
func Settling(r state.Run, undoable bool) string {
	if r.Status != state.RunOpen && r.Status != state.RunPartial {
		return ""
	}
	text := "To resume:    converge resume " + r.ID + "\n"
	if undoable {
		text += "To roll back: converge rollback " + r.ID + "\n"
	}
	return text
}
