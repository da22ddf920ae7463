package load

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"converge.dev/converge/schema/internal/message"
)

// A place is the position of a value in a JSON text.
type place struct {
	start, end int64 // bytes; for a member from its name on; end is after a scalar, or after the name or bracket before a composite
	nth        int   // number of values before it, parents before children
}

// A branch is a node in the tree of the paths to find.
type branch struct {
	below map[string]*branch
	found bool
	place place
}

// find records the place of the value of the branch; for a duplicate name, the first.
func (b *branch) find(p place) {
	if b != nil && !b.found {
		b.found, b.place = true, p
	}
}

// element returns the branch of the i-th element of a list; nil when it is not searched for.
func (b *branch) element(i int) *branch {
	if b == nil || b.below == nil {
		return nil
	}
	return b.below[strconv.Itoa(i)]
}

// member returns the branch of the member with a quoted name; nil when it is not searched for.
func (b *branch) member(quoted jsontext.Value) *branch {
	if b == nil || b.below == nil {
		return nil
	}
	name, _ := jsontext.AppendUnquote(nil, quoted)
	return b.below[string(name)]
}

// locate finds, in one pass over JSON data, the value at each path or, where there is none, the deepest value on the way
// to it. It reads a broken text as far as it can.
func locate(data []byte, paths [][]string) []place {
	root := &branch{}
	for _, p := range paths {
		b := root
		for _, name := range p {
			next := b.below[name]
			if next == nil {
				next = &branch{}
				if b.below == nil {
					b.below = make(map[string]*branch)
				}
				b.below[name] = next
			}
			b = next
		}
	}
	l := locator{in: jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))}
	l.value(root, -1)
	places := make([]place, len(paths))
	for i, p := range paths {
		b := root
		for _, name := range p {
			next := b.below[name]
			if !next.found {
				break
			}
			b = next
		}
		places[i] = b.place
	}
	return places
}

type locator struct {
	in  *jsontext.Decoder
	nth int
}

// value reads one value; name is where the name of a member starts, -1 when it is not a member. It reports whether
// reading can go on.
func (l *locator) value(b *branch, name int64) bool {
	p := place{start: name, end: l.in.InputOffset(), nth: l.nth}
	l.nth++
	kind := l.in.PeekKind()
	if kind != '{' && kind != '[' {
		raw, err := l.in.ReadValue()
		if err != nil {
			return false
		}
		p.end = l.in.InputOffset()
		if name < 0 {
			p.start = p.end - int64(len(raw))
		}
		b.find(p)
		return true
	}
	if _, err := l.in.ReadToken(); err != nil {
		return false
	}
	if name < 0 {
		p.end = l.in.InputOffset()
		p.start = p.end - 1
	}
	b.find(p)
	for i := 0; l.in.PeekKind() != kind+2; i++ { // in ASCII a closing bracket is two after its opening one
		var below *branch
		start := int64(-1)
		if kind == '[' {
			below = b.element(i)
		} else {
			raw, err := l.in.ReadValue()
			if err != nil {
				return false
			}
			start = l.in.InputOffset() - int64(len(raw))
			below = b.member(raw)
		}
		if !l.value(below, start) {
			return false
		}
	}
	_, err := l.in.ReadToken()
	return err == nil
}

// A sourceText is the text of a source, with the start of each line.
type sourceText struct {
	name  string
	data  []byte
	lines []int
}

func newText(name string, data []byte) *sourceText {
	t := &sourceText{name: name, data: data, lines: []int{0}}
	for at := 0; ; {
		i := bytes.IndexByte(data[at:], '\n')
		if i < 0 {
			return t
		}
		at += i + 1
		t.lines = append(t.lines, at)
	}
}

// pos returns the position of a byte.
func (t *sourceText) pos(offset int64) Pos {
	at := int(min(max(offset, 0), int64(len(t.data))))
	line, exact := slices.BinarySearchFunc(t.lines, at, cmp.Compare[int])
	if exact {
		line++
	}
	return Pos{Line: line, Column: at - t.lines[line-1] + 1, Byte: at}
}

// offset is the inverse of pos.
func (t *sourceText) offset(line, column int) int64 {
	if line < 1 || line > len(t.lines) {
		return 0
	}
	return int64(t.lines[line-1] + max(column, 1) - 1)
}

// mark returns the range from start to end and the line on which it starts. A range of several lines ends with its first.
func (t *sourceText) mark(start, end int64) (*Range, string) {
	from := t.pos(start)
	line := t.line(from.Line)
	to := t.pos(min(max(end, start), int64(t.lines[from.Line-1]+len(line))))
	return &Range{Filename: t.name, Start: from, End: to}, snippet(line, from.Column)
}

// line returns a line, counted from 1, without its end; nil when there is no such line.
func (t *sourceText) line(n int) []byte {
	if n < 1 || n > len(t.lines) {
		return nil
	}
	line := t.data[t.lines[n-1]:]
	if i := bytes.IndexByte(line, '\n'); i >= 0 {
		line = line[:i]
	}
	return bytes.TrimSuffix(line, []byte("\r"))
}

// snippetSize limits how much of a line is shown: a whole site may be one line.
const snippetSize = 160

// snippet prepares a line for display: short, and without control characters that a terminal would obey.
func snippet(line []byte, column int) string {
	head := ""
	if len(line) > snippetSize && column-1 > snippetSize/2 {
		head, line = message.Cut, line[min(column-1, len(line)):]
	}
	tail := ""
	if len(line) > snippetSize {
		line, tail = line[:snippetSize], message.Cut
	}
	return head + message.Printable(string(line)) + tail
}
