package carbide

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"

	"google.golang.org/grpc/status"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A wire is what differs between kinds: the calls, and the translation between objects and things. Errors are those of
// the calls.
type wire[O, S any] interface {
	// known reports whether id can be an id of the kind; the service fails on other ids.
	known(id string) bool
	// thing translates an object.
	thing(o O) providers.Thing

	create(ctx context.Context, c *call[S]) error
	// update may change now, the object as it was just read.
	update(ctx context.Context, c *call[S], now O) error
	delete(ctx context.Context, c *call[S]) error
}

// A call is a change with its specs as structs. Secrets that are set are absent from have.
type call[S any] struct {
	*providers.Call
	want S // Create, Update
	have S // Update, Delete
}

// A paged wire reads objects by their ids.
type paged[O, S any] interface {
	wire[O, S]
	// list returns the ids of all objects.
	list(ctx context.Context) ([]string, error)
	// get reads objects, at most service.ids at once. Unknown ids are left out.
	get(ctx context.Context, ids []string) ([]O, error)
}

// A completing wire reads more about objects than the objects themselves contain, by calls that are made once for all that
// were read.
type completing[O any] interface {
	complete(ctx context.Context, objects []O) error
}

// errNone is what a wire returns for a verb that the kind does not have.
var errNone = errors.New("the service has no such call")

// errNameless is the error of an observation in which the service does not report the id of something.
var errNameless = errors.New("the remote system reports an object without an id: this program does not support its version")

// A kind implements the four verbs with a wire.
type kind[O, S any] struct {
	*service
	name   string
	traits providers.Traits
	refusals
	wire wire[O, S]

	// pages splits ids, or those of all objects when ids is nil, into calls of get.
	pages func(ctx context.Context, ids []string) ([][]string, error)
	get   func(ctx context.Context, ids []string) ([]O, error)
}

func serve[O, S any](s *service, noun string, t providers.Traits, means refusals, w paged[O, S]) providers.Served {
	pages := func(ctx context.Context, ids []string) (_ [][]string, err error) {
		if ids == nil {
			ids, err = w.list(ctx)
		}
		return slices.Collect(slices.Chunk(ids, s.ids)), err
	}
	return served(&kind[O, S]{s, Name + "." + noun, t, means, w, pages, w.get})
}

// serveListed is serve for a wire whose get also finds what was deleted: what is not in the list is not read. A list may
// be incomplete, so what is missing is looked for in another one.
func serveListed[O, S any](s *service, noun string, t providers.Traits, means refusals, w paged[O, S]) providers.Served {
	pages := func(ctx context.Context, ids []string) ([][]string, error) {
		if ids != nil && len(ids) == 0 {
			return nil, nil
		}
		live, err := w.list(ctx)
		if err == nil && ids != nil {
			listed := setOf(live)
			if slices.ContainsFunc(ids, func(id string) bool { return !listed[id] }) {
				var more []string
				more, err = w.list(ctx)
				maps.Copy(listed, setOf(more))
			}
			live = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !listed[id] })
		}
		return slices.Collect(slices.Chunk(live, s.ids)), err
	}
	return served(&kind[O, S]{s, Name + "." + noun, t, means, w, pages, w.get})
}

func served[O, S any](k *kind[O, S]) providers.Served {
	if k.traits.EffectWithin > 0 {
		k.traits.EffectWithin = k.late
	}
	k.traits.Fixed = true // that is what immutable means in the schema of this service
	return providers.Served{Name: k.name, Traits: k.traits, Kind: k}
}

// List implements [providers.Kind].
func (k *kind[O, S]) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return providers.Listed(func() ([]providers.Thing, error) { return k.observe(ctx, nil) })
}

// Get implements [providers.Kind].
func (k *kind[O, S]) Get(ctx context.Context, ids []string) ([]providers.Thing, error) {
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !k.wire.known(id) })
	if len(ids) == 0 {
		return nil, nil
	}
	return k.observe(ctx, ids)
}

// observe reads objects; nil ids mean all of them.
func (k *kind[O, S]) observe(ctx context.Context, ids []string) ([]providers.Thing, error) {
	list, seen := "", ""
	if ids == nil {
		list = k.name
	}
	ctx, held := k.scale.weighed(ctx, list)
	defer func() { held.end(seen) }()
	pages, err := k.pages(ctx, ids)
	if err != nil {
		return nil, k.observeError(err)
	}
	for _, page := range pages {
		if slices.Contains(page, "") {
			return nil, &providers.Error{Op: opObserve, Kind: k.name, Class: providers.Unsupported, Err: errNameless}
		}
	}
	parts := make([][]O, len(pages))
	err = k.together(ctx, len(pages), func(ctx context.Context, i int) (err error) {
		parts[i], err = k.ask(ctx, pages[i])
		return err
	})
	objects := slices.Concat(parts...)
	if err == nil {
		err = held.add(thingWeight * len(objects))
	}
	if err == nil {
		err = k.complete(ctx, objects)
	}
	if err != nil {
		return nil, k.observeError(err)
	}
	things := make([]providers.Thing, len(objects))
	for i, o := range objects {
		if things[i] = k.thing(o); things[i].ID == "" { // without an id, an existing object would count as gone
			return nil, &providers.Error{Op: opObserve, Kind: k.name, Class: providers.Unsupported, Err: errNameless}
		}
	}
	seen = list
	return things, nil
}

// inherent are fields that are never empty. An empty one was not reported, by a version of the service that keeps it elsewhere.
var inherent = []string{"tenant", "vpc", "machine", "prefix", "type", "instance_type", "bmc_mac_address", "source_url", "digest"}

// thing translates an object.
func (k *kind[O, S]) thing(o O) providers.Thing {
	t := k.wire.thing(o)
	for _, field := range t.Unfilled {
		delete(t.Spec, field)
	}
	for _, field := range inherent {
		if t.Spec[field] == "" {
			delete(t.Spec, field)
			t.Unfilled = append(t.Unfilled, field)
		}
	}
	return t
}

// complete completes the objects of a completing wire.
func (k *kind[O, S]) complete(ctx context.Context, objects []O) error {
	w, ok := k.wire.(completing[O])
	if !ok || len(objects) == 0 {
		return nil
	}
	return w.complete(ctx, objects)
}

// ask reads objects; nil ids mean all of them. An answer cannot say that it is incomplete, so what is missing is
// requested once more before it counts as absent.
func (k *kind[O, S]) ask(ctx context.Context, ids []string) ([]O, error) {
	objects, err := k.get(ctx, ids)
	if err != nil || len(objects) >= len(ids) {
		return objects, err
	}
	found := make(map[string]bool, len(objects))
	for _, o := range objects {
		found[k.wire.thing(o).ID] = true
	}
	missing := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return found[id] })
	if len(missing) == 0 { // they were requested twice
		return objects, nil
	}
	more, err := k.get(ctx, missing)
	return append(objects, more...), err
}

// look reads one object.
func (k *kind[O, S]) look(ctx context.Context, id string) (o O, ok bool, err error) {
	if !k.wire.known(id) {
		return o, false, nil
	}
	pages, err := k.pages(ctx, []string{id})
	if err != nil || len(pages) == 0 {
		return o, false, err
	}
	objects, err := k.ask(ctx, pages[0])
	if err == nil {
		err = k.complete(ctx, objects)
	}
	if err != nil || len(objects) == 0 {
		return o, false, err
	}
	return objects[0], true, nil
}

func setOf(ids []string) map[string]bool {
	set := make(map[string]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}

// Create implements [providers.Kind].
func (k *kind[O, S]) Create(ctx context.Context, c providers.Call) error {
	full, err := k.read(&c)
	if err != nil {
		return k.error(opCreate, &c, providers.Invalid, err)
	}
	if err = k.wire.create(ctx, full); err == nil {
		return nil
	}
	failed := k.error(opCreate, &c, k.createClass(ctx, &c, err), err)
	failed.Over = failed.Class == providers.Exists && k.meaning(opCreate, err) != providers.Exists
	return failed
}

// Update implements [providers.Kind].
func (k *kind[O, S]) Update(ctx context.Context, c providers.Call) error {
	full, err := k.read(&c)
	if err != nil {
		return k.error(opUpdate, &c, providers.Invalid, err)
	}
	now, ok, err := k.look(ctx, c.ID)
	if err != nil {
		return k.error(opUpdate, &c, readClass(err), err)
	}
	if !ok {
		return k.error(opUpdate, &c, providers.Absent, errAbsent)
	}
	if t := k.thing(now); c.Version != "" && t.Version != c.Version {
		return k.error(opUpdate, &c, providers.Conflict, errMoved(t.Version))
	}
	if err = k.wire.update(ctx, full, now); err == nil {
		return nil
	}
	failed := k.error(opUpdate, &c, k.updateClass(ctx, &c, err), err)
	failed.Over = k.over(err)
	return failed
}

// Delete implements [providers.Kind].
func (k *kind[O, S]) Delete(ctx context.Context, c providers.Call) error {
	if !k.wire.known(c.ID) {
		return nil
	}
	full, err := k.read(&c)
	if err != nil {
		return k.error(opDelete, &c, providers.Invalid, err)
	}
	if err = k.wire.delete(ctx, full); err == nil {
		return nil
	}
	class, gone := k.deleteClass(ctx, &c, err)
	if gone {
		return nil
	}
	return k.error(opDelete, &c, class, err)
}

// read converts the specs of a call to structs.
func (*kind[O, S]) read(c *providers.Call) (*call[S], error) {
	full := &call[S]{Call: c}
	for o, s := range map[*schema.Object]*S{&c.Want: &full.want, &c.Have: &full.have} {
		if err := any(s).(interface{ Read(o schema.Object) error }).Read(*o); err != nil { // every generated struct has this method
			return nil, err
		}
	}
	return full, nil
}

func (k *kind[O, S]) error(op string, c *providers.Call, class providers.Class, err error) *providers.Error {
	return &providers.Error{Op: op, Ref: c.Ref, Class: class, Code: code(err), Err: err}
}

func (k *kind[O, S]) observeError(err error) error {
	return &providers.Error{Op: opObserve, Kind: k.name, Class: readClass(err), Code: code(err), Err: err}
}

// code returns the gRPC code of an error as a word; empty when it is not the service's.
func code(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Code().String()
	}
	return ""
}
