package ovs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A noun is what is particular to a kind: what it reads, how its things are read from that, and what a change of one
// consists of. Its errors are faults.
type noun interface {
	// reads returns the tables that the other methods find in their views.
	reads() []reading
	// traits returns the traits of its kind, made from those that all kinds have in common.
	traits(common providers.Traits) providers.Traits
	// list returns the things of a view as if ovs-vswitchd were up to date. Their versions are left empty.
	list(v *view) ([]observed, error)
	create(v *view, c *change, name string, want schema.Object, mark providers.Mark) error
	update(v *view, c *change, name string, want schema.Object, mark providers.Mark) error
	remove(ctx context.Context, v *view, c *change, name string) error
}

// An asker is a noun whose things are not only in the database.
type asker interface {
	// look adds to a view what the switch says of the things with the given ids, all when ids is nil.
	look(ctx context.Context, d *db, v *view, ids []string) error
}

// A narrower is a noun whose things can be listed without all rows of the tables that it reads.
type narrower interface {
	// narrow returns a view of all things; nil when only all rows show them.
	narrow(ctx context.Context, d *db) (*view, error)
}

// An observed is a thing as a noun reports it.
type observed struct {
	providers.Thing
	rows []string // the UUIDs of its rows: they distinguish a thing from its successor of the same name
}

// A kind adds the four verbs to a noun.
type kind struct {
	*db
	name  string
	noun  noun
	marks bool // its things carry marks

	known sync.Mutex
	since map[string]version // of each thing, by its name
}

// A version of a thing, and the configuration that has it in effect at the latest: the one that was requested when the version
// was first observed.
type version struct {
	token  string
	config int
}

// List implements [providers.Kind]: what it returns is of one moment.
func (k *kind) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return providers.Listed(func() ([]providers.Thing, error) { return k.observe(ctx, nil) })
}

// Get implements [providers.Kind] with one transaction.
func (k *kind) Get(ctx context.Context, ids []string) ([]providers.Thing, error) {
	return k.observe(ctx, ids)
}

// observe reads the things with the given ids; all when ids is nil.
func (k *kind) observe(ctx context.Context, ids []string) ([]providers.Thing, error) {
	v, err := k.see(ctx, ids, ids)
	if err != nil {
		return nil, k.fail("observe", schema.Ref{}, err)
	}
	things, err := k.things(v, ids)
	return things, k.fail("observe", schema.Ref{}, err)
}

// see reads what shows the things with the given ids; all when ids is nil. Names are those of the rows that are read.
func (k *kind) see(ctx context.Context, names, ids []string) (*view, error) {
	v, err := k.rows(ctx, names)
	if err != nil {
		return nil, &fault{providers.Transient, err}
	}
	if n, ok := k.noun.(asker); ok {
		err = classed(n.look(ctx, k.db, v, ids))
	}
	return v, err
}

// rows reads the rows with the given names; all that the noun needs when names is nil.
func (k *kind) rows(ctx context.Context, names []string) (*view, error) {
	if n, ok := k.noun.(narrower); ok && names == nil {
		if v, err := n.narrow(ctx, k.db); v != nil || err != nil {
			return v, err
		}
	}
	return k.view(ctx, k.noun.reads(), names)
}

// Create implements [providers.Kind].
func (k *kind) Create(ctx context.Context, c providers.Call) error {
	return k.fail("create", c.Ref, k.apply(ctx, c, func(v *view, tx *change) error {
		return k.noun.create(v, tx, c.ID, c.Want, c.Mark)
	}, true))
}

// Update implements [providers.Kind].
func (k *kind) Update(ctx context.Context, c providers.Call) error {
	return k.fail("update", c.Ref, k.apply(ctx, c, func(v *view, tx *change) error {
		seen, err := k.find(v, c)
		switch {
		case err != nil:
			return err
		case seen == nil:
			return refuse(providers.Absent, "%s does not exist", c.ID)
		case k.marks && seen.Mark.IsZero() && c.Mark.IsZero():
			return refuse(providers.Denied, "%s carries no ownership mark: converge may not change it", c.ID)
		}
		return k.noun.update(v, tx, c.ID, c.Want, c.Mark)
	}, true))
}

// Delete implements [providers.Kind].
func (k *kind) Delete(ctx context.Context, c providers.Call) error {
	return k.fail("delete", c.Ref, k.apply(ctx, c, func(v *view, tx *change) error {
		seen, err := k.find(v, c)
		switch {
		case err != nil:
			return err
		case seen == nil:
			return errDone
		case k.marks && seen.Mark.IsZero() && c.UID == "":
			return refuse(providers.Denied, "%s carries no ownership mark: converge may not delete it", c.ID)
		}
		return k.noun.remove(ctx, v, tx, c.ID)
	}, false))
}

// errDone reports that nothing has to be done.
var errDone = errors.New("nothing to do")

// apply reads, lets plan assemble a change, and carries it out. With made, the thing has to exist afterwards.
func (k *kind) apply(ctx context.Context, c providers.Call, plan func(*view, *change) error, made bool) error {
	name := c.ID
	v, err := k.see(ctx, append(members(c.Want), name), []string{name})
	if err != nil {
		return err
	}
	tx := &change{db: k.db, root: v.root.UUID, means: map[int]error{}}
	if err := tx.fenced(v, c.Epoch); err != nil {
		return err
	}
	switch err := plan(v, tx); {
	case errors.Is(err, errDone):
		return nil
	case err != nil:
		return err
	}
	if err := tx.carryOut(ctx); err != nil || !made {
		return err
	}
	if v, err = k.see(ctx, []string{name}, []string{name}); err != nil {
		return refuse(providers.Unknown, "it is in the database, but it is unknown whether ovs-vswitchd applied it: %w", err)
	}
	v.root.NextCfg = v.root.CurCfg // it is in effect, and this is what things remembers of it
	things, err := k.things(v, []string{name})
	switch {
	case err != nil:
		return &fault{providers.Unknown, err}
	case len(things) == 0:
		return refuse(providers.Unknown, "it was applied, but another client has since deleted it")
	case things[0].Phase != providers.Ready:
		return refuse(providers.Unknown, "it is in the database, but not in effect: %s", things[0].Detail)
	}
	return nil
}

// find returns the thing of a call as it is now, nil when there is none. It fails unless it is the thing that was
// observed before and nobody else claims it.
func (k *kind) find(v *view, c providers.Call) (*providers.Thing, error) {
	things, err := k.things(v, []string{c.ID})
	if err != nil || len(things) == 0 {
		return nil, err
	}
	seen := &things[0]
	if m := seen.Mark; !m.IsZero() && (m.Site != k.Site || m.Ref != c.Ref) {
		return nil, refuse(providers.Denied, "it belongs to %s of site %s", m.Ref, m.Site)
	}
	if c.UID != "" && c.UID != seen.UID {
		return nil, refuse(providers.Conflict, "it was deleted and created again by another client")
	}
	moved := c.Version != "" && c.Version != seen.Version
	if c.Version == "" && c.Have != nil {
		moved = !c.Have.Equal(seen.Spec)
	}
	if moved {
		return nil, refuse(providers.Conflict, "it has changed since it was observed")
	}
	return seen, nil
}

// things returns the things of a view with the given ids, nil meaning all, in the order of their names. It remembers from which
// configuration on each is as it is now.
func (k *kind) things(v *view, ids []string) ([]providers.Thing, error) {
	all, err := k.noun.list(v)
	if err != nil {
		return nil, err
	}
	k.known.Lock()
	defer k.known.Unlock()
	since := map[string]version{}
	var things []providers.Thing
	for _, s := range all {
		if ids != nil && !slices.Contains(ids, s.ID) {
			continue
		}
		token := schema.Object{"rows": strings.Join(s.rows, " "), "spec": map[string]any(s.Spec), "mark": s.Mark.String()}.Digest()[:16]
		// What others request after that is not waited for: on a busy switch it would never end.
		took := version{token, v.root.NextCfg}
		if before, ok := k.since[s.ID]; ok && before.token == token {
			took.config = min(took.config, before.config)
		}
		if since[s.ID] = took; v.root.CurCfg < took.config {
			s.Phase, s.Detail = providers.Pending, fmt.Sprintf("ovs-vswitchd has not applied it yet: it is at configuration %d of %d", v.root.CurCfg, took.config)
		}
		s.Version = token
		things = append(things, s.Thing)
	}
	if ids == nil {
		k.since = since // without what is gone
	} else {
		maps.Copy(k.since, since)
	}
	slices.SortFunc(things, func(a, b providers.Thing) int { return cmp.Compare(a.ID, b.ID) })
	return things, nil
}

// fail turns a fault into an error of the contract; nil stays nil.
func (k *kind) fail(op string, ref schema.Ref, err error) error {
	if err == nil {
		return nil
	}
	e := &providers.Error{Op: op, Ref: ref, Kind: k.name, Class: providers.Unknown, Err: err}
	var f *fault
	if errors.As(err, &f) {
		e.Class = f.class
	}
	return e
}

// read reads a spec into a struct; unknown fields and values that do not fit are refused.
func read(o schema.Object, s interface{ Read(o schema.Object) error }) error {
	if err := s.Read(o); err != nil {
		return refuse(providers.Invalid, "invalid spec: %w", err)
	}
	return nil
}

// value returns what p points to, and the zero value for nil.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// wide and narrow convert an integer of the database to one of a spec and back; nil stays nil.
func wide(n *int) *int64 {
	if n == nil {
		return nil
	}
	i := int64(*n)
	return &i
}

func narrow(i *int64) *int {
	if i == nil {
		return nil
	}
	n := int(*i)
	return &n
}

// all64 and ints do so with lists.
func all64(l []int) []int64 {
	out := make([]int64, len(l))
	for i, n := range l {
		out[i] = int64(n)
	}
	return out
}

func ints(l []int64) []int {
	out := make([]int, len(l))
	for i, n := range l {
		out[i] = int(n)
	}
	return out
}

// sorted returns a sorted copy of a set; never nil.
func sorted[T cmp.Ordered](set []T) []T {
	s := append(make([]T, 0, len(set)), set...)
	slices.Sort(s)
	return s
}

// filled returns a copy of a map; never nil.
func filled(m map[string]string) map[string]string {
	c := make(map[string]string, len(m))
	maps.Copy(c, m)
	return c
}

// unmarked splits external_ids into the mark and the rest.
func unmarked(ids map[string]string) (rest map[string]string, mark providers.Mark) {
	rest = filled(ids)
	delete(rest, providers.MarkKey)
	return rest, providers.ParseMark(ids[providers.MarkKey])
}

// marked returns external_ids with a mark, or without one when it is zero.
func marked(ids map[string]string, mark providers.Mark) (map[string]string, error) {
	if _, ok := ids[providers.MarkKey]; ok {
		return nil, refuse(providers.Invalid, "external_ids cannot contain %s, which is reserved for converge", providers.MarkKey)
	}
	ids = filled(ids)
	if !mark.IsZero() {
		ids[providers.MarkKey] = mark.String()
	}
	return ids, nil
}
