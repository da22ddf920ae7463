package ovs_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs"
	"converge.dev/converge/providers/ovs/vswitch"
	"converge.dev/converge/schema"
	"github.com/google/go-cmp/cmp"
	"github.com/ovn-org/libovsdb/ovsdb"
)

// bonded returns interfaces of a bond, which OVS creates.
func bonded(names ...string) map[string]any {
	bond := map[string]any{}
	for _, name := range names {
		bond[name] = map[string]any{"type": "internal"}
	}
	return bond
}

// newBonded returns a node with a bridge br0, and on it a bond of m0 and m1.
func newBonded(t *testing.T, s *ovstest.Switch, o ovs.Options) *node {
	t.Helper()
	n := newNode(t, s, o)
	n.must(n.create("ovs.bridge", "br0", aBridge))
	n.must(n.create("ovs.port", "bond0", schema.Object{"bridge": "br0", "interfaces": bonded("m0", "m1")}))
	return n
}

// joinBond adds an internal interface to a port like another client.
func joinBond(t *testing.T, s *ovstest.Switch, port, name string) {
	t.Helper()
	s.Transact(t,
		ovsdb.Operation{Op: ovsdb.OperationInsert, Table: vswitch.InterfaceTable, UUIDName: "member", Row: ovsdb.Row{"name": name, "type": "internal"}},
		ovsdb.Operation{
			Op: ovsdb.OperationMutate, Table: vswitch.PortTable,
			Where:     []ovsdb.Condition{ovsdb.NewCondition("name", ovsdb.ConditionEqual, port)},
			Mutations: []ovsdb.Mutation{{Column: "interfaces", Mutator: ovsdb.MutateOperationInsert, Value: reference("member")}},
		})
	s.Settle(t)
}

// membersOf returns the names of the interfaces of a bond as they are observed.
func membersOf(th providers.Thing) []string {
	bond, _ := th.Spec["interfaces"].(map[string]any)
	return slices.Sorted(maps.Keys(bond))
}

// TestBondMembers: interfaces of a bond come and go without the others, and one of another client stays.
func TestBondMembers(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newBonded(t, s, ovs.Options{})
		same := s.Row(t, vswitch.InterfaceTable, "m1")["_uuid"]
		joinBond(t, s, "bond0", "theirs")
		before := n.look("ovs.port", "bond0")
		bond := before.Spec.Clone()["interfaces"].(map[string]any)
		delete(bond, "m0")
		bond["m2"] = map[string]any{"type": "internal", "external_ids": map[string]any{"leaf": "2"}}
		n.must(n.update("ovs.port", "bond0", schema.Object{"interfaces": bond, "bond_mode": "balance-slb"}))
		th := n.look("ovs.port", "bond0")
		if got := membersOf(th); !slices.Equal(got, []string{"m1", "m2", "theirs"}) || th.Phase != providers.Ready || th.Spec["interface"] != nil {
			t.Errorf("the bond has the interfaces %q and is %s (%s)", got, th.Phase, th.Detail)
		}
		if now := s.Row(t, vswitch.InterfaceTable, "m1")["_uuid"]; now != same || s.Row(t, vswitch.InterfaceTable, "m0") != nil {
			t.Errorf("the interface that stays was %v and is %v; the other one is still there: %t", same, now, s.Row(t, vswitch.InterfaceTable, "m0") != nil)
		}
		n.must(n.update("ovs.port", "bond0", before.Spec))
		if d := cmp.Diff(before.Spec["interfaces"], n.look("ovs.port", "bond0").Spec["interfaces"]); d != "" {
			t.Errorf("an undone update left another bond (-was +is):\n%s", d)
		}
		n.must(n.delete("ovs.port", "bond0"))
		n.must(n.delete("ovs.bridge", "br0"))
		if rows := s.Rows(t, vswitch.InterfaceTable); len(rows) != 0 {
			t.Errorf("%d interfaces are left", len(rows))
		}
	})
}

// TestBondAndSingle makes a bond of a port with one interface, and the other way round.
func TestBondAndSingle(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newNode(t, s, ovs.Options{})
		n.must(n.create("ovs.bridge", "br0", aBridge))
		n.must(n.create("ovs.port", "p0", aPort))
		single := n.look("ovs.port", "p0")
		n.must(n.update("ovs.port", "p0", schema.Object{"interfaces": bonded("p0", "m1")})) // beside the interface that is observed
		th := n.look("ovs.port", "p0")
		if got := membersOf(th); !slices.Equal(got, []string{"m1", "p0"}) || th.Spec["interface"] != nil {
			t.Errorf("the new bond is observed as %v", th.Spec)
		}
		n.unchanged(func() {
			n.fails(n.update("ovs.port", "p0", schema.Object{"interface": map[string]any{"type": "internal"}}), providers.Invalid, "both interface and interfaces")
		})
		c := call("ovs.port", "p0", single.Spec)
		c.Have, c.Version = th.Spec, th.Version
		n.must(n.kind("ovs.port").Update(t.Context(), c))
		if d := cmp.Diff(single.Spec, n.look("ovs.port", "p0").Spec); d != "" || len(s.Rows(t, vswitch.InterfaceTable)) != 2 {
			t.Errorf("the port is not what it was (-was +is):\n%s", d)
		}
	})
}

// TestRefusedBonds: what is refused leaves no interface behind, and a bond is as good as the worst of its interfaces.
func TestRefusedBonds(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newBonded(t, s, ovs.Options{})
		n.must(n.create("ovs.port", "p0", aPort))
		s.AddPort(t, "br0", "vnet0", map[string]string{"vm-id": "4c1f"})
		joinBond(t, s, "vnet0", "vnet1")
		bond := func(names ...string) schema.Object {
			return schema.Object{"bridge": "br0", "interfaces": bonded(names...)}
		}
		both := bond("m2", "m3")
		both["interface"] = map[string]any{"type": "internal"}
		n.unchanged(func() {
			n.fails(n.create("ovs.port", "bond1", both), providers.Invalid, "both interface and interfaces")
			n.fails(n.create("ovs.port", "bond1", bond("bond1")), providers.Invalid, "one interface of its own name")
			n.fails(n.create("ovs.port", "bond1", bond("m1", "m2")), providers.Exists, "the name m1 is taken by an interface")
			n.fails(n.create("ovs.port", "bond1", bond("p0", "m2")), providers.Exists, "the name p0 is taken by a port of bridge br0")
			n.fails(n.create("ovs.port", "bond1", bond("br0", "m2")), providers.Exists, "the name br0 is taken by a bridge")
			n.fails(n.create("ovs.port", "m1", aPort), providers.Exists, "an interface")
			n.fails(n.update("ovs.port", "bond0", bond("m0", "m1", "p0")), providers.Exists, "the name p0 is taken")
			n.fails(n.update("ovs.port", "bond0", schema.Object{"interfaces": map[string]any{
				"m0": map[string]any{"type": "tap"}, "m1": map[string]any{},
			}}), providers.Invalid, "type of an interface")
			n.fails(n.update("ovs.port", "vnet0", schema.Object{"lacp": "active"}), providers.Denied, "virtual machine")
		})
		bad := bond("m0", "m1")
		bad["interfaces"].(map[string]any)["bad0"] = map[string]any{"type": "system"}
		n.fails(n.update("ovs.port", "bond0", bad), providers.Unknown, "interface bad0", "No such device")
		if th := n.look("ovs.port", "bond0"); th.Phase != providers.Failed {
			t.Errorf("a bond with an interface that does not exist is %s", th.Phase)
		}
		s.Set(t, vswitch.PortTable, "bond0", "bond_fake_iface", true)
		n.fails(n.delete("ovs.port", "bond0"), providers.Invalid, "bond_fake_iface")
		s.Set(t, vswitch.PortTable, "bond0", "bond_fake_iface", false)
		n.must(n.delete("ovs.port", "bond0"))
	})
}

// TestBondChangesInBetween makes another client change the database between what a verb reads and what it sends.
func TestBondChangesInBetween(t *testing.T) {
	cases := []meddling{
		{
			"a note on an interface before an update", func(t *testing.T, s *ovstest.Switch) {
				s.Set(t, vswitch.InterfaceTable, "m1", "external_ids", ofMap(t, map[string]string{"note": "theirs"}))
			},
			func(n *node) error { return n.update("ovs.port", "bond0", schema.Object{"lacp": "passive"}) }, providers.Conflict,
		},
		{
			"a note on an interface before a delete", func(t *testing.T, s *ovstest.Switch) {
				s.Set(t, vswitch.InterfaceTable, "m1", "external_ids", ofMap(t, map[string]string{"note": "theirs"}))
			},
			func(n *node) error { return n.delete("ovs.port", "bond0") }, providers.Conflict,
		},
		{
			"an interface more before an update", func(t *testing.T, s *ovstest.Switch) { joinBond(t, s, "bond0", "theirs") },
			func(n *node) error {
				return n.update("ovs.port", "bond0", schema.Object{"interfaces": bonded("m1", "m2")})
			}, providers.Conflict,
		},
		{
			"an interface more before a delete", func(t *testing.T, s *ovstest.Switch) { joinBond(t, s, "bond0", "theirs") },
			func(n *node) error { return n.delete("ovs.port", "bond0") }, providers.Conflict,
		},
		{
			"the name of a new interface", func(t *testing.T, s *ovstest.Switch) { s.AddPort(t, "br0", "m2", nil) },
			func(n *node) error {
				return n.update("ovs.port", "bond0", schema.Object{"interfaces": bonded("m0", "m1", "m2")})
			}, providers.Exists,
		},
	}
	meddledWith(t, cases, newBonded)
}

// TestBondTakesEffect asks a real switch for the bond of two network interfaces, and its LACP.
func TestBondTakesEffect(t *testing.T) {
	s := ovstest.Start(t)
	n := newNode(t, s, ovs.Options{})
	for _, pair := range [][2]string{{"up0", "leaf0"}, {"up1", "leaf1"}} {
		if out, err := s.Command(t, "ip", "link", "add", pair[0], "up", "type", "veth", "peer", "name", pair[1]).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	says := func(command string, want ...string) {
		t.Helper()
		out, err := s.Command(t, "ovs-appctl", command, "bond0").CombinedOutput()
		for _, w := range want {
			if err != nil || !strings.Contains(string(out), w) {
				t.Errorf("%s does not say %q: %v:\n%s", command, w, err, out)
			}
		}
	}
	n.must(n.create("ovs.bridge", "br0", aBridge))
	n.must(n.create("ovs.port", "bond0", schema.Object{
		"bridge": "br0", "bond_mode": "balance-slb", "bond_updelay": int64(300), "lacp": "active", "other_config": map[string]any{"lacp-time": "fast"},
		"interfaces": map[string]any{"up0": map[string]any{}, "up1": map[string]any{}},
	}))
	says("bond/show", "bond_mode: balance-slb", "updelay: 300 ms", "member up0", "member up1")
	says("lacp/show", "status: active", "lacp_time: fast")
	n.must(n.update("ovs.port", "bond0", schema.Object{"bond_mode": "active-backup", "lacp": "off"}))
	says("bond/show", "bond_mode: active-backup", "lacp_status: off")
	n.must(n.delete("ovs.port", "bond0"))
}
