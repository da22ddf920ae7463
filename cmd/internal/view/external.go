package view

import (
	"fmt"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/schema"
)

// externals lists what the plan refers to and never changes, and which of that was not checked.
func (t *planText) externals(list []plan.External) {
	if len(list) == 0 {
		return
	}
	t.head("External (referred to, never changed):")
	for _, x := range list {
		text := "   " + clean(x.Ref.String())
		if x.ID != x.Ref.Name {
			text += "  id " + clean(x.ID)
		}
		if x.Unchecked != "" {
			text += "  " + t.paint(yellow, "not checked: "+clean(x.Unchecked))
		}
		t.line("%s", text)
	}
}

// Resources counts the resources of a document, and what it only refers to.
func Resources(d *schema.Document) string {
	external := 0
	for i := range d.Resources {
		if d.Resources[i].External != nil {
			external++
		}
	}
	text := count(len(d.Resources)-external, "resource")
	if external > 0 {
		text += fmt.Sprintf(", %d external", external)
	}
	return text
}
