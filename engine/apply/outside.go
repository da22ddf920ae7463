package apply

import (
	"context"
	"fmt"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// An outsider is a thing that a step refers to although nothing declares it.
type outsider struct {
	plan.External
	far providers.Kind
}

// outsiders returns those that a spec with external ids refers to, as far as they can be observed.
func (r *run) outsiders(ref schema.Ref, spec schema.Object) (found []outsider) {
	for _, x := range r.Plan.Externals {
		s, _, ok := r.Providers.Find(x.Ref.Scope, x.Ref.Kind)
		if ok && x.Unchecked == "" && plan.Refers(r.Kinds[ref.Kind], spec, plan.Referent{Kind: x.Ref.Kind, ID: x.ID}) {
			found = append(found, outsider{x, s.Kind})
		}
	}
	return found
}

// present checks again, right before a call, that the outsiders it refers to are still there. Over means that the call must
// not be made.
func (w *worker) present(ctx context.Context) (res result, over bool) {
	for _, x := range w.outside {
		things, err := w.look(ctx, Some(x.far, x.ID))
		if err != nil {
			return w.failed(fmt.Errorf("check whether %s, which is external, exists: %w", x.Ref, err)), true
		}
		var t *providers.Thing
		if len(things) > 0 {
			t = &things[0]
		}
		if lost := x.Lost(t); lost != "" {
			return w.refuse(w.conflict(fmt.Sprintf("it refers to %s (id %s): %s", x.Ref, x.ID, lost))), true
		}
	}
	return result{}, false
}
