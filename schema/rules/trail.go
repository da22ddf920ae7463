package rules

import (
	"maps"
	"slices"
	"strconv"

	"converge.dev/converge/schema"
)

// A trail leads from a field of a kind down to one that a rule is about.
type trail []*schema.Field

// A selection has, by kind, the trails to the fields that a rule is about, so that the rule need not look at all others in every
// resource.
type selection map[string][]trail

// choose selects the fields of all kinds for which is holds.
func choose(kinds schema.Kinds, is func(*schema.Field) bool) selection {
	chosen := selection{}
	for name, kind := range kinds {
		var walk func(f *schema.Field, above trail)
		walk = func(f *schema.Field, above trail) {
			t := append(slices.Clip(above), f)
			if is(f) {
				chosen[name] = append(chosen[name], t)
			}
			if f.Elem != nil {
				walk(f.Elem, t)
			}
			for i := range f.Fields {
				walk(&f.Fields[i], t)
			}
		}
		for i := range kind.Fields {
			walk(&kind.Fields[i], nil)
		}
	}
	return chosen
}

// each visits the values of the selected fields in a resource. The path starts at the resource and is only valid during the
// call.
func (s selection) each(r *Resource, visit func(path []string, f *schema.Field, v any)) {
	var room [8]string
	for _, t := range s[r.Ref.Kind] {
		if v, ok := r.Spec[t[0].Name]; ok {
			t.follow(v, append(room[:0], t[0].Name), visit)
		}
	}
}

// follow visits the values at the end of a trail; v is one of its first field.
func (t trail) follow(v any, path []string, visit func(path []string, f *schema.Field, v any)) {
	if len(t) == 1 {
		visit(path, t[0], v)
		return
	}
	rest := t[1:]
	switch v := v.(type) {
	case map[string]any:
		if t[0].Type != schema.Map {
			if v, ok := v[rest[0].Name]; ok {
				rest.follow(v, append(path, rest[0].Name), visit)
			}
			return
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			rest.follow(v[name], append(path, name), visit)
		}
	case []any:
		for i, e := range v {
			rest.follow(e, append(path, strconv.Itoa(i)), visit)
		}
	}
}
