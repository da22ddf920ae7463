package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"strings"
	"time"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A worker carries out one step, forward or as its undo. It knows nothing of the run but what it was given.
type worker struct {
	step    *plan.Step
	undo    bool
	action  plan.Action // of the call: an undone create is a delete
	kind    *schema.Kind
	served  providers.Served
	journal *journal.Journal
	store   *state.Store
	retry   Retry
	effects context.Context
	notes   chan<- event.Event
	site    string
	run     string
	epoch   int64

	id          string
	incarnation int
	mark        providers.Mark
	before      schema.Object // to be seen right before acting, with external ids; nil: nothing
	want        schema.Object // the whole spec to have, with external ids; nil: nothing
	stated      schema.Object // what must be seen of it afterwards; equal to want when all of it must
	dropped     schema.Object // what was recorded before: what it states and stated does not must be gone
	record      *state.Record // to be remembered afterwards; nil: nothing
	attempts    int           // intents so far
	unsure      bool          // an earlier call may have had its effect, or may have it yet
	touched     []string      // undone update: the fields that the step changed; what others changed meanwhile stays
	last        journal.Record
	begun       time.Time
}

// worker looks up all that a step needs. The forward direction follows the plan; an undo follows the journal.
func (r *run) worker(s *plan.Step, undo bool) *worker {
	served, _, _ := r.Providers.Find(s.Ref.Scope, s.Ref.Kind)
	w := &worker{
		step: s, undo: undo, action: s.Action, kind: r.Kinds[s.Ref.Kind], served: served, journal: r.journal, store: r.Store,
		retry: r.Retry, effects: r.effects, notes: r.notes, site: r.Plan.Site.ID, run: r.Run.ID, epoch: r.Lock.Epoch(),
		id: s.ExternalID, incarnation: s.Incarnation, record: s.Record, begun: time.Now(),
	}
	at := r.sum.Forward[s.ID]
	for _, rec := range []*journal.Record{at.Outcome, at.Open} { // a create may have had to take another id
		if rec != nil && rec.ExternalID != "" {
			w.id, w.incarnation = rec.ExternalID, rec.Incarnation
		}
	}
	w.before = r.resolve(s.Ref, s.Before, r.were)
	if undo {
		r.turn(w, at)
		at = r.sum.Undo[s.ID]
	} else {
		w.want, w.stated = r.resolve(s.Ref, s.After, r.ids), r.resolve(s.Ref, s.Want, r.ids)
		if s.Prior != nil && s.Action == plan.Update {
			w.dropped = r.resolve(s.Ref, s.Prior.Spec, r.were)
		}
	}
	w.attempts, w.unsure = at.Attempts, w.unsure || at.Open != nil
	w.mark = providers.Mark{Site: w.site, Ref: s.Ref, Incarnation: max(w.incarnation, 1)}
	if undo && s.Action == plan.Update {
		w.mark = s.Mark // what was taken over is given back as it was, unmarked
	}
	return w
}

// turn makes the worker undo what the journal says that the step did.
func (r *run) turn(w *worker, did journal.Standing) {
	s := w.step
	w.record = s.Prior
	switch s.Action {
	case plan.Create:
		w.action, w.before, w.want = plan.Delete, nil, nil
		if s.Leaves {
			w.action = plan.Forget
		}
		w.unsure = true // whatever is there under our id is ours to remove
		if w.served.Traits.Burned {
			w.record = &state.Record{Ref: s.Ref, Incarnation: w.incarnation, Gone: true}
		}
	case plan.Delete:
		w.action, w.want, w.before = plan.Create, w.before, nil
		w.stated = w.want
		w.unsure = did.Open != nil // it may be there still
	case plan.Update:
		w.touched = []string{}
		for _, c := range s.Changes {
			field, _, _ := strings.Cut(c.Path, ".")
			field, _, _ = strings.Cut(field, "[")
			w.touched = append(w.touched, field)
		}
		w.unsure = true // what is there is our change, whole or in part
		w.stated, w.dropped = pick(w.before, w.touched), pick(r.resolve(s.Ref, s.After, r.ids), w.touched)
	}
}

// pick copies the named fields.
func pick(spec schema.Object, fields []string) schema.Object {
	out := make(schema.Object, len(fields))
	for _, f := range fields {
		if v, ok := spec[f]; ok {
			out[f] = v
		}
	}
	return out
}

// resolve gives a spec with external ids in place of names.
func (r *run) resolve(ref schema.Ref, spec schema.Object, ids map[schema.Ref]string) schema.Object {
	if spec == nil {
		return nil
	}
	k, o := r.Kinds[ref.Kind], spec.Clone()
	k.EachRef(o, func(kind, name string) string {
		for _, scope := range []string{ref.Scope, schema.ScopeSite} {
			if id, ok := ids[schema.Ref{Scope: scope, Kind: kind, Name: name}]; ok {
				return id
			}
		}
		return name
	})
	k.Normalize(o)
	return o
}

// guarded turns a panic of a provider into a failed step whose outcome is unknown.
func (w *worker) guarded() (res result) {
	defer func() {
		if p := recover(); p != nil {
			res = w.unknown(fmt.Errorf("the provider panicked: %v\n%s", p, debug.Stack()))
		}
	}()
	if w.kind == nil || w.served.Kind == nil {
		return w.refuse(&providers.Error{Op: string(w.action), Ref: w.step.Ref, Class: providers.Unsupported, Err: errors.New("no provider serves this kind here")})
	}
	ctx, cancel := context.WithTimeout(w.effects, w.retry.Within+w.within())
	defer cancel()
	if w.action == plan.Adopt || w.action == plan.Forget {
		return w.remember(ctx)
	}
	return w.act(ctx)
}

// within is the longest wait for the result of the call: the plan's, or for an undo the kind's own.
func (w *worker) within() time.Duration {
	switch {
	case !w.undo:
		return w.step.Within
	case w.action == plan.Delete:
		return w.served.Traits.GoneWithin
	}
	return w.served.Traits.ReadyWithin
}

// remember changes what is recorded, and nothing else.
func (w *worker) remember(ctx context.Context) result {
	if !w.undo && w.action == plan.Adopt {
		have, err := w.see(ctx)
		switch {
		case err != nil:
			return w.refuse(err)
		case have == nil || have.Spec.Digest() != w.before.Digest():
			return w.refuse(w.conflict("it changed since the plan was made"))
		}
	}
	return w.finish(nil)
}

// act makes the call, as often as it may be repeated, and finds out what came of it.
func (w *worker) act(ctx context.Context) result {
	mustLook := w.unsure || w.action != plan.Create || w.served.Traits.Create == providers.Blind
	for try := 1; ; try++ {
		var have *providers.Thing
		if mustLook {
			var err error
			if have, err = w.see(ctx); err != nil {
				return w.failed(err)
			}
			if res, over := w.judge(ctx, have); over {
				return res
			}
		}
		if err := w.intend(have); err != nil {
			return result{step: w.step, outcome: w.last, fatal: err}
		}
		err := w.call(ctx, have)
		if err == nil {
			return w.await(ctx)
		}
		class := providers.ClassOf(err)
		mustLook = true
		switch class {
		case providers.Transient, providers.Busy:
		case providers.Unknown:
			w.unsure = true
			w.note(event.Settling, err.Error(), try)
		case providers.Exists:
			if res, over := w.collide(ctx, err); over {
				return res
			}
		case providers.Absent, providers.Conflict:
			if res, over := w.lookAgain(ctx, err); over {
				return res
			}
		default:
			return w.failed(err)
		}
		if try >= w.retry.Attempts && !(class == providers.Busy && time.Since(w.begun) < w.within()) {
			return w.failed(fmt.Errorf("after %d attempts: %w", try, err))
		}
		w.note(event.Retrying, err.Error(), try)
		if err := sleep(ctx, w.retry.delay(try)); err != nil {
			return w.failed(err)
		}
	}
}

// judge compares what is there right before a call with what the call expects. Over means that no call is to be made.
func (w *worker) judge(ctx context.Context, have *providers.Thing) (res result, over bool) {
	here := have != nil && have.Phase != providers.Leaving
	switch w.action {
	case plan.Delete:
		switch {
		case have == nil:
			return w.finish(nil), true
		case !here:
			return w.await(ctx), true
		case w.undo && !w.ours(have):
			return w.finish(nil), true // nothing of ours is there
		case w.before != nil && !w.unsure && have.Spec.Digest() != w.before.Digest():
			return w.refuse(w.conflict("it changed since the plan was made")), true
		}
	case plan.Create:
		switch {
		case !here:
		case len(w.unmet(have)) == 0 && w.ours(have):
			return w.await(ctx), true
		case w.unsure && w.ours(have):
			return w.partial(fmt.Errorf("it was created, but differs: %s", strings.Join(w.unmet(have), ", ")), have), true
		default:
			return w.refuse(&providers.Error{Op: "create", Ref: w.step.Ref, Class: providers.Exists, Err: errors.New("it is there already and was not made by this step")}), true
		}
	case plan.Update:
		switch {
		case !here:
			return w.failed(w.conflict("it is gone")), true
		case len(w.unmet(have)) == 0:
			return w.await(ctx), true
		case w.unsure:
		case w.before != nil && have.Spec.Digest() != w.before.Digest():
			return w.refuse(w.conflict("it changed since the plan was made")), true
		}
	}
	return result{}, false
}

// ours reports whether a thing found under our id was made by us. An id that we chose says so by itself.
func (w *worker) ours(have *providers.Thing) bool {
	if w.served.Traits.ID == "" {
		return true
	}
	return have.Mark == w.mark || (w.unsure && !w.served.Traits.Mark)
}

// collide resolves a create whose id is said to be taken: by an earlier attempt of ours, by somebody else, or by a thing
// that was deleted long ago and whose id cannot be used again.
func (w *worker) collide(ctx context.Context, cause error) (result, bool) {
	have, err := w.see(ctx)
	switch {
	case err != nil:
		return w.failed(err), true
	case have != nil && w.ours(have):
		w.unsure = true
		return w.judge(ctx, have)
	case have != nil:
		return w.refuse(cause), true
	case w.served.Traits.Burned && w.served.Traits.ID == "":
		w.incarnation++
		w.mark.Incarnation = w.incarnation
		w.id = plan.ExternalID(w.site, w.served.Traits, w.step.Ref, w.incarnation, nil)
		if w.record != nil {
			r := *w.record
			r.ID, r.Incarnation = w.id, w.incarnation
			w.record = &r
		}
		w.unsure = false
		return result{}, false
	}
	return w.failed(cause), true // a name is taken by something else
}

// lookAgain settles a refusal that says that the thing is not what the call expected.
func (w *worker) lookAgain(ctx context.Context, cause error) (result, bool) {
	if w.action == plan.Create { // what it refers to is not there
		return w.failed(cause), true
	}
	have, err := w.see(ctx)
	if err != nil {
		return w.failed(err), true
	}
	if w.action == plan.Update && have != nil && w.before != nil && have.Spec.Digest() == w.before.Digest() {
		return result{}, false // only the token moved: the same change, with the new one
	}
	if res, over := w.judge(ctx, have); over {
		return res, true
	}
	return result{}, w.action == plan.Update && !w.undo
}

// await looks until the result is there, or cannot come any more.
func (w *worker) await(ctx context.Context) result {
	limit, pause := time.Now().Add(w.within()), w.retry.Poll
	for {
		have, err := w.see(ctx)
		if err != nil {
			return w.unknown(fmt.Errorf("looking at the result: %w", err))
		}
		waits := w.served.Traits.Eventual
		var detail string
		if w.action == plan.Delete {
			if have == nil {
				return w.finish(nil)
			}
			waits = waits || have.Phase == providers.Leaving
			detail = cmp.Or(have.Detail, "it is still there")
		} else {
			switch {
			case have == nil:
				detail = "it is not to be seen"
			case have.Phase == providers.Failed:
				return w.partial(fmt.Errorf("it failed: %s", cmp.Or(have.Detail, "no reason is given")), have)
			case have.Phase == providers.Pending:
				waits, detail = true, cmp.Or(have.Detail, "not ready")
			default:
				unmet := w.unmet(have)
				if len(unmet) == 0 {
					return w.finish(have)
				}
				detail = "not taken over: " + strings.Join(unmet, ", ")
			}
		}
		if !waits || time.Now().After(limit) {
			return w.partial(errors.New(detail), have)
		}
		w.note(event.Waiting, detail, 0)
		if err := sleep(ctx, pause); err != nil {
			return w.unknown(fmt.Errorf("%s: %w", detail, err))
		}
		pause = min(pause*2, 2*time.Second)
	}
}

// unmet lists the paths that are not as they must be afterwards.
func (w *worker) unmet(have *providers.Thing) []string {
	same := func(_, id string) string { return id }
	spec := have.Spec
	changes := diff.Compare(w.kind, w.stated, spec, w.dropped, nil, same)
	paths := make([]string, len(changes))
	for i, c := range changes {
		paths[i] = c.Path
	}
	if w.action == plan.Update && w.served.Traits.Mark && have.Mark != w.mark {
		paths = append(paths, "its mark")
	}
	return paths
}

// see looks at the thing; nil when it is not there.
func (w *worker) see(ctx context.Context) (*providers.Thing, error) {
	things, err := Look(ctx, w.served.Kind, []string{w.id}, w.retry)
	if err != nil {
		return nil, err
	}
	for i := range things {
		if things[i].ID == w.id {
			w.kind.Normalize(things[i].Spec)
			return &things[i], nil
		}
	}
	return nil, nil
}

func (w *worker) call(ctx context.Context, have *providers.Thing) error {
	c := providers.Call{Ref: w.step.Ref, ID: w.id, Mark: w.mark, Want: w.want, Key: w.key(), Epoch: w.epoch}
	if have != nil {
		c.Have, c.Version = have.Spec, have.Version
	}
	if w.touched != nil {
		c.Want = have.Spec.Clone()
		for _, f := range w.touched {
			delete(c.Want, f)
		}
		maps.Copy(c.Want, w.stated)
	}
	switch w.action {
	case plan.Create:
		return w.served.Kind.Create(ctx, c)
	case plan.Update:
		return w.served.Kind.Update(ctx, c)
	case plan.Delete:
		return w.served.Kind.Delete(ctx, c)
	}
	return fmt.Errorf("%s is not a call", w.action)
}

func (w *worker) key() string {
	k := fmt.Sprintf("%s/%d", w.run, w.step.ID)
	if w.undo {
		k += "/undo"
	}
	return k
}

func (w *worker) conflict(detail string) error {
	return &providers.Error{Op: string(w.action), Ref: w.step.Ref, Class: providers.Conflict, Err: errors.New(detail)}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// note tells the world, unless the run is over.
func (w *worker) note(phase event.Phase, detail string, attempt int) {
	ev := event.StepProgress{Step: w.step, Undo: w.undo, Phase: phase, Detail: detail, Attempt: attempt, Elapsed: time.Since(w.begun)}
	select {
	case w.notes <- ev:
	case <-w.effects.Done():
	}
}
