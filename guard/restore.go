package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"converge.dev/converge/internal/retry"
	"converge.dev/converge/providers"
)

// patience is how long a thing may take to be restored, besides what its kind says.
const patience = 30 * time.Second

// restore makes each thing of a guard what it was before, and returns nil when all of them are. It may be repeated at any time. Where one
// refuses because of another, it is tried again after the others.
func (p *program) restore(ctx context.Context, g *guarded) error {
	opened := map[string]*providers.Provider{}
	defer func() {
		for _, o := range opened {
			_ = o.Close()
		}
	}()
	p.mu.Lock()
	c := g.capsule
	p.mu.Unlock()
	todo := c.restorations()
	for {
		var left []restoration
		var errs []error
		for _, r := range todo {
			k, err := p.source(ctx, opened, r.Source, r.Ref.Kind)
			if err == nil {
				err = p.back(ctx, k, c, r)
			}
			if err == nil {
				continue
			}
			left, errs = append(left, r), append(errs, err)
			if c := providers.ClassOf(err); ctx.Err() != nil || c == providers.Transient || c == providers.Unknown {
				return errors.Join(errs...) // the order matters where the far side does not check it
			}
		}
		if len(left) == 0 {
			return nil
		}
		if len(left) == len(todo) {
			return errors.Join(errs...)
		}
		todo = left
	}
}

// source returns a kind of the provider of a source, which is opened once.
func (p *program) source(ctx context.Context, opened map[string]*providers.Provider, s Source, kind string) (providers.Served, error) {
	name, err := json.Marshal(s, strict())
	if err != nil {
		return providers.Served{}, err
	}
	o := opened[string(name)]
	if o == nil {
		ctx, cancel := context.WithTimeout(ctx, openWithin)
		defer cancel()
		if o, err = p.Open(ctx, s); err != nil {
			return providers.Served{}, fmt.Errorf("open provider %s of %s: %w", s.Provider, s.Scope, err)
		}
		opened[string(name)] = o
	}
	i := slices.IndexFunc(o.Kinds, func(k providers.Served) bool { return k.Name == kind })
	if i < 0 {
		return providers.Served{}, fmt.Errorf("provider %s of %s does not serve %s", s.Provider, s.Scope, kind)
	}
	return o.Kinds[i], nil
}

// back makes one thing what it was before, and reads it back.
func (p *program) back(ctx context.Context, k providers.Served, c *capsule, r restoration) error {
	ctx, cancel := context.WithTimeout(ctx, patience+max(k.Traits.ReadyWithin, k.Traits.GoneWithin))
	defer cancel()
	called := false
	pauses := retry.Policy{First: readBack, Cap: time.Second}.Pauses()
	for {
		have, err := look(ctx, k.Kind, r.ID)
		if err != nil {
			return err
		}
		done, err := p.restored(k, r, have)
		if done || err != nil {
			return err
		}
		leaving := have != nil && have.Phase == providers.Deleting
		if !called && !leaving { // a second call could only hide that the first one did not do it
			if err := call(ctx, k.Kind, c, r, have); err != nil {
				return err
			}
			called = true
			continue
		}
		if err := retry.Sleep(ctx, pauses()); err != nil {
			return &providers.Error{Op: r.Op, Ref: r.Ref, Class: providers.Busy, Err: errors.New("what was there before does not come back: " + differs(r, have))}
		}
	}
}

// made reports whether a thing may be one that the changes of the guard, or an undo of them, have made anew.
func (r *restoration) made(k providers.Served, have *providers.Thing) bool {
	mark := have.Mark.String()
	return !k.Traits.Mark || mark == r.Before.Mark || slices.Contains(r.marks, mark)
}

func differs(r restoration, have *providers.Thing) string {
	switch {
	case have == nil:
		return "it is absent"
	case r.Before == nil:
		return "it is still there"
	}
	return "it is " + string(have.Phase) + " and differs"
}

// look returns a thing; nil when there is none.
func look(ctx context.Context, k providers.Kind, id string) (*providers.Thing, error) {
	things, err := k.Get(ctx, []string{id})
	if err != nil || len(things) == 0 {
		return nil, err
	}
	return &things[0], nil
}

// restored reports whether a thing is what it was before. It fails when it is somebody else's.
func (p *program) restored(k providers.Served, r restoration, have *providers.Thing) (bool, error) {
	foreign := func() error {
		return &providers.Error{Op: r.Op, Ref: r.Ref, Class: providers.Conflict, Err: errors.New("what has its id now is not what the guard knows: somebody else has made it")}
	}
	was := r.Before
	switch {
	case have == nil:
		return was == nil, nil
	case was == nil:
		if k.Traits.Mark && !slices.Contains(r.marks, have.Mark.String()) { // ours is not there
			return true, nil
		}
		return false, nil
	case was.UID != "" && have.UID != "" && was.UID != have.UID && !(r.replaced && r.made(k, have)):
		return false, foreign()
	case have.Phase == providers.Deleting:
		return false, nil
	}
	a, b := was.Spec.Clone(), have.Spec.Clone()
	for _, field := range slices.Concat(was.Unfilled, have.Unfilled, k.Traits.SelfChanging) {
		delete(a, field)
		delete(b, field)
	}
	same := p.Equal(r.Ref.Kind, a, b)
	same = same && (!k.Traits.Mark || was.Mark == have.Mark.String())
	return same && (!k.Traits.Named() || was.Name == have.Name), nil
}

// call makes the call that restores a thing.
func call(ctx context.Context, k providers.Kind, c *capsule, r restoration, have *providers.Thing) error {
	call := providers.Call{
		Ref: r.Ref, ID: r.ID, Epoch: c.Epoch,
		Key: fmt.Sprintf("undo/%s/%d", c.ID, r.Number), // the same for every try
	}
	if was := r.Before; was != nil {
		call.Want, call.Name, call.Mark = was.Spec.Clone(), was.Name, providers.ParseMark(was.Mark)
	}
	if have != nil {
		call.Have, call.UID, call.Version = have.Spec, have.UID, have.Version
	}
	switch {
	case r.Before == nil:
		return k.Delete(ctx, call)
	case have == nil:
		return k.Create(ctx, call)
	}
	return k.Update(ctx, call)
}
