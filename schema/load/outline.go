package load

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// An Outline is a document that was accepted before, read only as far as needed to distinguish its resources. It costs a small
// part of what [Document] costs, and keeps the text.
type Outline struct {
	schema    *kinds.Schema
	text      []byte
	head      []member // apiVersion, site and policy
	resources []entry  // sorted by order
	odd       bool     // it has a head that is null, or an object without resources
}

// An entry is a resource as written in a text.
type entry struct {
	schema.Ref
	value jsontext.Value
}

// order compares refs in the order in which a stored document has them.
func order(a, b schema.Ref) int {
	top := func(r schema.Ref) (name, provider, noun string) {
		provider, noun, _ = strings.Cut(r.Kind, ".")
		if r.Scope == schema.ScopeSite {
			return provider, provider, noun
		}
		return "nodes", provider, noun
	}
	aTop, aProvider, aNoun := top(a)
	bTop, bProvider, bNoun := top(b)
	return cmp.Or(strings.Compare(aTop, bTop), strings.Compare(a.Scope, b.Scope), strings.Compare(aProvider, bProvider), strings.Compare(aNoun, bNoun), strings.Compare(a.Name, b.Name))
}

// find returns the text of a resource; nil when the document does not have it.
func (o *Outline) find(ref schema.Ref) jsontext.Value {
	i, ok := search(o.resources, ref)
	if !ok {
		return nil
	}
	return o.resources[i].value
}

// A member is a name and a value as written in a text.
type member struct {
	name  string
	value jsontext.Value
}

// NewOutline reads the outline of a document in the JSON form in which documents are stored. The resources are not checked
// against the schema until [Outline.Part] reads them. It fails when the text is not JSON in the shape of a document, or exceeds
// the limits.
func NewOutline(s *kinds.Schema, text []byte) (*Outline, error) {
	if len(text) > maxSize {
		return nil, tooLarge(len(text), maxSize)
	}
	o := &Outline{schema: s, text: text}
	d := jsontext.NewDecoder(bytes.NewBuffer(text))
	err := o.members(d, func(name string) error {
		switch inDocument.below(name) {
		case inNodes:
			return o.members(d, func(node string) error {
				if node == schema.ScopeSite {
					return fmt.Errorf("a node cannot be named %q", node)
				}
				return o.members(d, func(provider string) error { return o.nouns(d, node, provider) })
			})
		case inProvider:
			return o.nouns(d, schema.ScopeSite, name)
		}
		value, err := o.value(d)
		o.head = append(o.head, member{name, value})
		o.odd = o.odd || string(value) == "null"
		return err
	})
	if err == nil {
		if _, err = d.ReadToken(); err == io.EOF {
			if byRef := func(a, b entry) int { return order(a.Ref, b.Ref) }; !slices.IsSortedFunc(o.resources, byRef) {
				slices.SortFunc(o.resources, byRef)
			}
			return o, nil
		}
		err = cmp.Or(err, errors.New("unexpected data after the document"))
	}
	return nil, fmt.Errorf("outline of the document, at byte %d: %w", d.InputOffset(), err)
}

// with returns the resources of the outline after some edits, of which those without a value are removals.
func (o *Outline) with(edits []entry) []entry {
	slices.SortFunc(edits, func(a, b entry) int { return order(a.Ref, b.Ref) })
	out, rest := make([]entry, 0, len(o.resources)+len(edits)), o.resources
	for _, e := range edits {
		i, there := search(rest, e.Ref)
		out, rest = append(out, rest[:i]...), rest[i:]
		if there {
			rest = rest[1:]
		}
		if e.value != nil {
			out = append(out, e)
		}
	}
	return append(out, rest...)
}

// search returns where a resource is, or would be.
func search(resources []entry, ref schema.Ref) (int, bool) {
	return slices.BinarySearchFunc(resources, ref, func(e entry, ref schema.Ref) int { return order(e.Ref, ref) })
}

// members visits the members of the next object.
func (o *Outline) members(d *jsontext.Decoder, visit func(name string) error) error {
	open, err := d.ReadToken()
	if err != nil {
		return err
	}
	if open.Kind() != '{' {
		return fmt.Errorf("found a %s, want an object", kindNoun(open.Kind()))
	}
	o.odd = o.odd || d.PeekKind() != '"'
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err == nil {
			err = visit(name.String())
		}
		if err != nil {
			return err
		}
	}
	_, err = d.ReadToken()
	return err
}

// nouns reads the resources of one provider in a scope.
func (o *Outline) nouns(d *jsontext.Decoder, scope, provider string) error {
	return o.members(d, func(noun string) error {
		kind := provider + "." + noun
		return o.members(d, func(name string) error {
			if len(o.resources) == maxResources {
				return fmt.Errorf("there are more than %d resources", maxResources)
			}
			value, err := o.value(d)
			o.resources = append(o.resources, entry{schema.Ref{Scope: scope, Kind: kind, Name: name}, value})
			return err
		})
	})
}

// value returns the next value as written in the text.
func (o *Outline) value(d *jsontext.Decoder) (jsontext.Value, error) {
	v, err := d.ReadValue()
	end := d.InputOffset()
	return o.text[end-int64(len(v)) : end : end], err
}

// Len returns how many resources the document has.
func (o *Outline) Len() int { return len(o.resources) }

// Has reports whether the document has a resource.
func (o *Outline) Has(ref schema.Ref) bool { return o.find(ref) != nil }

// Changed lists the resources that differ from an earlier outline: those that are new, different or gone.
func (o *Outline) Changed(from *Outline) (refs []schema.Ref) {
	is, was := o.resources, from.resources
	for len(is)+len(was) > 0 {
		c := 0
		switch {
		case len(was) == 0:
			c = -1
		case len(is) == 0:
			c = 1
		default:
			c = order(is[0].Ref, was[0].Ref)
		}
		switch {
		case c < 0:
			refs, is = append(refs, is[0].Ref), is[1:]
		case c > 0:
			refs, was = append(refs, was[0].Ref), was[1:]
		default:
			if !bytes.Equal(is[0].value, was[0].value) {
				refs = append(refs, is[0].Ref)
			}
			is, was = is[1:], was[1:]
		}
	}
	return schema.SortRefs(refs)
}

// Referring lists the resources that refer directly to one of these, by name or by an id in place of a name. It also lists those that
// may do so unseen: they ignore a field that can refer to it, or are external and may be the thing with that id. It reads only resources
// whose text mentions any of this.
func (o *Outline) Referring(to []schema.Ref) (refs []schema.Ref) {
	if len(to) == 0 {
		return nil
	}
	wanted, kinds := make(map[schema.Ref]bool, len(to)), map[string]bool{}
	named := map[string]map[string]bool{} // by referring kind, the names with which it may refer
	spelt := map[string]bool{}            // in depends_on
	for _, t := range to {
		wanted[t], kinds[t.Kind] = true, true
		spelt[t.String()] = true
		for name, k := range o.schema.Kinds() {
			if slices.ContainsFunc(k.Fields, func(f schema.Field) bool {
				return f.Has(func(f *schema.Field) bool { return f.Ref == t.Kind })
			}) {
				if named[name] == nil {
					named[name] = map[string]bool{}
				}
				named[name][t.Name] = true
			}
		}
	}
	for _, e := range o.resources {
		names := named[e.Kind]
		if mentions(e.value, func(s []byte) bool { return names[string(s)] || spelt[string(s)] }) &&
			slices.ContainsFunc(o.After(e.Ref), func(to schema.Ref) bool { return wanted[to] }) ||
			names != nil && bytes.Contains(e.value, []byte(`"ignore"`)) && o.ignores(e, to) ||
			kinds[e.Kind] && bytes.Contains(e.value, []byte(`"external"`)) && o.mayBe(e, to) {
			refs = append(refs, e.Ref)
		}
	}
	return schema.SortRefs(refs)
}

// ignores reports whether a resource ignores a field that can refer to one of these.
func (o *Outline) ignores(e entry, to []schema.Ref) bool {
	var says struct {
		Lifecycle struct {
			Ignore []string `json:"ignore"`
		} `json:"lifecycle"`
	}
	kind := o.schema.Kinds()[e.Kind]
	if kind == nil || json.Unmarshal(e.value, &says) != nil {
		return false
	}
	return slices.ContainsFunc(says.Lifecycle.Ignore, func(path string) bool {
		name, _, _ := strings.Cut(path, ".")
		f := kind.Field(name)
		return f != nil && f.Has(func(f *schema.Field) bool {
			return f.Ref != "" && slices.ContainsFunc(to, func(to schema.Ref) bool { return to.Kind == f.Ref })
		})
	})
}

// mayBe reports whether a resource is external and may be the thing with one of these ids.
func (o *Outline) mayBe(e entry, to []schema.Ref) bool {
	var says struct {
		External any `json:"external"`
	}
	if json.Unmarshal(e.value, &says) != nil || says.External == nil {
		return false
	}
	by, _ := says.External.(map[string]any)
	return slices.ContainsFunc(to, func(to schema.Ref) bool {
		return to.Kind == e.Kind && to.Scope == e.Scope && !o.Has(to) && (by["id"] == nil || by["id"] == to.Name)
	})
}

// mentions reports whether meant holds for a string in a value, including names of members.
func mentions(value jsontext.Value, meant func(s []byte) bool) bool {
	for {
		start := bytes.IndexByte(value, '"')
		if start < 0 {
			return false
		}
		end := start + 1 + bytes.IndexByte(value[start+1:], '"')
		for escaped(value[start+1 : end]) { // the text is JSON: the string ends somewhere
			end += 1 + bytes.IndexByte(value[end+1:], '"')
		}
		s := []byte(value[start+1 : end])
		if bytes.IndexByte(s, '\\') >= 0 {
			s, _ = jsontext.AppendUnquote(nil, value[start:end+1])
		}
		if meant(s) {
			return true
		}
		value = value[end+1:]
	}
}

// escaped reports whether a quote that follows belongs to the string before it.
func escaped(s []byte) bool { return (len(s)-len(bytes.TrimRight(s, `\`)))%2 == 1 }

// After lists what a resource refers to or depends on, whether it exists or not, as far as the document conforms to the schema;
// nil when there is no such resource.
func (o *Outline) After(ref schema.Ref) (refs []schema.Ref) {
	kind, value := o.schema.Kinds()[ref.Kind], o.find(ref)
	var spec schema.Object
	if kind == nil || value == nil || json.Unmarshal(value, &spec) != nil {
		return nil
	}
	for kind, name := range kind.Refs(spec) {
		refs = append(refs, o.schema.Kinds().Target(ref.Scope, kind, name))
	}
	depends, _ := spec["depends_on"].([]any)
	for _, d := range depends {
		text, _ := d.(string)
		if to, err := schema.ParseRef(text); err == nil {
			refs = append(refs, to)
		}
	}
	return schema.SortRefs(refs)
}

// Part reads and checks those of the given resources that exist, and everything that they refer to. The returned document has no
// other resources; its text and its digest are those of the whole. Rules about several resources are checked among those that
// were read: for the whole they were checked when the document was accepted.
func (o *Outline) Part(ctx context.Context, digest string, refs []schema.Ref) (*schema.Document, Diagnostics) {
	in := map[schema.Ref]bool{}
	for work := slices.Clone(refs); len(work) > 0; {
		ref := work[len(work)-1]
		work = work[:len(work)-1]
		if o.Has(ref) && !in[ref] {
			in[ref] = true
			work = append(work, o.After(ref)...)
		}
	}
	doc, ds := Document(ctx, o.schema, Options{}, Source{Name: "document.json", Data: o.excerpt(in)})
	if doc != nil {
		doc.JSON, doc.Digest = o.text, digest
	}
	return doc, ds
}

// excerpt returns the document with only some of its resources.
func (o *Outline) excerpt(in map[schema.Ref]bool) []byte {
	tree := map[string]any{}
	for _, m := range o.head {
		tree[m.name] = m.value
	}
	for ref := range in {
		at := tree
		provider, noun, _ := strings.Cut(ref.Kind, ".")
		path := []string{"nodes", ref.Scope, provider, noun}
		if ref.Scope == schema.ScopeSite {
			path = path[2:]
		}
		for _, name := range path {
			if at[name] == nil {
				at[name] = map[string]any{}
			}
			at = at[name].(map[string]any)
		}
		at[ref.Name] = o.find(ref)
	}
	text, err := json.Marshal(tree, json.Deterministic(true))
	if err != nil {
		panic(err) // strings and values that were read before
	}
	return text
}
