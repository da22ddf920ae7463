package kinds

import (
	"hash/fnv"
	"reflect"
	"slices"
	"testing"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/canonical"
)

// The checks must agree with CUE on every resource, and fill in the same defaults. These tests generate resources of every
// kind, spoil them, and ask both.

// A sample is a resource and what CUE says of it.
type sample struct {
	spec   schema.Object
	filled schema.Object // with defaults; nil when it is refused
}

// samples returns good and bad resources of a kind: every variant of one that uses all fields, and random ones.
func samples(s *Schema, k *kind) (all []sample) {
	if all, ok := sampled[k]; ok {
		return all
	}
	defer func() { sampled[k] = all }()
	g := newGenerator(seed(k.Name))
	add := func(spec schema.Object) {
		filled, refused := s.ask(k, spec)
		if refused != nil || setsComputed(k.body, map[string]any(spec)) { // CUE accepts computed fields, converge does not
			filled = nil
		}
		all = append(all, sample{spec, filled})
	}
	for range 20 {
		add(g.resource(k))
	}
	whole := g.whole(k)
	g.variants(k.body, map[string]any(whole), func(v any) {
		if spec, ok := v.(map[string]any); ok {
			add(spec)
		}
	})
	for range 100 {
		spec := g.resource(k)
		for range 1 + g.IntN(3) {
			g.spoil(spec)
		}
		add(spec)
	}
	return all
}

// sampled are the samples of each kind, made once: tests run one after another here.
var sampled = make(map[*kind][]sample)

// differs compares a check with what CUE says; "" when they agree.
func (sm sample) differs(c *check) string {
	checked := sm.spec.Clone()
	switch accepted := c.accepts(map[string]any(checked)); {
	case accepted && sm.filled == nil:
		return "the checks accept what CUE refuses: " + string(canonical.Append(nil, map[string]any(sm.spec)))
	case !accepted && sm.filled != nil:
		return "the checks refuse what CUE accepts: " + string(canonical.Append(nil, map[string]any(sm.spec)))
	case accepted && !reflect.DeepEqual(checked, sm.filled):
		return "the checks fill in " + string(canonical.Append(nil, map[string]any(checked))) + "\nCUE fills in " + string(canonical.Append(nil, map[string]any(sm.filled)))
	}
	return ""
}

// setsComputed reports whether a value holds a field that only the far side sets.
func setsComputed(c *check, v any) bool {
	for _, t := range flatten(c) {
		switch t := t.(type) {
		case *object:
			fields, _ := v.(map[string]any)
			for name, e := range fields {
				if m := t.field(name); m != nil && (m.computed || setsComputed(m.check, e)) {
					return true
				}
			}
			for _, p := range t.patterns {
				for _, e := range fields {
					if setsComputed(p.value, e) {
						return true
					}
				}
			}
		case *list:
			elems, _ := v.([]any)
			for _, e := range elems {
				if setsComputed(t.elem, e) {
					return true
				}
			}
		}
	}
	return false
}

// seed returns a seed that gives each kind its own resources, whatever other kinds there are.
func seed(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

// skipUnderRace skips tests that use CUE thousands of times in one goroutine: that takes minutes then, and finds no race.
func skipUnderRace(t *testing.T) {
	t.Helper()
	if raceEnabled {
		t.Skip("one goroutine, many seconds")
	}
}

func TestChecksAgreeWithCUE(t *testing.T) {
	skipUnderRace(t)
	s := newSchema(t)
	for _, name := range s.Kinds().Names() {
		t.Run(name, func(t *testing.T) {
			k := s.kinds[name]
			if len(k.opaque) > 0 {
				t.Fatalf("every resource is left to CUE, which is slow, because of %v", k.opaque)
			}
			good, all := 0, samples(s, k)
			for _, sm := range all {
				if d := sm.differs(k.body); d != "" {
					t.Fatal(d)
				}
				found := s.CheckSpec(&k.Kind, sm.spec.Clone())
				if (len(found) == 0) != (sm.filled != nil) {
					t.Fatalf("%s\nproblems %v, but CUE fills in %v", canonical.Append(nil, map[string]any(sm.spec)), found, sm.filled)
				}
				for _, v := range found {
					if v.Code == codeSchema || v.Summary == "" || v.Detail == "" {
						t.Fatalf("%s\nis refused in words that are not ours: %+v", canonical.Append(nil, map[string]any(sm.spec)), v)
					}
				}
				if sm.filled != nil {
					good++
				}
			}
			// Without enough of both the comparison shows little.
			if good < 20 || len(all)-good < 100 {
				t.Errorf("%d good and %d bad resources", good, len(all)-good)
			}
			// If a check were wrong, the comparison would detect it.
			damages := 0
			for ; ; damages++ {
				body, what := damage(k.body, damages)
				if what == "" {
					break
				}
				if !slices.ContainsFunc(all, func(sm sample) bool { return sm.differs(body) != "" }) {
					t.Errorf("nobody notices that %s", what)
				}
			}
			t.Logf("%d good, %d bad resources, %d damages", good, len(all)-good, damages)
		})
	}
}

// damage copies a check with its i-th part wrong, and returns what is wrong; "" when there are fewer parts.
func damage(c *check, i int) (*check, string) {
	n := i
	copied, what := damaged(c, &n, "", make(map[*check]bool))
	return copied, what
}

func damaged(c *check, n *int, path string, above map[*check]bool) (*check, string) {
	hit := func() bool { *n--; return *n == -1 }
	d := *c
	d.tests = slices.Clone(c.tests)
	for i, t := range d.tests {
		switch t := t.(type) {
		case *check:
			part, what := damaged(t, n, path, above)
			if what != "" {
				d.tests[i] = part
				return &d, what
			}
		case *object:
			o := *t
			o.members = nil
			what := ""
			for _, m := range t.members {
				m := *m
				at := path + "." + m.name
				if what == "" && !m.computed && m.name != "lifecycle" && m.name != "timeouts" {
					switch {
					case m.required && hit():
						m.required, what = false, at+" is not required"
					case m.filled && hit():
						m.filled, what = false, at+" has no default"
						if m.required = false; m.check.types == isObject {
							what = at + " is not filled in"
						}
					default:
						if m.check, what = damaged(m.check, n, at, above); what == "" && m.check.types != anything && hit() {
							wide := *m.check
							wide.types, what = anything, at+" may be of any type"
							wide.tests = slices.DeleteFunc(slices.Clone(wide.tests), func(t test) bool {
								switch t.(type) {
								case *enum, *anyOf: // these check types themselves
									return true
								}
								return false
							})
							m.check = &wide
						}
					}
				}
				o.add(&m)
			}
			if what == "" && !o.open && hit() {
				o.open, what = true, path+" takes any field"
			}
			if what != "" {
				d.tests[i] = &o
				return &d, what
			}
		case *list:
			l := *t
			var what string
			if l.elem, what = damaged(t.elem, n, path+"[]", above); what != "" {
				d.tests[i] = &l
				return &d, what
			}
		case *anyOf:
			if hit() {
				d.tests[i] = &anyOf{t.checks[:len(t.checks)-1]}
				return &d, path + " has one choice less"
			}
		case *enum:
			if len(t.values) > 1 && hit() {
				d.tests[i] = &enum{t.values[:len(t.values)-1]}
				return &d, path + " has one value less"
			}
		case bound, *pattern, *size, unique, not:
			if hit() {
				d.tests = slices.Delete(d.tests, i, i+1)
				return &d, path + " lacks a test"
			}
		}
	}
	return &d, ""
}
