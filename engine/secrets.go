package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/secret"
	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// secrets gives the site's vault. Its key is read from the store when a kind has secrets at all.
func (e *Engine) secrets(ctx context.Context) (*secret.Vault, error) {
	if e.vault != nil {
		return e.vault, nil
	}
	var key []byte
	held := schema.Kinds{}
	for name, k := range e.o.Kinds {
		if sealed.Held(k) {
			held[name] = k
		}
	}
	if len(held) > 0 {
		var err error
		if key, err = e.o.Store.SecretKey(ctx); err != nil {
			return nil, fmt.Errorf("the key for secrets: %w", err)
		}
	}
	v, err := secret.New(key, e.o.Secrets)
	if err != nil {
		return nil, err
	}
	e.vault, e.secret = v, held
	return v, nil
}

// sealed gives a document with the digests of its secrets in the specs. What cannot be read is all named at once.
func (e *Engine) sealed(ctx context.Context, doc *schema.Document) (*schema.Document, error) {
	v, err := e.secrets(ctx)
	if err != nil {
		return nil, err
	}
	out := *doc
	var errs []error
	copied := false
	for i := range doc.Resources {
		r := &doc.Resources[i]
		kind := e.secret[r.Ref.Kind]
		if kind == nil {
			continue
		}
		spec, err := v.Seal(kind, r.Spec)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r.Ref, err))
			continue
		}
		if !copied {
			out.Resources, copied = slices.Clone(doc.Resources), true
		}
		out.Resources[i].Spec = spec
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("secrets cannot be read:\n%w", err)
	}
	return &out, nil
}

// recall makes the secrets of what is recorded and of what is planned known, before anybody tells of them.
func (e *Engine) recall(ctx context.Context, recorded []state.Record, p *plan.Plan) error {
	v, err := e.secrets(ctx)
	if err != nil {
		return err
	}
	know := func(ref schema.Ref, spec schema.Object) {
		if kind := e.secret[ref.Kind]; kind != nil {
			v.Recall(kind, spec)
		}
	}
	for i := range recorded {
		know(recorded[i].Ref, recorded[i].Spec)
	}
	if p != nil {
		for i := range p.Steps {
			know(p.Steps[i].Ref, p.Steps[i].Want)
		}
	}
	return nil
}
