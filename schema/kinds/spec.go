package kinds

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/internal/message"
)

// CheckName checks the name of a resource against the grammar of its kind; nil when it fits.
func (s *Schema) CheckName(k *schema.Kind, name string) *Problem {
	switch kd := s.kinds[k.Name]; {
	case name == "" || strings.Contains(name, "/"): // a ref is SCOPE/KIND/NAME
		v := newProblem(nil, codeBadName, fmt.Sprintf("%q is not a valid name. Want a name that is not empty and contains no slash.", name))
		return &v
	case !kd.name.accepts(name):
		v := newProblem(nil, codeBadName, stop(fmt.Sprintf("%s is not a valid %s name. Want %s", message.Value(name), k.Name, kd.name.want())))
		return &v
	}
	return nil
}

// CheckSpec checks what a document says about one resource: its spec and the fields that every resource may have. The
// problems are sorted by path. When there are none, spec has its defaults filled in and is normalized. Spec must not be nil.
func (s *Schema) CheckSpec(k *schema.Kind, spec schema.Object) []Problem {
	kd := s.kinds[k.Name]
	if s.IsExternal(k, spec) {
		x, want := &explainer{}, kd.external
		if kd.isReference() {
			want = kd.body
		}
		x.value(want, map[string]any(spec), nil)
		return x.sorted()
	}
	if len(kd.opaque) > 0 || !kd.body.accepts(map[string]any(spec)) {
		if found := s.explain(kd, spec); len(found) > 0 {
			if i := slices.IndexFunc(found, func(p Problem) bool { return p.Code == codeMissingField && slices.Equal(p.Path, []string{"external"}) }); i >= 0 && kd.isReference() {
				found[i].Detail = fmt.Sprintf("A %s can only be observed: it is never created, changed or deleted. To require that it is there, set external to true.", k.Name)
			}
			return found
		}
	}
	k.Normalize(spec)
	return nil
}

// IsExternal reports whether a document declares a resource as external: it exists and is only referred to.
func (s *Schema) IsExternal(k *schema.Kind, spec schema.Object) bool {
	_, ok := spec["external"]
	return ok && s.kinds[k.Name].external != nil
}

// secretAt reports whether path leads into a field that holds a secret, or to an unknown field of a kind that has
// secrets: the name may be misspelt.
func secretAt(k *kind, path []string) bool {
	if len(path) == 0 {
		return false
	}
	f := k.Spec()
	for _, name := range path {
		if f = f.Under(name); f == nil {
			return k.Spec().Has(func(f *schema.Field) bool { return f.Secret })
		} else if f.Secret {
			return true
		}
	}
	return false
}

// IsSecret reports whether a path in a document lies in a field that holds a secret, so that its source must not be shown.
func (s *Schema) IsSecret(path []string) bool {
	if len(path) > 2 && path[0] == "nodes" {
		path = path[2:]
	}
	if len(path) < 4 {
		return false
	}
	k := s.kinds[path[0]+"."+path[1]]
	return k != nil && secretAt(k, path[3:])
}

// Fits returns what is wrong with a single resource: its name, or its spec. References are not followed.
func (s *Schema) Fits(ref schema.Ref, spec schema.Object) error {
	if err := s.FitsName(ref); err != nil {
		return err
	}
	if found := s.CheckSpec(&s.kinds[ref.Kind].Kind, spec.Clone()); len(found) > 0 {
		return fmt.Errorf("%s: %s", strings.Join(found[0].Path, "."), found[0].Detail)
	}
	return nil
}

// FitsName returns why a document cannot declare a resource under a name.
func (s *Schema) FitsName(ref schema.Ref) error {
	k := s.kinds[ref.Kind]
	if k == nil {
		return errors.New(message.Unknown("kind", ref.Kind, s.Kinds().Names()))
	}
	if v := s.CheckName(&k.Kind, ref.Name); v != nil {
		return errors.New(v.Detail)
	}
	return nil
}
