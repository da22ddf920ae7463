package load

import (
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// A rawJSON stands in a tree for a value that is canonical JSON already.
type rawJSON []byte

// appendJSON appends a tree of JSON values in the one canonical form: names sorted by bytes, no blanks. Equal trees give
// equal text. A [rawJSON] in the tree is copied as it is.
func appendJSON(b []byte, v any) []byte {
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
			b = appendString(b, name)
			b = append(b, ':')
			b = appendJSON(b, v[name])
		}
		return append(b, '}')
	case []any:
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendJSON(b, e)
		}
		return append(b, ']')
	case string:
		return appendString(b, v)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case float64:
		return strconv.AppendFloat(b, v, 'g', -1, 64)
	case bool:
		return strconv.AppendBool(b, v)
	case rawJSON:
		return append(b, v...)
	}
	return append(b, "null"...)
}

// appendString quotes s, which is valid UTF-8: every reader has seen to that.
func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}
