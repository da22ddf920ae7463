package load

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"converge.dev/converge/schema"
)

// Limits on a document. They are checked while reading, so that what exceeds them costs neither time nor memory.
const (
	maxSize      = 64 << 20  // bytes of a source
	maxDepth     = 32        // nested objects and lists
	maxResources = 200_000   // names under all kinds in total
	maxValues    = 5_000_000 // values of all sorts in total
	maxMembers   = 100_000   // members of one object or elements of one list that is not a map of resources
	maxName      = 256       // bytes of a name
)

// A fault is why a source cannot be read at all. There is at most one, because nothing after it can be trusted.
type fault struct {
	offset int64    // the byte where reading stopped
	path   []string // the path in the document, as far as it is known
	code   string
	detail string
}

func (f *fault) Error() string { return f.detail }

// A level is a depth of the document at which names have a meaning for the reader.
type level int

const (
	inValue     level = iota // below all other levels
	inDocument               // apiVersion, site, policy, nodes and providers
	inNodes                  // names of nodes
	inNode                   // providers of a node
	inProvider               // kinds of a provider
	inResources              // names of resources
)

// below returns the level of the value of the member name.
func (l level) below(name string) level {
	switch l {
	case inDocument:
		switch name {
		case "nodes":
			return inNodes
		case "apiVersion", "site", "policy":
			return inValue
		}
		return inProvider
	case inNodes:
		return inNode
	case inNode:
		return inProvider
	case inProvider:
		return inResources
	}
	return inValue
}

// isHead reports whether a member of a document is about the document as a whole: apiVersion, site or policy.
func isHead(name string) bool { return inDocument.below(name) == inValue }

// decodeJSON reads a JSON document strictly: one object, no duplicate names, valid UTF-8, nothing after it, within the
// limits. Integers become int64.
func decodeJSON(data []byte) (map[string]any, *fault) {
	return decodeBounded(data, Bounds{}, func([]string, any) {})
}

// decodeBounded is decodeJSON with tighter limits. It calls take with everything that is where a resource is in a document, as soon as
// it has been read, in the order of the source. The path is only valid during the call; the value is not touched again.
func decodeBounded(data []byte, bounds Bounds, take func(path []string, v any)) (map[string]any, *fault) {
	bounds = bounds.orDefault()
	if len(data) > bounds.Size {
		return nil, tooLarge(len(data), bounds.Size)
	}
	d := decoder{in: jsontext.NewDecoder(bytes.NewBuffer(data)), bounds: bounds, take: take, seed: maphash.MakeSeed()}
	doc, err := d.document()
	if err != nil {
		return nil, d.fault(err)
	}
	return doc, nil
}

func tooLarge(size, limit int) *fault {
	return &fault{code: codeTooLarge, detail: fmt.Sprintf(
		"The source has %d bytes; the limit is %d MiB. Split the site, or remove what does not belong in it.", size, limit>>20)}
}

type decoder struct {
	in        *jsontext.Decoder
	bounds    Bounds
	take      func(path []string, v any)
	path      []string // of the value that is read
	seed      maphash.Seed
	words     [4096]any // short strings by their hash, the last of each, to keep one copy of those that repeat
	text      []byte
	values    int
	resources int
}

func (d *decoder) document() (map[string]any, error) {
	if k := d.in.PeekKind(); k != '{' && k != jsontext.KindInvalid {
		return nil, d.refuse(codeSyntax, "A document must be an object, as in {\"apiVersion\": %q, \"site\": {…}}; this one starts with a %s.", schema.APIVersion, kindNoun(k))
	}
	v, err := d.value(inDocument, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.in.ReadToken(); err != io.EOF {
		return nil, d.refuse(codeSyntax, "Unexpected content after the end of the document. A file can contain only one document: remove what follows.")
	}
	return v.(map[string]any), nil
}

func (d *decoder) value(at level, depth int) (any, error) {
	if d.values++; d.values > maxValues {
		return nil, d.refuse(codeTooLarge, "The document has more than %d values. Split the site.", maxValues)
	}
	switch d.in.PeekKind() {
	case '{':
		return d.object(at, depth+1)
	case '[':
		return d.list(depth + 1)
	}
	raw, err := d.in.ReadValue()
	if err != nil {
		return nil, err
	}
	switch raw.Kind() {
	case '"':
		return d.string(raw)
	case '0':
		return d.number(raw)
	case 't', 'f':
		return raw.Kind() == 't', nil
	}
	return nil, nil
}

func (d *decoder) object(at level, depth int) (any, error) {
	if err := d.open(depth); err != nil {
		return nil, err
	}
	m := make(map[string]any)
	for d.in.PeekKind() != '}' {
		raw, err := d.in.ReadValue()
		if err != nil {
			return nil, err
		}
		text, err := d.string(raw)
		if err != nil {
			return nil, err
		}
		name := text.(string)
		if len(name) > maxName {
			return nil, d.refuse(codeTooLarge, "A name has %d bytes; the limit is %d. Use a shorter name.", len(name), maxName)
		}
		if at == inResources {
			if d.resources++; d.resources > d.bounds.Resources {
				return nil, d.refuse(codeTooLarge, "The document has more than %d resources. Split the site.", d.bounds.Resources)
			}
		} else if len(m) == maxMembers {
			return nil, d.refuse(codeTooLarge, "An object has more than %d members.", maxMembers)
		}
		d.path = append(d.path, name)
		v, err := d.value(at.below(name), depth)
		if err != nil {
			return nil, err
		}
		m[name] = v
		if at == inResources {
			d.take(d.path, v)
		}
		d.path = d.path[:len(d.path)-1]
	}
	_, err := d.in.ReadToken()
	return m, err
}

func (d *decoder) list(depth int) (any, error) {
	if err := d.open(depth); err != nil {
		return nil, err
	}
	l := []any{}
	for d.in.PeekKind() != ']' {
		if len(l) == maxMembers {
			return nil, d.refuse(codeTooLarge, "A list has more than %d elements.", maxMembers)
		}
		v, err := d.value(inValue, depth)
		if err != nil {
			return nil, err
		}
		l = append(l, v)
	}
	_, err := d.in.ReadToken()
	return l, err
}

// open reads the bracket that starts an object or a list.
func (d *decoder) open(depth int) error {
	if depth > maxDepth {
		return d.refuse(codeTooLarge, "Objects and lists are nested more than %d levels deep; no kind needs that.", maxDepth)
	}
	_, err := d.in.ReadToken()
	return err
}

// string reads a quoted string. Short ones are mostly stored once: names of fields and most values repeat in every resource.
func (d *decoder) string(raw jsontext.Value) (any, error) {
	text := raw[1 : len(raw)-1]
	if bytes.IndexByte(text, '\\') >= 0 {
		var err error
		if d.text, err = jsontext.AppendUnquote(d.text[:0], raw); err != nil {
			return nil, err
		}
		text = d.text
		if bytes.IndexByte(text, 0) >= 0 {
			return nil, d.refuse(codeSyntax, "A string contains the NUL character, which no remote system can store. Remove \\u0000.")
		}
	}
	if len(text) > 32 {
		return string(text), nil
	}
	word := &d.words[maphash.Bytes(d.seed, text)%uint64(len(d.words))]
	if s, ok := (*word).(string); !ok || s != string(text) {
		*word = string(text)
	}
	return *word, nil
}

func (d *decoder) number(raw jsontext.Value) (any, error) {
	v, err := schema.ParseNumber(string(raw))
	if err != nil {
		return nil, d.refuse(codeSyntax, "A number does not fit in 64 bits. Use a smaller number, or a string.")
	}
	if _, isFloat := v.(float64); isFloat && !bytes.ContainsAny(raw, ".eE") {
		return nil, d.refuse(codeSyntax, "A whole number does not fit in 64 bits. Use a smaller number, or a string.")
	}
	return v, nil
}

func (d *decoder) refuse(code, format string, args ...any) *fault {
	return &fault{offset: d.in.InputOffset(), path: pointerPath(d.in.StackPointer()), code: code, detail: fmt.Sprintf(format, args...)}
}

// fault turns a reading error into a fault.
func (d *decoder) fault(err error) *fault {
	if f, ok := err.(*fault); ok {
		return f
	}
	if err == io.EOF {
		return nothing(strconv.Quote(schema.APIVersion))
	}
	f := &fault{offset: d.in.InputOffset(), code: codeSyntax, detail: err.Error()}
	var syntax *jsontext.SyntacticError
	if errors.As(err, &syntax) {
		f.offset, f.path = syntax.ByteOffset, pointerPath(syntax.JSONPointer)
		switch {
		case errors.Is(err, jsontext.ErrDuplicateName):
			f.code = codeDuplicateName
			f.detail = fmt.Sprintf("The name %s appears twice in one object, so one of the two would be lost. Remove or rename one.", strconv.Quote(f.path[len(f.path)-1]))
		case errors.Is(err, io.ErrUnexpectedEOF):
			f.detail = "The document ends unexpectedly. Close all brackets and quotes, or fetch the complete file again."
		default:
			f.detail = fmt.Sprintf("This is not valid JSON: %s.", strings.TrimPrefix(syntax.Err.Error(), "jsontext: "))
		}
	}
	return f
}

func pointerPath(p jsontext.Pointer) []string {
	var path []string
	for t := range p.Tokens() {
		path = append(path, t)
	}
	return path
}

// kindNoun names the sort of a JSON value.
func kindNoun(k jsontext.Kind) string {
	switch k {
	case '[':
		return "list"
	case '"':
		return "string"
	case '0':
		return "number"
	case 'n':
		return "null"
	}
	return "boolean"
}
