package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"converge.dev/converge/schema/internal/canonical"
)

// An Object is a tree of JSON values: nil, bool, int64, float64, string, []any and map[string]any.
// Integers are always int64, whatever they were read from, so that values compare with ==.
type Object map[string]any

// UnmarshalJSON reads an object, with integers as int64; null is no object. It fails where a name repeats, and when something follows.
func (o *Object) UnmarshalJSON(b []byte) error {
	d := jsontext.NewDecoder(bytes.NewReader(b))
	if err := o.UnmarshalJSONFrom(d); err != nil {
		return err
	}
	switch _, err := d.ReadToken(); {
	case err == nil:
		return errors.New("something follows the object")
	case err != io.EOF:
		return err
	}
	return nil
}

// UnmarshalJSONFrom is UnmarshalJSON for a decoder, which has its own options.
func (o *Object) UnmarshalJSONFrom(d *jsontext.Decoder) (err error) {
	*o, err = new(ObjectReader).Read(d)
	return err
}

// An ObjectReader reads objects, several times faster than package encoding/json. One made by [NewObjectReader] keeps each
// member's name once, for objects that share theirs.
type ObjectReader struct {
	names map[string]string // by their JSON
}

// NewObjectReader returns a reader of many objects.
func NewObjectReader() *ObjectReader { return &ObjectReader{names: map[string]string{}} }

// Read reads the next object, with integers as int64; null is no object.
func (r *ObjectReader) Read(d *jsontext.Decoder) (Object, error) {
	v, err := r.value(d)
	if err != nil {
		return nil, err
	}
	o, ok := v.(map[string]any)
	if !ok && v != nil {
		return nil, errors.New("want an object, found another value")
	}
	return o, nil
}

func (r *ObjectReader) value(d *jsontext.Decoder) (any, error) {
	t, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	switch t.Kind() {
	case 't', 'f':
		return t.Bool(), nil
	case '"':
		return t.String(), nil
	case '0':
		return ParseNumber(t.String())
	case '[':
		list := []any{}
		for d.PeekKind() != ']' {
			v, err := r.value(d)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := d.ReadToken()
		return list, err
	case '{':
		object := map[string]any{}
		for d.PeekKind() != '}' {
			name, err := r.name(d)
			if err != nil {
				return nil, err
			}
			if object[name], err = r.value(d); err != nil {
				return nil, err
			}
		}
		_, err := d.ReadToken()
		return object, err
	}
	return nil, nil
}

func (r *ObjectReader) name(d *jsontext.Decoder) (string, error) {
	quoted, err := d.ReadValue()
	if err != nil {
		return "", err
	}
	if name, ok := r.names[string(quoted)]; ok {
		return name, nil
	}
	name, err := jsontext.AppendUnquote(nil, quoted)
	if err == nil && r.names != nil {
		r.names[string(quoted)] = string(name)
	}
	return string(name), err
}

// ParseNumber reads a JSON number: int64 when it is an integer and fits, float64 otherwise.
func ParseNumber(s string) (any, error) {
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return nil, fmt.Errorf("%s is not a number that fits in 64 bits", s)
	}
	// This holds for any integer that fits, however it was written: package json writes a large one without an exponent,
	// and it must read the same afterwards.
	if f >= -1<<63 && f < 1<<63 && f == math.Trunc(f) {
		return int64(f), nil
	}
	return f, nil
}

// Clone copies the whole tree.
func (o Object) Clone() Object {
	if o == nil {
		return nil
	}
	return Clone(map[string]any(o)).(map[string]any)
}

// Clone copies a whole tree of JSON values.
func Clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		m := maps.Clone(v)
		for k, e := range m {
			switch e.(type) {
			case map[string]any, []any:
				m[k] = Clone(e)
			}
		}
		return m
	case []any:
		l := make([]any, len(v))
		for i, e := range v {
			l[i] = Clone(e)
		}
		return l
	}
	return v
}

// Equal reports whether two objects are the same tree. No object equals an empty one.
func (o Object) Equal(p Object) bool {
	shared := o != nil && p != nil && reflect.ValueOf(o).UnsafePointer() == reflect.ValueOf(p).UnsafePointer()
	return shared || Equal(map[string]any(o), map[string]any(p))
}

// Equal reports whether two trees of JSON values are the same.
func Equal(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k, v := range a {
			if w, there := b[k]; !there || !Equal(v, w) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, Equal)
	}
	return a == b
}

// AppendJSON appends the object as JSON with sorted keys and without blanks. Equal objects become equal text. It panics on what is no JSON
// value.
func (o Object) AppendJSON(b []byte) []byte { return canonical.Append(b, map[string]any(o)) }

// Digest returns the hex SHA-256 of the object as JSON with sorted keys. Equal objects have equal digests.
func (o Object) Digest() string {
	sum := sha256.Sum256(o.AppendJSON(nil))
	return hex.EncodeToString(sum[:])
}
