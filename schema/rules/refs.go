package rules

import (
	"maps"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"converge.dev/converge/schema"
)

// refer fills in what r comes after, and what it refers to outside the document.
func (st *Site) refer(r *Resource) {
	r.After, r.Outside, r.missing = nil, nil, nil
	st.referring.each(r, func(_ []string, f *schema.Field, v any) {
		name, _ := v.(string)
		switch ref := st.kinds.Target(r.Ref.Scope, f.Ref, name); {
		case name == "":
		case st.index[ref] != nil:
			r.After = append(r.After, ref)
		case outside(ref):
			r.Outside = append(r.Outside, ref)
		default:
			r.missing = append(r.missing, ref)
		}
	})
	for _, text := range r.depends {
		if ref, err := schema.ParseRef(text); err == nil && st.index[ref] != nil {
			r.After = append(r.After, ref)
		} else {
			r.missing = append(r.missing, ref)
		}
	}
	r.After, r.Outside = schema.SortRefs(r.After), schema.SortRefs(r.Outside)
}

func isRef(f *schema.Field) bool { return f.Ref != "" }

// outside reports whether a reference to what the document does not declare names a thing by its external id, a canonical UUID.
func outside(ref schema.Ref) bool {
	id, err := uuid.Parse(ref.Name)
	return err == nil && id.String() == ref.Name
}

// eachValue visits every value of a spec that a field describes, parents first, in the order of names. The path starts
// at the resource and is only valid during the call.
func eachValue(fields []schema.Field, spec map[string]any, visit func(path []string, f *schema.Field, v any)) {
	eachField(fields, spec, make([]string, 0, 8), visit)
}

func eachField(fields []schema.Field, m map[string]any, path []string, visit func(path []string, f *schema.Field, v any)) {
	for i := range fields {
		if v, ok := m[fields[i].Name]; ok {
			eachBelow(&fields[i], v, append(path, fields[i].Name), visit)
		}
	}
}

func eachBelow(f *schema.Field, v any, path []string, visit func(path []string, f *schema.Field, v any)) {
	visit(path, f, v)
	switch v := v.(type) {
	case map[string]any:
		if f.Type != schema.Map {
			eachField(f.Fields, v, path, visit)
			return
		}
		if f.Elem != nil {
			for _, name := range slices.Sorted(maps.Keys(v)) {
				eachBelow(f.Elem, v[name], append(path, name), visit)
			}
		}
	case []any:
		if f.Elem != nil {
			for i, e := range v {
				eachBelow(f.Elem, e, append(path, strconv.Itoa(i)), visit)
			}
		}
	}
}
