package survey

import (
	"slices"
	"strings"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// find writes one thing as a resource.
func (s *Survey) find(k *schema.Kind, ref schema.Ref, t *providers.Thing, n *naming) Discovered {
	f := Discovered{Resource: schema.Resource{Ref: ref}, ID: t.ID, Managed: t.Mark.Site == s.Site.ID && !t.Mark.IsZero()}
	spec := diff.Named(k, t.Spec, n.names.In(ref.Scope))
	record := n.records[ref]
	if record != nil && record.ID == t.ID {
		f.Managed = true
		f.Lifecycle.Protect, f.Lifecycle.OnRemove, f.Lifecycle.Ignore = record.Protect, record.OnRemove, record.Ignore
		f.Depends = record.After
		if record.Run != "" { // written by a run; a record rebuilt from marks states nothing
			said := stated(k.Fields, spec, record.Spec, "", record.Ignore)
			was := diff.Prune(record.Rest, record.Ignore)
			for field, v := range diff.Prune(diff.Rest(k, t.Spec, record.Spec), record.Ignore) { // and what has changed in the rest since converge left it
				if record.Rest != nil && !schema.Equal(v, was[field]) {
					said[field] = spec[field]
				}
			}
			f.Seen = diff.Beyond(k, spec, said)
			spec = said
		}
		for i := range k.Fields { // what only the planner reads, and what it chose, is in the record alone
			name := k.Fields[i].Name
			stated, ok := record.Spec[name]
			switch {
			case k.Fields[i].Planning && ok:
				spec[name] = stated
			case k.Fields[i].Choose != nil && !ok:
				delete(spec, name)
				delete(f.Seen, name)
			case ok && sealed.Within(stated) && spec[name] == nil: // it never comes back
				spec[name] = schema.Clone(stated)
			}
		}
	} else if !f.Managed {
		f.Lifecycle.Adopt = schema.AdoptMatch
		if t.Name != ref.Name || n.ambiguous[t] {
			f.Lifecycle.ID = t.ID
		}
	}
	if record == nil || record.ID != t.ID || record.Run == "" { // nobody has said how it should be
		traits, _ := s.Traits(ref.Scope, ref.Kind)
		f.unasked(k, spec, traits)
	}
	spec, f.Secrets = secretPlaces(k, ref, spec, record)
	for kind, name := range k.Refs(spec) {
		f.After = append(f.After, n.kinds.Target(ref.Scope, kind, name))
	}
	f.After = schema.SortRefs(f.After)
	f.Depends = slices.DeleteFunc(slices.Clone(f.Depends), func(r schema.Ref) bool { return slices.Contains(f.After, r) || n.used[r] == nil })
	f.After = schema.SortRefs(append(f.After, f.Depends...))
	f.Spec = terse(k.Fields, spec)
	f.Seen, _ = secretPlaces(k, ref, f.Seen, record)
	f.Seen = terse(k.Fields, f.Seen)
	return f
}

// unasked removes from a spec what nobody has asked for: what the far side changes by itself, such as whether something runs as it is
// configured, would be a request to keep it so once a document states it, and the next restart would break that. It is seen beside
// the document; a field that has another value when it is left out is ignored. Empty maps say nothing.
func (f *Discovered) unasked(k *schema.Kind, spec schema.Object, traits providers.Traits) {
	f.Seen = schema.Object{}
	for i := range k.Fields {
		field := &k.Fields[i]
		v, ok := spec[field.Name]
		if !ok || !slices.Contains(traits.SelfChanging, field.Name) {
			continue
		}
		switch {
		case field.Kept:
			f.Seen[field.Name] = v
			delete(spec, field.Name)
		case field.Default != nil && !schema.Equal(field.Default, v):
			f.Lifecycle.Ignore = append(slices.Clone(f.Lifecycle.Ignore), field.Name)
			delete(spec, field.Name)
		}
	}
	withoutEmpty(k.Fields, spec)
}

// withoutEmpty removes the empty maps from a spec. It changes the structs below the spec.
func withoutEmpty(fields []schema.Field, spec map[string]any) {
	for i := range fields {
		f := &fields[i]
		v, _ := spec[f.Name].(map[string]any)
		switch {
		case v == nil:
		case f.Type == schema.Map && len(v) == 0 && !f.Required:
			delete(spec, f.Name)
		case f.Type == schema.Struct:
			withoutEmpty(f.Fields, v)
		case f.Type == schema.Map && f.Elem != nil && f.Elem.Type == schema.Struct:
			for _, e := range v {
				if m, ok := e.(map[string]any); ok {
					withoutEmpty(f.Elem.Fields, m)
				}
			}
		}
	}
}

// stated returns the part of what was observed that the document had stated: the rest is left to the far side. For
// ignored paths it returns what the document had stated, whatever was observed.
func stated(fields []schema.Field, seen, said map[string]any, at string, ignore []string) map[string]any {
	out := make(map[string]any, len(said))
	for name, s := range said {
		if diff.Ignored(at+name, ignore) {
			out[name] = schema.Clone(s)
			continue
		}
		v, ok := seen[name]
		if !ok {
			continue
		}
		f := (&schema.Field{Fields: fields}).Field(name)
		if m, isMap := v.(map[string]any); isMap && f != nil && !f.Secret {
			if sm, ok := s.(map[string]any); ok {
				v = stated(f.Fields, m, sm, at+name+".", ignore)
			}
		}
		out[name] = v
	}
	return out
}

// secretPlaces replaces every secret by where it can be read: as recorded, or under an invented name that has to be filled
// in by hand. It returns the paths of the latter.
func secretPlaces(k *schema.Kind, ref schema.Ref, spec schema.Object, record *state.Record) (_ schema.Object, made []string) {
	known := map[string]any{}
	if record != nil {
		_, _ = sealed.Each(k, record.Spec, func(path string, v any) (any, error) {
			if m, ok := v.(map[string]any); ok && m["from"] != nil {
				known[path] = m["from"]
			}
			return v, nil
		})
	}
	spec, _ = sealed.Each(k, spec, func(path string, v any) (any, error) { // the visit never fails
		from, ok := known[path]
		if sealed.Digest(v) == "" && !ok {
			return nil, nil // none is set
		}
		if !ok {
			made = append(made, path)
			from = "env:" + strings.Trim(strings.Map(func(r rune) rune {
				if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
					return r
				}
				return '_'
			}, strings.ToUpper(ref.Name+"_"+path)), "_")
		}
		return map[string]any{"from": from}, nil
	})
	for name, v := range spec {
		if v == nil {
			delete(spec, name)
		}
	}
	return spec, made
}

// terse returns a spec without what the schema fills in by itself.
func terse(fields []schema.Field, spec map[string]any) map[string]any {
	out := make(map[string]any, len(spec))
	for name, v := range spec {
		f := (&schema.Field{Fields: fields}).Field(name)
		if f == nil {
			out[name] = v
			continue
		}
		if f.Default != nil && schema.Equal(f.Default, v) {
			continue
		}
		out[name] = terseValue(f, v)
	}
	return out
}

func terseValue(f *schema.Field, v any) any {
	switch v := v.(type) {
	case map[string]any:
		if f.Type == schema.Struct {
			return terse(f.Fields, v)
		}
	case []any:
		if f.Elem != nil && f.Elem.Type == schema.Struct {
			out := make([]any, len(v))
			for i := range v {
				out[i] = terseValue(f.Elem, v[i])
			}
			return out
		}
	}
	return v
}
