package plan_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// comesBack fails unless a plan is the same after it was saved and read.
func comesBack(t *testing.T, p *plan.Plan) {
	t.Helper()
	saved, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	read, err := plan.Decode(saved.Data)
	if err != nil {
		t.Fatalf("%v\n%s", err, saved.Data)
	}
	if got, want := whole(t, read), whole(t, p); got != want {
		t.Errorf("it is another plan when it is read:\n%s\n%s", got, want)
	}
}

// whole returns all contents of a plan, with the address of each spec in memory.
func whole(t *testing.T, p *plan.Plan) string {
	t.Helper()
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The size of a plan depends on what it changes, not on the site. It contains each spec of a step once.
func TestSizeFollowsChange(t *testing.T) {
	size := func(n int) int {
		in := converged(t, n)
		at := schema.Place{Scope: schema.ScopeSite, Kind: "far.host"}
		for i := range n { // as many unmanaged things
			in.Observed.Things[at] = append(in.Observed.Things[at], providers.Thing{ID: fmt.Sprintf("foreign-%06d", i), Name: "foreign", Phase: providers.Ready, Spec: schema.Object{}})
		}
		in.Document.JSON = make([]byte, 100*n)
		in.Document.Resources[17].Spec = schema.Object{"labels": map[string]any{"mark": "once"}, "net": in.Document.Resources[17].Spec["net"], "size": int64(17)}
		p, err := plan.Make(in)
		if err != nil || len(p.Steps) != 1 || len(p.Unmanaged) != n {
			t.Fatal(err, len(p.Steps), len(p.Unmanaged))
		}
		saved, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return len(saved.Data)
	}
	small, large := size(1_000), size(20_000)
	if large > small+16 || large > 4<<10 {
		t.Errorf("a plan of one step has %d bytes over 1 000 resources and %d over 20 000", small, large)
	}
}
