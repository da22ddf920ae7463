package providertest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// cuttable applies the law to kinds whose things can be made again and again, under ids of which there is no end.
func cuttable(t providers.Traits, c Case) bool {
	return creates(t, c) && deletes(t, c) && t.Create == providers.Conditional && (t.ID == "" || !t.IDsNotReusable)
}

// cutAnywhere cuts a call before each of its requests, as the end of the process or of its lock does. What is there then must be
// something from which the engine can go on: each field is as it was or as requested, unless the traits name it. It goes on, or back.
func cutAnywhere(b *bench) {
	if b.world.Provider.Permit == nil || b.world.Late {
		return
	}
	for _, op := range []string{"create", "update", "delete"} {
		if op == "update" && !updates(b.traits, b.c) {
			continue
		}
		for _, back := range []bool{true, false} {
			if op == "delete" && !back {
				continue // what is left is deleted in any case
			}
			for n := int64(1); b.cut(op, n, back); n++ {
				if n == 100 {
					b.Fatalf("%s makes no end of requests", op)
				}
			}
		}
	}
}

// cut lets a call make n requests and no more, and goes on or back from there. It reports whether the call was cut.
func (b *bench) cut(op string, n int64, back bool) bool {
	b.Helper()
	at := fmt.Sprintf("%s, cut after %d requests", op, n)
	m := b.mine()
	if b.c.ID == "" {
		m = b.fresh(m)
	}
	var before, after schema.Object // what a field may be
	c := b.creating(m)
	after = b.c.Want
	var was providers.Thing
	if op != "create" {
		was = b.make(m)
		before = was.Spec
		c = b.deleting(m, was)
		if after = nil; op == "update" {
			c = b.updating(m, was, b.c.Want, b.c.Update)
			after = c.Want
		}
	}
	var left atomic.Int64
	left.Store(n)
	release := b.world.Provider.Permit.Bind(func() error {
		if left.Add(-1) < 0 {
			return errors.New("the lock is lost")
		}
		return nil
	})
	err := b.do(b.Context(), op, c)
	release()
	switch ended := left.Load() < 0; {
	case err == nil && !ended:
		b.end(m)
		return false
	case err != nil && !ended:
		b.Fatalf("%s failed by itself: %v", op, err)
	}
	if class := providers.ClassOf(err); err != nil && class != providers.Unknown && class != providers.Transient {
		b.Errorf("%s: the error is %v, of class %s", at, err, class)
	}
	th, there := b.rest(m)
	if there && th.Phase != providers.Deleting {
		b.between(at, th.Spec, before, after)
	}
	switch {
	case op == "create" && !back, op == "update" && !back:
		m = b.bring(at, m, op == "create" || b.traits.Vanishes, there, th, after)
	case op != "create" && back && (op == "update" && b.traits.UndoUpdate != providers.NoUndo || op == "delete" && b.traits.UndoDelete != providers.NoUndo):
		m = b.bring(at, m, true, there && th.Phase != providers.Deleting, th, before)
		b.same(at+", and undone", was, b.settled(m))
	}
	b.end(m)
	if b.Failed() {
		b.Fatalf("after %s (back: %v)", at, back)
	}
	return true
}

// fresh returns a thing under an id and a name that were never used, where the kind needs that.
func (b *bench) fresh(m Made) Made {
	if b.traits.ID == "" {
		m.Name = fmt.Sprintf("%s-%d", b.c.Name, b.calls.Add(1))
		m.ID = ID(m.Kind, m.Name)
	}
	return m
}

// bring makes a thing as wanted, from whatever is there. One that is made anew may have another id.
func (b *bench) bring(at string, m Made, create, there bool, th providers.Thing, want schema.Object) Made {
	b.Helper()
	switch {
	case !there && create:
		b.gone(m)
		m = b.fresh(m)
		c := b.call(m)
		c.Want = want.Clone()
		b.must("create", c)
	case !there:
		b.Fatalf("%s: %s %s is gone", at, m.Kind, m.ID)
	case b.traits.Update != providers.Never:
		c := b.call(m)
		c.Have, c.Version, c.Want = b.have(m.Kind, th.Spec), th.Version, want.Clone()
		b.must("update", c)
	}
	b.has(m, b.settled(m).Spec, want)
	return m
}

// end deletes a thing, whatever is left of it.
func (b *bench) end(m Made) {
	b.Helper()
	if th, ok := b.peek(m); ok && th.Phase != providers.Deleting {
		b.must("delete", b.deleting(m, th))
	}
	b.gone(m)
}

// rest observes a thing once it is at rest.
func (b *bench) rest(m Made) (th providers.Thing, there bool) {
	b.Helper()
	for range rounds {
		if th, there = b.peek(m); !there || th.Phase != providers.Pending || b.world.Advance == nil {
			break
		}
		b.world.Advance()
	}
	return th, there
}

// between checks that each field is as before or as after, as far as the traits do not say otherwise.
func (b *bench) between(at string, is, before, after schema.Object) {
	b.Helper()
	is, before, after = b.normal(b.c.Kind, is), b.normal(b.c.Kind, before), b.normal(b.c.Kind, after)
	loose := slices.Concat(b.traits.SetLast, b.traits.Later, b.traits.SelfChanging, b.traits.Overlap)
	for field, v := range is {
		if slices.Contains(loose, field) || like(v, before, field) || like(v, after, field) {
			continue
		}
		k := b.kinds[b.c.Kind]
		unset := empty(v) || k == nil || schema.Equal(v, k.Field(field).Default)
		if before == nil && (after[field] == nil || unset) || after != nil && after[field] == nil && unset {
			continue // the far side fills it in, or what the next spec does not mention is unset
		}
		b.Errorf("%s: %s is %v, was %v, should be %v, and the traits do not say SetLast", at, field, v, before[field], after[field])
	}
}

// like reports whether a value has what a spec says of its field.
func like(v any, spec schema.Object, field string) bool {
	said, ok := spec[field]
	_, covered := covers(v, said, "")
	return ok && covered
}

func empty(v any) bool {
	x := reflect.ValueOf(v)
	return !x.IsValid() || x.IsZero() || (x.Kind() == reflect.Map || x.Kind() == reflect.Slice) && x.Len() == 0
}
