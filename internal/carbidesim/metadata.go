package carbidesim

import (
	"converge.dev/converge/providers/carbide/forge"
	"google.golang.org/protobuf/proto"
)

// metadata is what the site keeps of forge.Metadata: labels are a map, so neither their order nor the difference
// between an empty and an absent value survives.
type metadata struct {
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
}

const defaultName = "default_name"

// requiredMetadata reads metadata that a request must carry.
func requiredMetadata(m *forge.Metadata) (metadata, error) {
	if m == nil {
		return metadata{}, missing("metadata")
	}
	return readMetadata(m)
}

// optionalMetadata reads metadata that falls back to a default name.
func optionalMetadata(m *forge.Metadata) (metadata, error) {
	if m == nil {
		return metadata{Name: defaultName}, nil
	}
	return readMetadata(m)
}

// lenientMetadata reads metadata that may be missing, as may its name.
func lenientMetadata(m *forge.Metadata) (metadata, error) {
	if m == nil {
		return metadata{}, nil
	}
	return checkMetadata(m, 0)
}

func readMetadata(m *forge.Metadata) (metadata, error) { return checkMetadata(m, 2) }

func checkMetadata(m *forge.Metadata, shortest int) (metadata, error) {
	out := metadata{Name: m.Name, Description: m.Description}
	switch {
	case !ascii(m.Name):
		return out, invalid("name must be ASCII")
	case len(m.Name) < shortest || len(m.Name) > 256:
		return out, invalid("name must have %d to 256 bytes, got %d", shortest, len(m.Name))
	case len(m.Description) > 1024:
		return out, invalid("description must have at most 1024 bytes, got %d", len(m.Description))
	case len(m.Labels) > 10:
		return out, invalid("at most 10 labels are allowed, got %d", len(m.Labels))
	}
	for _, l := range m.Labels {
		switch {
		case !ascii(l.Key):
			return out, invalid("label key %q must be ASCII", l.Key)
		case l.Key == "" || len(l.Key) > 255:
			return out, invalid("label key must have 1 to 255 bytes, got %d", len(l.Key))
		case len(l.GetValue()) > 255:
			return out, invalid("value of label %s must have at most 255 bytes", l.Key)
		}
		if _, ok := out.Labels[l.Key]; ok {
			return out, invalid("duplicate label key %s", l.Key)
		}
		if out.Labels == nil {
			out.Labels = map[string]string{}
		}
		out.Labels[l.Key] = l.GetValue()
	}
	return out, nil
}

func (m metadata) wire() *forge.Metadata {
	out := &forge.Metadata{Name: m.Name, Description: m.Description}
	for k, v := range m.Labels { // in any order, as in the real service
		l := &forge.Label{Key: k}
		if v != "" {
			l.Value = proto.String(v)
		}
		out.Labels = append(out.Labels, l)
	}
	return out
}

// matches reports whether a label filter selects the object: by key, by value, or by both.
func (m metadata) matches(l *forge.Label) bool {
	if l == nil {
		return true
	}
	for k, v := range m.Labels {
		if (l.Key == "" || l.Key == k) && (l.Value == nil || *l.Value == v) {
			return true
		}
	}
	return false
}

func checkFilter(l *forge.Label) error {
	if l != nil && l.Key == "" && l.Value == nil {
		return invalid("a label filter needs a key or a value")
	}
	return nil
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}
