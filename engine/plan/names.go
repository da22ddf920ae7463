package plan

import (
	"converge.dev/converge/engine/diff"
	"converge.dev/converge/schema"
)

// Names map external ids to the names of resources, by place.
type Names map[schema.Place]map[string]string

// Put adds the id of a resource.
func (n Names) Put(ref schema.Ref, id string) {
	at := ref.Place()
	if n[at] == nil {
		n[at] = map[string]string{}
	}
	n[at][id] = ref.Name
}

// Find returns the resource of a kind that has an id in a scope: one of that scope, else one of the site.
func (n Names) Find(scope, kind, id string) (schema.Ref, bool) {
	for _, s := range []string{scope, schema.ScopeSite} {
		if name, ok := n[schema.Place{Scope: s, Kind: kind}][id]; ok {
			return schema.Ref{Scope: s, Kind: kind, Name: name}, true
		}
	}
	return schema.Ref{}, false
}

// In returns the names for specs of a scope; an unknown id stays as it is.
func (n Names) In(scope string) diff.Names {
	return func(kind, id string) string {
		if ref, ok := n.Find(scope, kind, id); ok {
			return ref.Name
		}
		return id
	}
}
