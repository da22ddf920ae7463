package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"converge.dev/converge/engine/event"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/secret"
	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// secrets returns the site's vault, whose key is in the store, or a passing one when the engine only looks.
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
	ctx = context.WithoutCancel(ctx) // the first secret may be met after this call
	e.vault = secret.New(func() ([]byte, error) {
		if !e.o.Looks {
			return e.o.Store.SecretKey(ctx)
		}
		key, stored, err := e.o.Store.PassingKey(ctx)
		e.passing = err == nil && !stored
		return key, err
	}, e.o.Secrets)
	e.secret = held
	return e.vault
}

// CheckSecrets refuses a document that others wrote when it names secrets that source does not allow in such a document. The
// *RefusedError names all of them, each with the setting that would allow it. No secret is read.
func CheckSecrets(kinds schema.Kinds, source secret.Source, doc *schema.Document) error {
	var refusals []plan.Refusal
	for i := range doc.Resources {
		r := &doc.Resources[i]
		refusals = append(refusals, notAllowed(kinds, source, r.Ref, r.Spec)...)
	}
	if len(refusals) > 0 {
		return &RefusedError{refusals}
	}
	return nil
}

// checkSecrets is [CheckSecrets] for a plan that was made before, perhaps with another configuration.
func (e *Engine) checkSecrets(p *plan.Plan) error {
	var refusals []plan.Refusal
	for i := range p.Steps {
		s := &p.Steps[i]
		for _, spec := range []schema.Object{s.Want, s.After} {
			for _, r := range notAllowed(e.o.Kinds, e.o.Secrets.Source, s.Ref, spec) {
				if !slices.ContainsFunc(refusals, func(o plan.Refusal) bool { return o.Ref == r.Ref && o.Reason == r.Reason }) {
					refusals = append(refusals, r)
				}
			}
		}
	}
	if len(refusals) > 0 {
		return &RefusedError{refusals}
	}
	return nil
}

func notAllowed(kinds schema.Kinds, source secret.Source, ref schema.Ref, spec schema.Object) (refusals []plan.Refusal) {
	kind := kinds[ref.Kind]
	if kind == nil || !sealed.Held(kind) {
		return nil
	}
	_, _ = sealed.Each(kind, spec, func(path string, s any) (any, error) {
		m, _ := s.(map[string]any)
		from, _ := m["from"].(string)
		if only, setting := source.Allows(from); from != "" && only != "" {
			refusals = append(refusals, plan.Refuse(ref,
				fmt.Sprintf("%s: %s: a document from the store or the inbox may name only %s", path, from, only),
				"to allow it, set in the configuration: "+setting))
		}
		return s, nil
	})
	return refusals
}

// sealed returns a document with the digests of its secrets in the specs. All that cannot be read are reported at once.
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

// unchanged refuses a plan whose secrets cannot be read, or are no longer those that it was made with. Otherwise steps would
// find that out one by one, after others were done.
func (e *Engine) unchanged(ctx context.Context, p *plan.Plan) error {
	v := e.secrets(ctx)
	var missing []error
	var changed []event.Difference
	for i := range p.Steps {
		s := &p.Steps[i]
		kind := e.secret[s.Ref.Kind]
		if kind == nil || s.Action != plan.Create && s.Action != plan.Update {
			continue
		}
		switch err := v.Check(kind, s.After); {
		case errors.Is(err, secret.ErrChanged):
			changed = append(changed, event.Difference{Ref: s.Ref, Detail: err.Error()})
		case err != nil:
			missing = append(missing, fmt.Errorf("%s: %w", s.Ref, err))
		}
	}
	if err := errors.Join(missing...); err != nil {
		return fmt.Errorf("secrets cannot be read:\n%w", err)
	}
	if len(changed) > 0 {
		return &StaleError{changed}
	}
	return nil
}

// register makes the secrets of what is recorded and planned known to the vault, before any text mentions them.
func (e *Engine) register(ctx context.Context, recorded []state.Record, p *plan.Plan) {
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
