package engine_test

import (
	"strings"
	"testing"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/enginetest"
)

// What can only grow is not lowered, unless the object is made anew.
func TestGrows(t *testing.T) {
	const guard = "site/far.guard/g"
	for name, c := range map[string]struct {
		spec    string
		replace []string
		refused bool
	}{
		"larger":             {spec: `{"size":4}`},
		"as it is":           {spec: `{"size":3,"labels":{"a":"b"}}`},
		"not stated":         {spec: `{}`},
		"smaller":            {spec: `{"size":2}`, refused: true},
		"smaller, made anew": {spec: `{"size":2}`, replace: []string{guard}},
	} {
		t.Run(name, func(t *testing.T) {
			s := enginetest.New()
			s.Kinds["far.guard"].Field("size").Grows = true
			s.Converge(t, s.Document(t, map[string]string{guard: `{"size":3}`}))
			p := s.Plan(t, s.Document(t, map[string]string{guard: c.spec}), plan.Options{Replace: c.replace})
			if refused := len(p.Refusals) > 0; refused != c.refused || refused && (len(p.Steps) > 0 || !strings.Contains(p.Refusals[0].Reason, "size can only grow: it is 3, and the document says 2")) {
				t.Error(enginetest.Text(p))
			}
		})
	}
}
