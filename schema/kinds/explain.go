package kinds

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/literal"

	"converge.dev/converge/internal/nearest"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/message"
)

// explain lets CUE check a resource, and reports in our words what CUE refuses. In an accepted resource it fills in defaults.
func (s *Schema) explain(k *kind, spec schema.Object) []Problem {
	x := &explainer{}
	x.value(k.body, map[string]any(spec), nil)
	filled, refused := s.ask(k, spec)
	if refused == nil { // the checks refuse only what CUE refuses, and computed fields
		x.found = slices.DeleteFunc(x.found, func(v Problem) bool { return v.Code != codeReadOnly })
		if len(x.found) == 0 {
			clear(spec)
			maps.Copy(spec, filled)
		}
		return x.sorted()
	}
	if k.dynamic { // the checks do not know which fields a condition adds
		x.found = slices.DeleteFunc(x.found, func(v Problem) bool {
			return v.Code == codeUnknownField && !slices.ContainsFunc(refused, func(r refusal) bool { return slices.Equal(r.path, v.Path) })
		})
	}
	for _, r := range refused {
		if !x.covers(r.path) {
			detail := r.message
			if secretAt(k, r.path) {
				detail = "The value is a secret and is not shown."
			}
			x.found = append(x.found, newProblem(r.path, codeSchema, stop(detail)))
		}
	}
	return x.sorted()
}

// ask lets CUE check a resource, and returns it with defaults filled in, or what is refused.
func (s *Schema) ask(k *kind, spec schema.Object) (filled schema.Object, refused []refusal) {
	m, err := s.module()
	if err != nil {
		return nil, []refusal{{message: err.Error()}}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.values[k.Name]
	u := v.Unify(m.ctx.Encode(map[string]any(spec), cue.NilIsAny(false)))
	if err := u.Validate(cue.Concrete(true)); err != nil {
		return nil, cuePaths(err, v)
	}
	b, err := u.MarshalJSON()
	if err == nil {
		err = filled.UnmarshalJSON(b)
	}
	if err != nil {
		return nil, cuePaths(err, v)
	}
	return filled, nil
}

// An explainer collects what a value violates.
type explainer struct {
	found  []Problem
	secret bool // values must not be shown
}

func (x *explainer) add(path []string, code, detail string) {
	x.found = append(x.found, newProblem(slices.Clone(path), code, stop(detail)))
}

func (x *explainer) sorted() []Problem {
	slices.SortStableFunc(x.found, func(a, b Problem) int { return slices.Compare(a.Path, b.Path) })
	return x.found
}

// covers reports whether something was already found at, above or below path.
func (x *explainer) covers(path []string) bool {
	return slices.ContainsFunc(x.found, func(v Problem) bool {
		n := min(len(v.Path), len(path))
		return slices.Equal(v.Path[:n], path[:n])
	})
}

// value finds what a value violates. For a scalar, one violation is enough.
func (x *explainer) value(c *check, v any, path []string) {
	if c.name == secretDefinition {
		defer func(secret bool) { x.secret = secret }(x.secret)
		x.secret = true
	}
	if c.types&typeOf(v) == 0 {
		x.add(path, codeWrongType, fmt.Sprintf("Found %s. Want %s", x.show(v), c.want()))
		return
	}
	for _, t := range c.tests {
		switch t := t.(type) {
		case *object:
			x.object(t, v.(map[string]any), path)
			continue
		case *list:
			x.list(t, v.([]any), path)
			continue
		}
		if t.accepts(v) {
			continue
		}
		x.refused(c, t, v, path)
		if typeOf(v)&(isObject|isList) == 0 {
			return
		}
	}
}

// refused explains why one test refuses a value.
func (x *explainer) refused(c *check, t test, v any, path []string) {
	want := ". Want " + c.want()
	switch t := t.(type) {
	case *check:
		x.value(t, v, path)
	case *enum:
		if text, ok := v.(string); ok && !x.secret {
			if s, ok := nearest.Name(text, textsOf(t.values)); ok {
				want += fmt.Sprintf(". Did you mean %q?", s)
			}
		}
		x.add(path, codeEnum, x.show(v)+" is not allowed"+want)
	case not:
		x.add(path, codeEnum, x.show(v)+" is not allowed"+want)
	case bound:
		x.add(path, codeOutOfRange, x.show(v)+" is out of range"+want)
	case *pattern:
		x.add(path, codePattern, x.show(v)+" is invalid"+want)
	case *size:
		x.add(path, codeLength, fmt.Sprintf("Found %s. Want %s", count(lengthOf(v), t.unit()), t.want()))
	case unique:
		l := v.([]any)
		x.add(path, codeEnum, fmt.Sprintf("%s appears more than once. Want each element once", x.show(l[repeated(l)])))
	case *anyOf:
		x.anyOf(c, t, v, path)
	default:
		x.add(path, codeSchema, x.show(v)+" is not allowed"+want)
	}
}

// anyOf explains why none of several checks accepts a value.
func (x *explainer) anyOf(c *check, t *anyOf, v any, path []string) {
	var near []*check // those for values of the type
	for _, a := range t.checks {
		if a.types&typeOf(v) != 0 {
			near = append(near, a)
		}
	}
	if len(near) == 1 {
		x.value(near[0], v, path)
		return
	}
	code := codeOutOfRange
	if typeOf(v) == isString {
		code = codePattern
	}
	x.add(path, code, x.show(v)+" is invalid. Want "+c.want())
}

func (x *explainer) object(o *object, fields map[string]any, path []string) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		at := append(path[:len(path):len(path)], name)
		m := o.field(name)
		switch {
		case m == nil:
			x.free(o, name, fields[name], at)
		case m.computed:
			x.add(at, codeReadOnly, fmt.Sprintf("Only the remote system sets %q. Remove it from the document", name))
		default:
			secret := x.secret
			x.secret = secret || m.secret
			x.value(m.check, fields[name], at)
			x.secret = secret
		}
	}
	for _, m := range o.members {
		if _, ok := fields[m.name]; ok || !m.required && !m.filled {
			continue
		}
		at := append(path[:len(path):len(path)], m.name)
		if !m.filled {
			x.add(at, codeMissingField, strings.Join(strings.Fields(fmt.Sprintf("Field %q is required. %s Want %s", m.name, m.doc, m.check.want())), " "))
			continue
		}
		x.value(m.check, schema.Clone(m.fill), at)
	}
}

// free finds what a field violates whose name the definition does not declare.
func (x *explainer) free(o *object, name string, v any, path []string) {
	known := o.open
	for _, p := range o.patterns {
		if p.key.accepts(name) {
			known = true
			x.value(p.value, v, path)
		}
	}
	switch {
	case known:
	case len(o.members) == 0 && len(o.patterns) == 1:
		x.add(path, codeBadName, fmt.Sprintf("%q is not a valid name. Want %s", name, o.patterns[0].key.want()))
	default:
		x.add(path, codeUnknownField, message.Unknown("field", name, o.writable()))
	}
}

func (x *explainer) list(l *list, elems []any, path []string) {
	if len(elems) < l.min {
		x.add(path, codeLength, fmt.Sprintf("Found %s. Want at least %s", count(len(elems), "element"), count(l.min, "element")))
	}
	for i, e := range elems {
		x.value(l.elem, e, append(path[:len(path):len(path)], strconv.Itoa(i)))
	}
}

// show returns a value for a message, unless it is a secret.
func (x *explainer) show(v any) string {
	if x.secret {
		return "(secret)"
	}
	return message.Value(v)
}

// A refusal is one thing that CUE refuses, at a path within the resource.
type refusal struct {
	path    []string
	message string
}

// cuePaths returns the paths of a CUE error below the value that was checked.
func cuePaths(err error, v cue.Value) (all []refusal) {
	base := v.Path().Selectors()
	for _, e := range errors.Errors(err) {
		path := e.Path()
		n := 0
		for n < len(path) && n < len(base) && path[n] == base[n].String() {
			n++
		}
		below := slices.Clone(path[n:])
		for i, name := range below {
			if u, err := literal.Unquote(name); err == nil {
				below[i] = u
			}
		}
		format, args := e.Msg()
		all = append(all, refusal{below, fmt.Sprintf(format, args...)})
	}
	return all
}
