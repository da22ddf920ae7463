package survey_test

import (
	"testing"
	"time"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/engine/survey"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
	"converge.dev/converge/state"
)

// Lost records are rebuilt from the marks: of two things that were the same resource, the newer one counts, whatever their
// order, and nothing is recorded that is another site's, in deletion, or already recorded.
func TestRebuildFromMarks(t *testing.T) {
	const site = "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e"
	net := schema.Ref{Scope: schema.ScopeSite, Kind: "far.net", Name: "n"}
	host := schema.Ref{Scope: schema.ScopeSite, Kind: "far.host", Name: "h"}
	thing := func(ref schema.Ref, incarnation int, id, owner string, spec schema.Object) providers.Thing {
		return providers.Thing{ID: id, Name: ref.Name, Spec: spec, Mark: providers.Mark{Site: owner, Ref: ref, Incarnation: incarnation}}
	}
	leaving := thing(schema.Ref{Scope: schema.ScopeSite, Kind: "far.net", Name: "going"}, 1, "net-going", site, schema.Object{})
	leaving.Phase = providers.Deleting
	for _, nets := range [][]providers.Thing{
		{thing(net, 1, "net-1", site, schema.Object{}), thing(net, 2, "net-2", site, schema.Object{}), leaving},
		{leaving, thing(net, 2, "net-2", site, schema.Object{}), thing(net, 1, "net-1", site, schema.Object{})},
	} {
		known := schema.Ref{Scope: schema.ScopeSite, Kind: "far.host", Name: "known"}
		s := &survey.Survey{
			Site:     schema.Site{Name: "s", ID: site},
			Recorded: []state.Record{{Ref: known, ID: "host-known", Incarnation: 1}},
			Observed: plan.Observation{Things: map[schema.Place][]providers.Thing{
				{Scope: schema.ScopeSite, Kind: "far.net"}: nets,
				{Scope: schema.ScopeSite, Kind: "far.host"}: {
					thing(host, 1, "host-1", site, schema.Object{"net": "net-2"}),
					thing(known, 1, "host-known", site, schema.Object{}),
					thing(schema.Ref{Scope: schema.ScopeSite, Kind: "far.host", Name: "theirs"}, 1, "host-theirs", "another site", schema.Object{}),
				},
			}},
			Traits: func(string, string) (providers.Traits, bool) { return fake.SiteTraits(), true },
		}
		got := s.Rebuild(enginetest.Kinds(), time.Now())
		if len(got) != 2 || got[0].Ref != host || got[0].ID != "host-1" || got[1].Ref != net || got[1].ID != "net-2" || got[1].Incarnation != 2 {
			t.Fatalf("rebuilt %+v, want the host and incarnation 2 of the net", got)
		}
		if len(got[0].After) != 1 || got[0].After[0] != net {
			t.Errorf("the host comes after %v, want after the net", got[0].After)
		}
	}
}
