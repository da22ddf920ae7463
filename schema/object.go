package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strconv"
)

// An Object is a tree of JSON values: nil, bool, int64, float64, string, []any and map[string]any.
// Integers are always int64, whatever they were read from, so that values compare with ==.
type Object map[string]any

// UnmarshalJSON reads an object, with integers as int64.
func (o *Object) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		return err
	}
	for k, v := range m {
		n, err := fixNumbers(v)
		if err != nil {
			return err
		}
		m[k] = n
	}
	*o = m
	return nil
}

func fixNumbers(v any) (any, error) {
	switch v := v.(type) {
	case json.Number:
		return ParseNumber(v.String())
	case []any:
		for i := range v {
			n, err := fixNumbers(v[i])
			if err != nil {
				return nil, err
			}
			v[i] = n
		}
	case map[string]any:
		for k, e := range v {
			n, err := fixNumbers(e)
			if err != nil {
				return nil, err
			}
			v[k] = n
		}
	}
	return v, nil
}

// ParseNumber reads a JSON number: int64 when it is an integer and fits, float64 otherwise.
func ParseNumber(s string) (any, error) {
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return nil, fmt.Errorf("%s is not a number that fits", s)
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

// Digest returns the hex SHA-256 of the object as JSON with sorted keys. Equal objects have equal digests.
func (o Object) Digest() string {
	b, err := json.Marshal(map[string]any(o))
	if err != nil { // an Object holds JSON values only
		panic(fmt.Sprintf("schema: digest of an object that is not JSON: %v", err))
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
