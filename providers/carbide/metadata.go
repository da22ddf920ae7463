package carbide

import (
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

// An idMessage wraps an id that is a UUID.
type idMessage interface {
	comparable
	GetValue() string
}

// texts unwraps ids.
func texts[I idMessage](ids []I) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = id.GetValue()
	}
	return out
}

// A uuidKind is embedded by kinds whose ids are UUIDs.
type uuidKind struct{}

// known wants the canonical form of a UUID: the service fails on a list that holds any other.
func (uuidKind) known(id string) bool {
	u, err := uuid.Parse(id)
	return err == nil && u.String() == id
}

// readMetadata puts description and labels into a spec and gives the mark among the labels.
func readMetadata(m *forge.Metadata, spec schema.Object) (mark providers.Mark) {
	if d := m.GetDescription(); d != "" {
		spec["description"] = d
	}
	all := m.GetLabels()
	if len(all) == 0 {
		return mark
	}
	labels := make(map[string]any, len(all))
	for _, l := range all {
		if l.GetKey() == providers.MarkKey {
			mark = providers.ParseMark(l.GetValue())
			continue
		}
		labels[l.GetKey()] = l.GetValue() // an empty value reads back as an absent one
	}
	if len(labels) > 0 {
		spec["labels"] = labels
	}
	return mark
}

// newMetadata makes the metadata of a new object.
func newMetadata(c *providers.Call) *forge.Metadata { return writeMetadata(c, nil, c.Called()) }

// unlabelled changes metadata, which is nil for a new object, of kinds whose labels the service does not keep: there is no
// place for the mark.
func unlabelled(c *providers.Call, now *forge.Metadata) *forge.Metadata {
	if now == nil {
		now = &forge.Metadata{}
	}
	now.Name, now.Description = c.Called(), text(c.Want, "description")
	return now
}

// writeMetadata changes metadata, which is nil for a new object, to what is wanted, with the mark that the call brings.
func writeMetadata(c *providers.Call, now *forge.Metadata, name string) *forge.Metadata {
	if now == nil {
		now = &forge.Metadata{}
	}
	now.Name, now.Description, now.Labels = name, text(c.Want, "description"), labelled(c.Want, c.Mark, now.Labels)
	return now
}

// sameMetadata reports whether two metadata say the same, whatever the order of their labels.
func sameMetadata(a, b *forge.Metadata) bool {
	if a.GetName() != b.GetName() || a.GetDescription() != b.GetDescription() || len(a.GetLabels()) != len(b.GetLabels()) {
		return false
	}
	values := make(map[string]string, len(a.GetLabels()))
	for _, l := range a.GetLabels() {
		values[l.GetKey()] = l.GetValue()
	}
	for _, l := range b.GetLabels() {
		if v, ok := values[l.GetKey()]; !ok || v != l.GetValue() {
			return false
		}
	}
	return true
}

// nameOf gives the name of an object, which older servers keep outside the metadata.
func nameOf(m *forge.Metadata, o proto.Message) string {
	if name := m.GetName(); name != "" {
		return name
	}
	return forge.LegacyName(o)
}

// optional gives a string field of a spec, nil when it is absent.
func optional(spec schema.Object, field string) *string {
	if s := text(spec, field); s != "" {
		return &s
	}
	return nil
}

// number gives a whole number of a spec, nil when it is absent.
func number[N uint32 | int32](spec map[string]any, field string) *N {
	i, ok := spec[field].(int64)
	if !ok {
		return nil
	}
	n := N(i)
	return &n
}

// count gives a whole number of a spec, 0 when it is absent.
func count(spec map[string]any, field string) uint32 {
	n, _ := spec[field].(int64)
	return uint32(n)
}

// counts gives a list of whole numbers of a spec.
func counts(spec map[string]any, field string) []uint32 {
	l, _ := spec[field].([]any)
	var out []uint32
	for _, e := range l {
		n, _ := e.(int64)
		out = append(out, uint32(n))
	}
	return out
}

// truth gives a switch of a spec, false when it is absent.
func truth(spec map[string]any, field string) bool {
	b, _ := spec[field].(bool)
	return b
}

// structs gives a list of structs of a spec.
func structs(spec schema.Object, field string) []map[string]any {
	l, _ := spec[field].([]any)
	out := make([]map[string]any, 0, len(l))
	for _, e := range l {
		if m, ok := e.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// words gives a list of strings of a spec.
func words(spec map[string]any, field string) []string {
	l, _ := spec[field].([]any)
	out := make([]string, 0, len(l))
	for _, e := range l {
		if s, ok := e.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// list makes a list of a spec; nil when there is nothing in it.
func list[T any](from []T, value func(T) any) []any {
	if len(from) == 0 {
		return nil
	}
	out := make([]any, len(from))
	for i, e := range from {
		out[i] = value(e)
	}
	return out
}

// put sets a field unless the value is its zero: what is absent over there is absent here.
func put[T comparable](o map[string]any, field string, value T) {
	var zero T
	if value != zero {
		o[field] = value
	}
}

// putList sets a field unless the list is empty.
func putList(o map[string]any, field string, l []any) {
	if len(l) > 0 {
		o[field] = l
	}
}

// putNumber sets a field when there is a number.
func putNumber[N uint32 | int32](o map[string]any, field string, n *N) {
	if n != nil {
		o[field] = int64(*n)
	}
}

// An enum is the words of a schema for the numbers of an enumeration, in pairs.
type enum[E ~int32] []struct {
	word  string
	value E
}

// value gives the number of a word; the first pair's for a word that the schema does not have.
func (e enum[E]) value(word any) E {
	for _, p := range e {
		if p.word == word {
			return p.value
		}
	}
	return e[0].value
}

// word gives the word for a number; "unknown" for one that the schema does not have.
func (e enum[E]) word(value E) string {
	for _, p := range e {
		if p.value == value {
			return p.word
		}
	}
	return "unknown"
}
