package providertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"github.com/google/go-cmp/cmp"
)

// rounds is how often a world may be advanced until everything in progress in it must have ended.
const rounds = 200

// A bench is where one law is checked: a world, a case, and the verbs with the checks that hold for every call.
type bench struct {
	*testing.T
	world  World
	served providers.Served
	traits providers.Traits
	c      Case
	kinds  schema.Kinds
	calls  atomic.Int64

	patience time.Duration // how long a call may take
	asked    sync.Map      // by id: the spec that was requested last, a schema.Object

	lacking map[string]bool // by kind: the results of lacks
}

// mine returns the thing of the case.
func (b *bench) mine() Made {
	return b.identify(Made{Kind: b.c.Kind, Name: b.c.Name, ID: b.c.ID, Spec: b.c.Want})
}

// other returns the i-th other thing of the same kind.
func (b *bench) other(i int) Made {
	if b.c.Other == nil {
		return b.identify(Made{Kind: b.c.Kind, Name: fmt.Sprintf("other-%d", i), Spec: b.c.Want})
	}
	m := b.c.Other(i)
	m.Kind = b.c.Kind
	return b.identify(m)
}

func (b *bench) identify(m Made) Made {
	if m.ID != "" {
		return m
	}
	m.ID = ID(m.Kind, m.Name)
	if k, ok := find(b.world.Provider, m.Kind); ok && k.Traits.ID != "" {
		m.ID = expand(k.Traits.ID, m.Name, m.Spec)
	}
	return m
}

// call returns a call that changes m.
func (b *bench) call(m Made) providers.Call {
	ref := schema.Ref{Scope: b.world.Provider.Scope, Kind: m.Kind, Name: m.Name}
	return providers.Call{
		Ref: ref, ID: m.ID, Mark: providers.Mark{Site: Site, Ref: ref, Incarnation: 1},
		Key: fmt.Sprintf("call-%d", b.calls.Add(1)), Epoch: 1,
	}
}

func (b *bench) creating(m Made) providers.Call {
	c := b.call(m)
	c.Want = m.Spec.Clone()
	return c
}

// updating returns a call that changes the thing as seen from one spec of the document to the next.
func (b *bench) updating(m Made, seen providers.Thing, from, to schema.Object) providers.Call {
	c := b.call(m)
	c.Have, c.Want, c.Version = b.have(m.Kind, seen.Spec), changed(seen.Spec, from, to), seen.Version
	return c
}

func (b *bench) deleting(m Made, seen providers.Thing) providers.Call {
	c := b.call(m)
	c.Have, c.Version = b.have(m.Kind, seen.Spec), seen.Version
	return c
}

// have returns a spec as a call carries it: the secrets that are set are sealed.
func (b *bench) have(kind string, seen schema.Object) schema.Object {
	if b.kinds[kind] == nil {
		return seen.Clone()
	}
	spec, err := sealed.Each(b.kinds[kind], seen.Clone(), func(_ string, v any) (any, error) {
		if v == "" {
			return v, nil
		}
		return map[string]any{"digest": "of what nobody knows"}, nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return spec
}

// do carries out a change and checks what holds for every change.
func (b *bench) do(ctx context.Context, op string, c providers.Call) error {
	b.Helper()
	k := b.kind(c.Ref.Kind)
	want, have := c.Want.Clone(), c.Have.Clone()
	quick, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	var err error
	switch op {
	case "create":
		err = k.Create(quick, c)
	case "update":
		err = k.Update(quick, c)
	case "delete":
		err = k.Delete(quick, c)
	}
	if quick.Err() != nil && ctx.Err() == nil {
		b.Fatalf("%s waits for something: nothing over there goes on while it runs, and it did not return: %v", op, err)
	}
	if err == nil {
		b.asked.Store(c.ID, want)
	}
	if d := cmp.Diff(want, c.Want); d != "" {
		b.Errorf("%s modified Call.Want, which is read only (-before +after):\n%s", op, d)
	}
	if d := cmp.Diff(have, c.Have); d != "" {
		b.Errorf("%s modified Call.Have, which is read only (-before +after):\n%s", op, d)
	}
	b.checkError(op, c.Ref, c.Ref.Kind, err)
	return err
}

// checkError checks that an error is one that the engine can act on.
func (b *bench) checkError(op string, ref schema.Ref, kind string, err error) {
	b.Helper()
	if err == nil {
		return
	}
	var e *providers.Error
	if !errors.As(err, &e) {
		b.Errorf("%s failed with a %T, want a *providers.Error: %v", op, err, err)
		return
	}
	if e.Op != op {
		b.Errorf("the error of %s names the operation %q: %v", op, e.Op, err)
	}
	if e.Ref != ref || (ref.IsZero() && e.Kind != kind) {
		b.Errorf("the error of %s names ref %q and kind %q, want ref %q and kind %q: %v", op, e.Ref, e.Kind, ref, kind, err)
	}
	if e.Err == nil {
		b.Errorf("the error of %s has no cause", op)
	}
	switch e.Class {
	case providers.Transient, providers.Busy, providers.Conflict, providers.Exists, providers.Absent, providers.Denied,
		providers.Invalid, providers.Unsupported, providers.Unknown:
	default:
		b.Errorf("the error of %s has class %q, which is none: %v", op, e.Class, err)
	}
}

// must carries out a change that has to succeed.
func (b *bench) must(op string, c providers.Call) {
	b.Helper()
	if err := b.do(b.Context(), op, c); err != nil {
		b.Fatalf("%s failed: %v", op, err)
	}
}

// make creates a thing and waits until it is ready; one whose kind has no create must exist.
func (b *bench) make(m Made) providers.Thing {
	b.Helper()
	m = b.identify(m)
	if k, ok := find(b.world.Provider, m.Kind); !ok || k.Traits.Create != providers.Never {
		b.must("create", b.creating(m))
	}
	return b.settled(m)
}

// list reads all things of a kind.
func (b *bench) list(kind string) []providers.Thing {
	b.Helper()
	things, err := providers.Collect(b.kind(kind).List(b.Context()))
	return b.observed(kind, things, err)
}

// get reads things of a kind by their ids.
func (b *bench) get(kind string, ids ...string) []providers.Thing {
	b.Helper()
	ids = append([]string{}, ids...) // not nil: a test double takes nil for a list
	asked := slices.Clone(ids)
	things, err := b.kind(kind).Get(b.Context(), ids)
	if !slices.Equal(asked, ids) {
		b.Errorf("get modified the ids that it was given")
	}
	for _, th := range things {
		if !slices.Contains(asked, th.ID) {
			b.Errorf("get of %s returned %s, which was not asked for", kind, th.ID)
		}
	}
	return b.observed(kind, things, err)
}

func (b *bench) kind(name string) providers.Kind {
	b.Helper()
	k, ok := find(b.world.Provider, name)
	if !ok {
		b.Fatalf("the provider does not serve %s", name)
	}
	return k.Kind
}

// observed checks what holds for every observation, and returns the things in the order of their ids.
func (b *bench) observed(kind string, things []providers.Thing, err error) []providers.Thing {
	b.Helper()
	b.checkError("observe", schema.Ref{}, kind, err)
	if err != nil {
		b.Fatalf("observe failed: %v", err)
	}
	seen := map[string]bool{}
	for i, th := range things {
		if th.ID == "" || seen[th.ID] {
			b.Errorf("observe of %s reports id %q twice or empty", kind, th.ID)
		}
		seen[th.ID] = true
		b.checkThing(kind, th)
		things[i].Spec = b.assumed(th)
	}
	slices.SortFunc(things, func(x, y providers.Thing) int { return strings.Compare(x.ID, y.ID) })
	return things
}

// assumed returns the spec of a thing in which what the far side does not tell is as requested.
func (b *bench) assumed(th providers.Thing) schema.Object {
	asked, ok := b.asked.Load(th.ID)
	if !ok || len(th.Unfilled) == 0 {
		return th.Spec
	}
	spec := th.Spec.Clone()
	for _, field := range th.Unfilled {
		if v, stated := asked.(schema.Object)[field]; stated {
			spec[field] = v
		}
	}
	return spec
}

// checkThing checks the shape of what was observed.
func (b *bench) checkThing(kind string, th providers.Thing) {
	b.Helper()
	switch th.Phase {
	case providers.Ready, providers.Pending, providers.Failed, providers.Deleting:
	default:
		b.Errorf("%s %s has phase %q, which is none", kind, th.ID, th.Phase)
	}
	if th.Name == "" {
		b.Errorf("%s %s has no name", kind, th.ID)
	}
	for what, o := range map[string]schema.Object{"spec": th.Spec, "status": th.Status} {
		for k, v := range o {
			b.checkValue(fmt.Sprintf("%s of %s %s: %s", what, kind, th.ID, k), v)
		}
	}
	for _, field := range th.Unfilled {
		if _, told := th.Spec[field]; told {
			b.Errorf("%s %s has %s, of which it says that it is not told", kind, th.ID, field)
		}
	}
	k := b.kinds[kind]
	if k == nil {
		return
	}
	b.checkFields(fmt.Sprintf("spec of %s %s", kind, th.ID), k.Fields, th.Spec, false)
	for name := range th.Status {
		if f := k.Field(name); f == nil || !f.Computed {
			b.Errorf("status of %s %s has %s, which is no computed field of the kind", kind, th.ID, name)
		}
	}
}

// checkValue checks that a value is one that an Object may hold, and not a mark.
func (b *bench) checkValue(path string, v any) {
	b.Helper()
	switch v := v.(type) {
	case nil, bool, int64, float64, string:
	case []any:
		for i, e := range v {
			b.checkValue(fmt.Sprintf("%s.%d", path, i), e)
		}
	case map[string]any:
		for k, e := range v {
			if k == providers.MarkKey {
				b.Errorf("%s holds the mark, which is reported apart", path)
			}
			b.checkValue(path+"."+k, e)
		}
	default:
		b.Errorf("%s is a %T; an Object holds nil, bool, int64, float64, string, []any and map[string]any", path, v)
	}
}

// checkFields checks that a spec has only fields of the kind, and no computed ones.
func (b *bench) checkFields(path string, fields []schema.Field, spec map[string]any, known bool) {
	b.Helper()
	for name, v := range spec {
		i := slices.IndexFunc(fields, func(f schema.Field) bool { return f.Name == name })
		if i < 0 {
			b.Errorf("%s has %s, which is no field of the kind", path, name)
			continue
		}
		f := &fields[i]
		if f.Computed && !known {
			b.Errorf("%s has %s, which is computed and belongs to the status", path, name)
		}
		b.checkField(path+"."+name, f, v)
	}
}

func (b *bench) checkField(path string, f *schema.Field, v any) {
	b.Helper()
	switch v := v.(type) {
	case map[string]any:
		switch {
		case f.Type == schema.Struct:
			b.checkFields(path, f.Fields, v, f.Computed)
		case f.Type == schema.Map && f.Elem != nil:
			for k, e := range v {
				b.checkField(path+"."+k, f.Elem, e)
			}
		case f.Type != schema.Any && f.Type != schema.Map:
			b.Errorf("%s is an object, want %s", path, f.Type)
		}
	case []any:
		if f.Type != schema.List && f.Type != schema.Any {
			b.Errorf("%s is a list, want %s", path, f.Type)
		}
		if f.Elem != nil {
			for i, e := range v {
				b.checkField(fmt.Sprintf("%s.%d", path, i), f.Elem, e)
			}
		}
	}
}

// peek observes one thing.
func (b *bench) peek(m Made) (providers.Thing, bool) {
	b.Helper()
	things := b.get(m.Kind, m.ID)
	if len(things) == 0 {
		return providers.Thing{}, false
	}
	return things[0], true
}

// settled advances the world until the thing is ready.
func (b *bench) settled(m Made) providers.Thing {
	b.Helper()
	var th providers.Thing
	var ok bool
	for range rounds {
		th, ok = b.peek(m)
		if ok && th.Phase == providers.Ready && !b.goOn(m, th) {
			return th
		}
		if ok && th.Phase == providers.Failed {
			b.Fatalf("%s %s failed: %s", m.Kind, m.ID, th.Detail)
		}
		if b.world.Advance == nil {
			break
		}
		b.world.Advance()
	}
	if !ok {
		b.Fatalf("%s %s is not there", m.Kind, m.ID)
	}
	b.Fatalf("%s %s does not become ready: it is %s (%s)", m.Kind, m.ID, th.Phase, th.Detail)
	return th
}

// goOn requests what the thing can get only now that it is ready, as the engine does; it reports whether there was anything.
func (b *bench) goOn(m Made, th providers.Thing) bool {
	b.Helper()
	asked, _ := b.asked.Load(m.ID)
	want, _ := asked.(schema.Object)
	k, _ := find(b.world.Provider, m.Kind)
	left := slices.ContainsFunc(k.Traits.Later, func(field string) bool {
		v, stated := want[field]
		return stated && !cmp.Equal(v, th.Spec[field])
	})
	if left {
		c := b.call(m)
		c.Have, c.Want, c.Version = b.have(m.Kind, th.Spec), want.Clone(), th.Version
		b.must("update", c)
	}
	return left
}

// gone advances the world until the thing is no longer observed.
func (b *bench) gone(m Made) {
	b.Helper()
	var phase providers.Phase
	for range rounds {
		th, ok := b.peek(m)
		if !ok {
			return
		}
		phase = th.Phase
		if b.world.Advance == nil {
			break
		}
		b.world.Advance()
	}
	b.Fatalf("%s %s was deleted and is still there, %s", m.Kind, m.ID, phase)
}

// snapshot returns everything that the provider observes in its scope except the given things, as text, without uids, versions,
// status and messages to people: they may change by themselves.
func (b *bench) snapshot(but ...Made) string {
	b.Helper()
	return b.snapshotOf(func(string) bool { return true }, but...)
}

// snapshotOf returns the part of a snapshot that is of some kinds.
func (b *bench) snapshotOf(some func(kind string) bool, but ...Made) string {
	b.Helper()
	var out bytes.Buffer
	for _, k := range b.world.Provider.Kinds {
		if !some(k.Name) || k.Name != b.c.Kind && b.lacks(k) {
			continue
		}
		for _, th := range b.list(k.Name) {
			if slices.ContainsFunc(but, func(m Made) bool { return m.Kind == k.Name && m.ID == th.ID }) {
				continue
			}
			th.UID, th.Version, th.Status, th.Detail = "", "", nil, ""
			th.Spec = b.normal(k.Name, th.Spec)
			text, err := json.MarshalIndent(th, "", "  ")
			if err != nil {
				b.Fatalf("%s %s cannot be written as JSON: %v", k.Name, th.ID, err)
			}
			fmt.Fprintf(&out, "%s %s\n", k.Name, text)
		}
	}
	return out.String()
}

// lacks reports whether the far side does not have a kind. It checks that once.
func (b *bench) lacks(k providers.Served) bool {
	if _, known := b.lacking[k.Name]; !known {
		_, err := providers.Collect(k.Kind.List(b.Context()))
		if b.lacking == nil {
			b.lacking = map[string]bool{}
		}
		b.lacking[k.Name] = isUnsupported(err)
	}
	return b.lacking[k.Name]
}

// watch remembers the world and returns a function that checks that nothing has changed since. Of a world that shows everything
// it holds, only the kind of the case and those that it needs are observed in addition.
func (b *bench) watch() (unchanged func(what string)) {
	b.Helper()
	dump, some := b.world.Dump, b.concerned
	if dump == nil {
		dump, some = func() string { return "" }, func(string) bool { return true }
	}
	before, seen := dump(), b.snapshotOf(some)
	return func(what string) {
		b.Helper()
		if d := cmp.Diff(before, dump()); d != "" {
			b.Errorf("%s changed the world (-before +after):\n%s", what, d)
		}
		if d := cmp.Diff(seen, b.snapshotOf(some)); d != "" {
			b.Errorf("%s changed what is observed (-before +after):\n%s", what, d)
		}
	}
}

// concerned reports whether a kind is the one of the case, or one that it needs.
func (b *bench) concerned(kind string) bool {
	return kind == b.c.Kind || slices.ContainsFunc(b.c.Needs, func(m Made) bool { return m.Kind == kind })
}

// normal returns a copy of a spec in the form that is compared.
func (b *bench) normal(kind string, spec schema.Object) schema.Object {
	spec = spec.Clone()
	if k := b.kinds[kind]; k != nil {
		k.Normalize(spec)
	}
	return spec
}

// has checks that a spec contains at least what is wanted.
func (b *bench) has(m Made, have, want schema.Object) {
	b.Helper()
	have, want = b.normal(m.Kind, have), b.normal(m.Kind, want)
	if path, ok := covers(map[string]any(have), map[string]any(want), ""); !ok {
		b.Errorf("%s %s is not as wanted at %q (-want +observed):\n%s", m.Kind, m.ID, path, cmp.Diff(want, have))
	}
}

// covers reports whether have contains everything in want, and where not. Elements of lists correspond by position.
func covers(have, want any, path string) (string, bool) {
	switch want := want.(type) {
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok {
			return path, false
		}
		for k, w := range want {
			v, ok := h[k]
			if !ok {
				return path + "." + k, false
			}
			if at, ok := covers(v, w, path+"."+k); !ok {
				return at, false
			}
		}
		return "", true
	case []any:
		h, ok := have.([]any)
		if !ok || len(h) != len(want) {
			return path, false
		}
		for i := range want {
			if at, ok := covers(h[i], want[i], fmt.Sprintf("%s.%d", path, i)); !ok {
				return at, false
			}
		}
		return "", true
	}
	return path, reflect.DeepEqual(have, want)
}

// class checks that a call failed with one of the given classes.
func (b *bench) class(what string, err error, want ...providers.Class) {
	b.Helper()
	switch {
	case err == nil:
		b.Errorf("%s succeeded, want it to fail with class %v", what, want)
	case !slices.Contains(want, providers.ClassOf(err)):
		b.Errorf("%s failed with class %s, want %v: %v", what, providers.ClassOf(err), want, err)
	}
}
