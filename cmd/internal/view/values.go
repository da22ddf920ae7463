package view

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"converge.dev/converge/engine/diff"
	"converge.dev/converge/schema"
)

// Values are laid out as in a document: one field per line, with nested ones indented below it, in YAML's notation. A
// column in front says what happens to each line, as in a diff: + is added, - is removed, ~ is changed; a line without a
// mark stays and is context.

// A mark says what happens to a line.
type mark struct{ sign, color string }

var (
	added   = mark{"+", green}
	removed = mark{"-", red}
	changed = mark{"~", yellow}
	same    = mark{" ", dim}
)

const (
	margin  = 7   // where the text of a value begins; its mark is two columns before
	longest = 200 // how many characters of a text are shown unless all of it is requested
	tallest = 48  // how many lines of one value
	inlined = 72  // maximum width of a struct or list on one line
)

// A slot is the place where a value is shown: the field of a struct, the key of a map, or an element of a list.
type slot struct {
	depth int
	dash  bool   // the text begins with the dash of a list: an element, or its first field
	name  string // empty for an element
	field *schema.Field
}

// lead returns what is shown before the value.
func (s slot) lead() string {
	text := ""
	if s.dash {
		text = "-"
	}
	if s.name != "" {
		text = strings.TrimSpace(text + " " + key(s.name) + ":")
	}
	return text
}

// below returns the depth of what is nested in the value.
func (s slot) below() int {
	if s.dash && s.name != "" {
		return s.depth + 2
	}
	return s.depth + 1
}

// of returns the slots of the fields of a struct or map, the identifying one first.
func (s slot) of(m map[string]any, id string) []slot {
	names := slices.Sorted(maps.Keys(m))
	slices.SortStableFunc(names, func(a, b string) int {
		switch {
		case a == b:
			return 0
		case a == id:
			return -1
		case b == id:
			return 1
		}
		return 0
	})
	slots := make([]slot, len(names))
	for i, n := range names {
		slots[i] = slot{depth: s.below(), name: n, field: inside(s.field, n)}
	}
	return slots
}

// element returns the slot of an element of the list in this slot.
func (s slot) element() slot {
	e := slot{depth: s.below(), dash: true}
	if s.field != nil {
		e.field = s.field.Elem
	}
	return e
}

// inside returns the field of a name in a struct or map; nil when it is unknown.
func inside(f *schema.Field, name string) *schema.Field {
	switch {
	case f == nil:
		return nil
	case f.Type == schema.Struct:
		return f.Field(name)
	}
	return f.Elem
}

// keyOf returns the field that identifies the elements of a list; empty when that is their position.
func keyOf(f *schema.Field) string {
	if f == nil {
		return ""
	}
	return f.Key
}

// put writes one line of a value. What does not fit continues below, further right.
func (t *planText) put(m mark, s slot, spans ...span) {
	lead := strings.Repeat(" ", margin-2) + t.paint(m.color, m.sign) + " " + strings.Repeat(" ", 2*s.depth)
	col := margin + 2*s.depth
	hang := col + 2
	if s.dash {
		hang += 2
	}
	t.b.WriteString(lead + t.flow(col, hang, spans) + "\n")
}

// fits reports whether text fits after its lead.
func (t *planText) fits(s slot, text string) bool {
	return margin+2*s.depth+utf8.RuneCountInString(s.lead())+1+utf8.RuneCountInString(text) <= t.width()
}

// lay shows a whole value.
func (t *planText) lay(m mark, s slot, id string, v any, tail ...span) {
	color := m.color
	if m == same {
		color = ""
	}
	text, ok := inline(v, id)
	if ok && (t.fits(s, text) || !nested(v)) {
		spans := []span{{text: s.lead() + " "}, {text: t.short(text), color: color, value: true}}
		t.put(m, s, append(spans, tail...)...)
		return
	}
	switch v := v.(type) {
	case string: // of several lines
		t.put(m, s, append([]span{{text: s.lead() + " |"}}, tail...)...)
		for _, l := range textLines(v) {
			t.put(m, slot{depth: s.below()}, span{text: t.short(clean(l)), color: color, value: true})
		}
	case map[string]any:
		slots := s.of(v, id)
		if s.name == "" && s.dash { // the first field shares the line with the dash
			for i := range slots {
				slots[i].depth = s.depth + 1
			}
			slots[0].depth, slots[0].dash = s.depth, true
		} else {
			t.put(m, s, append([]span{{text: s.lead()}}, tail...)...)
		}
		for i, c := range slots {
			var with []span
			if i == 0 && s.name == "" && s.dash {
				with = tail
			}
			t.lay(m, c, keyOf(c.field), v[c.name], with...)
		}
	case []any:
		t.put(m, s, append([]span{{text: s.lead()}}, tail...)...)
		for _, e := range v {
			t.lay(m, s.element(), keyOf(s.field), e)
		}
	}
}

// alter shows what a value was and what it becomes. Nil means absent.
func (t *planText) alter(s slot, id string, before, after any, tail ...span) {
	if before == nil || after == nil {
		m, v := added, after
		if after == nil {
			m, v = removed, before
		}
		if v == nil {
			m = changed
		}
		t.lay(m, s, id, v, tail...)
		return
	}
	switch b := before.(type) {
	case map[string]any:
		if a, ok := after.(map[string]any); ok {
			t.put(same, s, append([]span{{text: s.lead()}}, tail...)...)
			all := maps.Clone(b)
			maps.Copy(all, a)
			for _, c := range s.of(all, id) {
				if !alike(b[c.name], a[c.name]) {
					t.alter(c, keyOf(c.field), b[c.name], a[c.name])
				}
			}
			return
		}
	case []any:
		if a, ok := after.([]any); ok {
			t.put(same, s, append([]span{{text: s.lead()}}, tail...)...)
			t.edits(edits(b, a, s.field != nil && (s.field.Set || s.field.Key != "")), s.element(), func(m mark, v any) {
				t.lay(m, s.element(), keyOf(s.field), v)
			})
			return
		}
	case string:
		if a, ok := after.(string); ok && strings.Contains(b+a, "\n") {
			t.put(same, s, append([]span{{text: s.lead() + " |"}}, tail...)...)
			in := slot{depth: s.below()}
			t.edits(edits(lineList(b), lineList(a), false), in, func(m mark, v any) {
				color := m.color
				t.put(m, in, span{text: t.short(clean(v.(string))), color: color, value: true})
			})
			return
		}
	}
	old, okOld := inline(before, id)
	anew, okNew := inline(after, id)
	if !okOld || !okNew {
		t.lay(removed, s, id, before)
		t.lay(added, s, id, after, tail...)
		return
	}
	lead := span{text: s.lead() + " "}
	was, is := span{text: t.short(old), color: red, value: true}, span{text: t.short(anew), color: green, value: true}
	if t.fits(s, old+" → "+anew) {
		t.put(changed, s, append([]span{lead, was, {text: " → "}, is}, tail...)...)
		return
	}
	t.put(changed, s, lead, was)
	col := margin + 2*s.depth + min(max(utf8.RuneCountInString(lead.text)-2, 0), t.width()/3) // the values are aligned below one another
	t.b.WriteString(strings.Repeat(" ", col) + t.flow(col, col+2, append([]span{{text: "→ "}, is}, tail...)) + "\n")
}

// An edit is an element of one of two lists, and what happens to it.
type edit struct {
	mark  mark
	value any
}

// edits returns what leads from one list to another: as little as possible where order matters.
func edits(before, after []any, unordered bool) []edit {
	texts := func(l []any) []string {
		out := make([]string, len(l))
		for i, v := range l {
			out[i] = encoded(v)
		}
		return out
	}
	b, a := texts(before), texts(after)
	var out []edit
	if unordered {
		left := map[string]int{}
		for _, x := range a {
			left[x]++
		}
		for i, x := range b {
			m := removed
			if left[x] > 0 {
				left[x]--
				m = same
			}
			out = append(out, edit{m, before[i]})
		}
		for i, x := range a {
			if left[x] > 0 {
				left[x]--
				out = append(out, edit{added, after[i]})
			}
		}
		return out
	}
	start := 0
	for start < min(len(b), len(a)) && b[start] == a[start] {
		start++
	}
	end := 0
	for end < min(len(b), len(a))-start && b[len(b)-1-end] == a[len(a)-1-end] {
		end++
	}
	for _, v := range before[:start] {
		out = append(out, edit{same, v})
	}
	out = append(out, longestCommon(before[start:len(b)-end], after[start:len(a)-end], b[start:len(b)-end], a[start:len(a)-end])...)
	for _, v := range before[len(b)-end:] {
		out = append(out, edit{same, v})
	}
	return out
}

// longestCommon keeps the longest common subsequence of two lists; nothing of very long ones, which nobody would read.
func longestCommon(before, after []any, b, a []string) []edit {
	const most = 1 << 20
	kept := make([][]int, len(b)+1) // the length of the common subsequence from here on
	if len(b)*len(a) <= most {
		for i := range kept {
			kept[i] = make([]int, len(a)+1)
		}
		for i := len(b) - 1; i >= 0; i-- {
			for j := len(a) - 1; j >= 0; j-- {
				if kept[i][j] = max(kept[i+1][j], kept[i][j+1]); b[i] == a[j] {
					kept[i][j] = kept[i+1][j+1] + 1
				}
			}
		}
	}
	var out []edit
	i, j := 0, 0
	for i < len(b) || j < len(a) {
		switch {
		case i < len(b) && j < len(a) && kept[i] != nil && b[i] == a[j]:
			out = append(out, edit{same, before[i]})
			i, j = i+1, j+1
		case i < len(b) && (j == len(a) || kept[i] == nil || kept[i+1][j] >= kept[i][j+1]):
			out = append(out, edit{removed, before[i]})
			i++
		default:
			out = append(out, edit{added, after[j]})
			j++
		}
	}
	return out
}

// edits shows the changes of a list, with only the adjacent unchanged elements.
func (t *planText) edits(es []edit, at slot, show func(mark, any)) {
	hidden := 0
	flush := func() {
		if hidden > 0 {
			t.unchanged(at, hidden)
		}
		hidden = 0
	}
	for i, e := range es {
		near := i > 0 && es[i-1].mark != same || i+1 < len(es) && es[i+1].mark != same
		if e.mark == same && !near {
			hidden++
			continue
		}
		flush()
		show(e.mark, e.value)
	}
	flush()
}

// unchanged shows how many unchanged elements are left out.
func (t *planText) unchanged(at slot, n int) {
	t.put(same, slot{depth: at.depth}, span{text: fmt.Sprintf("# %d unchanged", n), color: dim})
}

// A branch is a part of a resource in which something changes.
type branch struct {
	slot   slot
	index  string // of an element of a list: its key or its position
	change *diff.Change
	under  []*branch
}

// tree arranges changes as the fields are nested in the document.
func tree(k *schema.Kind, changes []diff.Change) []*branch {
	root := &branch{slot: slot{depth: -1}}
	if k != nil {
		root.slot.field = &schema.Field{Type: schema.Struct, Fields: k.Fields}
	}
	for i := range changes {
		at := root
		for rest := changes[i].Path; rest != ""; {
			b := &branch{}
			b.slot, b.index, rest = descend(at.slot, rest)
			j := slices.IndexFunc(at.under, func(o *branch) bool { return o.slot.name == b.slot.name && o.index == b.index })
			if j < 0 {
				j = len(at.under)
				at.under = append(at.under, b)
			}
			at = at.under[j]
		}
		at.change = &changes[i]
	}
	return root.under
}

// descend takes the first part off a path.
func descend(in slot, path string) (s slot, index, rest string) {
	f := in.field
	if path[0] == '[' {
		index, rest, _ = strings.Cut(path[1:], "]")
		return in.element(), index, strings.TrimPrefix(rest, ".")
	}
	name := path
	i := strings.IndexAny(path, ".[")
	whole := f == nil && in.depth >= 0 || f != nil && f.Type == schema.Map && (f.Elem == nil || len(f.Elem.Fields) == 0 && f.Elem.Elem == nil)
	if i > 0 && !whole { // the key of a map may contain any character
		name, rest = path[:i], strings.TrimPrefix(path[i:], ".")
	}
	return slot{depth: in.below(), name: name, field: inside(f, name)}, "", rest
}

// branches shows what changes, within its surroundings. Before and after are the values around it, where they are known.
func (t *planText) branches(list []*branch, id string, before, after any, replace bool) {
	gone := 0
	for _, b := range list {
		was, is := within(before, b, id), within(after, b, id)
		if b.change != nil {
			if b.change.After == nil {
				gone++
			}
			t.leaf(b, id, replace)
		}
		if len(b.under) == 0 {
			continue
		}
		if b.change == nil {
			t.around(b, id, is)
		}
		t.branches(b.under, keyOf(b.slot.field), was, is, replace)
	}
	if len(list) > 0 && list[0].slot.dash {
		if all, ok := after.([]any); ok && len(all) > len(list)-gone {
			t.unchanged(list[0].slot, len(all)-(len(list)-gone))
		}
	}
}

// leaf shows a change.
func (t *planText) leaf(b *branch, id string, replace bool) {
	c := b.change
	var tail []span
	switch {
	case c.Replaces && replace:
		tail = []span{{text: "  # forces replacement", color: red}}
	case c.Disruption != "" && !replace:
		tail = []span{{text: "  # " + disrupts(c.Disruption), color: yellow}}
	}
	if !c.Secret {
		t.alter(b.slot, id, c.Before, c.After, tail...)
		return
	}
	m := changed
	switch {
	case c.Before == nil:
		m = added
	case c.After == nil:
		m = removed
	}
	t.put(m, b.slot, append([]span{{text: b.slot.lead() + " (sensitive value)"}}, tail...)...)
}

// around shows the beginning of something that stays and in which something changes.
func (t *planText) around(b *branch, id string, is any) {
	if !b.slot.dash {
		t.put(same, b.slot, span{text: b.slot.lead()})
		return
	}
	name, v := id, any(b.index)
	m, _ := is.(map[string]any)
	if known, ok := m[name]; ok {
		v = known
	}
	if name == "" { // an element that is identified by its position shows what stays in it
		for _, s := range b.slot.of(m, "") {
			if !nested(m[s.name]) && !slices.ContainsFunc(b.under, func(u *branch) bool { return u.slot.name == s.name }) {
				name, v = s.name, m[s.name]
				break
			}
		}
	}
	if name == "" {
		t.put(same, b.slot, span{text: "- "}, span{text: "# [" + clean(b.index) + "]", color: dim})
	} else {
		t.lay(same, slot{depth: b.slot.depth, dash: true, name: name}, "", v)
	}
}

// within returns the part of a value that a branch is about; nil when it is absent or unknown.
func within(v any, b *branch, id string) any {
	switch v := v.(type) {
	case map[string]any:
		return v[b.slot.name]
	case []any:
		for _, e := range v {
			if m, ok := e.(map[string]any); id != "" && ok && fmt.Sprint(m[id]) == b.index {
				return e
			}
		}
		if i, err := strconv.Atoi(b.index); err == nil && 0 <= i && i < len(v) { // what refers to others is given by its position
			return v[i]
		}
	}
	return nil
}

// whole shows a value completely, or as much of it as is readable, with how much is not shown.
func (t *planText) whole(show func()) {
	from, cuts := t.b.Len(), t.cuts
	show()
	text := t.b.Bytes()[from:]
	n := bytes.Count(text, []byte("\n"))
	if t.Full || n <= tallest {
		return
	}
	keep := 0
	for range tallest - 4 {
		keep += bytes.IndexByte(text[keep:], '\n') + 1
	}
	t.b.Truncate(from + keep)
	t.cuts = cuts + 1
	t.put(same, slot{}, span{text: fmt.Sprintf("… %d more lines", n-(tallest-4)), color: dim})
}

// short cuts text that is too long to read.
func (t *planText) short(text string) string {
	if t.Full || utf8.RuneCountInString(text) <= longest {
		return text
	}
	t.cuts++
	text = cut(text, longest)
	if i := strings.LastIndexByte(text, ' '); i > len(text)-opaque { // not within a readable word
		text = text[:i] + " …"
	}
	return text
}

// inline returns a value on one line, in a form that both YAML and CUE read; ok is false for a value that is better laid out.
func inline(v any, id string) (text string, ok bool) {
	switch v := v.(type) {
	case nil:
		return "(none)", true
	case string:
		return strconv.Quote(v), !strings.Contains(strings.TrimRight(v, "\n"), "\n")
	case map[string]any:
		var parts []string
		for _, s := range (slot{}).of(v, id) {
			text, _ := inline(v[s.name], "")
			parts = append(parts, key(s.name)+": "+text)
			ok = ok || nested(v[s.name])
		}
		text = "{" + strings.Join(parts, ", ") + "}"
	case []any:
		var parts []string
		for _, e := range v {
			text, _ := inline(e, "")
			parts = append(parts, text)
			ok = ok || nested(e)
		}
		text = "[" + strings.Join(parts, ", ") + "]"
	default:
		return clean(encoded(v)), true
	}
	return text, !ok && utf8.RuneCountInString(text) <= inlined
}

// nested reports whether a value contains values.
func nested(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) > 0
	case []any:
		return len(v) > 0
	case string:
		return strings.Contains(strings.TrimRight(v, "\n"), "\n")
	}
	return false
}

// key shows the name of a field; one with unusual characters is quoted.
func key(name string) string {
	if name == "" || strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./", r))
	}) {
		return strconv.Quote(name)
	}
	return name
}

// encoded returns a value as JSON.
func encoded(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "(not JSON: " + err.Error() + ")"
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func alike(a, b any) bool { return (a == nil) == (b == nil) && encoded(a) == encoded(b) }

// textLines returns the lines of a text.
func textLines(s string) []string { return strings.Split(strings.TrimSuffix(s, "\n"), "\n") }

func lineList(s string) (list []any) {
	for _, l := range textLines(s) {
		list = append(list, l)
	}
	return list
}
