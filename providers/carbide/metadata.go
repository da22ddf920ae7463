package carbide

import (
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
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

// wrapped wraps ids in their messages.
func wrapped[M any](ids []string, wrap func(id string) *M) []*M {
	out := make([]*M, len(ids))
	for i, id := range ids {
		out[i] = wrap(id)
	}
	return out
}

// A uuidKind is embedded by kinds whose ids are UUIDs.
type uuidKind struct{}

// known accepts the canonical form of a UUID: the service fails on a list that contains any other.
func (uuidKind) known(id string) bool {
	u, err := uuid.Parse(id)
	return err == nil && u.String() == id
}

// described returns the contents of metadata: the description, the labels, and the mark among these. Empty values are absent.
func described(m *forge.Metadata) (description *string, labels map[string]string, mark providers.Mark) {
	for _, l := range m.GetLabels() {
		if l.GetKey() == providers.MarkKey {
			mark = providers.ParseMark(l.GetValue())
			continue
		}
		if labels == nil {
			labels = make(map[string]string, len(m.GetLabels()))
		}
		labels[l.GetKey()] = l.GetValue() // an empty value reads back as an absent one
	}
	return unlessZero(m.GetDescription()), labels, mark
}

// newMetadata returns the metadata of a new object.
func newMetadata(c *providers.Call, description *string, labels map[string]string) *forge.Metadata {
	return writeMetadata(c, nil, c.Called(), description, labels)
}

// unlabelled changes metadata, nil for a new object, of kinds whose labels the service does not store: there is no
// place for the mark.
func unlabelled(c *providers.Call, now *forge.Metadata, description *string) *forge.Metadata {
	if now == nil {
		now = &forge.Metadata{}
	}
	now.Name, now.Description = c.Called(), value(description)
	return now
}

// writeMetadata changes metadata, nil for a new object, to the desired state, with the mark of the call.
func writeMetadata(c *providers.Call, now *forge.Metadata, name string, description *string, labels map[string]string) *forge.Metadata {
	if now == nil {
		now = &forge.Metadata{}
	}
	now.Name, now.Description, now.Labels = name, value(description), labelled(labels, c.Mark, now.Labels)
	return now
}

// sameMetadata reports whether two metadata are equal, whatever the order of their labels.
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

// nameOf returns the name of an object, which older servers keep outside the metadata.
func nameOf(m *forge.Metadata, o proto.Message) string {
	if name := m.GetName(); name != "" {
		return name
	}
	return forge.LegacyName(o)
}

// each converts a list element by element; an empty list becomes nil.
func each[A, B any](from []A, make func(A) B) []B {
	var out []B
	for _, a := range from {
		out = append(out, make(a))
	}
	return out
}

// value returns what p points to, and the zero value for nil.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// unlessZero returns a pointer to a value, nil for the zero value: what is empty on the far side is absent here.
func unlessZero[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// narrow converts an integer of a spec to one of the service; nil stays nil.
func narrow[N uint32 | int32](i *int64) *N {
	if i == nil {
		return nil
	}
	n := N(*i)
	return &n
}

// widen converts an integer of the service to one of a spec; nil stays nil.
func widen[N uint32 | int32](n *N) *int64 {
	if n == nil {
		return nil
	}
	i := int64(*n)
	return &i
}

// An enum maps the words of a schema to the numbers of an enumeration, in pairs.
type enum[E ~int32] []struct {
	word  string
	value E
}

// value returns the number of a word; the first pair's for a word that the schema does not have.
func (e enum[E]) value(word string) E {
	for _, p := range e {
		if p.word == word {
			return p.value
		}
	}
	return e[0].value
}

// word returns the word for a number; "unknown" for one that the schema does not have.
func (e enum[E]) word(value E) string {
	for _, p := range e {
		if p.value == value {
			return p.word
		}
	}
	return "unknown"
}
