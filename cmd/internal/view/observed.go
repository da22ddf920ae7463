package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/survey"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// widest is how many characters of a value a table shows.
const widest = 40

// ObservedText shows what was observed at some places: a table for each, with as many of the fields of its kind as fit. Site is nil
// when there is none yet.
func ObservedText(site *schema.Site, places []schema.Place, items []survey.Item, unknown []plan.Unknown, kinds schema.Kinds, s Style, l PlanLayout) string {
	t := planText{Style: s, PlanLayout: l, kinds: kinds}
	managed := 0
	for _, i := range items {
		if !i.Ref.IsZero() {
			managed++
		}
	}
	name := ""
	if site != nil {
		name = "site " + clean(site.Name)
	}
	what := count(len(items), "object") + "."
	if len(items) > 0 {
		what = fmt.Sprintf("%s, %d of them managed.", count(len(items), "object"), managed)
	}
	t.line("%s  %s", t.paint(bold, what), t.paint(dim, name))
	slices.SortStableFunc(items, func(a, b survey.Item) int {
		return cmp.Or(schema.Place{Scope: a.Scope, Kind: a.Kind}.Compare(schema.Place{Scope: b.Scope, Kind: b.Kind}), strings.Compare(itemName(&a), itemName(&b)))
	})
	for len(items) > 0 {
		at := schema.Place{Scope: items[0].Scope, Kind: items[0].Kind}
		n := slices.IndexFunc(items, func(i survey.Item) bool { return i.Scope != at.Scope || i.Kind != at.Kind })
		if n < 0 {
			n = len(items)
		}
		t.line("")
		t.line("%s  %s", t.paint(bold, clean(at.String())), t.paint(dim, fmt.Sprint(n)))
		t.tabulate(kinds[at.Kind], items[:n])
		places = slices.DeleteFunc(places, func(p schema.Place) bool { return p == at })
		items = items[n:]
	}
	if len(places) > 0 {
		slices.SortFunc(places, schema.Place.Compare)
		t.head("Nothing of:")
		for _, at := range places {
			t.line("  %s", clean(at.String()))
		}
	}
	t.places("Unknown, so nothing can be said about it:", unknown)
	return t.b.String()
}

// tabulate shows the items of a place.
func (t *planText) tabulate(k *schema.Kind, items []survey.Item) {
	// Of what can only be observed, the observed fields are all that there is, and none of it is managed.
	fact := k.Reference()
	shown := func(i survey.Item) schema.Object {
		if fact {
			return i.Status
		}
		return i.Spec
	}
	rows := [][]string{{"NAME"}}
	if !fact {
		rows[0] = append(rows[0], "MANAGED")
	}
	unready := slices.ContainsFunc(items, func(i survey.Item) bool { return i.State != providers.Ready || i.Detail != "" })
	if unready {
		rows[0] = append(rows[0], "STATE")
	}
	for _, i := range items {
		row := []string{clean(itemName(&i))}
		if !fact {
			row = append(row, managedAs(&i))
		}
		if unready {
			row = append(row, t.tell(clean(strings.TrimSuffix(string(i.State)+": "+i.Detail, ": "))))
		}
		rows = append(rows, row)
	}
	hidden := 0
	for i := range k.Fields {
		f := &k.Fields[i]
		says := func(it survey.Item) bool { v := shown(it)[f.Name]; return dense(v) != nil && !alike(v, f.Default) }
		switch {
		case f.Secret:
			continue
		case !t.Full && !slices.ContainsFunc(items, says):
			if slices.ContainsFunc(items, func(it survey.Item) bool { return shown(it)[f.Name] != nil }) {
				hidden++
			}
			continue
		}
		column := []string{strings.ToUpper(f.Name)}
		for _, it := range items {
			column = append(column, t.tell(brief(f, shown(it)[f.Name])))
		}
		if !t.Full && wide(rows)+wide([][]string{{longestOf(column)}}) > t.Style.width() {
			hidden++
			continue
		}
		for r := range rows {
			rows[r] = append(rows[r], column[r])
		}
	}
	for line := range strings.Lines(table(t.Style, rows)) {
		t.b.WriteString("  " + line)
	}
	if hidden > 0 {
		t.line("  %s", t.paint(dim, "… "+count(hidden, "more field")+" (show: -full)"))
	}
}

// tell cuts a value that makes a table hard to read.
func (t *planText) tell(text string) string {
	if t.Full {
		return text
	}
	return cut(text, widest)
}

// itemName returns the name under which people know an item.
func itemName(i *survey.Item) string { return cmp.Or(i.Name, i.ID) }

// managedAs says whose an item is.
func managedAs(i *survey.Item) string {
	switch {
	case !i.Ref.IsZero() && i.Ref.Name == itemName(i):
		return "yes"
	case !i.Ref.IsZero():
		return "as " + clean(i.Ref.Name)
	case i.Site != "":
		return "site " + cut(clean(i.Site), 9)
	}
	return "no"
}

// dense returns a value without what is empty in it; nil when nothing is left.
func dense(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, e := range v {
			if e = dense(e); e != nil {
				out[name] = e
			}
		}
		if len(out) > 0 {
			return out
		}
		return nil
	case []any:
		if len(v) == 0 {
			return nil
		}
	case string:
		if v == "" {
			return nil
		}
	}
	return v
}

// brief returns a value in few words: of a list, what identifies its elements.
func brief(f *schema.Field, v any) string {
	switch v := dense(v).(type) {
	case nil:
		return "-"
	case string:
		return clean(v)
	case []any:
		parts := make([]string, len(v))
		for i, e := range v {
			if m, ok := e.(map[string]any); ok && f.Key != "" {
				e = m[f.Key]
			}
			parts[i] = brief(f.Elem, e)
		}
		return strings.Join(parts, ",")
	case map[string]any:
		text, _ := inline(v, "")
		return text
	}
	return clean(encoded(v))
}

// wide returns the width of a table with room for the next column.
func wide(rows [][]string) int {
	n := 0
	for i := range rows[0] {
		w := 0
		for _, r := range rows {
			w = max(w, utf8.RuneCountInString(r[i]))
		}
		n += w + 2
	}
	return n
}

func longestOf(texts []string) string {
	return slices.MaxFunc(texts, func(a, b string) int { return utf8.RuneCountInString(a) - utf8.RuneCountInString(b) })
}

// MaskChange returns a change without the values of secret fields.
func MaskChange(c survey.Change, kinds schema.Kinds) survey.Change {
	k := kinds[c.Kind]
	if c.Item != nil {
		i := MaskItem(*c.Item, k)
		c.Item = &i
	}
	c.Fields = concealAll(k, c.Fields)
	return c
}

// ChangeText shows what changed, and when it was noticed.
func ChangeText(at time.Time, c survey.Change, kinds schema.Kinds, s Style, l PlanLayout) string {
	t := planText{Style: s, PlanLayout: l, kinds: kinds}
	place := clean(schema.Place{Scope: c.Scope, Kind: c.Kind}.String())
	when := t.paint(dim, at.Format(time.TimeOnly)) + "  "
	switch c.Sort {
	case survey.Lost:
		t.line("%s%s %s  unknown: %s", when, t.paint(yellow, "?"), place, clean(c.Error))
		return t.b.String()
	case survey.Found:
		t.line("%s  %s  observed again", when, place)
		return t.b.String()
	}
	m := map[survey.Sort]mark{survey.Added: added, survey.Removed: removed, survey.Changed: changed}[c.Sort]
	note := managedAs(c.Item)
	switch note {
	case "yes":
		note = "managed"
	case "no":
		note = "not managed"
	}
	if c.Item.State != providers.Ready || c.Item.Detail != "" {
		note += ", " + strings.TrimSuffix(string(c.Item.State)+": "+c.Item.Detail, ": ")
	}
	if c.Sort == survey.Changed && len(c.Fields) == 0 {
		note += ", its status"
	}
	t.line("%s%s %s/%s  %s", when, t.paint(m.color, m.sign), place, clean(itemName(c.Item)), t.paint(dim, clean(note)))
	t.changes(c.Kind, c.Fields, nil, c.Item.Spec, false)
	return t.b.String()
}

// AtText is shown before a report that is followed by others.
func AtText(now time.Time, first bool, s Style) string {
	text := s.paint(dim, now.Format(time.TimeOnly)) + "\n"
	if first {
		return text
	}
	return "\n" + text
}
