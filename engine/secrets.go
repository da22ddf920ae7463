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

// secrets gives the site's vault, whose key is in the store.
func (e *Engine) secrets(ctx context.Context) *secret.Vault {
	if e.vault != nil {
		return e.vault
	}
	held := schema.Kinds{}
	for name, k := range e.o.Kinds {
		if sealed.Held(k) {
			held[name] = k
		}
	}
	ctx = context.WithoutCancel(ctx) // whoever meets the first secret may do so later
	e.vault = secret.New(func() ([]byte, error) { return e.o.Store.SecretKey(ctx) }, e.o.Secrets)
	e.secret = held
	return e.vault
}

// sealed gives a document with the digests of its secrets in the specs. What cannot be read is all named at once.
func (e *Engine) sealed(ctx context.Context, doc *schema.Document) (*schema.Document, error) {
	v := e.secrets(ctx)
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
func (e *Engine) recall(ctx context.Context, recorded []state.Record, p *plan.Plan) {
	v := e.secrets(ctx)
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
}
