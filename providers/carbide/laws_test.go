package carbide_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/carbidetest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// hosts returns the ids of the machines in the worlds of these tests: the same seed results in the same machines.
func hosts(t testing.TB) []string {
	t.Helper()
	return carbidetest.Hosts(newWorld(t, carbidesim.Options{Hosts: lawHosts}))
}

var lawHosts = carbidesim.Hosts{Count: 12}

// lawTiming is real, except for what would only add rounds.
var lawTiming = carbidesim.Timing{
	Tick: 30 * time.Second, Drain: 5 * time.Minute, Provision: 10 * time.Minute,
	Configure: time.Minute, Release: time.Minute, Cleanup: time.Minute, Purge: time.Minute,
}

var lawRules = carbidesim.Rules{
	RoutingProfiles: []carbidesim.RoutingProfile{{Name: "internal"}, {Name: "external", Tier: 1}},
	Peering:         carbidesim.PeeringExclusive,
}

func TestLaws(t *testing.T) {
	descriptions, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	providertest.Run(t, providertest.Suite{
		Kinds: descriptions.Kinds(),
		Cases: carbidetest.Cases(hosts(t), func(t *testing.T) providertest.World { return lawWorld(t, withHosts) }),
		Open:  func(t *testing.T) providertest.World { return lawWorld(t) },

		Parallel: true,
	})
}

// TestLawsOlderServer runs the laws on a server of the older generation, which knows no flat VPCs, not all kinds, and less
// about expected hardware.
func TestLawsOlderServer(t *testing.T) {
	newer := func(kind string) bool {
		return slices.ContainsFunc(carbidetest.Kinds(), func(k carbidetest.Kind) bool { return k.Newer && k.Name() == kind })
	}
	descriptions, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	kinds := maps.Clone(descriptions.Kinds())
	maps.DeleteFunc(kinds, func(kind string, _ *schema.Kind) bool { return newer(kind) })
	only := ""
	if race { // otherwise an older server is called like any other, with sequential calls
		only = "calls for different things run at the same time"
	}
	old := func(o *carbidesim.Options) { o.Old = true }
	world := func(changes ...func(*carbidesim.Options)) func(t *testing.T) providertest.World {
		return func(t *testing.T) providertest.World {
			w := lawWorld(t, changes...)
			w.Provider.Kinds = slices.DeleteFunc(w.Provider.Kinds, func(k providers.Served) bool { return newer(k.Name) })
			return w
		}
	}
	providertest.Run(t, providertest.Suite{
		Kinds:    kinds,
		Cases:    carbidetest.CasesOlder(hosts(t), world(old, withHosts)),
		Open:     world(old),
		Only:     only,
		Direct:   true,
		Parallel: true,
	})
}

// TestLawsWithoutNVLink runs the laws on a site that never forgets a deleted logical partition.
func TestLawsWithoutNVLink(t *testing.T) {
	other := func(kind string) bool { return kind != "carbide.nvlink_logical_partition" && kind != "carbide.tenant" }
	providertest.Run(t, providertest.Suite{
		Cases: slices.DeleteFunc(carbidetest.Cases(hosts(t), nil), func(c providertest.Case) bool { return other(c.Kind) }),
		Open: func(t *testing.T) providertest.World {
			w := lawWorld(t, func(o *carbidesim.Options) { o.Rules.NoNVLink = true })
			w.Provider.Kinds = slices.DeleteFunc(w.Provider.Kinds, func(k providers.Served) bool { return other(k.Name) })
			return w
		},
		Direct:   true,
		Parallel: true,
	})
}

func withHosts(o *carbidesim.Options) { o.Hosts = lawHosts }

func lawWorld(t *testing.T, changes ...func(*carbidesim.Options)) providertest.World {
	o := carbidesim.Options{
		Timing: lawTiming,
		Rules:  lawRules,
	}
	for _, change := range changes {
		change(&o)
	}
	w := newWorld(t, o)
	return providertest.World{
		Provider: connectAs(t, w, nil), // no single role may do everything
		Dump:     func() string { return string(w.Dump()) },
		Advance:  func() { w.Advance(2 * time.Minute) },
		Late:     true,
	}
}
