package plan

import (
	"testing"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// What only needs a restart interrupts what the restart does when the document requests that, and nothing in what is made anew.
func TestRestarts(t *testing.T) {
	kind := &schema.Kind{Name: "x.machine", Fields: []schema.Field{
		{Name: "cpus", Type: schema.Int, Disruption: schema.NeedsRestart}, {Name: "in_effect", Type: schema.Bool, Disruption: "workload"},
	}}
	for _, c := range []struct {
		says   string
		spec   schema.Object
		ignore []string
		anew   string
		want   string
	}{
		{"not requested", schema.Object{"cpus": int64(2)}, nil, "", schema.NeedsRestart},
		{"requested", schema.Object{"cpus": int64(2), "in_effect": true}, nil, "", "workload"},
		{"refused", schema.Object{"cpus": int64(2), "in_effect": false}, nil, "", schema.NeedsRestart},
		{"ignored", schema.Object{"cpus": int64(2), "in_effect": true}, []string{"in_effect"}, "", schema.NeedsRestart},
		{"made anew", schema.Object{"cpus": int64(2), "in_effect": true}, nil, "the document changed", ""},
	} {
		it := &item{kind: kind, traits: &providers.Traits{Later: []string{"in_effect"}}, replace: c.anew, desired: &schema.Resource{Spec: c.spec}}
		it.desired.Lifecycle.Ignore = c.ignore
		if got := it.restarts(); got != c.want {
			t.Errorf("%s: %q, want %q", c.says, got, c.want)
		}
	}
}
