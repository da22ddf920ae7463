package carbide_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

// filter returns a rule for one TCP port.
func filter(id, action string, priority, port int64) map[string]any {
	return map[string]any{
		"id": id, "direction": "ingress", "ipv6": false, "protocol": "tcp", "action": action, "priority": priority,
		"src_prefix": "0.0.0.0/0", "dst_prefix": "0.0.0.0/0", "dst_ports": map[string]any{"start": port, "end": port},
	}
}

// guarded returns a site with a group of a VPC with two instances, and a third instance has it itself. All are ready.
func guarded(t *testing.T, rules carbidesim.Rules) *site {
	hosts := hosts(t)
	s := newSite(t, carbidesim.Options{Hosts: lawHosts, Timing: lawTiming, Rules: rules})
	s.make("tenant", "acme", schema.Object{})
	s.make("network_security_group", "web", schema.Object{"tenant": "acme", "rules": []any{filter("ssh", "permit", 10, 22)}})
	group := id("network_security_group", "web")
	s.make("vpc", "prod", schema.Object{"tenant": "acme", "network_security_group": group})
	s.make("vpc", "open", schema.Object{"tenant": "acme"})
	s.make("vpc_prefix", "links", schema.Object{"vpc": id("vpc", "prod"), "prefix": "10.1.0.0/16"})
	s.make("vpc_prefix", "more", schema.Object{"vpc": id("vpc", "open"), "prefix": "10.2.0.0/16"})
	instance := func(n int, name, prefix string, more schema.Object) {
		o := schema.Object{
			"tenant": "acme", "machine": hosts[n], "os": map[string]any{"ipxe": "#!ipxe"},
			"interfaces": []any{map[string]any{"function": "physical", "device_instance": int64(0), "vpc_prefix": id("vpc_prefix", prefix)}},
		}
		for k, v := range more {
			o[k] = v
		}
		s.make("instance", name, o)
	}
	instance(0, "one", "links", nil)
	instance(1, "two", "links", nil)
	instance(2, "own", "more", schema.Object{"network_security_group": group})
	s.Advance(time.Hour)
	return s
}

// TestPropagation: a change of a group is done when all affected hosts have it, and the one that lacks it is named.
func TestPropagation(t *testing.T) {
	s := guarded(t, carbidesim.Rules{})
	group, vpc := id("network_security_group", "web"), id("vpc", "prod")
	check := func(when, noun, id string, phase providers.Phase, names ...string) {
		t.Helper()
		th := s.see(noun, id)
		if th.Phase != phase {
			t.Errorf("%s the %s is %s (%s), want %s", when, noun, th.Phase, th.Detail, phase)
		}
		for _, name := range names {
			if !strings.Contains(th.Detail, name) {
				t.Errorf("%s the %s is said to be %q, without %s", when, noun, th.Detail, name)
			}
		}
		if phase == providers.Ready && th.Detail != "" {
			t.Errorf("%s the %s is said to be %q", when, noun, th.Detail)
		}
	}
	check("before", "network_security_group", group, providers.Ready)
	check("before", "vpc", vpc, providers.Ready)
	if err := s.LeaveBehind(id("instance", "two"), true); err != nil {
		t.Fatal(err)
	}
	rules := []any{filter("ssh", "permit", 10, 22), filter("http", "permit", 20, 80)}
	if err := s.kind("network_security_group").Update(t.Context(), s.change("network_security_group", "web", group, schema.Object{"rules": rules})); err != nil {
		t.Fatal(err)
	}
	check("after the change", "network_security_group", group, providers.Pending, "instance one", "instance two", "instance own")
	check("after the change", "vpc", vpc, providers.Pending, "instance one", "instance two")
	check("after the change", "vpc", id("vpc", "open"), providers.Ready)
	check("after the change", "instance", id("instance", "own"), providers.Pending, "security group")
	check("after the change", "instance", id("instance", "two"), providers.Ready)
	s.Advance(time.Hour)
	check("an hour later", "network_security_group", group, providers.Pending, "instance two (")
	if d := s.see("network_security_group", group).Detail; strings.Contains(d, "instance one") || strings.Contains(d, "own") {
		t.Errorf("the group is said to be %q", d)
	}
	check("an hour later", "vpc", vpc, providers.Pending, "instance two (")
	check("an hour later", "instance", id("instance", "own"), providers.Ready)

	// A released one is not waited for.
	if err := s.kind("instance").Delete(t.Context(), call("instance", "two")); err != nil {
		t.Fatal(err)
	}
	check("when the last one goes", "network_security_group", group, providers.Ready)
	check("when the last one goes", "vpc", vpc, providers.Ready)

	// Switching to another group is a change too.
	s.make("network_security_group", "db", schema.Object{"tenant": "acme"})
	other := schema.Object{"network_security_group": id("network_security_group", "db")}
	if err := s.kind("vpc").Update(t.Context(), s.change("vpc", "prod", vpc, other)); err != nil {
		t.Fatal(err)
	}
	if err := s.kind("instance").Update(t.Context(), s.change("instance", "own", id("instance", "own"), other)); err != nil {
		t.Fatal(err)
	}
	check("with another group", "vpc", vpc, providers.Pending, "instance one")
	check("with another group", "instance", id("instance", "own"), providers.Pending)
	check("with another group", "network_security_group", group, providers.Ready)
	s.Advance(time.Minute)
	check("in the end", "vpc", vpc, providers.Ready)
	check("in the end", "instance", id("instance", "own"), providers.Ready)
}

// TestPropagationOfMany: a list says of each group what its observation says, although all together lack more than a page.
func TestPropagationOfMany(t *testing.T) {
	s := guarded(t, carbidesim.Rules{MaxFindByIDs: 2})
	groups := s.kind("network_security_group")
	s.make("network_security_group", "db", schema.Object{"tenant": "acme"})
	other := schema.Object{"network_security_group": id("network_security_group", "db")}
	if err := s.kind("instance").Update(t.Context(), s.change("instance", "own", id("instance", "own"), other)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"web", "db"} {
		rules := schema.Object{"rules": []any{filter("http", "permit", 20, 80)}}
		if err := groups.Update(t.Context(), s.change("network_security_group", name, id("network_security_group", name), rules)); err != nil {
			t.Fatal(err)
		}
	}
	list, err := providers.Collect(groups.List(t.Context()))
	if err != nil || len(list) != 2 {
		t.Fatalf("%d groups, %v", len(list), err)
	}
	for _, th := range list {
		look := s.see("network_security_group", th.ID)
		if look.Detail != th.Detail || !strings.Contains(th.Detail, "instance o") {
			t.Errorf("the list says %q of %s, a look %q", th.Detail, th.Name, look.Detail)
		}
	}
}

// TestPropagationCalls: querying the propagation of groups costs no call per object.
func TestPropagationCalls(t *testing.T) {
	s := newSite(t, carbidesim.Options{Rules: carbidesim.Rules{MaxFindByIDs: 7}})
	s.make("tenant", "acme", schema.Object{})
	for i := range 30 {
		name := "g" + string(rune('a'+i%26)) + string(rune('a'+i/26))
		s.make("network_security_group", name, schema.Object{"tenant": "acme"})
		s.make("vpc", name, schema.Object{"tenant": "acme", "network_security_group": id("network_security_group", name)})
	}
	for noun, want := range map[string]map[string]int{
		"vpc":                    {"GetNetworkSecurityGroupPropagationStatus": 5},
		"network_security_group": {"GetNetworkSecurityGroupPropagationStatus": 5, "GetNetworkSecurityGroupAttachments": 5},
	} {
		s.ResetCalls()
		things, err := providers.Collect(s.kind(noun).List(t.Context()))
		if err != nil || len(things) != 30 {
			t.Fatalf("%d things, %v", len(things), err)
		}
		calls := s.Calls()
		for method, n := range want {
			if calls[method] != n {
				t.Errorf("a list of %ss took %d calls of %s, want %d", noun, calls[method], method, n)
			}
		}
	}
}

// TestPropagationUnknown: for a service that cannot report it nothing is waited for.
func TestPropagationUnknown(t *testing.T) {
	s := newSite(t, carbidesim.Options{Unimplemented: []string{"GetNetworkSecurityGroupPropagationStatus", "GetNetworkSecurityGroupAttachments"}})
	s.make("tenant", "acme", schema.Object{})
	s.make("network_security_group", "web", schema.Object{"tenant": "acme"})
	s.make("vpc", "prod", schema.Object{"tenant": "acme", "network_security_group": id("network_security_group", "web")})
	for noun, name := range map[string]string{"network_security_group": "web", "vpc": "prod"} {
		if th := s.see(noun, id(noun, name)); th.Phase != providers.Ready {
			t.Errorf("the %s is %s (%s)", noun, th.Phase, th.Detail)
		}
	}
}

// TestAllowBeforeDeny observes a group between the two calls of a change that permits and denies.
func TestAllowBeforeDeny(t *testing.T) {
	s := newSite(t, carbidesim.Options{})
	s.make("tenant", "acme", schema.Object{})
	first := []any{filter("ssh", "permit", 10, 22), filter("web", "permit", 20, 80), filter("end", "deny", 100, 9)}
	c := s.make("network_security_group", "web", schema.Object{"tenant": "acme", "rules": first, "description": "before"})
	const method = "UpdateNetworkSecurityGroup"
	update := func(changes schema.Object, calls int) error {
		t.Helper()
		s.ResetCalls()
		u := s.change("network_security_group", "web", c.ID, changes)
		err := s.kind("network_security_group").Update(t.Context(), u)
		if n := s.Calls()[method]; n != calls {
			t.Errorf("the change took %d calls, want %d", n, calls)
		}
		if err == nil && s.see("network_security_group", c.ID).Spec.Digest() != u.Want.Digest() {
			t.Errorf("the group is %v, want %v", s.see("network_security_group", c.ID).Spec, u.Want)
		}
		return err
	}
	rules := func() map[string]int64 {
		out := map[string]int64{}
		for _, r := range s.see("network_security_group", c.ID).Spec["rules"].([]any) {
			m := r.(map[string]any)
			out[m["id"].(string)+" "+m["action"].(string)] = m["dst_ports"].(map[string]any)["start"].(int64)
		}
		return out
	}
	// ssh is removed, web moves to another port, dns is new, and all else is denied.
	second := schema.Object{"description": "after", "rules": []any{
		filter("web", "permit", 20, 8080), filter("dns", "permit", 30, 53), filter("end", "deny", 90, 7), filter("all", "deny", 200, 1),
	}}
	if err := s.Inject(carbidesim.Fault{Method: method, Nth: 2, Effect: carbidesim.Before, Code: codes.InvalidArgument}); err != nil {
		t.Fatal(err)
	}
	s.class("an update that stops in between", update(second, 2), unknown)
	want := map[string]int64{"ssh permit": 22, "web permit": 80, "web.next permit": 8080, "dns permit": 53, "end deny": 9}
	if got := rules(); !maps.Equal(got, want) {
		t.Errorf("between the calls the rules are %v, want %v", got, want)
	}
	if d := s.see("network_security_group", c.ID).Spec["description"]; d != "before" {
		t.Errorf("between the calls the description is %v", d)
	}
	if err := update(second, 1); err != nil { // nothing obsolete is permitted any more
		t.Fatal(err)
	}
	third := []any{first[0], first[1], filter("dns", "permit", 30, 53), first[2]}
	for _, change := range []struct {
		what    string
		changes schema.Object
		calls   int
	}{
		{"one that opens and shuts", schema.Object{"rules": third}, 2},
		{"one that only opens", schema.Object{"rules": append(slices.Clone(third), filter("new", "permit", 101, 54))}, 1},
		{"one that only shuts", schema.Object{"rules": first[:1]}, 1},
		{"another name for a rule", schema.Object{"rules": []any{filter("shell", "permit", 10, 22)}}, 1},
		{"words", schema.Object{"description": "words"}, 1},
	} {
		if err := update(change.changes, change.calls); err != nil {
			t.Errorf("%s: %v", change.what, err)
		}
	}

	// Another client's change between the calls is not overwritten.
	if err := s.Inject(carbidesim.Fault{Method: method, Nth: 2, Effect: carbidesim.Before, Code: codes.FailedPrecondition}); err != nil {
		t.Fatal(err)
	}
	s.class("an update into which somebody came", update(schema.Object{"rules": []any{filter("new", "permit", 1, 1)}}, 2), unknown)
}

// TestAllowBeforeDenyTooLarge: where both sets together are more than the service accepts, the change is made at once.
func TestAllowBeforeDenyTooLarge(t *testing.T) {
	s := newSite(t, carbidesim.Options{Rules: carbidesim.Rules{MaxRules: 2}})
	s.make("tenant", "acme", schema.Object{})
	c := s.make("network_security_group", "web", schema.Object{"tenant": "acme", "rules": []any{filter("a", "permit", 1, 1), filter("b", "permit", 2, 2)}})
	u := s.change("network_security_group", "web", c.ID, schema.Object{"rules": []any{filter("c", "permit", 3, 3), filter("d", "permit", 4, 4)}})
	if err := s.kind("network_security_group").Update(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	if th := s.see("network_security_group", c.ID); th.Spec.Digest() != u.Want.Digest() {
		t.Errorf("the group is %v, want %v", th.Spec, u.Want)
	}
}

// TestKeyThatDidNotArrive: a keyset is observed with its keys, so one that lacks a key is not what was wanted.
func TestKeyThatDidNotArrive(t *testing.T) {
	s := newSite(t, carbidesim.Options{})
	c := s.make("tenant_keyset", "ops", schema.Object{"tenant": "acme", "keys": []any{"ssh-ed25519 AAAA", "ssh-rsa BBBB"}})
	if th := s.see("tenant_keyset", c.ID); th.Spec.Digest() != c.Want.Digest() || th.Phase != providers.Ready {
		t.Errorf("the keyset is %v (%s), want %v", th.Spec, th.Phase, c.Want)
	}
	_, err := s.Stranger().UpdateTenantKeyset(t.Context(), &forge.UpdateTenantKeysetRequest{
		KeysetIdentifier: &forge.TenantKeysetIdentifier{OrganizationId: "acme", KeysetId: "ops"}, Version: "V2-T2",
		KeysetContent: &forge.TenantKeysetContent{PublicKeys: []*forge.TenantPublicKey{{PublicKey: "ssh-ed25519 AAAA"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if th := s.see("tenant_keyset", c.ID); th.Spec.Digest() == c.Want.Digest() || len(th.Spec["keys"].([]any)) != 1 {
		t.Errorf("a keyset without one of its keys is seen as %v", th.Spec)
	}
}
