// Package diff compares what a document wants with what was observed. It is pure.
//
// The comparison is one-sided: every field that the document states must be observed as stated; a field that it does
// not mention is left to the far side. A field that was applied and has since left the document is unset. References
// are names in the document and external ids on the far side; a [Names] function maps one to the other while comparing,
// so that nothing has to be copied to find that nothing changed. Secrets are compared by their digests alone (package sealed).
package diff

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"converge.dev/converge/engine/secret/sealed"
	"converge.dev/converge/schema"
)

// A Change is one path that differs.
type Change struct {
	Path     string `json:"path"`               // within the resource: labels.env, rules[ssh].action, prefixes[0].gateway
	Before   any    `json:"before,omitempty"`   // as observed, references as names; nil when absent
	After    any    `json:"after,omitempty"`    // as desired; nil when it is to be unset
	Replaces bool   `json:"replaces,omitempty"` // cannot change in place
	Secret   bool   `json:"secret,omitempty"`   // the values are digests and are never shown

	Disruption string `json:"disruption,omitempty"`
}

// Field returns the field of the resource that the path lies in.
func (c Change) Field() string {
	field, _, _ := strings.Cut(c.Path, ".")
	field, _, _ = strings.Cut(field, "[")
	return field
}

// Names returns the name of the resource of a kind that has an external id; the id itself when no resource has it.
type Names func(kind, id string) string

// Compare lists the paths in which have differs from want, in the order of the schema. Recorded is the spec that was
// applied last (nil when none was): what it states and want does not is to be unset; of a map, the keys that it states. Paths in
// ignore, and everything below them, are not compared. All specs are normalized (schema.Kind.Normalize). Nothing is modified.
func Compare(k *schema.Kind, want, have, recorded schema.Object, ignore []string, names Names) []Change {
	c := comparison{names: names, ignore: ignore}
	c.fields(k.Fields, nil, flags{}, want, have, recorded)
	return c.changes
}

// Assume returns what was observed, completed with the fields that the far side does not report
// (providers.Thing.Unfilled): each is assumed to be as in the first of known that states it. Observed is not modified.
func Assume(observed schema.Object, unfilled []string, known ...schema.Object) schema.Object {
	if len(unfilled) == 0 {
		return observed
	}
	seen := maps.Clone(observed)
	for _, field := range unfilled {
		for _, k := range slices.Backward(known) {
			if v, ok := k[field]; ok {
				seen[field] = v
			}
		}
	}
	return seen
}

// Lasting returns what was observed, with its immutable fields as recorded where the far side does not report them, or reports
// the default, as it does for a field that was never filled. It is for kinds none of whose calls change such a field
// (providers.Traits.Fixed). Observed is not modified.
func Lasting(k *schema.Kind, observed, recorded schema.Object) schema.Object {
	if recorded == nil {
		return observed
	}
	seen := maps.Clone(observed)
	for i := range k.Fields {
		f := &k.Fields[i]
		if was, ok := recorded[f.Name]; ok && f.Immutable {
			seen[f.Name] = lasting(f, seen[f.Name], was)
		}
	}
	return seen
}

func lasting(f *schema.Field, is, was any) any {
	if empty(is) || is == "" || f.Default != nil && is == f.Default {
		return was
	}
	switch was := was.(type) {
	case map[string]any:
		m, ok := is.(map[string]any)
		if !ok || f.Type != schema.Struct {
			return is
		}
		m = maps.Clone(m)
		for name, w := range was {
			if part := f.Field(name); part != nil {
				m[name] = lasting(part, m[name], w)
			}
		}
		return m
	case []any:
		l, ok := is.([]any)
		if !ok || f.Key == "" {
			return is
		}
		l = slices.Clone(l)
		for i, e := range l {
			for _, w := range was {
				if keyText(e, f.Key) == keyText(w, f.Key) {
					l[i] = lasting(f.Elem, e, w)
				}
			}
		}
		return l
	}
	return is
}

type comparison struct {
	names   Names
	ignore  []string
	changes []Change
}

// flags are attributes that hold for everything below the field that carries them.
type flags struct {
	replaces, secret bool
	disruption       string
}

func (f flags) with(field *schema.Field) flags {
	f.replaces = f.replaces || field.Immutable
	f.secret = f.secret || field.Secret
	switch field.Disruption {
	case "":
	case schema.Live:
		f.disruption = ""
	default:
		f.disruption = field.Disruption
	}
	return f
}

// A path is a linked list to the root, so that comparing equal trees allocates nothing.
type path struct {
	up   *path
	name string
	key  bool // in brackets
}

func (p *path) String() string {
	if p == nil {
		return ""
	}
	if p.key {
		return p.up.String() + "[" + p.name + "]"
	}
	if p.up == nil {
		return p.name
	}
	return p.up.String() + "." + p.name
}

func (c *comparison) fields(fields []schema.Field, at *path, fl flags, want, have, recorded map[string]any) {
	for i := range fields {
		f := &fields[i]
		if f.Computed || f.Planning {
			continue
		}
		w, wok := want[f.Name]
		if !wok {
			if _, was := recorded[f.Name]; was && !f.Kept && f.Choose == nil {
				if h, ok := have[f.Name]; ok && !empty(h) {
					p := path{at, f.Name, false}
					if hm, rm := entries(f, h), entries(f, recorded[f.Name]); hm != nil && rm != nil {
						c.entries(f, &p, fl.with(f), nil, hm, rm)
						continue
					}
					c.add(&p, f, fl.with(f), h, nil)
				}
			}
			continue
		}
		c.value(f, at, f.Name, false, fl, w, have[f.Name], recorded[f.Name])
	}
}

func (c *comparison) value(f *schema.Field, up *path, name string, key bool, fl flags, want, have, recorded any) {
	if equal(f, want, have, c.names) && !unsets(f, want, have, recorded) {
		return
	}
	at := &path{up, name, key}
	if c.ignored(at) {
		return
	}
	fl = fl.with(f)
	if f.Secret {
		c.add(at, f, fl, have, want)
		return
	}
	switch f.Type {
	case schema.Struct:
		h, hok := have.(map[string]any)
		w, wok := want.(map[string]any)
		if hok && wok {
			r, _ := recorded.(map[string]any)
			c.fields(f.Fields, at, fl, w, h, r)
			return
		}
	case schema.Map:
		h, _ := have.(map[string]any)
		w, wok := want.(map[string]any)
		if wok && f.Elem != nil {
			r, _ := recorded.(map[string]any)
			c.entries(f, at, fl, w, h, r)
			return
		}
	case schema.List:
		h, _ := have.([]any)
		w, wok := want.([]any)
		if wok && c.elements(f, at, fl, w, h) {
			return
		}
	}
	c.add(at, f, fl, have, want)
}

// entries returns the map in a field whose keys need not all be ours; nil when there is none.
func entries(f *schema.Field, v any) map[string]any {
	if f == nil || f.Type != schema.Map || f.Elem == nil || f.Secret {
		return nil
	}
	m, _ := v.(map[string]any)
	return m
}

// entries compares the values of a map by key.
func (c *comparison) entries(f *schema.Field, at *path, fl flags, want, have, recorded map[string]any) {
	keys := make([]string, 0, len(want))
	for k := range want {
		keys = append(keys, k)
	}
	for k := range recorded {
		if _, wanted := want[k]; !wanted {
			if _, there := have[k]; there {
				keys = append(keys, k)
			}
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		w, wok := want[k]
		if !wok {
			p := path{at, k, false}
			c.add(&p, f.Elem, fl, have[k], nil)
			continue
		}
		c.value(f.Elem, at, k, false, fl, w, have[k], recorded[k])
	}
}

// elements explains a list whose elements pair up, by key or by position. It returns false when the list is better
// shown as a whole.
func (c *comparison) elements(f *schema.Field, at *path, fl flags, want, have []any) bool {
	if f.Elem == nil || f.Elem.Type != schema.Struct {
		return false
	}
	if f.Key == "" {
		if len(want) != len(have) {
			return false
		}
		for i := range want {
			c.value(f.Elem, at, strconv.Itoa(i), true, fl, want[i], have[i], nil)
		}
		return true
	}
	byKey := func(l []any) map[string]any {
		m := make(map[string]any, len(l))
		for _, e := range l {
			m[keyText(e, f.Key)] = e
		}
		return m
	}
	ws, hs := byKey(want), byKey(have)
	for _, w := range want {
		key := keyText(w, f.Key)
		h, ok := hs[key]
		if !ok {
			p := path{at, key, true}
			c.add(&p, f.Elem, fl, nil, w)
			continue
		}
		c.value(f.Elem, at, key, true, fl, w, h, nil)
	}
	for _, h := range have {
		key := keyText(h, f.Key)
		if _, ok := ws[key]; !ok {
			p := path{at, key, true}
			c.add(&p, f.Elem, fl, h, nil)
		}
	}
	return true
}

func keyText(v any, key string) string {
	m, _ := v.(map[string]any)
	return fmt.Sprint(m[key])
}

func (c *comparison) add(at *path, f *schema.Field, fl flags, before, after any) {
	if len(c.ignore) > 0 {
		name := at.String()
		was, is := c.spare(name, before), c.spare(name, after)
		if Ignored(name, c.ignore) || was == nil && is == nil {
			return
		}
		before, after = was, is
	}
	ch := Change{
		Path: at.String(), Before: named(f, before, c.names), After: after,
		Replaces: fl.replaces, Secret: fl.secret, Disruption: fl.disruption,
	}
	c.changes = append(c.changes, ch)
}

// spare returns a value without what is ignored below its path; nil when nothing is left.
func (c *comparison) spare(at string, v any) any {
	below, ok := v.(map[string]any)
	if !ok || len(below) == 0 {
		return v
	}
	if below = prune(below, at+".", c.ignore); len(below) == 0 {
		return nil
	}
	return below
}

func (c *comparison) ignored(at *path) bool {
	if len(c.ignore) == 0 {
		return false
	}
	return Ignored(at.String(), c.ignore)
}

// Ignored reports whether a path is one of those to ignore, or lies below one.
func Ignored(path string, ignore []string) bool {
	return slices.ContainsFunc(ignore, func(up string) bool { return within(path, up) })
}

// equal reports whether have matches everything that want states.
func equal(f *schema.Field, want, have any, names Names) bool {
	if f.Secret {
		return sealed.Digest(want) == sealed.Digest(have)
	}
	switch w := want.(type) {
	case string:
		h, ok := have.(string)
		if !ok {
			return false
		}
		return w == h || (f.Ref != "" && names(f.Ref, h) == w)
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok {
			return have == nil && len(w) == 0
		}
		if f.Type == schema.Map {
			for k, e := range w {
				if he, there := h[k]; !there || !equal(f.Elem, e, he, names) {
					return false
				}
			}
			return true
		}
		for k, e := range w {
			c := f.Field(k)
			if c == nil {
				c = &anything
			}
			if c.Computed {
				continue
			}
			he, there := h[k]
			if !there && !empty(e) || there && !equal(c, e, he, names) {
				return false
			}
		}
		return true
	case []any:
		h, ok := have.([]any)
		if !ok {
			return have == nil && len(w) == 0
		}
		if len(w) != len(h) {
			return false
		}
		e := f.Elem
		if e == nil {
			e = &anything
		}
		if f.Set && e.Ref != "" {
			return sameSet(w, h, e, names) // sorted by id on the far side, by name or by id here
		}
		for i := range w {
			if !equal(e, w[i], h[i], names) {
				return false
			}
		}
		return true
	}
	return want == have
}

var anything = schema.Field{Type: schema.Any}

func sameSet(want, have []any, e *schema.Field, names Names) bool {
	seen := make(map[any]int, len(have))
	for _, h := range have {
		seen[named(e, h, names)]++
	}
	for _, w := range want {
		if id, ok := w.(string); ok {
			w = names(e.Ref, id)
		}
		if seen[w] == 0 {
			return false
		}
		seen[w]--
	}
	return true
}

// unsets reports whether something below the value that was recorded has left want and is still observed. Lists are
// compared as wholes, so only structs and maps can hide it.
func unsets(f *schema.Field, want, have, recorded any) bool {
	r, ok := recorded.(map[string]any)
	if !ok || f.Secret {
		return false
	}
	w, _ := want.(map[string]any)
	h, _ := have.(map[string]any)
	for k, re := range r {
		we, wok := w[k]
		he, hok := h[k]
		if !wok && hok && !empty(he) && !kept(f.Fields, k) {
			return true
		}
		if wok && hok {
			c := f.Elem
			if f.Type == schema.Struct {
				c = f.Field(k)
			}
			if c != nil && unsets(c, we, he, re) {
				return true
			}
		}
	}
	return false
}

// empty reports whether v means the same as an absent field.
func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

// Named returns a normalized copy of an observed spec, with names in place of external ids.
func Named(k *schema.Kind, have schema.Object, names Names) schema.Object {
	o := have.Clone()
	k.ReplaceRefs(o, names)
	k.Normalize(o)
	return o
}

func named(f *schema.Field, v any, names Names) any {
	if v == nil || !f.HasRefs() {
		return v
	}
	k := schema.Kind{Fields: []schema.Field{*f}}
	o := schema.Object{f.Name: schema.Clone(v)}
	k.ReplaceRefs(o, names)
	return o[f.Name]
}

// Merge returns the resulting spec: have, overlaid with what want states, without what recorded states and want does
// not, and with the paths in ignore as in have. References are names in all three.
func Merge(k *schema.Kind, want, have, recorded schema.Object, ignore []string) schema.Object {
	out := merge(k.Spec(), want, have, recorded)
	k.Normalize(out)
	return Spare(out, have, ignore)
}

// merge merges the structs or maps that are the values of a field.
func merge(in *schema.Field, want, have, recorded map[string]any) map[string]any {
	out := make(map[string]any, len(have)+len(want))
	for n, h := range have {
		_, was := recorded[n]
		if _, wanted := want[n]; was && !wanted && !kept(in.Fields, n) {
			f := in.Under(n)
			if hm, rm := entries(f, h), entries(f, recorded[n]); hm != nil && rm != nil {
				if theirs := merge(f, nil, hm, rm); len(theirs) > 0 {
					out[n] = theirs
				}
			}
			continue
		}
		out[n] = schema.Clone(h)
	}
	for n, w := range want {
		f := in.Under(n)
		wm, wok := w.(map[string]any)
		hm, hok := have[n].(map[string]any)
		if _, there := have[n]; !there && empty(w) {
			continue // not a difference, so it changes nothing
		}
		if f == nil || f.Secret || !wok || !hok || (f.Type != schema.Struct && f.Type != schema.Map) {
			out[n] = schema.Clone(w)
			continue
		}
		rm, _ := recorded[n].(map[string]any)
		out[n] = merge(f, wm, hm, rm)
	}
	return out
}

// kept reports whether a field stays as it is when it is no longer stated.
func kept(fields []schema.Field, name string) bool {
	f := (&schema.Field{Fields: fields}).Field(name)
	return f != nil && (f.Kept || f.Choose != nil)
}

// Prune returns spec without the paths in ignore, which name fields and map keys: labels.env. A map that becomes empty is
// removed too. Spec is not modified.
func Prune(spec schema.Object, ignore []string) schema.Object {
	if len(ignore) == 0 {
		return spec
	}
	return prune(spec, "", ignore)
}

func prune(m map[string]any, at string, ignore []string) map[string]any {
	out := make(map[string]any, len(m))
	for name, v := range m { // a key of a map may have dots
		path := at + name
		if Ignored(path, ignore) {
			continue
		}
		if below, ok := v.(map[string]any); ok && len(below) > 0 {
			if below = prune(below, path+".", ignore); len(below) == 0 {
				continue
			}
			v = below
		}
		out[name] = v
	}
	return out
}

// Spare returns spec with the paths in ignore as in have, absent ones included. Neither is modified.
func Spare(spec, have schema.Object, ignore []string) schema.Object {
	if len(ignore) == 0 {
		return spec
	}
	return spare(spec, have, "", ignore)
}

func spare(m, have map[string]any, at string, ignore []string) map[string]any {
	out := prune(m, at, ignore)
	for name, v := range have {
		path := at + name
		if Ignored(path, ignore) {
			out[name] = v
			continue
		}
		below, ok := v.(map[string]any)
		if !ok {
			continue
		}
		mine, _ := m[name].(map[string]any)
		if both := spare(mine, below, path+".", ignore); len(both) > 0 {
			out[name] = both
		}
	}
	return out
}
