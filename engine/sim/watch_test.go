package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// hook checks every change right before the far side carries it out.
func (s *sim) hook(op string, at fake.Moment, c providers.Call) {
	if op == "observe" || c.ID == "" {
		return
	}
	if at == fake.After {
		if op == "create" {
			s.checkAlone()
		}
		return
	}
	run, step, undo := parseKey(c.Key)
	rec := s.lastOf(run, step, undo)
	served, _, _ := s.direct.Find(c.Ref.Scope, c.Ref.Kind)
	have := s.peek(c.Ref.Scope, c.Ref.Kind, c.ID)
	stops, err := s.raw.Stops(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.effects++
	what := fmt.Sprintf("%s of %s, id %s, key %s, epoch %d", op, c.Ref, c.ID, c.Key, c.Epoch)
	switch {
	case rec == nil || rec.Kind != journal.Intent:
		s.wrong("W1: %s without an open intent: %+v", what, rec)
		return
	case rec.ExternalID != c.ID || rec.Key != c.Key || rec.Ref != c.Ref || string(rec.Action) != op:
		s.wrong("W1: %s, and the intent is %+v", what, rec)
	case rec.Epoch != c.Epoch:
		s.wrong("W2: %s, and the intent has epoch %d", what, rec.Epoch)
	}
	if err != nil {
		s.wrong("%s: %v", what, err)
	} else if on := stops.On(c.Ref, run); len(on) > 0 {
		s.wrong("W5: %s while it is on hold: %v", what, on)
	}
	if c.Epoch < s.epoch {
		s.wrong("F: %s, and epoch %d had an effect already", what, s.epoch)
	}
	s.epoch = max(s.epoch, c.Epoch)
	if s.foreign[target{c.Ref.Scope, c.Ref.Kind, c.ID}] && op != "create" {
		s.wrong("%s: nobody declared that thing", what)
	}
	if op == "create" {
		if have != nil && served.Traits.Create == providers.Blind {
			s.wrong("%s: it is there already, and nothing refuses a second create: %+v", what, have)
		}
		return
	}
	before := ""
	if have != nil {
		before = have.Spec.Digest()
	}
	if !served.Traits.Eventual && before != rec.Before {
		s.wrong("W5: %s, and what is there is not what was seen before: %v", what, have)
	}
}

func parseKey(key string) (run string, step int, undo bool) {
	key, undo = strings.CutSuffix(key, "/undo")
	run, number, _ := strings.Cut(key, "/")
	step, err := strconv.Atoi(number)
	if err != nil {
		step = -1
	}
	return run, step, undo
}

// lastOf returns the last record about a step in one direction, as stored.
func (s *sim) lastOf(run string, step int, undo bool) *journal.Record {
	var last *journal.Record
	for _, rec := range s.records(run) {
		if rec.Step == step && rec.Undo == undo && (rec.Kind == journal.Intent || rec.Kind == journal.Outcome) {
			last = rec
		}
	}
	return last
}

// records returns the journal of a run as stored, without judging it.
func (s *sim) records(run string) []*journal.Record {
	items, err := s.raw.List(context.Background(), s.raw.JournalPrefix(run))
	if err != nil {
		s.t.Error(err)
	}
	var records []*journal.Record
	for _, it := range items {
		if it.Key == s.raw.JournalHead(run) {
			continue
		}
		s.tmu.Lock()
		rec := s.decoded[it.Key]
		if rec == nil {
			rec = &journal.Record{}
			if err := json.Unmarshal(it.Value, rec); err != nil {
				s.t.Error(err)
			}
			s.decoded[it.Key] = rec
		}
		s.tmu.Unlock()
		records = append(records, rec)
	}
	return records
}

// handsOver records what a plan replaces only after its replacement was created, because others refer to it.
func (s *sim) handsOver(pl *plan.Plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range pl.Steps {
		made := func(other plan.Step) bool { return other.Action == plan.Create && other.Ref == pl.Steps[i].Ref }
		if st := &pl.Steps[i]; st.Action == plan.Delete && st.Stray && slices.ContainsFunc(pl.Steps, made) {
			s.handed[target{st.Ref.Scope, st.Ref.Kind, st.ExternalID}] = true
			s.reach("handed over")
		}
	}
}

// checkAlone: no resource has two living things, unless a plan hands over from one to the other.
func (s *sim) checkAlone() {
	living := map[schema.Ref]target{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, th := range s.things() {
		if s.foreign[at] || s.handed[at] || th.Phase == providers.Deleting {
			continue
		}
		ref := schema.Ref{Scope: at.scope, Kind: at.kind, Name: th.Name}
		if other, twice := living[ref]; twice {
			s.wrong("%s has two living things: %s and %s", ref, min(at.String(), other.String()), max(at.String(), other.String()))
		}
		living[ref] = at
	}
}

// A start is the far side as it was when a run began.
type start struct {
	things map[target]thing
	moment int
}

// begun records the state of the far side when a run begins.
func (s *sim) begun(run string) {
	now := s.things()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.starts[run] == nil {
		s.starts[run] = &start{now, s.moment}
	}
}

// ended checks what a command returned. The process is alive.
func (s *sim) ended(p *process, res engine.Result, err error) {
	s.checkAlone()
	s.checkForeign()
	var (
		unknown *engine.UnknownError
		held    *engine.HeldError
		stopped *journal.StoppedError
		stale   *engine.StaleError
		refused *engine.RefusedError
		spent   *engine.SpentError
		locked  *state.LockedError
		outcome string
	)
	switch {
	case err == nil:
		outcome = string(res.Run.Status)
	case errors.Is(err, engine.ErrInterrupted):
		outcome = "interrupted"
	case errors.Is(err, state.ErrFenced):
		outcome = "fenced"
	case errors.As(err, &held):
		outcome = "held"
	case errors.As(err, &stopped):
		outcome = "stopped by a hold"
	case errors.As(err, &unknown):
		outcome = "not seen"
	case errors.As(err, &stale):
		outcome = "stale"
	case errors.As(err, &refused):
		outcome = "refused"
	case errors.As(err, &locked):
		outcome = "locked"
	case errors.As(err, &spent):
		outcome = "spent"
	default:
		outcome = "failed"
	}
	if !p.isDoomed() {
		s.log("%s ends: %s %s: %s", p.name, outcome, res.Run.Status, firstLine(err))
	}
	s.reach(outcome)
	if err != nil || p.stoodStill() { // what a stopped process reports when it wakes is outdated
		return
	}
	switch res.Run.Status {
	case state.RunReverted:
		s.checkReverted(res.Run, "")
	case state.RunPartial:
		holds, herr := s.raw.Holds(context.Background())
		if herr != nil {
			s.t.Error(herr)
		}
		if len(res.Differences) == 0 || len(res.Run.Partial) == 0 {
			s.wrongly("run %s is partial without differences", res.Run.ID)
		}
		if !slices.ContainsFunc(holds, func(h state.Hold) bool {
			return h.Run == res.Run.ID && (h.Scope == schema.ScopeSite || h.OnNode())
		}) {
			s.wrongly("run %s is partial, and nothing is on hold: %v", res.Run.ID, holds)
		}
	case state.RunApplied, state.RunOpen:
	default:
		s.wrongly("run %s ended %q", res.Run.ID, res.Run.Status)
	}
}

// checkReverted: the far side is as it was when the run began, except for what others did and what cannot be deleted.
func (s *sim) checkReverted(run state.Run, when string) {
	now := s.things()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.starts[run.ID] == nil {
		s.wrong("run %s is reverted, and never began", run.ID)
		return
	}
	for _, ref := range run.Remains {
		s.remains[ref] = true
	}
	then, since := s.starts[run.ID].things, s.starts[run.ID].moment
	touched := func(at target) bool { m, ok := s.touched[at]; return ok && m >= since }
	all := map[target]bool{}
	for at := range then {
		all[at] = true
	}
	for at := range now {
		all[at] = true
	}
	for at := range all {
		was, before := then[at]
		is, after := now[at]
		ref := schema.Ref{Scope: at.scope, Kind: at.kind, Name: is.Name}
		switch {
		case touched(at) || s.foreign[at] || s.remains[ref]:
		case !before && is.Phase == providers.Deleting, !after && was.Phase == providers.Deleting:
		case before != after:
			s.wrong("run %s is reverted%s, and %s was there before: %v, after: %v", run.ID, when, at, before, after)
		case was.Spec.Digest() != is.Spec.Digest() || (was.Mark != is.Mark && s.far.Traits[at.kind].Mark):
			s.wrong("run %s is reverted%s, and %s was %v, and is %v", run.ID, when, at, was, is)
		}
	}
}

// checkForeign: what is not declared is unchanged.
func (s *sim) checkForeign() {
	now := s.things()
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := range s.foreign {
		if th, ok := now[at]; !ok || th.Mark != "" || fmt.Sprint(th.Spec["mode"], th.Spec["size"]) != fmt.Sprint("theirs", nil) {
			s.wrong("nobody declared %s, and it is %v, there: %v", at, th, ok)
		}
	}
}

// checkUnknown: nothing is decided about what cannot be observed.
func (s *sim) checkUnknown(p *plan.Plan) {
	for _, u := range p.Unknown {
		for i := range p.Steps {
			if p.Steps[i].Ref.Scope == u.Scope && p.Steps[i].Ref.Kind == u.Kind {
				s.wrongly("%s/%s is unknown, and the plan has %s %s", u.Scope, u.Kind, p.Steps[i].Action, p.Steps[i].Ref)
			}
		}
	}
}

// wrong records that a promise is broken. The caller holds the lock.
func (s *sim) wrong(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.log("WRONG: %s", text)
	s.broken = append(s.broken, text)
}

func (s *sim) wrongly(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong(format, args...)
}

// story returns everything that happened: calls, events, and the journals as stored.
func (s *sim) story() string {
	var b strings.Builder
	b.WriteString(s.trace.String())
	runs, err := s.raw.Runs(context.Background())
	if err != nil {
		s.t.Error(err)
	}
	for _, run := range runs {
		for _, rec := range s.records(run.ID) {
			fmt.Fprintf(&b, "%s %d %s %d %v %s %s %s %s %d %s %s %s %s %s\n", run.ID, rec.Seq, rec.Kind, rec.Step, rec.Undo, rec.Action, rec.Ref,
				rec.ExternalID, rec.Key, rec.Epoch, rec.Before, rec.Want, rec.Result, rec.Error, rec.Wall)
		}
	}
	return b.String()
}
