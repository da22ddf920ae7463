package fake

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// checkPlace returns why nothing can exist at a place.
func (w *World) checkPlace(at schema.Place) error {
	k := w.kinds[at.Kind]
	switch {
	case k == nil:
		return fmt.Errorf("unknown kind %s", at.Kind)
	case k.Node != (at.Scope != schema.ScopeSite):
		return fmt.Errorf("the kind does not exist in scope %s", at.Scope)
	}
	return nil
}

// checkMark fails when a text is neither a mark nor empty.
func checkMark(mark string) error {
	if mark != "" && providers.ParseMark(mark).IsZero() {
		return fmt.Errorf("%q is not an ownership mark", mark)
	}
	return nil
}

// checkLate returns what is wrong with a late effect that comes from outside. Its change is checked when it arrives.
func (w *World) checkLate(l late) error {
	err := checkMark(l.Mark)
	if !slices.Contains([]string{"create", "update", "delete"}, l.Op) {
		err = fmt.Errorf("op is %q, want create, update or delete", l.Op)
	}
	if err == nil {
		err = w.checkPlace(l.Ref.Place())
	}
	if err != nil {
		return fmt.Errorf("late %s %s: %w", l.Op, l.Ref, err)
	}
	return nil
}

// checkThing returns what is wrong with a thing that comes from outside, and completes it.
func (w *World) checkThing(at target, th *thing) error {
	err := w.checkPlace(at.Place)
	if err == nil && at.id == "" {
		err = errors.New("the id is empty")
	}
	if err == nil {
		err = checkMark(th.Mark)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	k := w.kinds[at.Kind]
	if !slices.Contains([]providers.Phase{"", providers.Ready, providers.Pending, providers.Failed, providers.Deleting}, th.Phase) {
		return fmt.Errorf("%s: unknown phase %q", at, th.Phase)
	}
	if th.Spec == nil {
		th.Spec = schema.Object{}
	}
	complete(k.Fields, th.Spec)
	if err := checkSpec(k.Fields, th.Spec); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	for name := range th.Status {
		if f := k.Field(name); f == nil || !f.Computed {
			return fmt.Errorf("%s: status: no computed field named %s", at, name)
		}
	}
	if th.Name == "" {
		th.Name = at.id
	}
	if th.Phase == providers.Ready {
		th.Phase = "" // a thing is ready by default
	}
	return nil
}

// complete fills in the defaults of fields that are absent.
func complete(fields []schema.Field, spec map[string]any) {
	for i := range fields {
		f := &fields[i]
		v, ok := spec[f.Name]
		if !ok && f.Default != nil {
			spec[f.Name] = schema.Clone(f.Default)
		}
		completeValue(f, v)
	}
}

func completeValue(f *schema.Field, v any) {
	if f.Secret {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		switch {
		case f.Type == schema.Struct:
			complete(f.Fields, v)
		case f.Elem != nil:
			for _, e := range v {
				completeValue(f.Elem, e)
			}
		}
	case []any:
		for _, e := range v {
			if f.Elem != nil {
				completeValue(f.Elem, e)
			}
		}
	}
}

// checkSpec returns an error for the first field that is unknown, missing, computed or of another type.
func checkSpec(fields []schema.Field, spec map[string]any) error {
	known := 0
	for i := range fields {
		f := &fields[i]
		v, ok := spec[f.Name]
		switch {
		case !ok && f.Required:
			return fmt.Errorf("%s is missing", f.Name)
		case ok && f.Computed:
			return fmt.Errorf("%s is computed and cannot be set", f.Name)
		case ok:
			known++
			if err := checkValue(f, v); err != nil {
				return fmt.Errorf("%s%w", f.Name, err)
			}
		}
	}
	if known == len(spec) {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(spec)) {
		if !slices.ContainsFunc(fields, func(f schema.Field) bool { return f.Name == name }) {
			return fmt.Errorf("unknown field %s", name)
		}
	}
	return nil
}

// checkValue returns what is wrong with a value; the error continues the path to it.
func checkValue(f *schema.Field, v any) error {
	if f.Type == schema.Any {
		return nil
	}
	if f.Secret { // the value itself, which must not be repeated
		if _, ok := v.(string); !ok {
			return fmt.Errorf(" is %T, want the secret as text", v)
		}
		return nil
	}
	var is schema.Type
	switch v := v.(type) {
	case string:
		is = schema.String
	case int64:
		is = schema.Int
		if f.Type == schema.Number {
			is = schema.Number
		}
	case float64:
		is = schema.Number
	case bool:
		is = schema.Bool
	case []any:
		is = schema.List
		for i, e := range v {
			if f.Elem == nil {
				break
			}
			if err := checkValue(f.Elem, e); err != nil {
				return fmt.Errorf(".%d%w", i, err)
			}
		}
	case map[string]any:
		is = f.Type
		switch {
		case f.Type == schema.Struct:
			if err := checkSpec(f.Fields, v); err != nil {
				return fmt.Errorf(": %w", err)
			}
		case f.Type != schema.Map:
			is = "object"
		case f.Elem != nil:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				if err := checkValue(f.Elem, v[key]); err != nil {
					return fmt.Errorf(".%s%w", key, err)
				}
			}
		}
	default:
		is = schema.Type(fmt.Sprintf("%T", v))
	}
	if is != f.Type {
		return fmt.Errorf(" is %s, want %s", is, f.Type)
	}
	return nil
}
