package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
)

// totalRows is how many rows the numbers of a plan may have, so that they fit on one screen.
const totalRows = 12

// A total counts the steps of a group by their sign. A replacement counts once.
type total struct {
	group []string
	signs map[string]int
	steps int
}

// totals shows a plan in numbers.
func (t *planText) totals(p *plan.Plan) {
	if p.Empty() && len(p.Drift) == 0 {
		return
	}
	if !p.Empty() {
		t.counts(p)
	}
	interrupted := map[string]int{}
	for i := range p.Steps {
		if d := p.Steps[i].Disruption; d != "" && !(p.Steps[i].Replace && p.Steps[i].Action == plan.Delete) { // both halves say so
			interrupted[d]++
		}
	}
	var parts []string
	restarts := interrupted[schema.NeedsRestart]
	delete(interrupted, schema.NeedsRestart)
	for _, d := range slices.Sorted(maps.Keys(interrupted)) {
		parts = append(parts, fmt.Sprintf("%s (%s)", clean(d), count(interrupted[d], "step")))
	}
	first := true
	note := func(head, text string) {
		if first {
			t.line("")
			first = false
		}
		t.words(0, 2, span{text: head + ": ", color: bold}, span{text: text})
	}
	if len(parts) > 0 {
		note("Interrupts", strings.Join(parts, ", "))
	}
	if restarts > 0 {
		note("Needs a restart", count(restarts, "step"))
	}
	if n := len(p.Drift); n > 0 {
		note("Changed outside converge since the last run", count(n, "resource"))
	}
}

// counts shows how many steps of each sort there are in each group.
func (t *planText) counts(p *plan.Plan) {
	head := []string{"SCOPE", "KIND"}
	group := func(s *plan.Step) []string { return []string{s.Ref.Scope, s.Ref.Kind} }
	if t.Group != "" {
		head = []string{strings.ToUpper(string(t.Group))}
		group = func(s *plan.Step) []string { return []string{t.Group.of(s)} }
	}
	rows := totalsOf(p, group)
	if len(rows) > totalRows && t.Group == "" { // the nodes are alike
		nodes := map[string]bool{}
		for _, r := range rows {
			if r.group[0] != schema.ScopeSite {
				nodes[r.group[0]] = true
			}
		}
		rows = totalsOf(p, func(s *plan.Step) []string {
			if s.Ref.Scope != schema.ScopeSite && len(nodes) > 1 {
				return []string{count(len(nodes), "node"), s.Ref.Kind}
			}
			return group(s)
		})
	}
	if len(rows) > totalRows { // the largest, with the rest in one row
		slices.SortStableFunc(rows, func(a, b *total) int { return cmp.Compare(b.steps, a.steps) })
		rest := &total{group: slices.Repeat([]string{""}, len(head)), signs: map[string]int{}}
		rest.group[0] = fmt.Sprintf("%d more", len(rows)-totalRows+1)
		for _, r := range rows[totalRows-1:] {
			for sign, n := range r.signs {
				rest.signs[sign] += n
			}
		}
		rows = append(rows[:totalRows-1], rest)
	}
	all := &total{group: slices.Repeat([]string{""}, len(head)), signs: map[string]int{}}
	all.group[0] = "all"
	for _, r := range rows {
		for sign, n := range r.signs {
			all.signs[sign] += n
		}
	}
	if len(rows) > 1 {
		rows = append(rows, all)
	}
	colors := map[string]string{"+": green, "~": yellow, "-": red, "-/+": purple, "=": cyan, ".": dim}
	line := func(groups []string, cell func(sign string) (text, color string)) {
		var b strings.Builder
		for i, g := range groups {
			width := len(head[i])
			for _, r := range rows {
				width = max(width, utf8.RuneCountInString(clean(r.group[i])))
			}
			b.WriteString(pad(clean(g), width) + "  ")
		}
		for _, m := range meanings {
			if all.signs[m.sign] > 0 {
				text, color := cell(m.sign)
				b.WriteString(t.paint(color, fmt.Sprintf("%*s", max(7, utf8.RuneCountInString(firstWord(m.meaning))+2), text)))
			}
		}
		t.line("%s", b.String())
	}
	line(head, func(sign string) (string, string) { return firstWord(meaning(sign)), bold })
	for _, r := range rows {
		line(r.group, func(sign string) (string, string) {
			if r.signs[sign] == 0 {
				return "·", dim
			}
			return fmt.Sprint(r.signs[sign]), colors[sign]
		})
	}
}

// firstWord returns the first word of the meaning of a sign: change for "change in place".
func firstWord(meaning string) string {
	word, _, _ := strings.Cut(meaning, " ")
	return strings.TrimSuffix(word, ":")
}

// totalsOf counts steps by group, in the order of the groups; the site comes before its nodes, as in refs.
func totalsOf(p *plan.Plan, group func(*plan.Step) []string) []*total {
	at := map[string]*total{}
	var rows []*total
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Replace && s.Action == plan.Delete && !s.Stray { // the other half counts
			continue
		}
		g := group(s)
		id := strings.Join(g, "\x00")
		if at[id] == nil {
			at[id] = &total{group: g, signs: map[string]int{}}
			rows = append(rows, at[id])
		}
		sign, _ := symbol(s)
		at[id].signs[sign]++
		at[id].steps++
	}
	slices.SortStableFunc(rows, func(a, b *total) int {
		site := func(r *total) int {
			if r.group[0] == schema.ScopeSite {
				return 0
			}
			return 1
		}
		return cmp.Or(site(a)-site(b), slices.Compare(a.group, b.group))
	})
	return rows
}
