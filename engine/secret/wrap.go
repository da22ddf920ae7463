package secret

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"strings"

	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// Wrap returns a kind that accepts sealed secrets from the engine and returns concealed ones only, in specs of the form that is
// compared. It wraps the contract once, as limits do, so that no provider has to deal with it. K is the description of the kind.
func (v *Vault) Wrap(k *schema.Kind, kind providers.Kind) providers.Kind {
	return wrapped{v, k, kind}
}

// Foresee returns a provider's Obstacles whose words reveal nothing of secrets; nil for nil.
func (v *Vault) Foresee(obstacles providers.Obstacles) providers.Obstacles {
	if obstacles == nil {
		return nil
	}
	return func(ctx context.Context, deletes, changes []providers.Target) ([]providers.Obstacle, error) {
		found, err := obstacles(ctx, deletes, changes)
		for i := range found {
			found[i].Why = v.ScrubText(found[i].Why)
		}
		return found, v.Scrub(err)
	}
}

type wrapped struct {
	vault *Vault
	of    *schema.Kind
	kind  providers.Kind
}

// List implements [providers.Kind]. A panic becomes an error: a thing that could not be seen is unknown.
func (w wrapped) List(ctx context.Context) iter.Seq2[providers.Thing, error] {
	return func(yield func(providers.Thing, error) bool) {
		theirs := true // whose code runs: the provider's, or that of the reader of the list
		defer func() {
			if !theirs {
				return
			}
			if p := recover(); p != nil {
				yield(providers.Thing{}, w.panicked(p))
			}
		}()
		for th, err := range w.kind.List(ctx) {
			if err == nil {
				err = w.conceal(&th)
			} else {
				err = w.said(err)
			}
			if err != nil {
				th = providers.Thing{}
			}
			theirs = false
			if !yield(th, err) || err != nil {
				return
			}
			theirs = true
		}
	}
}

// Get implements [providers.Kind]. A panic becomes an error, as in a list.
func (w wrapped) Get(ctx context.Context, ids []string) (things []providers.Thing, err error) {
	defer func() {
		if p := recover(); p != nil {
			things, err = nil, w.panicked(p)
		}
	}()
	if things, err = w.kind.Get(ctx, ids); err != nil {
		return nil, w.said(err)
	}
	for i := range things {
		if err := w.conceal(&things[i]); err != nil {
			return nil, err
		}
	}
	return things, nil
}

// panicked returns the error of an observation that panicked; it would panic again.
func (w wrapped) panicked(p any) error {
	words := withheld
	if !sealed.Held(w.of) {
		words = w.vault.said(p)
	}
	return &providers.Error{Op: "observe", Kind: w.of.Name, Class: providers.Invalid, Err: fmt.Errorf("the provider panicked: %s\n%s", words, debug.Stack())}
}

// said returns the error of an observation without what it may reveal of secrets.
func (w wrapped) said(err error) error {
	if w.vault.darkened(w.of) {
		return unsaid(&providers.Error{Op: "observe", Kind: w.of.Name}, err)
	}
	return w.vault.Scrub(err)
}

// conceal replaces the secrets of an observed thing by their digests, and brings its spec into the form that is compared. What the
// provider returned is not modified: it may hold it, too.
func (w wrapped) conceal(th *providers.Thing) (err error) {
	if sealed.Held(w.of) {
		if th.Spec, err = w.vault.Conceal(w.of, th.Spec); err == nil {
			th.Status, err = w.vault.Conceal(w.of, th.Status)
		}
		if err != nil {
			return &providers.Error{Op: "observe", Kind: w.of.Name, Class: providers.Invalid, Err: err}
		}
	}
	th.Spec = w.of.Normalized(th.Spec)
	th.Detail = w.vault.ScrubText(th.Detail)
	return nil
}

// withheld replaces a text that may hold a secret: one that this process has never seen, or one that was sent, in a form
// that cannot be found, such as a part of it.
const withheld = "the remote system's message is withheld because it may contain a secret; see the remote system's own log"

// unsaid returns an error without the text of the far side. What is left comes from our own lists: the class, the code, and
// whether the call timed out or was cancelled.
func unsaid(as *providers.Error, err error) error {
	as.Class = providers.ClassOf(err)
	what := string(as.Class)
	var of *providers.Error
	if errors.As(err, &of) {
		as.Over = of.Over
		if isWord(of.Code) {
			as.Code = of.Code
			what += " (" + of.Code + ")"
		}
	}
	as.Err = errors.New(what + ": " + withheld)
	for _, ours := range []error{context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, ours) {
			as.Err = fmt.Errorf("%s: %w: %s", what, ours, withheld)
		}
	}
	return as
}

// isWord reports whether a code looks like a word from a list.
func isWord(code string) bool {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	return code != "" && len(code) <= 32 && strings.Trim(code, letters) == ""
}

// darken withholds the texts of failed observations of a kind from now on.
func (v *Vault) darken(k *schema.Kind) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.dark[k.Name] = true
}

func (v *Vault) darkened(k *schema.Kind) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.dark[k.Name]
}

// Create implements [providers.Kind].
func (w wrapped) Create(ctx context.Context, c providers.Call) error {
	return w.change(ctx, "create", c, w.kind.Create)
}

// Update implements [providers.Kind].
func (w wrapped) Update(ctx context.Context, c providers.Call) error {
	return w.change(ctx, "update", c, w.kind.Update)
}

// Delete implements [providers.Kind].
func (w wrapped) Delete(ctx context.Context, c providers.Call) error {
	return w.change(ctx, "delete", c, w.kind.Delete)
}

func (w wrapped) change(ctx context.Context, op string, c providers.Call, call func(context.Context, providers.Call) error) (err error) {
	sends := holds(w.of, c.Want) || holds(w.of, c.Have)
	if c.Want, err = w.vault.Open(w.of, c.Want); err != nil {
		return refused(op, c, err)
	}
	if c.Have, err = sealed.Unset(w.of, c.Have); err != nil {
		return refused(op, c, err)
	}
	if sends {
		w.vault.darken(w.of)
	}
	defer func() {
		switch p := recover(); {
		case p == nil:
		case sends:
			panic(withheld) // its text will be written down where it is caught
		default:
			panic(w.vault.said(p))
		}
	}()
	if err = call(ctx, c); err != nil && sends {
		return unsaid(&providers.Error{Op: op, Ref: c.Ref}, err)
	}
	return w.vault.Scrub(err)
}

// holds reports whether a sealed spec has a secret that is set.
func holds(k *schema.Kind, spec schema.Object) (held bool) {
	_, _ = sealed.Each(k, spec, func(_ string, s any) (any, error) {
		if m, ok := s.(map[string]any); !ok || len(m) > 0 {
			held = true
		}
		return s, nil
	})
	return held
}
