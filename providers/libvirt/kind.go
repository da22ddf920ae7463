package libvirt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A noun is what is particular to a kind: how its things are read, and what a change of one consists of. Its errors are faults, or those
// of the connection.
type noun interface {
	// traits returns the traits of its kind, made from those that all kinds have in common.
	traits(common providers.Traits) providers.Traits
	// list returns the things with the given ids, all when ids is nil, without versions, except where
	// specs have secrets.
	list(ctx context.Context, c conn, ids []string) ([]providers.Thing, error)
	create(ch *change, want schema.Object) error
	// update and remove get the thing as it was just read.
	update(ch *change, have providers.Thing, want schema.Object) error
	remove(ch *change, have providers.Thing) error
	// told returns the sort of objects whose events tell of changes, and the ids that the event of one means, none meaning any.
	// Without ok, libvirt tells of none.
	told() (o object, ids func(name string) []string, ok bool)
}

// An exclusive noun is one of whose changes those with a key in common are made one after the other, with those of other such nouns.
type exclusive interface {
	excludes(c providers.Call) (keys []string)
}

// A fault is an error with its class. The verbs of a kind turn it into a providers.Error.
type fault struct {
	class providers.Class
	over  bool
	code  string // optional: a word that is shown also where the text may not be, because a call had secrets
	err   error
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

// refuse returns a fault.
func refuse(class providers.Class, format string, args ...any) error {
	return &fault{class: class, err: fmt.Errorf(format, args...)}
}

// refuseUsed refuses to take away what something else uses.
func refuseUsed(format string, args ...any) error {
	return &fault{class: providers.Invalid, code: "InUse", err: fmt.Errorf(format+": take it out of use first", args...)}
}

// A kind adds the four verbs to a noun.
type kind struct {
	*host
	name string
	noun noun
}

// List implements [providers.Kind].
func (k *kind) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return providers.Listed(func() ([]providers.Thing, error) { return k.observe(ctx, nil) })
}

// Get implements [providers.Kind].
func (k *kind) Get(ctx context.Context, ids []string) ([]providers.Thing, error) {
	return k.observe(ctx, ids)
}

func (k *kind) observe(ctx context.Context, ids []string) ([]providers.Thing, error) {
	things, err := on(ctx, k.host, func(c conn) ([]providers.Thing, error) { return k.things(ctx, c, ids) })
	return things, k.fail("observe", schema.Ref{}, err, nil)
}

// things reads things, with their versions and uids and in the order of their ids. A noun whose specs have secrets gives them versions itself:
// those are written down, and must not tell anything of a secret.
func (k *kind) things(ctx context.Context, c conn, ids []string) ([]providers.Thing, error) {
	things, err := k.noun.list(ctx, c, ids)
	if err != nil {
		return nil, err
	}
	for i := range things {
		th := &things[i]
		if th.Version == "" {
			th.Version = th.Spec.Digest()[:16]
		}
		th.UID, _ = th.Spec["uuid"].(string)
	}
	slices.SortFunc(things, func(a, b providers.Thing) int { return cmp.Compare(a.ID, b.ID) })
	return things, nil
}

// Create implements [providers.Kind].
func (k *kind) Create(ctx context.Context, c providers.Call) error {
	return k.change(ctx, "create", c, func(ch *change, have *providers.Thing) error {
		if have != nil {
			return refuse(providers.Exists, "%s exists already", c.ID)
		}
		return k.noun.create(ch, c.Want)
	})
}

// Update implements [providers.Kind].
func (k *kind) Update(ctx context.Context, c providers.Call) error {
	return k.change(ctx, "update", c, func(ch *change, have *providers.Thing) error {
		switch {
		case have == nil:
			return refuse(providers.Absent, "%s does not exist", c.ID)
		case c.Version != "" && c.Version != have.Version, c.UID != "" && c.UID != have.UID:
			return errMoved
		}
		return k.noun.update(ch, *have, c.Want)
	})
}

// Delete implements [providers.Kind].
func (k *kind) Delete(ctx context.Context, c providers.Call) error {
	return k.change(ctx, "delete", c, func(ch *change, have *providers.Thing) error {
		switch {
		case have == nil:
			return nil
		case c.Version != "" && c.Version != have.Version, c.UID != "" && c.UID != have.UID:
			return errMoved
		}
		return k.noun.remove(ch, *have)
	})
}

var errMoved = refuse(providers.Conflict, "it has changed since it was observed")

// A change is one call of a verb that changes something.
type change struct {
	conn
	ctx  context.Context
	host *host
	call providers.Call

	fresh map[called]definition // what was read to find the thing of the call, until it is used or something is changed

	mu   sync.Mutex
	sent bool // a call was made that changes something
	did  bool // such a call has succeeded
}

// change reads the thing of a call and lets act change it.
func (k *kind) change(ctx context.Context, op string, c providers.Call, act func(ch *change, have *providers.Thing) error) error {
	ch := &change{ctx: ctx, host: k.host, call: c}
	unlock := func() {}
	if n, ok := k.noun.(exclusive); ok { // who waits for that occupies none of the places of the connection
		free, err := k.exclude(ctx, n.excludes(c))
		if err != nil {
			return k.fail(op, c.Ref, &lost{unsent: true, err: err}, ch)
		}
		unlock = sync.OnceFunc(free)
	}
	_, err := on(ctx, k.host, func(conn conn) (struct{}, error) {
		defer unlock() // which may be long after the caller has gone
		if op != "delete" {
			defer k.volumes.forget()
			defer k.machines.forget()
		}
		var none struct{}
		ch.conn, ch.fresh = conn, map[called]definition{}
		things, err := k.things(ctx, recorder{conn, ch.fresh}, []string{c.ID})
		if err != nil {
			return none, err
		}
		var have *providers.Thing
		if len(things) > 0 {
			have = &things[0]
		}
		return none, act(ch, have)
	})
	if cut := (*lost)(nil); errors.As(err, &cut) && cut.unsent { // nothing was begun, or it is over
		unlock()
	}
	return k.fail(op, c.Ref, err, ch)
}

// A recorder notes the objects that it reads.
type recorder struct {
	conn
	noted map[called]definition
}

func (r recorder) read(ctx context.Context, o object, names []string) ([]definition, error) {
	ds, err := r.conn.read(ctx, o, names)
	for _, d := range ds {
		r.noted[called{o, d.name}] = d
	}
	return ds, err
}

// exclude waits until no change with one of some keys is made, and keeps others from being made until free.
func (h *host) exclude(ctx context.Context, keys []string) (free func(), err error) {
	var held []func()
	free = func() {
		for _, unlock := range held {
			unlock()
		}
	}
	for _, key := range keys {
		unlock, err := h.changing.Lock(ctx, key)
		if err != nil {
			free()
			return nil, err
		}
		held = append(held, unlock)
	}
	return free, nil
}

// do makes a call that changes something.
func (ch *change) do(call func() error) error {
	if err := ch.host.permit.Check(); err != nil {
		return &lost{unsent: true, err: err}
	}
	clear(ch.fresh)
	ch.mu.Lock()
	ch.sent = true
	ch.mu.Unlock()
	err := call()
	ch.mu.Lock()
	defer ch.mu.Unlock()
	var cut *lost
	if errors.As(err, &cut) && cut.unsent || errors.As(err, new(*answer)) {
		ch.sent = ch.did
	}
	ch.did = ch.did || err == nil
	return err
}

// whole makes a call of which libvirt carries out all or nothing, on an object. libvirt uses the errors that have no better class for
// wrong values as well as for what happens to itself halfway, such as a full disk. So then it is read again: the values are to blame
// when the object is as it was before, and otherwise the outcome stays unknown. Before is empty for one that did not exist.
func (ch *change) whole(o object, name string, before []definition, call func() error) error {
	err := ch.do(call)
	if a := (*answer)(nil); errors.As(err, &a) && a.class == providers.Unknown && ch.remains(o, name, before) {
		a.class = providers.Invalid
	}
	return err
}

// remains reports whether an object is as it was before; before is empty for one that did not exist.
func (ch *change) remains(o object, name string, before []definition) bool {
	now, err := ch.read(ch.ctx, o, []string{name})
	return err == nil && slices.EqualFunc(now, before, func(a, b definition) bool {
		return a.name == b.name && a.transient == b.transient && a.autostart == b.autostart && a.state == b.state &&
			sameValues(a.stored, b.stored) && sameValues(a.running, b.running)
	})
}

// undone tells of a change that everything that was done of it was undone.
func (ch *change) undone() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.sent, ch.did = false, false
}

// kept tells of a change that it has had an effect, whatever its calls have answered.
func (ch *change) kept() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.sent, ch.did = true, true
}

// effects reports whether a change may have had an effect, and whether nothing more can come of it.
func (ch *change) effects() (sent, did bool) {
	if ch == nil {
		return false, false
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.sent, ch.did
}

// fail turns an error into one of the contract; nil stays nil. Of an observation, ch is nil.
func (k *kind) fail(op string, ref schema.Ref, err error, ch *change) error {
	if err == nil {
		return nil
	}
	e := &providers.Error{Op: op, Ref: ref, Kind: k.name, Class: providers.Unknown, Err: err}
	sent, did := ch.effects()
	var (
		f *fault
		a *answer
		l *lost
	)
	switch {
	case errors.As(err, &l):
		if !sent {
			e.Class = providers.Transient
		}
	case errors.As(err, &a):
		e.Code = a.code
		if e.Class = a.class; did {
			e.Class = providers.Unknown
		}
		e.Over = e.Class == providers.Unknown
	case errors.As(err, &f):
		e.Code = f.code
		if e.Class, e.Over = f.class, f.over; did {
			e.Class, e.Over = providers.Unknown, true
		}
	case did: // what is left are errors of this program between calls, such as for a definition that it cannot read
		e.Over = true
	case ch == nil: // the next look may find another definition
		e.Class = providers.Transient
	case !sent:
		e.Class = providers.Invalid
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

// or returns what p points to, and otherwise for nil.
func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// optional returns a pointer to a value that is set, and nil for one that is not.
func optional[T comparable](v T) *T {
	var none T
	if v == none {
		return nil
	}
	return &v
}
