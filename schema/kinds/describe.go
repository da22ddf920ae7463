package kinds

import (
	"fmt"
	"regexp"
	"strings"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/canonical"
	"converge.dev/converge/schema/internal/message"
)

// onNode matches the beginning of the part of a node.
var onNode = regexp.MustCompile(`^nodes: "[^"]*": `)

// Example returns the part of [schema.Example] that has the resources of a kind, as CUE; empty when there is none.
func Example(kind *schema.Kind) string {
	place := strings.Replace(kind.Name, ".", ": ", 1) + ": "
	for part := range strings.SplitSeq(schema.Example, "\n\n") {
		path := part
		if kind.Node {
			node := onNode.FindString(part)
			if node == "" {
				continue
			}
			path = part[len(node):]
		}
		if strings.HasPrefix(path, place) {
			return strings.TrimSuffix(part, "\n") + "\n"
		}
	}
	return ""
}

// Describe explains one kind to people: what it is, where it belongs, what its names look like, and each field with
// what it accepts, its default, and what a change does. The error for an unknown kind lists the existing ones.
func (s *Schema) Describe(name string) (string, error) {
	k := s.kinds[name]
	if k == nil {
		return "", fmt.Errorf("describe: %s", message.Unknown("kind", name, s.public.Names()))
	}
	provider, noun, _ := strings.Cut(name, ".")
	d := &description{}
	d.line(0, "%s", name)
	if k.Doc != "" {
		d.wrap(0, k.Doc)
	}
	d.line(0, "")
	says := "{...}"
	if k.isReference() {
		says = "external: true"
	}
	where := fmt.Sprintf("%s: %s: NAME: %s", provider, noun, says)
	if k.Node {
		where = "nodes: NODE: " + where
	}
	d.line(0, "syntax    %s", where)
	d.hang("NAME      ", 10, k.name.want())
	d.object(k.body.object(), k.Kind.Fields, 0)
	if text := Example(&k.Kind); text != "" {
		d.line(0, "")
		d.line(0, "example")
		d.line(0, "")
		for line := range strings.Lines(text) {
			d.line(0, "    %s", strings.TrimSuffix(line, "\n"))
		}
	}
	return d.String(), nil
}

// A description is a text being written.
type description struct{ strings.Builder }

const width = 100 // of a line

func (d *description) line(indent int, format string, args ...any) {
	text := strings.Repeat(" ", indent) + fmt.Sprintf(format, args...)
	d.WriteString(strings.TrimRight(text, " ") + "\n")
}

// wrap writes text in lines of limited length, each indented.
func (d *description) wrap(indent int, text string) { d.hang("", indent, text) }

// hang writes text after a head, with its further lines indented.
func (d *description) hang(head string, indent int, text string) {
	line := head
	if head == "" {
		line = strings.Repeat(" ", indent)
	}
	start := true
	for word := range strings.FieldsSeq(text) {
		switch {
		case start:
			line += word
		case len(line)+1+len(word) > width:
			d.line(0, "%s", line)
			line = strings.Repeat(" ", indent) + word
		default:
			line += " " + word
		}
		start = false
	}
	d.line(0, "%s", line)
}

// object describes fields, first those of a document and then those that are only read.
func (d *description) object(o *object, fields []schema.Field, indent int) {
	for _, computed := range []bool{false, true} {
		for i := range fields {
			f := &fields[i]
			if f.Computed != computed {
				continue
			}
			if indent == 0 {
				d.line(0, "")
			}
			d.field(o, f, indent)
		}
	}
}

func (d *description) field(o *object, f *schema.Field, indent int) {
	var m *member
	if o != nil {
		m = o.field(f.Name)
	}
	d.hang(strings.Repeat(" ", indent)+f.Name+"  ", indent+len(f.Name)+2, strings.Join(traits(f, m), "; "))
	if f.Doc != "" && (m == nil || !strings.EqualFold(strings.TrimSuffix(f.Doc, "."), m.check.want())) {
		d.wrap(indent+4, f.Doc)
	}
	if m == nil {
		return
	}
	for elem, c := f, m.check; c != nil; elem, c = elem.Elem, inner(c) {
		if elem == nil {
			return
		}
		if len(elem.Fields) > 0 {
			d.object(c.object(), elem.Fields, indent+4)
			return
		}
	}
}

// inner returns the check of the elements of a list or the values of a map.
func inner(c *check) *check {
	for _, t := range flatten(c) {
		switch t := t.(type) {
		case *list:
			return t.elem
		case *object:
			if len(t.patterns) > 0 {
				return t.patterns[0].value
			}
		}
	}
	return nil
}

// traits lists the properties of a field.
func traits(f *schema.Field, m *member) (all []string) {
	if m != nil {
		all = append(all, wantDeep(m.check))
	}
	switch {
	case f.Computed:
		all = append(all, "read-only")
	case f.Required:
		all = append(all, "required")
	case f.Default != nil:
		all = append(all, "default "+string(canonical.Append(nil, f.Default)))
	}
	ref := f.Ref
	for e := f.Elem; e != nil && ref == ""; e = e.Elem {
		ref = e.Ref
	}
	if ref != "" {
		all = append(all, "refers to a "+ref)
	}
	if f.Set {
		all = append(all, "order does not matter")
	}
	if f.Key != "" {
		all = append(all, "order does not matter, elements are identified by "+f.Key)
	}
	if f.Immutable {
		all = append(all, "a change replaces the resource")
	}
	if f.Grows {
		all = append(all, "can only grow")
	}
	if f.Kept {
		all = append(all, "keeps its value when removed from the document")
	}
	if f.Disruption != "" && f.Disruption != schema.Live {
		if f.Disruption == schema.NeedsRestart {
			all = append(all, "a change needs a restart")
		} else {
			all = append(all, "a change interrupts "+f.Disruption)
		}
	}
	if f.Choose != nil {
		all = append(all, "if omitted, a free "+f.Choose.Kind+" is chosen")
	}
	if f.Secret {
		all = append(all, "secret, never shown")
	}
	return all
}

// wantDeep returns what a check accepts, and what its elements are.
func wantDeep(c *check) string {
	want := c.want()
	for _, t := range flatten(c) {
		switch t := t.(type) {
		case *list:
			return want + ", each " + wantDeep(t.elem)
		case *object:
			if len(t.patterns) > 0 && len(t.members) == 0 {
				return fmt.Sprintf("%s, each name %s, each value %s", want, t.patterns[0].key.want(), wantDeep(t.patterns[0].value))
			}
		}
	}
	return want
}
