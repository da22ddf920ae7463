package engine_test

import (
	"strings"
	"testing"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/remedy"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// After the revision with the largest serial none can be counted: a plan of another document says so before anything is done. What
// stores no revision may go on.
func TestPlanKnowsTheLastSerial(t *testing.T) {
	newest, other := map[string]string{"site/far.guard/g": `{}`}, map[string]string{"site/far.guard/g": `{"size":1}`}
	for _, c := range []struct {
		name    string
		head    int64
		doc     map[string]string
		o       plan.Options
		refused bool
	}{
		{"another document", schema.MaxSerial, other, plan.Options{}, true},
		{"another document, and one serial is left", schema.MaxSerial - 1, other, plan.Options{}, false},
		{"the newest revision itself", schema.MaxSerial, newest, plan.Options{}, false},
		{"destroy", schema.MaxSerial, other, plan.Options{Destroy: true}, false},
		{"sweep", schema.MaxSerial, other, plan.Options{Sweep: true}, false},
	} {
		s := enginetest.New()
		head := s.Document(t, newest)
		if _, err := s.Store.PutDocument(t.Context(), head.JSON, head.Digest, c.head, "test", state.AnyRevision); err != nil {
			t.Fatal(err)
		}
		p := s.Plan(t, s.Document(t, c.doc), c.o)
		switch rs := p.Refusals; {
		case !c.refused && len(rs) > 0:
			t.Errorf("%s: %+v", c.name, rs)
		case !c.refused:
		case len(rs) != 1 || rs[0].Rule != plan.RuleSerial || !strings.Contains(rs[0].Reason, "has serial 9007199254740991"):
			t.Errorf("%s: %+v", c.name, rs)
		case len(rs[0].Remedies) != 1 || len(rs[0].Remedies[0].Do) != 1 || rs[0].Remedies[0].Do[0].Verb != remedy.Rebuild:
			t.Errorf("%s: what can be done is %+v", c.name, rs[0].Remedies)
		}
	}
}
