package load

import (
	"slices"
	"strconv"

	"converge.dev/converge/schema/internal/canonical"
	"converge.dev/converge/schema/rules"
)

// written returns the path of a value of r as its author wrote it. Lists whose order does not matter are sorted in the
// spec, so an index may differ in the source.
func written(r *rules.Resource, spec []byte, path []string) []string {
	source, f := decodeJSON(spec)
	if f != nil {
		return path
	}
	out := slices.Clone(path)
	var now, was any = map[string]any(r.Spec), source
	field := r.Kind.Spec() // the current spec
	for i, name := range path {
		switch n := now.(type) {
		case map[string]any:
			w, _ := was.(map[string]any)
			now, was = n[name], w[name]
		case []any:
			w, _ := was.([]any)
			in, err := strconv.Atoi(name)
			if err != nil || in >= len(n) {
				return out
			}
			at := in
			if field.Key != "" || field.Set {
				at = writtenIndex(n, w, in, field.Key)
				out[i] = strconv.Itoa(at)
			}
			if at >= len(w) {
				return out
			}
			now, was = n[in], w[at]
		default:
			return out
		}
		if field = field.Under(name); field == nil {
			return out
		}
	}
	return out
}

// writtenIndex returns the index in the list was of element at of the sorted list now: among equal elements, the one
// with the same rank.
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
