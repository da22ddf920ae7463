package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"converge.dev/converge/providers"
)

// Around makes a provider arm its changes.
type Around struct {
	Client  *Client                                  // required
	Source  Source                                   // required: opens the same provider
	Probes  []string                                 // optional: "tcp:ADDRESS:PORT", what must accept a connection: otherwise a change is refused, or not kept; 16 at most
	Reaches func(kind string, c providers.Call) bool // optional: whether a change may cut this node off; nil: every one
}

// Wrap returns p with changes that are guarded: those of kinds that may cut the node off, when the call asks for that. Such a call first
// looks at the thing, then arms, and then makes the change; while it runs it is cancelled when the guard undoes, or ends. When a
// change cannot be armed, the call fails and has no effect: as Transient when the program cannot be reached or has no room, as Denied
// when the guard takes no more changes. A call that has failed without an effect is withdrawn from the guard.
//
// The provider settles its guards. Its fence first undoes what was armed in earlier epochs, and fails while that does not succeed. p is not
// changed, and the result is closed in its place.
func (a Around) Wrap(p *providers.Provider) *providers.Provider {
	with := *p
	with.Kinds = slices.Clone(p.Kinds)
	for i, k := range with.Kinds {
		if k.Traits.CutsOff {
			with.Kinds[i].Kind = &arms{Kind: k.Kind, served: k, around: a}
		}
	}
	with.Settle = func(ctx context.Context, s providers.Settling) (bool, error) { return a.Client.Settle(ctx, s) }
	with.Fence = func(ctx context.Context, epoch int64) error {
		if err := a.Client.Fence(ctx, epoch); err != nil {
			return fmt.Errorf("undo what earlier lock holders left under guard: %w", err)
		}
		if p.Fence == nil {
			return nil
		}
		return p.Fence(ctx, epoch)
	}
	return &with
}

// arms is a kind whose changes are guarded.
type arms struct {
	providers.Kind
	served providers.Served
	around Around
}

// Create implements [providers.Kind].
func (k *arms) Create(ctx context.Context, c providers.Call) error {
	return k.change(ctx, "create", k.served.Traits.Delete, c, k.Kind.Create)
}

// Update implements [providers.Kind].
func (k *arms) Update(ctx context.Context, c providers.Call) error {
	return k.change(ctx, "update", k.served.Traits.Update, c, k.Kind.Update)
}

// Delete implements [providers.Kind].
func (k *arms) Delete(ctx context.Context, c providers.Call) error {
	return k.change(ctx, "delete", k.served.Traits.Create, c, k.Kind.Delete)
}

// errOver is why a call is cancelled.
var errOver = errors.New("the guard of this change has ended, or undoes it")

// change arms a change and makes it. Inverse is the mode of the verb that undoes it.
func (k *arms) change(ctx context.Context, op string, inverse providers.Mode, c providers.Call, call func(context.Context, providers.Call) error) error {
	if c.Guard.IsZero() || k.around.Reaches != nil && !k.around.Reaches(k.served.Name, c) {
		return call(ctx, c)
	}
	fail := func(class providers.Class, err error) error {
		return &providers.Error{Op: op, Ref: c.Ref, Class: class, Err: err}
	}
	if inverse == providers.Never {
		return fail(providers.Invalid, fmt.Errorf("a guard cannot undo the %s of a %s: there is no call for that", op, k.served.Name))
	}
	was, err := look(ctx, k.Kind, c.ID)
	if err != nil { // nothing was changed, whatever that error says
		return fail(providers.Transient, fmt.Errorf("look at what the guard would restore: %w", err))
	}
	there := was != nil && was.Phase != providers.Deleting
	ch := change{Op: op, Ref: c.Ref, ID: c.ID, Source: k.around.Source, Late: k.served.Traits.EffectWithin}
	switch op {
	case "create": // what is there is not ours to delete
		if was != nil {
			return fail(providers.Exists, fmt.Errorf("id %s is taken", c.ID))
		}
	case "update":
		if !there {
			return fail(providers.Absent, fmt.Errorf("there is no %s with id %s", k.served.Name, c.ID))
		}
		ch.Before = imageOf(*was)
	case "delete":
		if !there {
			return nil
		}
		ch.Before = imageOf(*was)
	}
	if op != "delete" {
		ch.Mark = c.Mark.String()
	}
	armed, err := k.around.Client.arm(ctx, request{
		Op: "arm", ID: c.Guard.ID, Epoch: c.Epoch, Within: c.Guard.Within, Probes: k.around.Probes, Change: &ch,
	})
	if err != nil {
		if errors.Is(err, errLost) { // it may be armed, although it is not made
			c.Armed()
		}
		return fail(harmless(providers.ClassOf(err)), err)
	}
	defer armed.close()
	if c.Answer == nil {
		c.Answer = &providers.Answer{}
	}
	cctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-armed.over:
			cancel(errOver)
		case <-done:
		}
	}()
	defer func() { <-watched }()
	defer close(done)

	err = call(cctx, c)
	ended := ending{Chosen: c.Answer.ID}
	if err != nil {
		var e *providers.Error
		ended.Unknown = !errors.As(err, &e) || e.Class == providers.Unknown && !e.Over
		ended.Withdraw = e != nil && e.Class != providers.Unknown && !e.Over
	}
	// Only what is withdrawn without doubt is not guarded any more. That the program does not answer changes nothing: it undoes.
	if noted := armed.end(ended); !ended.Withdraw || noted != nil {
		c.Armed()
	}
	return err
}

// harmless returns the class of a failure to arm: nothing was changed.
func harmless(c providers.Class) providers.Class {
	if c == providers.Unknown {
		return providers.Transient
	}
	return c
}
