package load

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/canonical"
)

// assemble returns the outline of a document with these resources, which are sorted by order, and with what it says besides. It
// writes the text, of about the given size, and makes the values parts of it. It also returns how many values the text has beside those
// of the resources.
func (o *Outline) assemble(head map[string]any, resources []entry, size int) (next *Outline, values int) {
	next = &Outline{schema: o.schema, resources: resources}
	w := composer{text: append(make([]byte, 0, size), '{')}
	names := slices.Sorted(maps.Keys(head)) // those not yet written
	heads := func(until string) {
		for ; len(names) > 0 && (until == "" || names[0] < until); names = names[1:] {
			w.enter()
			w.member(names[0])
			start := len(w.text)
			w.text = canonical.Append(w.text, head[names[0]])
			next.head = append(next.head, member{names[0], w.since(start)})
		}
	}
	var at schema.Ref // of the object that is written
	for i := range resources {
		e := &resources[i]
		if at.Scope != e.Scope || at.Kind != e.Kind {
			at = e.Ref
			provider, noun, _ := strings.Cut(e.Kind, ".")
			path := []string{"nodes", e.Scope, provider, noun}
			if e.Scope == schema.ScopeSite {
				path = path[2:]
			}
			if len(w.open) == 0 || w.open[0] != path[0] {
				w.enter()
				heads(path[0])
			}
			w.enter(path...)
		}
		w.member(e.Name)
		start := len(w.text)
		w.text = append(w.text, e.value...)
		e.value = w.since(start)
	}
	w.enter()
	heads("")
	next.text = append(w.text, '}')
	for _, m := range next.head {
		values += count(m.value)
	}
	return next, 1 + w.objects + values
}

// count returns how many values there are in a JSON value without blanks, itself included.
func count(value []byte) int {
	n, inString := 1, false
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == ',', (c == '{' || c == '[') && value[i+1] != c+2: // in ASCII a closing bracket is two after its opening one
			n++
		}
	}
	return n
}

// excess returns why a document with so many values is too large to be read; nil when it is not.
func (o *Outline) excess(values int) *fault {
	nodes, last := 0, ""
	for _, e := range o.resources {
		if e.Scope != schema.ScopeSite && e.Scope != last {
			nodes, last = nodes+1, e.Scope
		}
	}
	switch {
	case len(o.text) > maxSize:
		return tooLarge(len(o.text), maxSize)
	case len(o.resources) > maxResources:
		return tooMany("document", "resources", maxResources)
	case values > maxValues:
		return tooMany("document", "values", maxValues)
	case nodes > maxMembers:
		return tooMany("object", "members", maxMembers)
	}
	return nil
}

func tooMany(where, what string, limit int) *fault {
	return &fault{code: codeTooLarge, detail: fmt.Sprintf("The %s would have more than %d %s. Split the site.", where, limit, what)}
}

// A composer writes objects within objects.
type composer struct {
	text    []byte
	open    []string // the objects below the outermost that are being written
	objects int      // how many of those there are so far
}

// enter ends the objects that are not on a path, and begins those on it.
func (w *composer) enter(path ...string) {
	same := 0
	for same < min(len(path), len(w.open)) && path[same] == w.open[same] {
		same++
	}
	for range w.open[same:] {
		w.text = append(w.text, '}')
	}
	w.open = w.open[:same]
	for _, name := range path[same:] {
		w.member(name)
		w.text = append(w.text, '{')
		w.open = append(w.open, name)
		w.objects++
	}
}

// member begins a member of the innermost object.
func (w *composer) member(name string) {
	if w.text[len(w.text)-1] != '{' {
		w.text = append(w.text, ',')
	}
	w.text = append(canonical.AppendString(w.text, name), ':')
}

// since returns what was written from a position on.
func (w *composer) since(start int) []byte { return w.text[start:len(w.text):len(w.text)] }
