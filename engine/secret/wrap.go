package secret

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// Wrap gives a kind to which the engine may hand sealed secrets and which hands back none that is not concealed. It wraps
// the contract once, as limits do, so that no provider has to think of it. K is the description of the kind.
func (v *Vault) Wrap(k *schema.Kind, kind providers.Kind) providers.Kind {
	return wrapped{v, k, kind}
}

type wrapped struct {
	vault *Vault
	of    *schema.Kind
	kind  providers.Kind
}

// Observe implements [providers.Kind]. A panic becomes an error: a thing that could not be seen is unknown.
func (w wrapped) Observe(ctx context.Context, ids []string) (things []providers.Thing, err error) {
	fail := func(class providers.Class, err error) ([]providers.Thing, error) {
		return nil, &providers.Error{Op: "observe", Kind: w.of.Name, Class: class, Err: err}
	}
	defer func() {
		if p := recover(); p != nil {
			words := withheld
			if !sealed.Held(w.of) {
				words = w.vault.said(p)
			}
			things, err = fail(providers.Invalid, fmt.Errorf("the provider panicked: %s\n%s", words, debug.Stack())) // it would again
		}
	}()
	if things, err = w.kind.Observe(ctx, ids); err != nil {
		if w.vault.darkened(w.of) {
			return fail(providers.ClassOf(err), errors.New(withheld))
		}
		return nil, w.vault.Scrub(err)
	}
	if sealed.Held(w.of) {
		for i := range things {
			if things[i].Spec, err = w.vault.Conceal(w.of, things[i].Spec); err != nil {
				return fail(providers.Invalid, err)
			}
			if things[i].Status, err = w.vault.Conceal(w.of, things[i].Status); err != nil {
				return fail(providers.Invalid, err)
			}
		}
	}
	for i := range things {
		things[i].Detail = w.vault.ScrubText(things[i].Detail)
	}
	return things, nil
}

// withheld stands for words that may hold a secret which this process has never seen.
const withheld = "its words are withheld, for they may tell secrets that cannot be read here"

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
	if c.Want, err = w.vault.Open(w.of, c.Want); err != nil {
		return refused(op, c, err)
	}
	if c.Have, err = w.vault.Open(w.of, c.Have); err != nil {
		return refused(op, c, fmt.Errorf("as it was seen: %w", err))
	}
	defer func() {
		if p := recover(); p != nil {
			panic(w.vault.said(p)) // whoever catches it will write it down
		}
	}()
	return w.vault.Scrub(call(ctx, c))
}
