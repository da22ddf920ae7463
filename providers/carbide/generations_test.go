package carbide_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/carbidetest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// TestLawsOfGenerations runs the laws of what differs on servers of later generations.
func TestLawsOfGenerations(t *testing.T) {
	var differs []string
	for _, k := range carbidetest.Kinds() {
		if k.Varies {
			differs = append(differs, k.Name())
		}
	}
	other := func(kind string) bool { return !slices.Contains(differs, kind) }
	descriptions, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]*schema.Kind{}
	for _, kind := range differs {
		kinds[kind] = descriptions.Kinds()[kind]
	}
	for _, g := range carbidesim.Generations[1:] {
		t.Run(string(g), func(t *testing.T) {
			world := func(changes ...func(*carbidesim.Options)) func(t *testing.T) providertest.World {
				return func(t *testing.T) providertest.World {
					w := lawWorld(t, append(changes, func(o *carbidesim.Options) { o.Generation = g })...)
					w.Provider.Kinds = slices.DeleteFunc(w.Provider.Kinds, func(k providers.Served) bool { return other(k.Name) })
					return w
				}
			}
			sample := slices.DeleteFunc(carbidetest.Cases(hosts(t), world(withHosts)), func(c providertest.Case) bool { return other(c.Kind) || c.Name == "guarded" })
			providertest.Run(t, providertest.Suite{
				Kinds: kinds, Cases: sample, Open: world(), Direct: true, Parallel: true,
			})
		})
	}
}

// Whatever a generation fills, the observed things are the same.
func TestGenerationsReadAlike(t *testing.T) {
	look := func(g carbidesim.Generation) map[string]providers.Thing {
		s := newSite(t, carbidesim.Options{Generation: g, Hosts: carbidesim.Hosts{Count: 3, Unhealthy: 1, Maintenance: 1}, Rules: lawRules})
		s.make("tenant", "acme", schema.Object{"display_name": "Acme", "routing_profile": "internal"})
		s.make("network_security_group", "web", schema.Object{"tenant": "acme", "stateful_egress": false})
		s.make("vpc", "prod", schema.Object{
			"tenant": "acme", "virtualization": "fnn", "vni": int64(60001), "routing_profile": "internal",
			"network_security_group": id("network_security_group", "web"), "labels": map[string]any{"env": "prod"},
		})
		s.make("vpc_prefix", "ten", schema.Object{"vpc": id("vpc", "prod"), "prefix": "10.0.0.0/16"})
		s.make("network_segment", "a", schema.Object{
			"vpc": id("vpc", "prod"), "type": "tenant", "mtu": int64(1500),
			"prefixes": []any{map[string]any{"prefix": "10.0.1.0/24", "gateway": "10.0.1.1", "reserve_first": int64(2)}},
		})
		s.Advance(time.Hour)
		seen := map[string]providers.Thing{}
		for _, noun := range []string{"vpc", "vpc_prefix", "network_segment", "machine"} {
			things, err := providers.Collect(s.kind(noun).List(t.Context()))
			if err != nil {
				t.Fatal(err)
			}
			for _, thing := range things {
				thing.Version = ""
				seen[noun+" "+thing.ID] = thing
			}
		}
		return seen
	}
	want := look(carbidesim.May)
	if len(want) < 6 {
		t.Fatalf("%d things", len(want))
	}
	for _, g := range carbidesim.Generations[1:] {
		got := look(g)
		for at, w := range want {
			if diff := cmp.Diff(w, got[at]); diff != "" {
				t.Errorf("%s: %s (-may +%s):\n%s", g, at, g, diff)
			}
		}
	}
}

// The hosts of instances without interfaces join the requested VPC, where the service knows of it.
func TestAutoNetwork(t *testing.T) {
	host := carbidetest.Hosts(newWorld(t, carbidesim.Options{Hosts: carbidesim.Hosts{Count: 1, WithoutDPU: 1}}))[0]
	for _, g := range carbidesim.Generations {
		s := newSite(t, carbidesim.Options{Generation: g, Hosts: carbidesim.Hosts{Count: 1, WithoutDPU: 1}})
		for name, how := range map[string]string{"level": "flat", "over": "ethernet_virtualizer"} {
			s.make("vpc", name, schema.Object{"tenant": "acme", "virtualization": how})
		}
		s.make("vpc", "theirs", schema.Object{"tenant": "other", "virtualization": "flat"})
		c := call("instance", "bare")
		for vpc, class := range map[string]providers.Class{"": providers.Invalid, "over": providers.Invalid, "theirs": providers.Invalid, "gone": providers.Invalid} {
			if g == carbidesim.May {
				break
			}
			c.Want = schema.Object{"tenant": "acme", "machine": host, "auto_network": true, "os": map[string]any{"ipxe": "#!ipxe"}}
			if vpc != "" {
				c.Want["auto_vpc"] = id("vpc", vpc)
			}
			s.class(string(g)+" with the VPC "+vpc, s.kind("instance").Create(t.Context(), c), class)
		}
		c = s.make("instance", "bare", schema.Object{
			"tenant": "acme", "machine": host, "auto_network": true, "auto_vpc": id("vpc", "level"), "os": map[string]any{"ipxe": "#!ipxe"},
		})
		s.Advance(time.Hour)
		told := g != carbidesim.May
		is := s.see("instance", c.ID)
		if is.Spec["auto_network"] != true || (is.Spec["auto_vpc"] == id("vpc", "level")) != told || slices.Contains(is.Unfilled, "auto_vpc") == told {
			t.Errorf("%s: %v, not told %v", g, is.Spec, is.Unfilled)
		}
		if err := s.kind("instance").Update(t.Context(), s.change("instance", "bare", c.ID, schema.Object{"description": "new"})); err != nil {
			t.Errorf("%s: %v", g, err)
		}
		if now := s.see("instance", c.ID); now.Spec["auto_vpc"] != is.Spec["auto_vpc"] || now.Spec["description"] != "new" {
			t.Errorf("%s: after a change %v", g, now.Spec)
		}
	}
}

// A VPC is deleted once its prefixes are gone, and what is in deletion is reported as such.
func TestVPCWaitsForItsPrefixes(t *testing.T) {
	s := newSite(t, carbidesim.Options{Generation: carbidesim.August})
	vpc := s.make("vpc", "prod", schema.Object{"tenant": "acme", "virtualization": "ethernet_virtualizer"})
	prefix := s.make("vpc_prefix", "ten", schema.Object{"vpc": vpc.ID, "prefix": "10.0.0.0/16"})
	if p := s.see("vpc_prefix", prefix.ID); p.Phase != providers.Pending {
		t.Errorf("a new prefix is %s", p.Phase)
	}
	s.Advance(time.Minute)
	now := s.see("vpc_prefix", prefix.ID)
	if now.Phase != providers.Ready {
		t.Errorf("a prefix is %s after a minute", now.Phase)
	}
	prefix.Have = now.Spec
	s.class("deleting a VPC with a prefix", s.kind("vpc").Delete(t.Context(), vpc), providers.Busy)
	if err := s.kind("vpc_prefix").Delete(t.Context(), prefix); err != nil {
		t.Fatal(err)
	}
	if p := s.see("vpc_prefix", prefix.ID); p.Phase != providers.Deleting {
		t.Errorf("a deleted prefix is %s", p.Phase)
	}
	s.class("deleting a VPC whose prefix drains", s.kind("vpc").Delete(t.Context(), vpc), providers.Busy)
	s.Advance(time.Hour)
	if err := s.kind("vpc").Delete(t.Context(), vpc); err != nil {
		t.Error(err)
	}
}

// What only completes the status of a kind may be missing, or fail.
func TestStatusMayBeMissing(t *testing.T) {
	serials := map[string]string{"expected_machine": "chassis_serial_number", "expected_switch": "switch_serial_number", "expected_power_shelf": "shelf_serial_number"}
	for noun, method := range map[string]string{
		"expected_machine": "GetAllExpectedMachinesLinked", "expected_switch": "GetAllExpectedSwitchesLinked", "expected_power_shelf": "GetAllExpectedPowerShelvesLinked",
	} {
		for _, o := range []carbidesim.Options{{}, {Unimplemented: []string{method}}} {
			s := newSite(t, o)
			c := s.make(noun, "new", schema.Object{"bmc_mac_address": "0a:00:00:00:00:01", "bmc_username": "root", "bmc_password": "calvin", serials[noun]: "SN-1000"})
			if err := s.Inject(carbidesim.Fault{Method: method, Effect: carbidesim.Before, Code: codes.Internal}); err != nil {
				t.Fatal(err)
			}
			if seen := s.see(noun, c.ID); len(seen.Status) != 0 || seen.Spec["bmc_username"] != "root" {
				t.Errorf("%s: %v, status %v", noun, seen.Spec, seen.Status)
			}
			if err := s.kind(noun).Delete(t.Context(), c); err != nil {
				t.Error(err)
			}
		}
	}
}
