package view_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/survey"
)

// What an import left out is named, so that it can be found; of many with one reason, the first.
func TestLeftoversText(t *testing.T) {
	var left []survey.Leftover
	for i := range 7 {
		left = append(left, survey.Leftover{Unmanaged: plan.Unmanaged{Scope: "n1", Kind: "ovs.port", ID: fmt.Sprintf("vnet%d", i), Name: fmt.Sprintf("vnet%d", i)}, Reason: "it goes"})
	}
	left = append(left, survey.Leftover{Unmanaged: plan.Unmanaged{Scope: "n1", Kind: "ovs.port", ID: "p"}, Reason: "it has failed"})
	want := `
Left out:
     7 × n1/ovs.port  vnet0, vnet1, vnet2, vnet3, vnet4 and 2 more: it goes
     1 × n1/ovs.port  p: it has failed
`
	if d := cmp.Diff(want, view.LeftoversText(left, nil, nil)); d != "" {
		t.Errorf("(-want +is):\n%s", d)
	}
}
