package schema

import (
	"cmp"
	"encoding/json"
	"iter"
	"slices"
	"strings"
)

// A Kind describes one type of resource. It is read from the kind's CUE file, the single place where a kind is
// described; nothing in Go repeats it.
type Kind struct {
	Name   string  `json:"name"`          // PROVIDER.NOUN, for example carbide.vpc
	Node   bool    `json:"node"`          // belongs to a node; otherwise to the site
	Doc    string  `json:"doc,omitempty"` // what it is, from the comment above the CUE definition
	Fields []Field `json:"fields"`        // of the spec, sorted by name; without lifecycle, depends_on and timeouts
}

// Type is the JSON shape of a field.
type Type string

// The types of fields. Integers are int64 in an [Object], other numbers float64.
const (
	String Type = "string"
	Int    Type = "int"
	Number Type = "number"
	Bool   Type = "bool"
	Struct Type = "struct" // the fields of Field.Fields
	List   Type = "list"   // elements of Field.Elem
	Map    Type = "map"    // values of Field.Elem under free keys
	Any    Type = "any"    // known to CUE only
)

// A Field is one field of a kind, an element of a list or a value of a map.
type Field struct {
	Name       string  `json:"name,omitempty"`
	Type       Type    `json:"type"`
	Doc        string  `json:"doc,omitempty"`
	Constraint string  `json:"constraint,omitempty"` // the allowed values, as CUE
	Required   bool    `json:"required,omitempty"`
	Default    any     `json:"default,omitempty"`    // value of an absent field; nil: it stays absent
	Ref        string  `json:"ref,omitempty"`        // @ref(KIND): the value is the name of a resource of that kind
	Immutable  bool    `json:"immutable,omitempty"`  // @immutable(): a change replaces the thing
	Computed   bool    `json:"computed,omitempty"`   // @computed(): set by the far side, refused in a document
	Secret     bool    `json:"secret,omitempty"`     // a #Secret, or @secret() on what is computed: never printed
	Set        bool    `json:"set,omitempty"`        // @set(): a list whose order does not matter
	Key        string  `json:"key,omitempty"`        // @key(NAME): a list of structs identified by that field; order does not matter
	Kept       bool    `json:"kept,omitempty"`       // @kept(): stays as it is when it leaves the document
	Grows      bool    `json:"grows,omitempty"`      // @grows(): a number of a thing that can only become larger
	Disruption string  `json:"disruption,omitempty"` // @disruption(CLASS): what a change interrupts, NeedsRestart or Live
	Planning   bool    `json:"planning,omitempty"`   // @planning(): read by the planner only, never compared
	Choose     *Choice `json:"choose,omitempty"`     // @choose(KIND, …): the planner fills it in when the document does not
	Fields     []Field `json:"fields,omitempty"`     // of a Struct, sorted by name
	Elem       *Field  `json:"elem,omitempty"`       // of a List or Map
}

// Live is the disruption by a change that interrupts nothing and takes effect at once, below a field for which that is not so.
const Live = "live"

// NeedsRestart is the disruption by a change that interrupts nothing: it takes effect once the thing is started again.
const NeedsRestart = "restart"

// A Choice says how the planner fills in a field that the document leaves out: with the external id of a thing of another
// kind, in the same scope. Each thing is chosen at most once.
type Choice struct {
	Kind   string   `json:"kind"`             // kind of the chosen thing
	Same   []string `json:"same,omitempty"`   // fields of both kinds: where the resource states one, the thing must have the same value
	Labels string   `json:"labels,omitempty"` // path of labels in the resource that the thing must carry
	Unless []string `json:"unless,omitempty"` // fields of the thing that, if present, say why it cannot be chosen
	Spread string   `json:"spread,omitempty"` // computed field of the thing: choose where fewest of the like were chosen
}

// Reference reports whether a document can only refer to things of the kind: there is no field that it could set.
func (k *Kind) Reference() bool {
	return len(k.Fields) > 0 && !slices.ContainsFunc(k.Fields, func(f Field) bool { return !f.Computed })
}

// Field finds a top-level field of the kind by name; nil when there is none.
func (k *Kind) Field(name string) *Field { return field(k.Fields, name) }

// Field finds a field of a struct by name; nil when there is none.
func (f *Field) Field(name string) *Field { return field(f.Fields, name) }

// Spec returns the whole spec of the kind as one field, a struct.
func (k *Kind) Spec() *Field { return &Field{Type: Struct, Fields: k.Fields} }

// Under returns the field that a name selects below f: a field of a struct, or the common field of the elements of a list or
// the values of a map. It is nil when there is none.
func (f *Field) Under(name string) *Field {
	if f.Elem != nil {
		return f.Elem
	}
	return f.Field(name)
}

// Has reports whether ok holds for f or for anything below it. It is called for every value of a spec, so unlike Walk it builds
// no paths.
func (f *Field) Has(ok func(*Field) bool) bool {
	if ok(f) || f.Elem != nil && f.Elem.Has(ok) {
		return true
	}
	for i := range f.Fields {
		if f.Fields[i].Has(ok) {
			return true
		}
	}
	return false
}

// Walk visits f and all below it, parents first, until visit returns false, and reports whether it never did. In a path, which
// is valid during the call only, [] stands for the elements of a list and the values of a map.
func (f *Field) Walk(path []string, visit func(path []string, f *Field) bool) bool {
	if !visit(path, f) || f.Elem != nil && !f.Elem.Walk(append(path, "[]"), visit) {
		return false
	}
	for i := range f.Fields {
		if !f.Fields[i].Walk(append(path, f.Fields[i].Name), visit) {
			return false
		}
	}
	return true
}

func field(fields []Field, name string) *Field {
	i, ok := slices.BinarySearchFunc(fields, name, func(f Field, n string) int { return strings.Compare(f.Name, n) })
	if !ok {
		return nil
	}
	return &fields[i]
}

// Normalize brings spec into the form that is compared: lists whose order does not matter are sorted, in place.
func (k *Kind) Normalize(spec Object) {
	k.unordered(spec, func(list []any, order func(a, b any) int) bool {
		slices.SortStableFunc(list, order)
		return true
	})
}

// Normalized returns spec in the form that is compared: spec itself when it has that form, otherwise a copy.
func (k *Kind) Normalized(spec Object) Object {
	if k.unordered(spec, slices.IsSortedFunc) {
		return spec
	}
	spec = spec.Clone()
	k.Normalize(spec)
	return spec
}

// unordered visits the lists of spec whose order does not matter, inner ones first, with the order in which they are compared. It
// returns false once visit does.
func (k *Kind) unordered(spec Object, visit func(list []any, order func(a, b any) int) bool) bool {
	for i := range k.Fields {
		if v, ok := spec[k.Fields[i].Name]; ok && !k.Fields[i].unordered(v, visit) {
			return false
		}
	}
	return true
}

func (f *Field) unordered(v any, visit func(list []any, order func(a, b any) int) bool) bool {
	switch v := v.(type) {
	case map[string]any:
		if f.Type == Map && f.Elem != nil {
			for _, e := range v {
				if !f.Elem.unordered(e, visit) {
					return false
				}
			}
			return true
		}
		for i := range f.Fields {
			if e, ok := v[f.Fields[i].Name]; ok && !f.Fields[i].unordered(e, visit) {
				return false
			}
		}
	case []any:
		if f.Elem != nil && (f.Elem.Type == Struct || f.Elem.Type == List) {
			for _, e := range v {
				if !f.Elem.unordered(e, visit) {
					return false
				}
			}
		}
		switch {
		case f.Key != "":
			return visit(v, func(a, b any) int { return compareValue(keyOf(a, f.Key), keyOf(b, f.Key)) })
		case f.Set:
			return visit(v, compareValue)
		}
	}
	return true
}

func keyOf(v any, key string) any {
	m, _ := v.(map[string]any)
	return m[key]
}

// compareValue orders scalars by value and everything else by its JSON text.
func compareValue(a, b any) int {
	switch a := a.(type) {
	case string:
		if b, ok := b.(string); ok {
			return strings.Compare(a, b)
		}
	case int64:
		if b, ok := b.(int64); ok {
			return cmp.Compare(a, b)
		}
	}
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return strings.Compare(string(x), string(y))
}

// Refs returns every reference in spec: the kind that it refers to, and its value.
func (k *Kind) Refs(spec Object) iter.Seq2[string, string] {
	return func(yield func(kind, value string) bool) {
		for i := range k.Fields {
			if !k.Fields[i].refs(spec[k.Fields[i].Name], yield) {
				return
			}
		}
	}
}

// refs reports whether the caller wants more.
func (f *Field) refs(v any, yield func(kind, value string) bool) bool {
	switch v := v.(type) {
	case string:
		return f.Ref == "" || v == "" || yield(f.Ref, v)
	case []any:
		for i := range v {
			if f.Elem != nil && !f.Elem.refs(v[i], yield) {
				return false
			}
		}
	case map[string]any:
		if f.Type == Map {
			for _, e := range v {
				if f.Elem != nil && !f.Elem.refs(e, yield) {
					return false
				}
			}
			return true
		}
		for i := range f.Fields {
			if !f.Fields[i].refs(v[f.Fields[i].Name], yield) {
				return false
			}
		}
	}
	return true
}

// ReplaceRefs replaces the value of every reference in spec, in place, by what to returns for it and the kind that it refers to.
func (k *Kind) ReplaceRefs(spec Object, to func(kind, value string) string) {
	for i := range k.Fields {
		if v, ok := spec[k.Fields[i].Name]; ok {
			if n := k.Fields[i].replaceRefs(v, to); n != nil {
				spec[k.Fields[i].Name] = n
			}
		}
	}
}

// HasRefs reports whether any field below f is a reference.
func (f *Field) HasRefs() bool {
	return f.Has(func(f *Field) bool { return f.Ref != "" })
}

// replaceRefs returns the new value of v, or nil when v itself stays (and changes at most below).
func (f *Field) replaceRefs(v any, to func(kind, value string) string) any {
	switch v := v.(type) {
	case string:
		if f.Ref != "" && v != "" {
			return to(f.Ref, v)
		}
	case []any:
		if f.Elem == nil {
			return nil
		}
		for i := range v {
			if n := f.Elem.replaceRefs(v[i], to); n != nil {
				v[i] = n
			}
		}
	case map[string]any:
		if f.Type == Map {
			for key := range v {
				if f.Elem == nil {
					continue
				}
				if n := f.Elem.replaceRefs(v[key], to); n != nil {
					v[key] = n
				}
			}
			return nil
		}
		for i := range f.Fields {
			c := &f.Fields[i]
			if e, ok := v[c.Name]; ok {
				if n := c.replaceRefs(e, to); n != nil {
					v[c.Name] = n
				}
			}
		}
	}
	return nil
}

// Kinds are all kinds by name.
type Kinds map[string]*Kind

// Target returns the ref of a name with which a resource of a scope refers to a kind: kinds of nodes are referred to on the
// resource's own node, all others on the site.
func (ks Kinds) Target(scope, kind, name string) Ref {
	if k := ks[kind]; k == nil || !k.Node {
		scope = ScopeSite
	}
	return Ref{Scope: scope, Kind: kind, Name: name}
}

// Names lists the kinds in order.
func (ks Kinds) Names() []string {
	names := make([]string, 0, len(ks))
	for n := range ks {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
