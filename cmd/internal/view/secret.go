package view

import (
	"slices"
	"strings"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/schema"
)

// hidden replaces the value of a secret field.
const hidden = "(sensitive)"

// hide returns what may be shown of a secret value: nothing, or its keyed digest if it already is one.
func hide(v any) any {
	if v == nil {
		return nil
	}
	if s, ok := v.(string); ok && strings.HasPrefix(s, "(sensitive ") {
		return s
	}
	return hidden
}

// conceal returns a change as it may be shown: without values of a secret, or of something that contains one.
func conceal(k *schema.Kind, c diff.Change) diff.Change {
	if c.Secret {
		c.Before, c.After = hide(c.Before), hide(c.After)
		return c
	}
	if k == nil {
		return c
	}
	f := &schema.Field{Type: schema.Struct, Fields: k.Fields}
	for rest := c.Path; rest != "" && holdsSecret(f); {
		name, brackets, below := rest, false, ""
		if rest[0] == '[' {
			name, below, _ = strings.Cut(rest[1:], "]")
			brackets = true
		} else if i := strings.IndexAny(rest, ".["); i >= 0 {
			name, below = rest[:i], rest[i:]
		}
		rest = strings.TrimPrefix(below, ".")
		switch {
		case brackets && f.Type == schema.List && f.Elem != nil:
			f = f.Elem
		case !brackets && f.Type == schema.Struct && f.Field(name) != nil:
			f = f.Field(name)
		default: // the key of a map, which may contain any character: everything below is as secret as its values
			f = &schema.Field{Secret: true}
		}
	}
	if holdsSecret(f) {
		c.Before, _ = maskValue(f, schema.Clone(c.Before))
		c.After, _ = maskValue(f, schema.Clone(c.After))
	}
	c.Secret = f.Secret
	return c
}

// holdsSecret reports whether a field, or anything below it, is secret.
func holdsSecret(f *schema.Field) bool {
	return f.Secret || f.Elem != nil && holdsSecret(f.Elem) ||
		slices.ContainsFunc(f.Fields, func(c schema.Field) bool { return holdsSecret(&c) })
}

// mask returns a spec without the values of secret fields, and a tree that is true where one was, in the form of
// Terraform's sensitive maps. The spec is not modified.
func mask(k *schema.Kind, spec schema.Object) (shown schema.Object, sensitive map[string]any) {
	if spec == nil {
		return nil, map[string]any{}
	}
	shown = spec.Clone()
	if k == nil {
		return shown, map[string]any{}
	}
	return shown, maskFields(k.Fields, shown)
}

func maskFields(fields []schema.Field, m map[string]any) map[string]any {
	found := map[string]any{}
	for i := range fields {
		v, ok := m[fields[i].Name]
		if !ok {
			continue
		}
		shown, sensitive := maskValue(&fields[i], v)
		m[fields[i].Name] = shown
		if sensitive != nil {
			found[fields[i].Name] = sensitive
		}
	}
	return found
}

// maskValue returns what may be shown of a value and where below it something was hidden; nil for nowhere.
func maskValue(f *schema.Field, v any) (shown, sensitive any) {
	if f.Secret {
		return hide(v), true
	}
	switch v := v.(type) {
	case map[string]any:
		if f.Type != schema.Map {
			if found := maskFields(f.Fields, v); len(found) > 0 {
				return v, found
			}
			return v, nil
		}
		found := map[string]any{}
		for name, e := range v {
			if f.Elem == nil {
				continue
			}
			shown, sensitive := maskValue(f.Elem, e)
			v[name] = shown
			if sensitive != nil {
				found[name] = sensitive
			}
		}
		if len(found) > 0 {
			return v, found
		}
	case []any:
		if f.Elem == nil {
			break
		}
		found, any := make([]any, len(v)), false
		for i, e := range v {
			found[i] = false
			shown, sensitive := maskValue(f.Elem, e)
			v[i] = shown
			if sensitive != nil {
				found[i], any = sensitive, true
			}
		}
		if any {
			return v, found
		}
	}
	return v, nil
}
