package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/internal/failpoint"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// A worker carries out one step, forward or as an undo. It knows nothing of the run but what it was given.
type worker struct {
	known
	served   providers.Served
	provider *providers.Provider
	journal  *journal.Journal
	store    *state.Store
	retry    Retry
	effects  context.Context
	halt     <-chan struct{} // closed when the run is asked to stop
	turns    *turns          // of which it holds one; nil when it only looks, or is done
	disturbs bool            // it changes or replaces what is in use
	guards   *guards
	notes    chan<- event.Event
	log      *slog.Logger
	epoch    int64

	record     *state.Record    // to be remembered afterwards; nil: nothing
	attempts   int              // intents so far
	acted      time.Time        // when the last call was made of which something may still come; zero: none
	away       time.Time        // when the far side was last found unavailable; zero: never
	rounds     int              // how often fields that come later were asked for
	used       int              // ids that were found to be used up
	old        bool             // undo: what it undoes was done by another process, maybe long ago
	guard      string           // id of the guard of the step; empty: none so far
	armed      bool             // and it undoes what the step has changed, unless that is kept
	had        *providers.Thing // what was there before that; nil: nothing
	chosen     bool             // create: the far side chose another id than ours
	again      schema.Object    // undone create of unknown outcome: what to create again until the answer is definite; nil: only look
	quarantine time.Time        // before then nothing may be deleted blindly
	outside    []outsider       // things that it refers to, that nothing declares, and that have to be there
	referrers  []referrer       // kinds whose things may not refer to what is deleted
	shared     *sharedList
	glances    *glances
	last       journal.Record
	begun      time.Time
}

// worker looks up all that a step needs. The forward direction follows the plan; an undo follows the journal.
func (r *run) worker(s *plan.Step, undo bool) *worker {
	served, provider, _ := r.Providers.Find(s.Ref.Scope, s.Ref.Kind)
	w := &worker{
		known: known{
			step: s, undo: undo, action: s.Action, kind: r.Kinds[s.Ref.Kind], traits: served.Traits, site: r.Plan.Site.ID, run: r.Run.ID,
			id: s.ExternalID, incarnation: s.Incarnation, ignore: ignored(s),
		},
		served: served, provider: provider, journal: r.journal, store: r.Store, retry: r.Retry, effects: r.effects, halt: r.halt, notes: r.notes, log: r.Logger,
		glances: &r.glances, guards: r.guards, epoch: r.Lock.Epoch(), record: s.Record, begun: time.Now(),
	}
	at := r.sum.Forward[s.ID]
	for _, rec := range []*journal.Record{at.Outcome, at.Open} { // a create may have had to take another id
		if rec != nil && rec.ExternalID != "" {
			w.id, w.incarnation = rec.ExternalID, rec.Incarnation
		}
	}
	w.disturbs = s.Replace || s.Action == plan.Update || r.Parallelism == 1
	w.before = r.resolve(s.Ref, s.Before, r.were)
	if c := s.Renames(); c != nil {
		w.name, _ = c.After.(string)
		w.unnamed, _ = c.Before.(string)
	}
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
	w.called = at.Attempts > 0
	if !undo && w.called && at.Effect() { // also when it ended as partial, and the run goes on
		w.unsure = true
	}
	if at.Open != nil { // by a process that is gone: assume the latest possible time
		rest := r.doubtful(s.Ref, w.traits, at.Open.Epoch)
		w.acted = w.begun.Add(rest - shown(w.traits))
		if rest > 0 || !r.fenced(s.Ref, at.Open.Epoch) {
			w.doubt = w.acted
		}
	}
	if w.action == plan.Delete && w.traits.Delete == providers.Blind {
		w.quarantine = r.Lock.Quarantine(w.traits.EffectWithin)
	}
	if !undo && (w.action == plan.Create || w.action == plan.Update) {
		w.outside = r.outsiders(s.Ref, w.want)
	}
	if w.action == plan.Delete {
		w.referrers, w.shared = r.referrers(s.Ref, w.served), &r.shared
	}
	w.mark = providers.Mark{Site: w.site, Ref: s.Ref, Incarnation: max(w.incarnation, 1)}
	if undo && s.Action == plan.Update {
		w.mark = s.Mark // what was taken over is given back as it was, unmarked
	}
	return w
}

// fenced reports whether a call of an earlier lock holder can no longer have an effect, because the far side stores the epoch and
// has ours.
func (r *run) fenced(ref schema.Ref, epoch int64) bool {
	_, p, ok := r.Providers.Find(ref.Scope, ref.Kind)
	return ok && p.Fence != nil && epoch < r.Lock.Epoch()
}

// doubtful returns the time after which a look shows what a call of an earlier lock holder did. Fencing the call does not
// make a list show any sooner an effect that it had before.
func (r *run) doubtful(ref schema.Ref, t providers.Traits, epoch int64) time.Duration {
	if r.fenced(ref, epoch) {
		t.EffectWithin = 0
	}
	return shown(t)
}

// turn makes the worker undo what the step did according to the journal.
func (r *run) turn(w *worker, did journal.Standing) {
	s := w.step
	w.record, w.finished = s.Prior, did.Finished()
	for _, rec := range []*journal.Record{did.Outcome, did.Open} {
		w.old = w.old || rec != nil && rec.Epoch < w.epoch
	}
	w.kept = r.uids[s.Ref]
	if did.Outcome != nil {
		w.seen = did.Outcome.Seen
	}
	switch s.Action {
	case plan.Adopt:
		if w.kept != "" && w.record != nil && w.record.UID == s.UID { // a later run deleted it, and its undo made it again
			again := *w.record
			again.UID, w.record = w.kept, &again
		}
	case plan.Create:
		w.action, w.before, w.want = plan.Delete, nil, nil
		if s.Leaves {
			w.action = plan.Forget
		}
		w.unsure = true // whatever is there under our id is ours to remove
		w.lost, w.made = did.Open != nil, r.resolve(s.Ref, s.After, r.ids)
		w.missing = did.Unseen()
		if w.lost && repeatable(w.traits) {
			w.again = w.made
		}
		if w.traits.UsedOnce() && !s.Beside {
			w.record = &state.Record{Ref: s.Ref, Incarnation: w.incarnation, Gone: true}
		}
	case plan.Delete:
		w.action, w.want, w.before = plan.Create, w.before, nil
		w.stated = w.want
		w.unsure = did.Open != nil                 // it may still be there
		if w.record != nil && w.record.UID != "" { // what is made again has another uid
			again := *w.record
			again.UID, w.record = "", &again
		}
	case plan.Update:
		w.name, w.unnamed = w.unnamed, w.name
		w.touched = []string{}
		for _, c := range s.Changes {
			w.touched = append(w.touched, c.Field())
		}
		w.unsure = true // what is there may be our change, whole or in part
		w.changed = r.resolve(s.Ref, s.After, r.ids)
		w.touch(w.seen == "" || r.sum.Undo[s.ID].Attempts > 0)
	}
}

// touch takes what an undone update states from what the step changed. A call that was cut, its own or that of the undo, may also have left
// anything in what is set last.
func (w *worker) touch(cut bool) {
	if cut {
		for _, f := range w.traits.SetLast {
			if !slices.Contains(w.touched, f) {
				w.touched = append(w.touched, f)
			}
		}
	}
	w.stated, w.dropped = pick(w.before, w.touched), pick(w.changed, w.touched)
}

// ignored returns the paths that the run ignores in the step's resource, or that were ignored in a resource that the step
// removed. A path that only an earlier document ignored is restored like everything else that the step changed.
func ignored(s *plan.Step) []string {
	switch {
	case s.Record != nil && !s.Record.Gone:
		return s.Record.Ignore
	case s.Prior != nil:
		return s.Prior.Ignore
	}
	return nil
}

// pick returns a copy with the named fields only.
func pick(spec schema.Object, fields []string) schema.Object {
	out := make(schema.Object, len(fields))
	for _, f := range fields {
		if v, ok := spec[f]; ok {
			out[f] = v
		}
	}
	return out
}

// resolve returns a spec with external ids in place of names.
func (r *run) resolve(ref schema.Ref, spec schema.Object, ids map[schema.Ref]string) schema.Object {
	if spec == nil {
		return nil
	}
	k, o := r.Kinds[ref.Kind], spec.Clone()
	k.ReplaceRefs(o, func(kind, name string) string {
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
		return w.refuse(&providers.Error{Op: string(w.action), Ref: w.step.Ref, Class: providers.Unsupported, Err: errors.New("no provider serves this kind in this scope")})
	}
	ctx, cancel := context.WithTimeout(w.effects, w.retry.Within+w.within())
	defer cancel()
	if w.action == plan.Adopt || w.action == plan.Forget {
		return w.remember(ctx)
	}
	defer w.drop()
	return w.act(ctx)
}

// within returns the longest wait for the result of the call: the plan's, or for an undo the kind's own.
func (w *worker) within() time.Duration {
	switch {
	case !w.undo:
		return w.step.Within
	case w.action == plan.Delete:
		return w.traits.GoneWithin
	}
	return w.traits.ReadyWithin
}

// remember changes the record, and nothing else.
func (w *worker) remember(ctx context.Context) result {
	if w.undo || w.action != plan.Adopt {
		return w.finish(nil)
	}
	have, err := w.see(ctx, 0)
	switch {
	case err != nil:
		return w.failed(err)
	case have == nil || !have.Spec.Equal(w.before):
		return w.refuse(w.conflict("it changed since the plan was made"))
	case w.stranger(have):
		return w.refuse(w.conflict(w.taking(have)))
	}
	return w.finish(have)
}

// act makes the call, repeating it as often as allowed, and finds out its outcome.
func (w *worker) act(ctx context.Context) result {
	mustLook := w.unsure || w.action != plan.Create || w.traits.Create == providers.Blind
	poll, again := w.retry.polls(), w.retry.calls(w.key()).Pauses()
	var after time.Duration // until the next look
	for try := 1; ; {       // a mere wait does not count as a try
		var have *providers.Thing
		if mustLook {
			var err error
			if have, err = w.see(ctx, after); err != nil {
				return w.failed(err)
			}
			after = 0
			if err := w.readForUndo(ctx, have); err != nil {
				return w.failed(err)
			}
			v := w.decide(have, false, w.over(w.begun))
			if v.do == searches {
				have, err = w.confirmCreate(ctx)
				var unwritten unwritten
				switch {
				case errors.As(err, &unwritten):
					return w.stopped(unwritten.error)
				case err == nil:
					err = w.readForUndo(ctx, have)
				}
				if err != nil {
					return w.failed(err)
				}
				v = w.decide(have, true, w.over(w.begun))
			}
			switch v.do {
			case lingers:
				if err := w.late(ctx); err != nil {
					return w.failed(err)
				}
				continue // and look again
			case ripens:
				w.note(event.Waiting, cmp.Or(have.Detail, "not ready")+w.upTo(), 0)
				after = poll()
				continue // and look again
			}
			if res, over := w.follow(ctx, v); over {
				return res
			}
			if rest := time.Until(w.quarantine); rest > 0 {
				w.note(event.Settling, fmt.Sprintf("the last holder of the site lock did not release it: nothing is deleted for %s, in case one of its calls is still in progress", rest.Round(time.Second)), 0)
				if err := w.pause(ctx, rest); err != nil {
					return w.failed(err)
				}
				continue // and look again
			}
			if w.action == plan.Delete {
				if res, over := w.awaitReferrers(ctx); over {
					return res
				}
			}
			if waited, err := w.awaitLate(ctx, have == nil); err != nil {
				return w.failed(err)
			} else if waited {
				continue
			}
		}
		if res, over := w.present(ctx); over {
			return res
		}
		action := w.action
		switch {
		case w.half(have), w.later(have):
			action = plan.Update
		case action == plan.Update && have == nil: // it has vanished
			action = plan.Create
		}
		if err := w.intend(action, have); err != nil {
			return w.stopped(err)
		}
		err := w.call(ctx, action, w.wanted(have), have)
		w.called = w.called || !providers.Taken(err)
		if err == nil {
			w.sent = true
			if w.chosen { // a process that continues the run must look for it under its actual id
				if err := w.intend(w.action, nil); err != nil {
					return w.stopped(err)
				}
			}
			if res, over := w.await(ctx); over {
				return res
			}
			mustLook, w.unsure = true, true
			continue // now ask for the rest
		}
		class := providers.ClassOf(err)
		if providers.Over(err) { // it was done in part, and nothing more will come: the rest is requested by the next try
			w.unsure, class = true, providers.Transient
		}
		mustLook = true
		switch class {
		case providers.Transient:
			if waited, err := w.reached(ctx); err != nil {
				return w.failed(err)
			} else if waited {
				continue // it was no try
			}
		case providers.Busy:
		case providers.Unknown:
			w.unsure, w.doubt = true, time.Now()
			w.note(event.Settling, err.Error(), try)
			if waited, err := w.reached(ctx); err != nil {
				return w.failed(err)
			} else if waited {
				continue // it was no try
			}
		case providers.Exists:
			incarnation := w.incarnation
			if res, over := w.collide(ctx, err); over {
				return res
			}
			if w.incarnation > incarnation {
				if w.used++; w.used >= mostUsed {
					return w.failed(fmt.Errorf("%d consecutive ids were reported as taken: earlier incarnations used them up, or another object has its name. To continue with the next ids, release the hold and plan again. The last answer: %w", w.used, err))
				}
				w.note(event.Retrying, err.Error(), try)
				continue // it was no try
			}
		case providers.Absent, providers.Conflict:
			if res, over := w.lookAgain(ctx, err); over {
				return res
			}
		default:
			return w.refused(ctx, err, have)
		}
		if try >= w.retry.Attempts && !(class == providers.Busy && !w.over(w.begun)) {
			if w.undo { // a call still in flight would change what is found afterwards
				if serr := w.outlast(ctx); serr != nil {
					return w.failed(serr)
				}
			}
			return w.refused(ctx, fmt.Errorf("after %d attempts: %w", try, err), have)
		}
		w.note(event.Retrying, err.Error(), try)
		if err := w.pause(ctx, again()); err != nil {
			return w.failed(err)
		}
		try++
	}
}

// mostUsed is how many ids that are used up a step passes over. After the loss of a store, they are those of all that was made and
// removed before. A name that is taken looks the same.
const mostUsed = 100

// stopped ends a step whose next call must not be made: it could not be written down.
func (w *worker) stopped(err error) result {
	if w.last.Kind == "" { // nothing was called in this attempt
		return result{step: w.step, attempts: w.attempts, id: w.id, fatal: err}
	}
	return result{step: w.step, attempts: w.attempts, outcome: w.last, id: w.id, fatal: err}
}

// await polls until the result is there, or can no longer come. It is not over when the thing is ready for fields that are set
// later.
func (w *worker) await(ctx context.Context) (res result, over bool) {
	begun, poll := time.Now(), w.retry.polls()
	const looking = "observe the result"
	doing, after := looking, time.Duration(0)
	for searched := false; ; {
		have, err := w.see(ctx, after)
		if err != nil {
			return w.unknown(fmt.Errorf("%s: %w", doing, err)), true
		}
		doing, after = looking, 0
		waits := w.traits.Eventual
		var detail string
		if w.action == plan.Delete {
			if have == nil || w.stranger(have) && w.another(have) { // somebody else's may have taken its place already
				return w.finish(nil), true
			}
			waits = waits || have.Phase == providers.Deleting
			detail = cmp.Or(have.Detail, "it still exists")
		} else {
			switch {
			case have == nil:
				detail = "the remote system accepted the call, but the object was not found"
			case have.Phase == providers.Failed:
				return w.partial(fmt.Errorf("it failed: %s", cmp.Or(have.Detail, "no reason given")), have), true
			case have.Phase == providers.Pending:
				waits, detail = true, cmp.Or(have.Detail, "not ready")
			default:
				unmet := w.unmet(have)
				if len(unmet) == 0 {
					return w.finish(have), true
				}
				if w.later(have) && w.rounds < w.retry.Attempts {
					w.rounds++
					return result{}, false
				}
				detail = "not applied: " + strings.Join(unmet, ", ")
			}
		}
		if over := w.over(begun); !waits || over {
			if waited, err := w.reached(ctx); err != nil {
				return w.unknown(fmt.Errorf("%s: %w", detail, err)), true
			} else if waited {
				continue
			}
			if have == nil && w.action == plan.Create && !searched {
				searched = true
				if have, err = w.elsewhere(ctx); err != nil {
					return w.unknown(fmt.Errorf("find the created object: %w", err)), true
				} else if have != nil {
					continue
				}
			}
			if waits && w.within() > 0 {
				detail = fmt.Sprintf("after %s: %s", short(w.within()), detail)
			}
			return w.partial(errors.New(detail), have), true
		}
		w.note(event.Waiting, detail+w.upTo(), 0)
		doing, after = detail, poll()
	}
}

// over reports whether the result has had all the time that it may need. While the far side is unavailable nothing can
// happen, so that time starts again when it returns.
func (w *worker) over(since time.Time) bool {
	if w.away.After(since) {
		since = w.away
	}
	return time.Since(since) > w.within()
}

// upTo returns how long the step waits for the result of its call, for a message.
func (w *worker) upTo() string {
	if w.within() <= 0 {
		return ""
	}
	return " (for up to " + short(w.within()) + ")"
}

// short formats a duration without trailing zero units: 5m, not 5m0s.
func short(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// see observes the thing; nil when it is not there. It does so at once, or after a pause at the latest, together with other steps
// that wait.
func (w *worker) see(ctx context.Context, after time.Duration) (*providers.Thing, error) {
	if err := failpoint.At("call.observe.before"); err != nil {
		return nil, err
	}
	look := Some(w.served.Kind, w.id)
	if after > 0 {
		g, err := w.glance(ctx, after)
		if err != nil {
			return nil, w.blameless(err)
		}
		look = g.first(look)
	}
	things, err := w.look(ctx, look)
	if err == nil {
		err = failpoint.At("call.observe.after")
	}
	if err != nil {
		return nil, err
	}
	for i := range things {
		if things[i].ID == w.id {
			return &things[i], nil
		}
	}
	return nil, nil
}

func (w *worker) call(ctx context.Context, action plan.Action, want schema.Object, have *providers.Thing) (err error) {
	defer func() {
		if err == nil || providers.ClassOf(err) == providers.Unknown && !providers.Over(err) { // also when it panics
			w.acted = time.Now()
		}
		if err != nil && w.touched != nil && providers.ClassOf(err) == providers.Unknown {
			w.touch(true)
		}
	}()
	c := providers.Call{Ref: w.step.Ref, ID: w.id, Mark: w.mark, Want: want, Key: w.key(), Epoch: w.epoch}
	if w.record != nil && action == plan.Create {
		c.Name = w.record.Called()
	}
	if have != nil {
		c.Have, c.Version, c.UID = have.Spec, have.Version, w.owned(have)
		if c.Name = cmp.Or(w.name, have.Name); have.Name == have.ID { // it has no name
			c.Name = w.name
		}
	}
	switch {
	case w.touched != nil && have == nil:
		c.Want = sealed.Assume(w.kind, w.before, w.step.Want)
	case w.touched != nil:
		c.Want = sealed.Assume(w.kind, w.back(have), w.step.Want) // a far side that replaces the whole object must not lose them
	}
	verb := map[plan.Action]func(context.Context, providers.Call) error{
		plan.Create: w.served.Kind.Create, plan.Update: w.served.Kind.Update, plan.Delete: w.served.Kind.Delete,
	}[action]
	point := "call." + string(action)
	if w.undo {
		point = "undo." + string(action)
	}
	fail := func(class providers.Class, err error) error {
		return &providers.Error{Op: string(action), Ref: w.step.Ref, Class: class, Err: err}
	}
	if err := failpoint.At(point + ".before"); err != nil {
		return fail(providers.Transient, err)
	}
	guard, err := w.guarding()
	if err != nil {
		return fail(providers.Denied, err)
	}
	c.Guard, c.Answer = guard, new(providers.Answer)
	start := time.Now()
	err = verb(ctx, c)
	w.arms(guard, c.Answer.Armed, have, err)
	if w.log.Enabled(ctx, slog.LevelDebug) {
		w.log.Debug("call", "run", w.run, "step", w.step.ID, "ref", w.step.Ref.String(), "verb", string(action), "id", w.id, "undo", w.undo,
			"took", time.Since(start), "answer", answered(err))
	}
	if action == plan.Create && c.Answer.ID != "" { // even when the call failed after that
		w.id, w.chosen = c.Answer.ID, true
	}
	if err != nil {
		return err
	}
	if err := failpoint.At(point + ".after"); err != nil {
		return fail(providers.Unknown, err)
	}
	return nil
}

// back returns the spec that the thing should have after the undo: what the step changed is as before, everything else as it is.
func (w *worker) back(have *providers.Thing) schema.Object {
	back := diff.Merge(w.kind, w.restored(have), have.Spec, w.dropped, w.ignore)
	for i := range w.kind.Fields { // a field that stays when it is no longer stated is removed if it was absent before
		f := &w.kind.Fields[i]
		if _, was := w.stated[f.Name]; (f.Kept || f.Choose != nil) && !was && slices.Contains(w.touched, f.Name) {
			delete(back, f.Name)
		}
	}
	return back
}

// answered returns how a log describes the outcome of a call.
func answered(err error) string {
	if err == nil {
		return "done"
	}
	return err.Error()
}

func (w *worker) key() string {
	k := fmt.Sprintf("%s/%d", w.run, w.step.ID)
	if w.undo {
		k += "/undo"
	}
	return k
}

// note emits an event, unless the run is over.
func (w *worker) note(phase event.Phase, detail string, attempt int) {
	ev := event.StepProgress{Step: w.step, Undo: w.undo, Phase: phase, Detail: detail, Attempt: attempt, Elapsed: time.Since(w.begun)}
	select {
	case w.notes <- ev:
	case <-w.effects.Done():
	}
}

// wanted returns what a call requests. What changes by itself, and nobody has stated, is requested as it is now, also within a stated
// field: how it was when the plan was made is no request.
func (w *worker) wanted(have *providers.Thing) schema.Object {
	if w.undo || have == nil || w.want == nil || w.stated == nil { // a delete wants nothing
		return w.want
	}
	want := w.want
	for _, f := range w.traits.SelfChanging {
		is, there := have.Spec[f]
		was, planned := want[f]
		if said, stated := w.stated[f]; stated {
			if _, parts := said.(map[string]any); !parts || !there {
				continue
			}
			is = diff.Merge(w.kind, schema.Object{f: said}, schema.Object{f: is}, w.dropped, w.ignore)[f]
		}
		if there == planned && schema.Equal(is, was) {
			continue
		}
		if want = maps.Clone(want); there {
			want[f] = is
		} else {
			delete(want, f)
		}
	}
	return want
}
