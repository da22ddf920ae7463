package plan

import (
	"fmt"
	"strings"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// outside refuses references by external id to what is not outside the document: to a resource that it declares, which
// would be ordered, checked and guarded as if nothing referred to it, and to a thing that is to be deleted.
func (m *maker) outside() {
	var ids map[schema.Place]map[string]*item
	for _, it := range m.items {
		if it.desired == nil || it.unknown {
			continue
		}
		for _, o := range it.desired.Outside {
			if ids == nil {
				ids = m.known()
			}
			of := ids[o.Place()][o.Name]
			if of == nil {
				continue
			}
			var where []string
			for _, u := range uses(it.kind, it.desired.Spec, o) {
				where = append(where, u.path)
			}
			says := fmt.Sprintf("%s refers to the %s %s by its external id", strings.Join(where, ", "), o.Kind, o.Name)
			switch {
			case of.desired != nil:
				m.refuse(it.ref, fmt.Sprintf("%s, but the document declares it as %s", says, of.ref), fmt.Sprintf("write %q instead", of.ref.Name))
			case m.external[of.ref] != nil, of.record.OnRemove == schema.Forget || of.traits.Delete == providers.Never:
				continue // it stays, and is unmanaged
			default:
				m.refuse(it.ref, fmt.Sprintf("%s, but the document no longer declares it as %s, so it would be deleted", says, of.ref),
					fmt.Sprintf(`declare it and write %q instead, or apply it once with lifecycle.on_remove set to "forget" before removing it from the document`, of.ref.Name))
			}
			it.refused = true
		}
	}
}

// known returns the declared or recorded resources of the kinds that are referred to by external id, by their observed id,
// their recorded id, and the id that they will have when the plan makes them.
func (m *maker) known() map[schema.Place]map[string]*item {
	at := map[schema.Place]map[string]*item{}
	for _, it := range m.items {
		if it.desired == nil {
			continue
		}
		for _, o := range it.desired.Outside {
			at[o.Place()] = map[string]*item{}
		}
	}
	for _, it := range m.items {
		ids := at[it.ref.Place()]
		if ids == nil {
			continue
		}
		if it.record != nil {
			ids[it.record.ID] = it
		}
		if it.desired != nil && it.traits.ID == "" {
			ids[ExternalID(m.plan.Site.ID, *it.traits, it.ref, it.born+1, it.desired.Spec)] = it
		}
		if it.thing != nil {
			ids[it.thing.ID] = it
		}
	}
	return at
}
