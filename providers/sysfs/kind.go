package sysfs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// Settle is how long the kernel may take to answer a write, and an object to be ready after it.
const Settle = 30 * time.Second

// Traits returns the traits that all kinds have in common: an object is identified by the name that the kernel gives it.
func Traits() providers.Traits {
	return providers.Traits{
		ID: "{name}", Create: providers.Conditional, Update: providers.Versioned, Delete: providers.Versioned, EffectWithin: Settle,
		UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Exact,
	}
}

// A Noun is what is particular to a kind. Errors are made by [Refuse], or are those of a [Tree].
type Noun interface {
	// List returns the objects that are not as the kernel would have them by itself. Their versions are what distinguishes them
	// besides their specs.
	List(k Kernel) ([]providers.Thing, error)
	// Create makes an object that List does not have.
	Create(c *Change, name string, want schema.Object) error
	// Update changes an object that List has.
	Update(c *Change, have providers.Thing, want schema.Object) error
	// Delete leads back to what the kernel does by itself.
	Delete(c *Change, have providers.Thing) error
}

// Facts are a noun that can only be looked at.
type Facts func(k Kernel) ([]providers.Thing, error)

// FactTraits returns the traits of the kinds that are facts.
func FactTraits() providers.Traits {
	return providers.Traits{ID: "{name}", Create: providers.Never, Update: providers.Never, Delete: providers.Never}
}

// List implements [Noun].
func (f Facts) List(k Kernel) ([]providers.Thing, error) { return f(k) }

// Create implements [Noun].
func (Facts) Create(*Change, string, schema.Object) error { return errFact }

// Update implements [Noun].
func (Facts) Update(*Change, providers.Thing, schema.Object) error { return errFact }

// Delete implements [Noun].
func (Facts) Delete(*Change, providers.Thing) error { return errFact }

var errFact = Refuse(providers.Unsupported, "it can only be observed")

// A Kind is a noun with the name and the traits of its kind.
type Kind struct {
	Name   string
	Traits providers.Traits
	Noun   Noun
}

// Provider serves kinds of a node.
func Provider(name, node string, k Kernel, closing func() error, nouns ...Kind) *providers.Provider {
	var kinds []providers.Served
	served := make([]*kind, len(nouns))
	for i, n := range nouns {
		served[i] = &kind{node: node, name: n.Name, noun: n.Noun, kernel: k}
		s := providers.Served{Name: n.Name, Traits: n.Traits, Kind: served[i]}
		// Facts are many, change by themselves, such as the speed of a link, and reading them may wake a device: not every second.
		if _, fact := n.Noun.(Facts); !fact {
			s.Watch = served[i].watch
		}
		kinds = append(kinds, s)
	}
	p := providers.New(name, node, closing, kinds...)
	for _, k := range served {
		k.permit = p.Permit
	}
	return p
}

type kind struct {
	node, name string
	noun       Noun
	kernel     Kernel
	permit     *providers.Permit
	unanswered sync.Map // ids of which the kernel has not answered a write, which may outlast its call
}

// A fault is the refusal of a verb.
type fault struct {
	class providers.Class
	error
}

// Refuse returns the error of a verb that was refused.
func Refuse(class providers.Class, format string, args ...any) error {
	return &fault{class, fmt.Errorf(format, args...)}
}

func (k *kind) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return providers.Listed(func() ([]providers.Thing, error) { return k.observe(nil) })
}

func (k *kind) Get(_ context.Context, ids []string) ([]providers.Thing, error) { return k.observe(ids) }

// observe returns the things with the given ids; all when ids is nil.
func (k *kind) observe(ids []string) ([]providers.Thing, error) {
	things, err := k.noun.List(k.kernel)
	if err != nil {
		return nil, &providers.Error{Op: "observe", Kind: k.name, Class: providers.Transient, Err: err}
	}
	if ids != nil {
		things = slices.DeleteFunc(things, func(th providers.Thing) bool { return !slices.Contains(ids, th.ID) })
	}
	slices.SortFunc(things, func(a, b providers.Thing) int { return strings.Compare(a.ID, b.ID) })
	for i := range things {
		th := &things[i]
		th.Version = schema.Object{"spec": map[string]any(th.Spec), "more": th.Version}.Digest()[:16]
	}
	return things, nil
}

func (k *kind) Create(ctx context.Context, c providers.Call) error {
	return k.change(ctx, "create", c, func(tx *Change, have *providers.Thing) error {
		if have != nil {
			return Refuse(providers.Exists, "%s is set already, and not by converge", c.ID)
		}
		return k.noun.Create(tx, c.ID, c.Want)
	})
}

func (k *kind) Update(ctx context.Context, c providers.Call) error {
	return k.change(ctx, "update", c, func(tx *Change, have *providers.Thing) error {
		if have == nil {
			return Refuse(providers.Absent, "%s does not exist", c.ID)
		}
		return k.noun.Update(tx, *have, c.Want)
	})
}

func (k *kind) Delete(ctx context.Context, c providers.Call) error {
	return k.change(ctx, "delete", c, func(tx *Change, have *providers.Thing) error {
		if have == nil {
			return nil
		}
		return k.noun.Delete(tx, *have)
	})
}

// change reads, compares with what the caller has observed, and lets do write. A write can take as long as the kernel likes: when
// the call ends before that, its outcome is unknown.
func (k *kind) change(ctx context.Context, op string, c providers.Call, do func(*Change, *providers.Thing) error) error {
	if _, waits := k.unanswered.LoadOrStore(c.ID, true); waits {
		return k.fail(op, c.Ref, false, Refuse(providers.Busy, "the kernel has not answered the previous request yet"))
	}
	things, err := k.observe([]string{c.ID})
	if err != nil {
		k.unanswered.Delete(c.ID)
		return k.fail(op, c.Ref, false, err)
	}
	var have *providers.Thing
	if len(things) > 0 {
		have = &things[0]
		if c.Version != "" && c.Version != have.Version {
			k.unanswered.Delete(c.ID)
			return k.fail(op, c.Ref, false, Refuse(providers.Conflict, "it has changed since it was observed"))
		}
	}
	tx := &Change{Kernel: k.kernel, Node: k.node, ctx: ctx, permit: k.permit}
	done := make(chan error, 1)
	go func() {
		err := do(tx, have)
		k.unanswered.Delete(c.ID)
		done <- k.fail(op, c.Ref, tx.wrote, err)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return k.fail(op, c.Ref, false, Refuse(providers.Unknown, "the kernel has not answered: %w", context.Cause(ctx)))
	}
}

// fail turns an error into one of the contract; nil stays nil. Once something has been written, an error does not mean that nothing
// happened.
func (k *kind) fail(op string, ref schema.Ref, wrote bool, err error) error {
	if err == nil {
		return nil
	}
	e := &providers.Error{Op: op, Ref: ref, Kind: k.name, Class: classOf(err), Err: err}
	if wrote {
		e.Class, e.Over = providers.Unknown, true
	}
	return e
}

func classOf(err error) providers.Class {
	var f *fault
	var e *providers.Error
	switch {
	case errors.As(err, &f):
		return f.class
	case errors.As(err, &e):
		return e.Class
	case Gone(err):
		return providers.Absent
	case errors.Is(err, syscall.EBUSY):
		return providers.Busy
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ERANGE):
		return providers.Invalid
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EROFS):
		return providers.Denied
	}
	return providers.Unknown
}
