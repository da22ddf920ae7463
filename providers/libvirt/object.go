package libvirt

import (
	"context"
	"errors"
	"fmt"

	"converge.dev/converge/providers"
)

// A target is what an object should be: stored so, running or not, started with the node or not.
type target struct {
	object
	name      string
	xml       string // the definition to store; empty: as it is stored already
	restart   bool   // what runs has to be started again to follow what is stored
	active    bool
	paused    bool // a domain that is started waits
	autostart bool
}

// found returns the one object that exists with a name. It is not read again right after it was.
func (ch *change) found(o object, name string) (definition, error) {
	if d, ok := ch.fresh[called{o, name}]; ok {
		delete(ch.fresh, called{o, name})
		return d, nil
	}
	ds, err := ch.read(ch.ctx, o, []string{name})
	if err != nil {
		return definition{}, err
	}
	if len(ds) == 0 {
		return definition{}, refuse(providers.Absent, "%s does not exist", name)
	}
	return ds[0], nil
}

// establish creates an object. When it cannot be started it is removed again.
func (ch *change) establish(t target) error {
	err := ch.whole(t.object, t.name, nil, func() error { return ch.define(ch.ctx, t.object, t.xml) })
	if err != nil {
		return err
	}
	if t.object == poolObject { // one that exists may have a directory that is not mounted, and is not given another one
		err = ch.do(func() error { return ch.build(ch.ctx, t.name) })
	}
	if err == nil {
		err = ch.move(t, definition{name: t.name})
	}
	if !errors.As(err, new(*answer)) {
		return err
	}
	return ch.back(t, nil, err, func() error {
		now, err := ch.found(t.object, t.name)
		if err != nil {
			return err
		}
		return ch.dissolve(t.object, now)
	})
}

// adjust changes an object. When it cannot be started as it should be, it is brought back to what it was.
func (ch *change) adjust(t target, have definition) error {
	if t.xml != "" {
		if err := ch.whole(t.object, t.name, []definition{have}, func() error { return ch.define(ch.ctx, t.object, t.xml) }); err != nil {
			return err
		}
	}
	err := ch.move(t, have)
	if !errors.As(err, new(*answer)) || have.transient {
		return err
	}
	was := target{object: t.object, name: t.name, active: have.running != "", autostart: have.autostart}
	return ch.back(t, []definition{have}, err, func() error {
		if t.xml != "" {
			if err := ch.do(func() error { return ch.define(ch.ctx, t.object, have.stored) }); err != nil {
				return err
			}
		}
		now, err := ch.found(t.object, t.name)
		if err != nil {
			return err
		}
		return ch.move(was, now)
	})
}

// move starts and stops an object.
func (ch *change) move(t target, have definition) error {
	runs := have.running != ""
	if runs && (!t.active || t.restart) {
		if err := ch.do(func() error { return ch.stop(ch.ctx, t.object, t.name) }); err != nil {
			return err
		}
		runs = false
	}
	if t.active && !runs {
		err := ch.do(func() error {
			if t.paused {
				return ch.power(ch.ctx, t.name, startPaused)
			}
			return ch.start(ch.ctx, t.object, t.name)
		})
		if err != nil {
			return err
		}
	}
	if t.autostart != have.autostart {
		return ch.do(func() error { return ch.autostart(ch.ctx, t.object, t.name, t.autostart) })
	}
	return nil
}

// back undoes a change that libvirt has refused for a reason. It counts as undone when the object is as it was before, which is empty for
// one that did not exist: what ran may have differed from what was stored, and does not come back.
func (ch *change) back(t target, before []definition, reason error, undo func() error) error {
	if err := undo(); err != nil {
		return fmt.Errorf("%w; it was not possible to undo what was done before: %w", reason, err)
	}
	if !ch.remains(t.object, t.name, before) {
		ch.kept()
		return fmt.Errorf("%w; what was done before was undone, but %s is not as it was", reason, t.name)
	}
	ch.undone()
	var a *answer
	if errors.As(reason, &a) && a.class == providers.Unknown {
		a.class = providers.Invalid
	}
	return reason
}

// dissolve deletes an object.
func (ch *change) dissolve(o object, have definition) error {
	if have.running != "" {
		if err := ch.do(func() error { return ch.stop(ch.ctx, o, have.name) }); err != nil {
			return err
		}
	}
	if have.transient { // it ended with its run
		return nil
	}
	return ch.do(func() error { return ch.undefine(ch.ctx, o, have.name) })
}

// things translates all objects of a sort with the given names, all when names is nil.
func things(ctx context.Context, c conn, o object, names []string, translate func(d definition) (*providers.Thing, error)) ([]providers.Thing, error) {
	ds, err := c.read(ctx, o, names)
	if err != nil {
		return nil, err
	}
	var found []providers.Thing
	for _, d := range ds {
		th, err := translate(d)
		if err != nil {
			return nil, fmt.Errorf("the definition of %s: %w", d.name, err)
		}
		if th != nil {
			if th.Mark.IsZero() {
				th.Passing = passing(d)
			}
			found = append(found, *th)
		}
	}
	return found, nil
}

// passing returns why an object, or what belongs to it, does not stay; empty when it does.
func passing(d definition) string {
	if d.transient {
		return "it is not stored, so it ends with its run"
	}
	return ""
}
