package plan

import (
	"testing"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
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

// What others have changed has already interrupted what it interrupts.
func TestDriftInterruptsNothing(t *testing.T) {
	kind := &schema.Kind{Name: "x.machine", Fields: []schema.Field{
		{Name: "cpus", Type: schema.Int, Disruption: schema.NeedsRestart}, {Name: "net", Type: schema.String, Immutable: true, Disruption: "traffic"},
	}}
	was := schema.Object{"cpus": int64(2), "net": "a"}
	it := &item{
		kind: kind, traits: &providers.Traits{}, desired: &schema.Resource{Spec: was}, record: &state.Record{Spec: was},
		thing: &providers.Thing{Spec: schema.Object{"cpus": int64(4), "net": "b"}},
	}
	m := &maker{names: Names{}}
	cs := m.drift(it)
	if len(cs) != 2 {
		t.Fatalf("the drift is %+v", cs)
	}
	for _, c := range cs {
		if c.Disruption != "" || c.Replaces {
			t.Errorf("drift interrupts or replaces: %+v", c)
		}
	}
}
