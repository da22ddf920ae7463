package diff

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"converge.dev/converge/schema"
)

// largeRest is the size in bytes of JSON from which a value is remembered by its digest alone.
const largeRest = 4 << 10

// Rest returns what was observed of a thing beyond what is stated: settable fields that are not stated, also within stated
// structs and maps. Lists are stated as wholes. Large values are replaced by their digests.
func Rest(k *schema.Kind, seen, stated schema.Object) schema.Object {
	return beyond(k.Fields, seen, stated, compact)
}

// Beyond is Rest with all values in full.
func Beyond(k *schema.Kind, seen, stated schema.Object) schema.Object {
	return beyond(k.Fields, seen, stated, func(_ *schema.Field, v any) any { return schema.Clone(v) })
}

// beyond returns each value as keep returns it.
func beyond(fields []schema.Field, seen, stated map[string]any, keep func(*schema.Field, any) any) map[string]any {
	out := map[string]any{}
	for i := range fields {
		f := &fields[i]
		v, ok := seen[f.Name]
		if !ok || f.Computed || f.Planning || empty(v) {
			continue
		}
		s, said := stated[f.Name]
		if !said {
			if f.Default == nil || !schema.Equal(v, f.Default) { // the schema supplies it
				out[f.Name] = keep(f, v)
			}
			continue
		}
		if m := below(f, v, s, keep); len(m) > 0 {
			out[f.Name] = m
		}
	}
	return out
}

// below returns what a stated struct or map has beyond what is stated of it.
func below(f *schema.Field, seen, stated any, keep func(*schema.Field, any) any) map[string]any {
	v, vok := seen.(map[string]any)
	s, sok := stated.(map[string]any)
	if !vok || !sok || f.Secret {
		return nil
	}
	switch f.Type {
	case schema.Struct:
		return beyond(f.Fields, v, s, keep)
	case schema.Map:
		out := map[string]any{}
		for key, e := range v {
			if se, said := s[key]; !said {
				out[key] = keep(f.Elem, e)
			} else if m := below(f.Elem, e, se, keep); len(m) > 0 {
				out[key] = m
			}
		}
		return out
	}
	return nil
}

// compact returns a copy of a value, or its digest when it is large.
func compact(f *schema.Field, v any) any {
	if f.Secret { // a digest already
		return schema.Clone(v)
	}
	if b, err := json.Marshal(v); err == nil && len(b) > largeRest {
		sum := sha256.Sum256(b)
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return schema.Clone(v)
}

// Between lists the paths in which two specs differ, in either direction, with Before from was and After from is.
func Between(k *schema.Kind, was, is schema.Object, names Names) []Change {
	changes := Compare(k, is, was, nil, nil, names)
	for _, c := range Compare(k, was, is, nil, nil, names) {
		if !slices.ContainsFunc(changes, func(d Change) bool { return within(c.Path, d.Path) || within(d.Path, c.Path) }) {
			c.Before, c.After = c.After, c.Before
			changes = append(changes, c)
		}
	}
	for i := range changes {
		changes[i].Replaces, changes[i].Disruption = false, ""
	}
	return changes
}

// within reports whether a path equals up, or lies below it.
func within(path, up string) bool {
	rest, ok := strings.CutPrefix(path, up)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}
