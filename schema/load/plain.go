package load

import (
	"slices"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/token"

	"converge.dev/converge/schema/internal/canonical"
)

// A writer turns a concrete CUE value into an [Evaluated].
type writer struct {
	*evaluation
	out   Evaluated
	files map[string]int32
}

func (w *writer) value(v cue.Value) error {
	w.place(v.Pos())
	switch v.Kind() {
	case cue.StructKind:
		return w.object(v)
	case cue.ListKind:
		w.out.JSON = append(w.out.JSON, '[')
		elements, err := v.List()
		if err != nil {
			return err
		}
		for i := 0; elements.Next(); i++ {
			if i > 0 {
				w.out.JSON = append(w.out.JSON, ',')
			}
			if err := w.value(elements.Value()); err != nil {
				return err
			}
		}
		w.out.JSON = append(w.out.JSON, ']')
		return nil
	case cue.StringKind:
		s, err := v.String()
		w.out.JSON = canonical.AppendString(w.out.JSON, s)
		return err
	}
	text, err := v.MarshalJSON()
	w.out.JSON = append(w.out.JSON, text...)
	return err
}

func (w *writer) object(v cue.Value) error {
	type member struct {
		name  string
		value cue.Value
	}
	var members []member
	fields, err := v.Fields()
	if err != nil {
		return err
	}
	for fields.Next() {
		members = append(members, member{fields.Selector().Unquoted(), fields.Value()})
	}
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	w.out.JSON = append(w.out.JSON, '{')
	for i, m := range members {
		if i > 0 {
			w.out.JSON = append(w.out.JSON, ',')
		}
		w.out.JSON = append(canonical.AppendString(w.out.JSON, m.name), ':')
		if err := w.value(m.value); err != nil {
			return err
		}
	}
	w.out.JSON = append(w.out.JSON, '}')
	return nil
}

func (w *writer) place(p token.Pos) {
	file := int32(-1)
	if p.IsValid() {
		var ok bool
		if file, ok = w.files[p.Filename()]; !ok {
			file = int32(len(w.out.Files))
			w.files[p.Filename()] = file
			w.out.Files = append(w.out.Files, w.name(p.Filename()))
		}
	}
	w.out.Places = append(w.out.Places, file, int32(p.Line()), int32(p.Column()), int32(p.Offset()))
}
