// Package canonical writes JSON values in one form: equal trees become equal text, however they were written before.
package canonical

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// A Raw is a value in a tree that is already canonical JSON.
type Raw []byte

// Members is an object in a tree whose members are sorted by name already.
type Members []Member

// A Member is a member of an object.
type Member struct {
	Name  string
	Value Raw
}

// Append appends a tree of JSON values in the one canonical form: names sorted by bytes, no blanks. Equal trees become
// equal text. A [Raw] in the tree is copied as it is.
func Append(b []byte, v any) []byte {
	switch v := v.(type) {
	case map[string]any:
		var few [16]string // most objects are small: their names need no allocation
		names := few[:0]
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		b = append(b, '{')
		for i, name := range names {
			if i > 0 {
				b = append(b, ',')
			}
			b = AppendString(b, name)
			b = append(b, ':')
			b = Append(b, v[name])
		}
		return append(b, '}')
	case []any:
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = Append(b, e)
		}
		return append(b, ']')
	case string:
		return AppendString(b, v)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case float64:
		return strconv.AppendFloat(b, v, 'g', -1, 64)
	case bool:
		return strconv.AppendBool(b, v)
	case nil:
		return append(b, "null"...)
	case Raw:
		return append(b, v...)
	case Members:
		b = append(b, '{')
		for i, m := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(AppendString(b, m.Name), ':')
			b = append(b, m.Value...)
		}
		return append(b, '}')
	}
	panic(fmt.Sprintf("canonical: %T is not a JSON value", v))
}

// AppendString appends s quoted. S must be valid UTF-8, which every reader ensures.
func AppendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}
