// Package object is used by the generated structs of specs to read them from objects, and to write them to objects.
//
// A struct has a pointer where a field may be absent, nil for an absent list or map, and plain values for the rest: fields
// that are required, and fields whose default is the zero value.
package object

import (
	"fmt"
	"slices"

	"converge.dev/converge/schema"
)

// A Reader reads fields of objects; it keeps the first error.
type Reader struct{ err error }

// Err returns the first error; nil when there was none.
func (r *Reader) Err() error { return r.err }

func (r *Reader) fail(name string, v any, want any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s is a %T, want a %T", name, v, want)
	}
}

// Only fails when an object has fields with other names.
func (r *Reader) Only(o map[string]any, names ...string) {
	if r.err != nil || len(o) == 0 {
		return
	}
	for name := range o {
		if !slices.Contains(names, name) {
			r.err = fmt.Errorf("unknown field %s", name)
			return
		}
	}
}

// Value reads a field; when it is absent, it returns the zero value.
func Value[T any](r *Reader, o map[string]any, name string) (v T) {
	switch f := o[name].(type) {
	case nil:
	case T:
		v = f
	default:
		r.fail(name, f, v)
	}
	return v
}

// Optional reads a field that may be absent.
func Optional[T any](r *Reader, o map[string]any, name string) *T {
	if o[name] == nil {
		return nil
	}
	v := Value[T](r, o, name)
	return &v
}

// Secret reads the text of a secret; it is empty when the secret is absent, or sealed.
func Secret(o map[string]any, name string) string {
	text, _ := o[name].(string)
	return text
}

// OptionalSecret reads the text of a secret; nil when the secret is absent, or sealed.
func OptionalSecret(o map[string]any, name string) *string {
	if text, ok := o[name].(string); ok {
		return &text
	}
	return nil
}

// List reads a list of plain values; nil when it is absent.
func List[T any](r *Reader, o map[string]any, name string) []T {
	all := Value[[]any](r, o, name)
	if all == nil {
		return nil
	}
	l := make([]T, len(all))
	for i, e := range all {
		v, ok := e.(T)
		if !ok {
			r.fail(name, e, v)
		}
		l[i] = v
	}
	return l
}

// Map reads a map of plain values; nil when it is absent.
func Map[T any](r *Reader, o map[string]any, name string) map[string]T {
	all := Value[map[string]any](r, o, name)
	if all == nil {
		return nil
	}
	m := make(map[string]T, len(all))
	for k, e := range all {
		v, ok := e.(T)
		if !ok {
			r.fail(name+"."+k, e, v)
		}
		m[k] = v
	}
	return m
}

// Struct reads a struct with read; nil when it is absent.
func Struct[T any](r *Reader, o map[string]any, name string, read func(*T, *Reader, map[string]any)) *T {
	m := Value[map[string]any](r, o, name)
	if m == nil {
		return nil
	}
	v := new(T)
	read(v, r, m)
	return v
}

// Structs reads a list of structs with read; nil when it is absent.
func Structs[T any](r *Reader, o map[string]any, name string, read func(*T, *Reader, map[string]any)) []T {
	all := Value[[]any](r, o, name)
	if all == nil {
		return nil
	}
	l := make([]T, len(all))
	for i, e := range all {
		m, ok := e.(map[string]any)
		if !ok {
			r.fail(name, e, m)
		}
		read(&l[i], r, m)
	}
	return l
}

// StructMap reads a map of structs with read; nil when it is absent.
func StructMap[T any](r *Reader, o map[string]any, name string, read func(*T, *Reader, map[string]any)) map[string]T {
	all := Value[map[string]any](r, o, name)
	if all == nil {
		return nil
	}
	l := make(map[string]T, len(all))
	for k, e := range all {
		m, ok := e.(map[string]any)
		if !ok {
			r.fail(name+"."+k, e, m)
		}
		var v T
		read(&v, r, m)
		l[k] = v
	}
	return l
}

// Put sets a field unless v is nil.
func Put[T any](o map[string]any, name string, v *T) {
	if v != nil {
		o[name] = *v
	}
}

// PutList sets a field to a list unless that is nil.
func PutList[T any](o map[string]any, name string, l []T) {
	if l != nil {
		o[name] = Values(l)
	}
}

// PutMap sets a field to a map unless that is nil.
func PutMap[T any](o map[string]any, name string, m map[string]T) {
	if m != nil {
		values := make(map[string]any, len(m))
		for k, v := range m {
			values[k] = v
		}
		o[name] = values
	}
}

// Values returns a list in the form of objects; nil becomes empty.
func Values[T any](l []T) []any {
	all := make([]any, len(l))
	for i, v := range l {
		all[i] = v
	}
	return all
}

// Objects returns a list of structs in the form of objects; write converts one struct.
func Objects[T any](l []T, write func(*T) schema.Object) []any {
	all := make([]any, len(l))
	for i := range l {
		all[i] = map[string]any(write(&l[i]))
	}
	return all
}

// PutObjects sets a field to a list of structs unless that is nil.
func PutObjects[T any](o map[string]any, name string, l []T, write func(*T) schema.Object) {
	if l != nil {
		o[name] = Objects(l, write)
	}
}

// PutObjectMap sets a field to a map of structs unless that is nil.
func PutObjectMap[T any](o map[string]any, name string, m map[string]T, write func(*T) schema.Object) {
	if m != nil {
		values := make(map[string]any, len(m))
		for k, v := range m {
			values[k] = map[string]any(write(&v))
		}
		o[name] = values
	}
}

// PutObject sets a field to a struct unless that is nil.
func PutObject[T any](o map[string]any, name string, v *T, write func(*T) schema.Object) {
	if v != nil {
		o[name] = map[string]any(write(v))
	}
}
