package fake

import (
	"context"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"time"

	"converge.dev/converge/internal/retry"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A kind serves one kind in one scope of a world.
type kind struct {
	world  *World
	at     schema.Place
	schema *schema.Kind
	traits providers.Traits
}

// An outcome says what happens to a thing whose change succeeds: the zero value makes it ready at once.
type outcome struct {
	phase  providers.Phase
	detail string
	until  *time.Time
}

// List implements [providers.Kind].
func (k *kind) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return providers.Listed(func() ([]providers.Thing, error) { return k.observe(ctx, nil) })
}

// Get implements [providers.Kind].
func (k *kind) Get(ctx context.Context, ids []string) ([]providers.Thing, error) {
	return k.observe(ctx, ids)
}

// observe reads the things with the given ids; all when ids is nil.
func (k *kind) observe(ctx context.Context, ids []string) ([]providers.Thing, error) {
	w := k.world
	c := providers.Call{Ref: schema.Ref{Scope: k.at.Scope, Kind: k.at.Kind}}
	fail := func(class providers.Class, err error) ([]providers.Thing, error) {
		return nil, &providers.Error{Op: "observe", Kind: k.at.Kind, Class: class, Err: err}
	}
	if w.Hook != nil {
		w.Hook("observe", Before, c)
		defer w.Hook("observe", After, c)
	}
	if err := ctx.Err(); err != nil {
		return fail(providers.Transient, err)
	}
	found, fault, err := k.look(ids)
	if err != nil {
		return fail(providers.Transient, err)
	}
	if fault != nil {
		if err := retry.Sleep(ctx, time.Duration(fault.Delay)); err != nil {
			return fail(providers.Transient, err)
		}
		return fail(fault.Class, fault.cause())
	}
	// A thing is never modified once it is in the world, so it can be copied without holding the lock.
	things := make([]providers.Thing, len(found))
	for i, f := range found {
		th := f.thing
		things[i] = providers.Thing{
			ID: f.id, UID: th.UID, Name: th.Name, Spec: th.Spec.Clone(), Status: th.Status.Clone(), Phase: th.Phase, Detail: th.Detail,
		}
		if k.traits.Mark {
			things[i].Mark = th.mark
		}
		if things[i].Phase == "" {
			things[i].Phase = providers.Ready
		}
		if k.traits.Update == providers.Versioned || k.traits.Delete == providers.Versioned {
			things[i].Version = th.Version
		}
	}
	return things, nil
}

type found struct {
	id    string
	thing *thing
}

// look returns the things with the given ids, all when ids is nil, sorted by id, and the fault that hits the observation.
func (k *kind) look(ids []string) ([]found, *Fault, error) {
	w := k.world
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts["observe"]++
	if err := w.ready(); err != nil {
		return nil, nil, err
	}
	all := w.things[k.at]
	var things []found
	add := func(id string) {
		if th := w.lagging(target{k.at, id}, all[id]); th != nil {
			things = append(things, found{id, th})
		}
	}
	if ids == nil {
		things = make([]found, 0, len(all))
		for id := range all {
			add(id)
		}
		for at := range w.lags { // what is gone may still be shown
			if at.Place == k.at && all[at.id] == nil {
				add(at.id)
			}
		}
	}
	for _, id := range ids {
		add(id)
	}
	slices.SortFunc(things, func(a, b found) int { return strings.Compare(a.id, b.id) })
	things = slices.Compact(things)
	fault, err := w.trip("observe", k.at, func(match func(name string) bool) bool {
		return slices.ContainsFunc(things, func(f found) bool { return match(f.thing.Name) })
	})
	return things, fault, err
}

// Create implements [providers.Kind].
func (k *kind) Create(ctx context.Context, c providers.Call) error {
	return k.change(ctx, "create", c)
}

// Update implements [providers.Kind].
func (k *kind) Update(ctx context.Context, c providers.Call) error {
	return k.change(ctx, "update", c)
}

// Delete implements [providers.Kind].
func (k *kind) Delete(ctx context.Context, c providers.Call) error {
	return k.change(ctx, "delete", c)
}

// change carries out one change, or what its fault makes of it.
func (k *kind) change(ctx context.Context, op string, c providers.Call) error {
	w := k.world
	if w.Hook != nil {
		w.Hook(op, Before, c)
		defer w.Hook(op, After, c)
	}
	if err := ctx.Err(); err != nil {
		return &providers.Error{Op: op, Ref: c.Ref, Class: providers.Transient, Err: err}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[op]++
	answer, delay := k.answer(op, c)
	if delay > 0 {
		w.mu.Unlock()
		_ = retry.Sleep(ctx, delay) // a caller that gives up waiting receives the same
		w.mu.Lock()
	}
	var err error
	if answer != nil {
		err = &providers.Error{Op: op, Ref: c.Ref, Class: answer.class, Err: answer.cause}
	}
	c.Want, c.Have = c.Want.Clone(), c.Have.Clone()
	w.log = append(w.log, Entry{Op: op, Call: c, Err: err})
	return err
}

// answer carries out the effect of a call and returns what the caller receives, and after which delay.
func (k *kind) answer(op string, c providers.Call) (*refusal, time.Duration) {
	w := k.world
	if err := w.ready(); err != nil {
		return refuse(providers.Transient, "%w", err), 0
	}
	f, err := w.trip(op, k.at, func(match func(name string) bool) bool { return match(c.Ref.Name) })
	if err != nil {
		return refuse(providers.Transient, "%w", err), 0
	}
	if f == nil {
		return k.effect(op, c, outcome{}), 0
	}
	told, delay := &refusal{f.Class, f.cause()}, time.Duration(f.Delay)
	until := w.now().Add(delay)
	switch f.Effect {
	case EffectAfter:
		if r := k.effect(op, c, outcome{}); r != nil {
			return r, delay
		}
		return told, delay
	case EffectLate:
		lates := append(slices.Clone(w.late), late{
			Op: op, Ref: c.Ref, ID: c.ID, Name: c.Name, Mark: c.Mark.String(), Want: c.Want.Clone(), Version: c.Version, UID: c.UID, Epoch: c.Epoch, Due: until,
		})
		if err := w.commit(record{Late: &lates}); err != nil {
			return refuse(providers.Transient, "%w", err), 0
		}
		return told, 0
	case EffectSlow:
		phase := providers.Pending
		if op == "delete" {
			phase = providers.Deleting
		}
		return k.effect(op, c, outcome{phase, f.Message, &until}), 0
	case EffectFailed:
		return k.effect(op, c, outcome{providers.Failed, f.Message, nil}), 0
	}
	return told, delay
}

// A refusal is why a call has no effect.
type refusal struct {
	class providers.Class
	cause error
}

func refuse(class providers.Class, format string, args ...any) *refusal {
	return &refusal{class, fmt.Errorf(format, args...)}
}

// effect checks a change as the far side does, and makes it.
func (k *kind) effect(op string, c providers.Call, o outcome) *refusal {
	w := k.world
	if err := w.outdated(k.at.Scope, c.Epoch); err != nil {
		return refuse(providers.Denied, "%w", err)
	}
	at := target{k.at, c.ID}
	old := w.things[k.at][c.ID]
	th := &thing{Name: c.Called(), Phase: o.phase, Detail: o.detail, Until: o.until}
	var err error
	switch op {
	case "create":
		if c.ID == "" {
			return refuse(providers.Invalid, "the id is empty")
		}
		if k.traits.Create == providers.Conditional {
			if old != nil {
				return refuse(providers.Exists, "id %s is taken", c.ID)
			}
			if w.burned[at] {
				return refuse(providers.Exists, "id %s was used before", c.ID)
			}
		}
		if r := k.accept(th, c); r != nil {
			return r
		}
		th.Mark = c.Mark.String()
		err = w.put(at, th)
	case "update":
		if old == nil || old.Phase == providers.Deleting {
			return refuse(providers.Absent, "there is no %s with id %s", k.at.Kind, c.ID)
		}
		if r := sameUID(c, old); r != nil {
			return r
		}
		if k.traits.Update == providers.Versioned && c.Version != old.Version {
			return refuse(providers.Conflict, "the version is %s, not %s", old.Version, c.Version)
		}
		if r := k.accept(th, c); r != nil {
			return r
		}
		if name := k.frozen(old.Spec, th.Spec); name != "" {
			return refuse(providers.Invalid, "%s cannot be changed", name)
		}
		th.Mark, th.Status = c.Mark.String(), old.Status
		if !k.traits.Named() {
			th.Name = old.Name
		}
		err = w.put(at, th)
	case "delete":
		if old == nil || old.Phase == providers.Deleting {
			return nil
		}
		if r := sameUID(c, old); r != nil {
			return r
		}
		if k.traits.Delete == providers.Versioned && c.Version != old.Version {
			return refuse(providers.Conflict, "the version is %s, not %s", old.Version, c.Version)
		}
		if r := w.free(at); r != nil {
			return r
		}
		if o.phase == "" {
			err = w.remove(at, k.traits.IDsNotReusable)
			break
		}
		leaving := *old
		leaving.Phase, leaving.Detail, leaving.Until = o.phase, o.detail, o.until
		err = w.put(at, &leaving)
	}
	if err != nil { // it was not written to disk, so it is not in memory either
		return refuse(providers.Transient, "%w", err)
	}
	return nil
}

// sameUID refuses a change of a thing that was made after the one that the caller means.
func sameUID(c providers.Call, old *thing) *refusal {
	if c.UID != "" && c.UID != old.UID {
		return refuse(providers.Conflict, "its uid is %q, not %q", old.UID, c.UID)
	}
	return nil
}

// accept sets the desired spec of th, completed with defaults.
func (k *kind) accept(th *thing, c providers.Call) *refusal {
	th.Spec = c.Want.Clone()
	if th.Spec == nil {
		th.Spec = schema.Object{}
	}
	complete(k.schema.Fields, th.Spec)
	if err := checkSpec(k.schema.Fields, th.Spec); err != nil {
		return refuse(providers.Invalid, "%w", err)
	}
	for _, to := range k.world.refs(k.at, th.Spec) {
		switch t := k.world.things[to.Place][to.id]; {
		case t == nil || t.Phase == providers.Deleting:
			return refuse(providers.Absent, "it refers to %s, which does not exist", to)
		case t.Phase != "" && t.Phase != providers.Ready:
			return refuse(providers.Busy, "it refers to %s, which is %s", to, t.Phase)
		}
	}
	return k.exclusive(th, c)
}

// exclusive refuses a value that only one thing can have and that another thing of the kind has.
func (k *kind) exclusive(th *thing, c providers.Call) *refusal {
	if len(k.traits.Exclusive) == 0 {
		return nil
	}
	for _, mine := range k.traits.Claims(c.Ref.Name, th.Spec) {
		for id, other := range k.world.things[k.at] {
			if id != c.ID && slices.ContainsFunc(k.traits.Claims(other.Name, other.Spec), mine.Excludes) {
				return refuse(providers.Invalid, "%s is taken by %s", mine, id)
			}
		}
	}
	return nil
}

// frozen returns the name of an immutable field that differs.
func (k *kind) frozen(old, want schema.Object) string {
	old, want = old.Clone(), want.Clone()
	complete(k.schema.Fields, old) // a thing from the file may state less
	k.schema.Normalize(old)
	k.schema.Normalize(want)
	return frozen(k.schema.Fields, old, want)
}

func frozen(fields []schema.Field, old, want map[string]any) string {
	for i := range fields {
		f := &fields[i]
		x, y := old[f.Name], want[f.Name]
		if f.Immutable && !reflect.DeepEqual(x, y) {
			return f.Name
		}
		a, aok := x.(map[string]any)
		b, bok := y.(map[string]any)
		if f.Type != schema.Struct || !aok || !bok {
			continue
		}
		if name := frozen(f.Fields, a, b); name != "" {
			return f.Name + "." + name
		}
	}
	return ""
}

// free refuses to delete a thing while others refer to it, unless the far side of its kind does not check that.
func (w *World) free(at target) *refusal {
	if w.traits(at.Kind).DeleteUnchecked {
		return nil
	}
	var leaving, staying []string
	for user := range w.usersOf(at) {
		if w.things[user.Place][user.id].Phase == providers.Deleting {
			leaving = append(leaving, user.String())
		} else {
			staying = append(staying, user.String())
		}
	}
	if len(staying) > 0 {
		return refuse(providers.Invalid, "%s refers to it", slices.Min(staying))
	}
	if len(leaving) > 0 {
		return refuse(providers.Busy, "%s refers to it and is being deleted", slices.Min(leaving))
	}
	return nil
}

// ready completes what is due; it fails for a closed world.
func (w *World) ready() error {
	if w.closed {
		return errClosed
	}
	if len(w.late) == 0 && len(w.passing) == 0 {
		return nil
	}
	now := w.now()
	return w.pass(func(t time.Time) bool { return !t.After(now) })
}

func (t target) String() string { return t.Place.String() + " " + t.id }

func (t target) compare(o target) int { return strings.Compare(t.String(), o.String()) }
