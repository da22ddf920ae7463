package view

import (
	"fmt"
	"strings"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/plan"
)

// A cause is one reason why places could not be observed, with all that it hides.
type cause struct {
	error  string
	places []string
}

// causes returns each reason once: a server that does not answer hides all its kinds.
func causes(unknown []plan.Unknown) []cause {
	var list []cause
	at := map[string]int{}
	for _, u := range unknown {
		why := reason(u.Kind, u.Error)
		i, known := at[why]
		if !known {
			i = len(list)
			at[why] = i
			list = append(list, cause{error: why})
		}
		list[i].places = append(list[i].places, u.Scope+"/"+u.Kind)
	}
	return list
}

// reason returns the text of an error without the kind that it is about.
func reason(kind, text string) string { return strings.TrimPrefix(text, "observe "+kind+": ") }

// places shows what could not be observed, cause by cause.
func (t *planText) places(head string, places []plan.Unknown) {
	if len(places) == 0 {
		return
	}
	t.head("%s", head)
	list := causes(places)
	for i, c := range list {
		if t.more(i, len(list)) {
			break
		}
		where := strings.Join(c.places, ", ")
		if t.Summary && len(c.places) > 1 {
			where = count(len(c.places), "kind")
		}
		if len(c.places) == 1 {
			t.item(yellow, "?", span{text: clean(where) + "  " + clean(c.error)})
			continue
		}
		t.item(yellow, "?", span{text: clean(c.error)})
		t.words(margin, margin, span{text: clean(where), color: dim})
	}
}

// omitted shows what is left out, and why.
func (t *planText) omitted(list []plan.Omission) {
	if len(list) == 0 {
		return
	}
	t.head("Skipped:")
	for i, o := range list {
		if t.more(i, len(list)) {
			break
		}
		t.item(yellow, "?", span{text: clean(o.Ref.String()) + "  " + clean(o.Reason)})
	}
}

// explainUnknown returns what could not be observed and what is left out, and what to do about it.
func explainUnknown(e *engine.UnknownError) *Problem {
	p := &Problem{What: "part of the site could not be observed", Fix: goOn(e.Unknown), Err: e}
	if len(e.Unknown) == 0 {
		p.What = "the server does not support part of the document"
	}
	var lines []string
	for _, c := range causes(e.Unknown) {
		if len(c.places) == 1 {
			lines = append(lines, c.places[0]+" is unknown: "+c.error)
			continue
		}
		lines = append(lines, c.error, "  unknown: "+strings.Join(c.places, ", "))
	}
	const shown = 20
	for _, o := range e.Omitted[:min(len(e.Omitted), shown)] {
		lines = append(lines, fmt.Sprintf("%s is skipped: %s", o.Ref, o.Reason))
	}
	if more := len(e.Omitted) - shown; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more; converge plan shows all", more))
	}
	p.Where = strings.Join(lines, "\n")
	return p
}
