package survey_test

import (
	"fmt"
	"strings"
	"testing"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/survey"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A sighting tells what differs from one survey to the next; what is unknown is as it was, and what was not looked at, too.
func TestSighting(t *testing.T) {
	bridges, ports := schema.Place{Scope: "n1", Kind: "ovs.bridge"}, schema.Place{Scope: "n1", Kind: "ovs.port"}
	kinds := schema.Kinds{
		bridges.Kind: {Name: bridges.Kind, Node: true, Fields: []schema.Field{{Name: "fail_mode", Type: schema.String}}},
		ports.Kind:   {Name: ports.Kind, Node: true},
	}
	bridge := func(id, mode string) providers.Thing {
		return providers.Thing{ID: id, Name: id, Spec: schema.Object{"fail_mode": mode}, Phase: providers.Ready}
	}
	port := providers.Thing{ID: "p", Name: "p", Phase: providers.Ready}
	failed := port
	failed.Phase, failed.Detail = providers.Failed, "no such device"
	type things = map[schema.Place][]providers.Thing
	type unknown = map[schema.Place]string
	all := schema.Place{Scope: "n1", Kind: "ovs.*"}
	var last survey.Sighting
	for _, c := range []struct {
		name    string
		things  things
		unknown unknown
		says    string
	}{
		{"at first", things{bridges: {bridge("a", "secure")}, ports: {port}}, nil, "added ovs.bridge/a, added ovs.port/p"},
		{"nothing", things{bridges: {bridge("a", "secure")}, ports: {port}}, nil, ""},
		{"only one kind", things{bridges: {bridge("a", "secure"), bridge("b", "secure")}}, nil, "added ovs.bridge/b"},
		{"a field", things{bridges: {bridge("a", "standalone"), bridge("b", "secure")}}, nil, "changed ovs.bridge/a fail_mode"},
		{"its state", things{ports: {failed}}, nil, "changed ovs.port/p"},
		{"cannot be seen", things{ports: {failed}}, unknown{bridges: "no answer"}, "unknown ovs.bridge"},
		{"still not", nil, unknown{bridges: "no answer again"}, ""},
		{"another kind", things{ports: {}}, nil, "removed ovs.port/p"},
		{"seen again", things{bridges: {bridge("b", "secure")}}, nil, "observed ovs.bridge, removed ovs.bridge/a"},
		{"the provider is away", nil, unknown{all: "refused"}, "unknown ovs.*"},
		{"and back", things{ports: {port}}, nil, "observed ovs.*, added ovs.port/p"},
	} {
		s := &survey.Survey{Observed: plan.Observation{Things: c.things, Unknown: c.unknown}}
		var said []string
		for _, ch := range last.Update(kinds, s) {
			text := fmt.Sprintf("%s %s", ch.Sort, ch.Kind)
			if ch.Item != nil {
				text += "/" + ch.Item.ID
			}
			for _, f := range ch.Fields {
				text += " " + f.Path
			}
			said = append(said, text)
		}
		if got := strings.Join(said, ", "); got != c.says {
			t.Errorf("%s: %q, want %q", c.name, got, c.says)
		}
	}
}
