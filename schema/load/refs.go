package load

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/canonical"
)

// refTarget gives the ref that a name stands for in a field of r that refers to a kind: what lives on a node refers to
// its own node, and everything refers to the site.
func (st *site) refTarget(r *resource, kind, name string) schema.Ref {
	scope := schema.ScopeSite
	if k := st.kinds[kind]; k != nil && k.Node {
		scope = r.Ref.Scope
	}
	return schema.Ref{Scope: scope, Kind: kind, Name: name}
}

// refer fills in what r comes after, and what it refers to outside of the document.
func (st *site) refer(r *resource) {
	add := func(ref schema.Ref) {
		if st.index[ref] == nil {
			r.dangling = true
			return
		}
		r.After = append(r.After, ref)
	}
	r.kind.EachRef(r.Spec, func(kind, name string) string {
		if ref := st.refTarget(r, kind, name); st.outside(ref) {
			r.Outside = append(r.Outside, ref)
		} else {
			add(ref)
		}
		return name
	})
	for _, text := range r.depends {
		ref, err := schema.ParseRef(text)
		if err != nil {
			r.dangling = true
			continue
		}
		add(ref)
	}
	r.After, r.Outside = schema.SortRefs(r.After), schema.SortRefs(r.Outside)
}

// outside reports whether a reference names a thing that no document declares: by its external id, a UUID.
func (st *site) outside(ref schema.Ref) bool {
	return st.index[ref] == nil && uuidForm().MatchString(ref.Name)
}

var uuidForm = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
})

// eachValue visits every value of a spec that a field describes, parents first, in the order of names. The path is
// below the resource and only valid during the call.
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

// written gives the path of a value of r as its author wrote it. Lists whose order means nothing are sorted in the spec,
// so an index there may be another one in the source.
func (r *resource) written(path []string) []string {
	source, f := decodeJSON(r.json)
	if f != nil {
		return path
	}
	out := slices.Clone(path)
	fields, elem := r.kind.Fields, (*schema.Field)(nil)
	var now, was any = map[string]any(r.Spec), source
	for i, name := range path {
		switch n := now.(type) {
		case map[string]any:
			w, _ := was.(map[string]any)
			now, was = n[name], w[name]
			if elem != nil && elem.Type == schema.Map {
				elem = elem.Elem
			} else {
				elem = fieldOf(fields, name)
			}
		case []any:
			w, _ := was.([]any)
			at, err := strconv.Atoi(name)
			if err != nil || at >= len(n) || elem == nil {
				return out
			}
			if elem.Key != "" || elem.Set {
				at = writtenIndex(n, w, at, elem.Key)
				out[i] = strconv.Itoa(at)
			}
			if at >= len(w) {
				return out
			}
			now, was, elem = n[mustIndex(name)], w[at], elem.Elem
		default:
			return out
		}
		if elem != nil {
			fields = elem.Fields
		}
	}
	return out
}

func mustIndex(s string) int {
	i, _ := strconv.Atoi(s)
	return i
}

func fieldOf(fields []schema.Field, name string) *schema.Field {
	i := slices.IndexFunc(fields, func(f schema.Field) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	return &fields[i]
}

// writtenIndex finds the element at of the sorted list now in the list was: of equal ones, the one that is as far on.
func writtenIndex(now, was []any, at int, key string) int {
	same := func(a, b any) bool {
		if key != "" {
			x, _ := a.(map[string]any)
			y, _ := b.(map[string]any)
			return string(canonical.Append(nil, x[key])) == string(canonical.Append(nil, y[key]))
		}
		return string(canonical.Append(nil, a)) == string(canonical.Append(nil, b))
	}
	skip := 0
	for _, e := range now[:at] {
		if same(e, now[at]) {
			skip++
		}
	}
	for i, e := range was {
		if !same(e, now[at]) {
			continue
		}
		if skip == 0 {
			return i
		}
		skip--
	}
	return at
}
