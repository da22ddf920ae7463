// Package sealed knows where the secrets of a spec are and how to compare them, without knowing any. It is pure, so
// that the planner may use it; the values are the business of package secret.
//
// A sealed secret is {from: PLACE, digest: "hmac-sha256:…"}; one that was observed and concealed has the digest alone, and
// an empty object means that none is set.
package sealed

import (
	"fmt"
	"slices"
	"strings"

	"converge.dev/converge/schema"
)

// Algorithm is the prefix of every digest.
const Algorithm = "hmac-sha256:"

// digestSize is the length of the hex digits that follow.
const digestSize = 64

// IsDigest reports whether a text has the form of a digest.
func IsDigest(s string) bool {
	return strings.HasPrefix(s, Algorithm) && len(s) == len(Algorithm)+digestSize
}

// Held reports whether a kind has secret fields.
func Held(k *schema.Kind) bool { return slices.ContainsFunc(k.Fields, held) }

// Holds reports whether a field, or anything below it, is secret.
func Holds(f *schema.Field) bool { return held(*f) }

func held(f schema.Field) bool {
	return f.Secret || (f.Elem != nil && held(*f.Elem)) || slices.ContainsFunc(f.Fields, held)
}

// Each replaces every secret of a spec by the result of visit, which receives its path: keys[0].value. It returns a copy;
// nil stays nil, and without secrets the spec itself is returned.
func Each(k *schema.Kind, spec schema.Object, visit func(path string, v any) (any, error)) (schema.Object, error) {
	if spec == nil || !Held(k) {
		return spec, nil
	}
	out := spec.Clone()
	return out, eachField(k.Fields, out, "", visit)
}

// Unset replaces each secret that a sealed spec reports as not set by the empty text, as kinds report it. The rest stays
// sealed.
func Unset(k *schema.Kind, spec schema.Object) (schema.Object, error) {
	return Each(k, spec, func(_ string, v any) (any, error) {
		if m, ok := v.(map[string]any); ok && len(m) == 0 {
			return "", nil
		}
		return v, nil
	})
}

func eachField(fields []schema.Field, m map[string]any, at string, visit func(string, any) (any, error)) error {
	for i := range fields {
		f := &fields[i]
		v, there := m[f.Name]
		if !there || !held(*f) {
			continue
		}
		n, err := eachValue(f, v, at+f.Name, visit)
		if err != nil {
			return err
		}
		m[f.Name] = n
	}
	return nil
}

func eachValue(f *schema.Field, v any, at string, visit func(string, any) (any, error)) (_ any, err error) {
	if f.Secret {
		if v == nil {
			return nil, nil
		}
		return visit(at, v)
	}
	switch v := v.(type) {
	case map[string]any:
		if f.Type != schema.Map {
			return v, eachField(f.Fields, v, at+".", visit)
		}
		for key := range v {
			if v[key], err = eachValue(f.Elem, v[key], at+"."+key, visit); err != nil {
				return nil, err
			}
		}
	case []any:
		for i := range v {
			if v[i], err = eachValue(f.Elem, v[i], fmt.Sprintf("%s[%d]", at, i), visit); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// Digest returns the keyed digest of a sealed or concealed secret; empty when v is not one.
func Digest(v any) string {
	m, _ := v.(map[string]any)
	d, _ := m["digest"].(string)
	return d
}

// Within reports whether there is a sealed or concealed secret anywhere in a tree of JSON values. A value that holds one
// cannot be restored from what was written down.
func Within(v any) bool {
	switch v := v.(type) {
	case schema.Object:
		return Within(map[string]any(v))
	case map[string]any:
		if IsDigest(Digest(v)) {
			return true
		}
		for _, e := range v {
			if Within(e) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, Within)
	}
	return false
}

// Assume returns what was observed, completed with the secrets that the far side did not return: they are assumed to be as
// in known. When planning, known is what was recorded; right after an accepted call, or for a thing that our create made,
// it is what was sent. Without that rule a secret that never comes back would be drift for ever. What the far side does
// return is kept. Observed is not modified.
func Assume(k *schema.Kind, observed, known schema.Object) schema.Object {
	if !Held(k) || observed == nil || known == nil {
		return observed
	}
	return assumeFields(k.Fields, observed.Clone(), known)
}

func assumeFields(fields []schema.Field, seen, known map[string]any) map[string]any {
	for i := range fields {
		f := &fields[i]
		k, stated := known[f.Name]
		if !stated || !held(*f) {
			continue
		}
		if v := assume(f, seen[f.Name], k); v != nil {
			seen[f.Name] = v
		}
	}
	return seen
}

// assume returns seen with the secrets of known that it lacks; nil when there is nothing at all.
func assume(f *schema.Field, seen, known any) any {
	switch {
	case f.Secret && seen == nil:
		return known
	case f.Secret:
		return seen
	}
	switch k := known.(type) {
	case map[string]any:
		s, there := seen.(map[string]any)
		if f.Type != schema.Map {
			if seen != nil && !there {
				return seen
			}
			if s = assumeFields(f.Fields, orEmpty(s), k); len(s) == 0 && !there {
				return nil
			}
			return s
		}
		if there { // it reports which keys there are
			for key, e := range s {
				if v := assume(f.Elem, e, k[key]); v != nil {
					s[key] = v
				}
			}
			return s
		}
		if seen != nil {
			return seen
		}
		s = map[string]any{}
		for key, e := range k {
			if v := assume(f.Elem, nil, e); v != nil {
				s[key] = v
			}
		}
		if len(s) > 0 {
			return s
		}
	case []any:
		s, there := seen.([]any)
		switch {
		case seen == nil && f.Elem.Secret:
			return known
		case there && f.Key != "":
			for i := range s {
				if j := slices.IndexFunc(k, func(e any) bool { return keyed(e, f.Key) != nil && keyed(e, f.Key) == keyed(s[i], f.Key) }); j >= 0 {
					s[i] = assume(f.Elem, s[i], k[j])
				}
			}
		case there && len(s) == len(k):
			for i := range s {
				s[i] = assume(f.Elem, s[i], k[i])
			}
		}
	}
	return seen
}

func orEmpty(m map[string]any) map[string]any {
	if m == nil {
		return map[string]any{}
	}
	return m
}

func keyed(v any, key string) any {
	m, _ := v.(map[string]any)
	return m[key]
}
