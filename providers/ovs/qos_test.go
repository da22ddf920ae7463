package ovs_test

import (
	"slices"
	"strings"
	"testing"

	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs"
	"converge.dev/converge/providers/ovs/vswitch"
	"converge.dev/converge/schema"
	"github.com/google/go-cmp/cmp"
	"github.com/ovn-org/libovsdb/ovsdb"
)

var queueCases = []providertest.Case{{
	Kind: "ovs.queue", Name: "gold",
	Want: schema.Object{
		"dscp": int64(46), "other_config": map[string]any{"min-rate": "20000000", "priority": "1"}, "external_ids": map[string]any{"ticket": "1"},
	},
	Update:  schema.Object{"other_config": map[string]any{"max-rate": "50000000"}, "external_ids": map[string]any{"owner": "acme"}},
	Invalid: schema.Object{"dscp": int64(64)},
}}

// lawQueue returns a queue.
func lawQueue(name string) providertest.Made {
	return providertest.Made{Kind: "ovs.queue", Name: name, Spec: schema.Object{"other_config": map[string]any{"min-rate": "1000000"}}}
}

var qosCases = []providertest.Case{{
	Kind: "ovs.qos", Name: "uplink", Needs: []providertest.Made{lawQueue("gold"), lawQueue("bulk")},
	Want: schema.Object{
		"type": "linux-htb", "queues": map[string]any{"0": "bulk", "61439": "gold"}, "other_config": map[string]any{"max-rate": "100000000"},
		"external_ids": map[string]any{"ticket": "1"},
	},
	Update: schema.Object{
		"type": "linux-hfsc", "queues": map[string]any{"7": "gold", "8": "gold"}, "external_ids": map[string]any{"owner": "acme"},
	},
	Invalid: schema.Object{"type": "linux-htb", "queues": map[string]any{"4294967296": "gold"}},
}}

// lawQoS is what the port of the laws has.
var lawQoS = providertest.Made{Kind: "ovs.qos", Name: "uplink", Spec: schema.Object{"type": "linux-htb"}}

var (
	aQueue = schema.Object{"other_config": map[string]any{"min-rate": "20000000"}}
	aQoS   = schema.Object{"type": "linux-htb", "queues": map[string]any{"5": "gold"}}
)

// newShaped returns a node with a bridge br0, its port p0, and a qos with a queue, which no port has.
func newShaped(t *testing.T, s *ovstest.Switch, o ovs.Options) *node {
	t.Helper()
	n := newNode(t, s, o)
	n.must(n.create("ovs.bridge", "br0", aBridge))
	n.must(n.create("ovs.port", "p0", aPort))
	n.must(n.create("ovs.queue", "gold", aQueue))
	n.must(n.create("ovs.qos", "uplink", aQoS))
	return n
}

// reference returns a set with one reference.
func reference(uuid string) ovsdb.OvsSet {
	return ovsdb.OvsSet{GoSet: []any{ovsdb.UUID{GoUUID: uuid}}}
}

// numbered returns a column queues with one queue.
func numbered(number int, uuid string) ovsdb.OvsMap {
	return ovsdb.OvsMap{GoMap: map[any]any{number: ovsdb.UUID{GoUUID: uuid}}}
}

// rowCalled returns the UUID of the one row of a table with a name in its external_ids.
func rowCalled(t *testing.T, s *ovstest.Switch, table, name string) string {
	t.Helper()
	var uuids []string
	for _, row := range s.Rows(t, table) {
		if ids, ok := row["external_ids"].(ovsdb.OvsMap); ok && ids.GoMap["converge.dev/name"] == name {
			uuids = append(uuids, row["_uuid"].(ovsdb.UUID).GoUUID)
		}
	}
	if len(uuids) != 1 {
		t.Fatalf("the rows %q of %s are called %s", uuids, table, name)
	}
	return uuids[0]
}

// setRow writes columns of a row like another client.
func setRow(t *testing.T, s *ovstest.Switch, table, uuid string, row ovsdb.Row) {
	t.Helper()
	s.Transact(t, ovsdb.Operation{
		Op: ovsdb.OperationUpdate, Table: table, Row: row,
		Where: []ovsdb.Condition{ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: uuid})},
	})
}

// TestForeignQoSSurvives has rows that others created, as libvirt does for a port of a virtual machine, without a name, and with names
// that ours have.
func TestForeignQoSSurvives(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newShaped(t, s, ovs.Options{})
		machine := ofMap(t, map[string]string{"vm-id": "4c1f", "ifname": "vnet0"})
		s.AddPort(t, "br0", "vnet0", map[string]string{"vm-id": "4c1f"})
		queue := s.AddRow(t, vswitch.QueueTable, ovsdb.Row{"external_ids": machine})
		qos := s.AddRow(t, vswitch.QoSTable, ovsdb.Row{"type": "linux-htb", "external_ids": machine, "queues": numbered(0, queue)})
		s.Set(t, vswitch.PortTable, "vnet0", "qos", reference(qos))
		theirs := map[string][]string{"ovs.queue": {queue}, "ovs.qos": {qos}}
		for range 2 {
			theirs["ovs.queue"] = append(theirs["ovs.queue"], s.AddRow(t, vswitch.QueueTable, ovsdb.Row{"external_ids": named(t, "twice")}))
			theirs["ovs.qos"] = append(theirs["ovs.qos"], s.AddRow(t, vswitch.QoSTable, ovsdb.Row{"type": "new", "external_ids": named(t, "twice")}))
		}
		for kind, ours := range map[string]string{"ovs.queue": "gold", "ovs.qos": "uplink"} {
			if got, want := n.list(kind), slices.Sorted(slices.Values(append([]string{ours}, theirs[kind]...))); !slices.Equal(got, want) {
				t.Errorf("observed %s %q, want %q", kind, got, want)
			}
		}
		if th := n.look("ovs.qos", qos); !th.Mark.IsZero() || th.Spec["queues"].(map[string]any)["0"] != queue {
			t.Errorf("a foreign qos is observed as %+v", th)
		}
		if got := n.look("ovs.port", "vnet0").Spec["qos"]; got != qos {
			t.Errorf("the port of a machine is observed with qos %v, want %s", got, qos)
		}
		n.unchanged(func() {
			for kind, ids := range theirs {
				spec := schema.Object{"type": "linux-sfq"}
				if kind == "ovs.queue" {
					spec = aQueue
				}
				for _, id := range ids {
					n.fails(n.delete(kind, id), providers.Denied, "no ownership mark")
					n.fails(n.create(kind, id, spec), providers.Exists, "is taken by another")
				}
				n.fails(n.create(kind, "twice", spec), providers.Exists, "is taken by another")
				n.fails(n.update(kind, ids[0], nil), providers.Denied, "virtual machine")
				if n.look(kind, ids[0]).Passing == "" || n.look(kind, ids[1]).Passing != "" {
					t.Errorf("%s of a machine, and of others, are observed as %+v and %+v", kind, n.look(kind, ids[0]), n.look(kind, ids[1]))
				}
			}
			n.fails(n.update("ovs.port", "vnet0", schema.Object{"qos": "uplink"}), providers.Denied, "virtual machine")
		})

		// One with a mark keeps its name, and what is taken over keeps its id.
		namesake := s.AddRow(t, vswitch.QoSTable, ovsdb.Row{"type": "linux-sfq", "external_ids": named(t, "uplink")})
		if got := n.look("ovs.qos", "uplink").Spec["type"]; got != "linux-htb" {
			t.Errorf("the qos called uplink is now of type %v", got)
		}
		for kind, id := range map[string]string{"ovs.qos": namesake, "ovs.queue": theirs["ovs.queue"][1]} {
			n.must(n.update(kind, id, schema.Object{"external_ids": map[string]any{"ticket": "1"}}))
			if got, want := n.look(kind, id).Mark, call(kind, id, nil).Mark; got != want {
				t.Errorf("what was taken over has mark %q, want %q", got, want)
			}
			n.must(n.delete(kind, id))
		}
		n.look("ovs.qos", "uplink")
		n.look("ovs.queue", "twice")
	})
}

// TestForeignQoSOfPort: what another client has set on a port of ours is neither replaced nor lost, until that client clears it.
func TestForeignQoSOfPort(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newShaped(t, s, ovs.Options{})
		theirs := s.AddRow(t, vswitch.QoSTable, ovsdb.Row{"type": "linux-htb"})
		s.Set(t, vswitch.PortTable, "p0", "qos", reference(theirs))
		s.Settle(t)
		n.unchanged(func() {
			n.fails(n.update("ovs.port", "p0", schema.Object{"qos": "uplink"}), providers.Denied, "another client has set QoS "+theirs)
			n.fails(n.update("ovs.port", "p0", schema.Object{"qos": ""}), providers.Denied, "another client has set QoS "+theirs)
			n.fails(n.delete("ovs.port", "p0"), providers.Invalid, "qos set by another client")
		})
		n.must(n.update("ovs.port", "p0", schema.Object{"tag": int64(7)}))
		if got := n.look("ovs.port", "p0").Spec["qos"]; got != theirs {
			t.Errorf("after another update the port has qos %v, want %s", got, theirs)
		}
		s.Set(t, vswitch.PortTable, "p0", "qos", ovsdb.OvsSet{})

		// The document may name it, and what converge has set it also takes away, whoever owns it.
		n.must(n.update("ovs.port", "p0", schema.Object{"qos": theirs}))
		n.must(n.update("ovs.port", "p0", schema.Object{"tag": int64(8)}))
		n.must(n.update("ovs.port", "p0", schema.Object{"qos": "uplink"}))
		n.must(n.update("ovs.port", "p0", schema.Object{"qos": theirs}))
		n.must(n.delete("ovs.port", "p0"))
		n.look("ovs.qos", theirs)

		// Of two that are ours another client may choose.
		n.must(n.create("ovs.port", "p0", aPort))
		s.Set(t, vswitch.PortTable, "p0", "qos", reference(rowCalled(t, s, vswitch.QoSTable, "uplink")))
		n.must(n.update("ovs.port", "p0", schema.Object{"qos": ""}))
		if got, has := n.look("ovs.port", "p0").Spec["qos"]; has {
			t.Errorf("a port without a qos has %v", got)
		}
		for _, o := range []schema.Object{n.look("ovs.port", "p0").Spec} {
			if d := cmp.Diff(map[string]any{}, o["external_ids"]); d != "" {
				t.Errorf("the notes of converge are observed (-want +got):\n%s", d)
			}
		}
	})
}

// TestQoSInUseStays: the database keeps rows of these tables for ever, and deletes none that is referred to. Once all are deleted,
// nothing is left.
func TestQoSInUseStays(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newShaped(t, s, ovs.Options{})
		n.must(n.update("ovs.port", "p0", schema.Object{"qos": "uplink"}))
		n.must(n.create("ovs.queue", "bulk", aQueue))
		gold, bulk := rowCalled(t, s, vswitch.QueueTable, "gold"), rowCalled(t, s, vswitch.QueueTable, "bulk")
		theirs := s.AddRow(t, vswitch.QoSTable, ovsdb.Row{"type": "linux-htb", "queues": numbered(3, bulk)})
		n.unchanged(func() {
			n.fails(n.delete("ovs.qos", "uplink"), providers.Invalid, "still used by port p0")
			n.fails(n.delete("ovs.queue", "gold"), providers.Invalid, "still used by qos uplink")
			n.fails(n.delete("ovs.queue", "bulk"), providers.Invalid, "still used by qos "+theirs)
		})
		n.must(n.update("ovs.qos", "uplink", schema.Object{"queues": map[string]any{"6": "bulk"}}))
		n.must(n.delete("ovs.queue", "gold"))
		if got := s.Rows(t, vswitch.QueueTable); len(got) != 1 || strings.Contains(s.Dump(t), gold) {
			t.Errorf("there are %d queues, want one", len(got))
		}
		n.must(n.delete("ovs.port", "p0"))
		n.must(n.delete("ovs.qos", "uplink"))
		setRow(t, s, vswitch.QoSTable, theirs, ovsdb.Row{"queues": ovsdb.OvsMap{GoMap: map[any]any{}}})
		n.must(n.delete("ovs.queue", "bulk"))
		n.must(n.delete("ovs.bridge", "br0"))
		if qos, queues := len(s.Rows(t, vswitch.QoSTable)), len(s.Rows(t, vswitch.QueueTable)); qos != 1 || queues != 0 {
			t.Errorf("%d rows of QoS and %d queues are left, want that of the other client", qos, queues)
		}
	})
}

// TestQoSChangesInBetween makes another client change the database between what a verb reads and what it sends.
func TestQoSChangesInBetween(t *testing.T) {
	set := func(table, name string, row ovsdb.Row) func(t *testing.T, s *ovstest.Switch) {
		return func(t *testing.T, s *ovstest.Switch) { setRow(t, s, table, rowCalled(t, s, table, name), row) }
	}
	drop := func(table, name string) func(t *testing.T, s *ovstest.Switch) {
		return func(t *testing.T, s *ovstest.Switch) {
			s.Transact(t, ovsdb.Operation{
				Op: ovsdb.OperationDelete, Table: table,
				Where: []ovsdb.Condition{ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: rowCalled(t, s, table, name)})},
			})
		}
	}
	late := func(kind string, spec schema.Object) func(t *testing.T, s *ovstest.Switch) {
		return func(t *testing.T, s *ovstest.Switch) { // a call that was given up, on a connection of its own
			other := newNode(t, s, ovs.Options{})
			other.must(other.create(kind, "late", spec))
		}
	}
	const qos, queue = vswitch.QoSTable, vswitch.QueueTable
	cases := []meddling{
		{
			"a DSCP before an update", set(queue, "gold", ovsdb.Row{"dscp": 9}),
			func(n *node) error { return n.update("ovs.queue", "gold", schema.Object{"dscp": int64(7)}) }, providers.Conflict,
		},
		{
			"a rate before a delete", set(queue, "idle", ovsdb.Row{"other_config": ovsdb.OvsMap{GoMap: map[any]any{"max-rate": "1"}}}),
			func(n *node) error { return n.delete("ovs.queue", "idle") }, providers.Conflict,
		},
		{
			"a qos before the delete of its queue", func(t *testing.T, s *ovstest.Switch) {
				s.AddRow(t, qos, ovsdb.Row{"type": "linux-htb", "queues": numbered(1, rowCalled(t, s, queue, "idle"))})
			},
			func(n *node) error { return n.delete("ovs.queue", "idle") }, providers.Conflict,
		},
		{
			"the end of a queue before its qos", drop(queue, "idle"), func(n *node) error {
				return n.update("ovs.qos", "uplink", schema.Object{"queues": map[string]any{"5": "gold", "6": "idle"}})
			}, providers.Absent,
		},
		{
			"a type before an update", set(qos, "uplink", ovsdb.Row{"type": "linux-sfq"}), func(n *node) error {
				return n.update("ovs.qos", "uplink", schema.Object{"other_config": map[string]any{"max-rate": "1000000"}})
			}, providers.Conflict,
		},
		{
			"a type before a delete", set(qos, "uplink", ovsdb.Row{"type": "linux-sfq"}),
			func(n *node) error { return n.delete("ovs.qos", "uplink") }, providers.Conflict,
		},
		{
			"a port before the delete of its qos", func(t *testing.T, s *ovstest.Switch) {
				s.Set(t, vswitch.PortTable, "p0", "qos", reference(rowCalled(t, s, qos, "uplink")))
			},
			func(n *node) error { return n.delete("ovs.qos", "uplink") }, providers.Conflict,
		},
		{
			"the end of a qos before its port", drop(qos, "uplink"),
			func(n *node) error { return n.update("ovs.port", "p0", schema.Object{"qos": "uplink"}) }, providers.Absent,
		},
		{
			"a qos of theirs on the port", func(t *testing.T, s *ovstest.Switch) {
				s.Set(t, vswitch.PortTable, "p0", "qos", reference(s.AddRow(t, qos, ovsdb.Row{"type": "linux-sfq"})))
			},
			func(n *node) error { return n.update("ovs.port", "p0", schema.Object{"qos": "uplink"}) }, providers.Conflict,
		},
		{
			"a late create of the same queue", late("ovs.queue", aQueue),
			func(n *node) error { return n.create("ovs.queue", "late", aQueue) }, providers.Exists,
		},
		{
			"a late create of the same qos", late("ovs.qos", aQoS),
			func(n *node) error { return n.create("ovs.qos", "late", aQoS) }, providers.Exists,
		},
	}
	meddledWith(t, cases, func(t *testing.T, s *ovstest.Switch, o ovs.Options) *node {
		t.Helper()
		n := newShaped(t, s, o)
		n.must(n.create("ovs.queue", "idle", aQueue))
		return n
	})
}

// TestRefusedQoS: what is refused leaves no row behind.
func TestRefusedQoS(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newShaped(t, s, ovs.Options{})
		with := func(field string, value any) schema.Object {
			o := aQoS.Clone()
			o[field] = value
			return o
		}
		n.unchanged(func() {
			n.fails(n.create("ovs.queue", "gold", aQueue), providers.Exists, "another queue")
			n.fails(n.create("ovs.qos", "uplink", aQoS), providers.Exists, "another qos")
			n.fails(n.create("ovs.qos", "more", with("colour", "red")), providers.Invalid, "colour")
			n.fails(n.create("ovs.qos", "more", with("queues", map[string]any{"5": "none"})), providers.Absent, "queue none does not exist")
			for _, number := range []string{"x", "", "-1", "05", "4294967296"} {
				n.fails(n.create("ovs.qos", "more", with("queues", map[string]any{number: "gold"})), providers.Invalid)
			}
			for _, key := range []string{providers.MarkKey, "converge.dev/name"} {
				n.fails(n.create("ovs.qos", "more", with("external_ids", map[string]any{key: "x"})), providers.Invalid, key)
				n.fails(n.update("ovs.queue", "gold", schema.Object{"external_ids": map[string]any{key: "x"}}), providers.Invalid, key)
			}
			n.fails(n.update("ovs.port", "p0", schema.Object{"external_ids": map[string]any{"converge.dev/qos": "x"}}), providers.Invalid, "converge.dev/qos")
			n.fails(n.update("ovs.port", "p0", schema.Object{"qos": "none"}), providers.Absent, "qos none does not exist")
			n.fails(n.create("ovs.port", "p1", schema.Object{"bridge": "br0", "qos": "none"}), providers.Absent, "qos none does not exist")
		})
		// All numbers of the database pass, and one queue has several of them.
		n.must(n.update("ovs.qos", "uplink", schema.Object{"queues": map[string]any{"0": "gold", "61440": "gold", "4294967295": "gold"}}))
		if d := cmp.Diff(map[string]any{"0": "gold", "61440": "gold", "4294967295": "gold"}, n.look("ovs.qos", "uplink").Spec["queues"]); d != "" {
			t.Errorf("the queues are others (-want +got):\n%s", d)
		}
	})
}

// TestQoSSuccessor replaces a qos with another that looks the same, as when the resource is created anew.
func TestQoSSuccessor(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newShaped(t, s, ovs.Options{})
		seen := n.look("ovs.qos", "uplink")
		n.must(n.delete("ovs.qos", "uplink"))
		c := call("ovs.qos", "uplink", aQoS)
		c.Mark.Incarnation = 2
		n.must(n.kind("ovs.qos").Create(t.Context(), c))
		n.unchanged(func() { n.fails(n.deleteSeen("ovs.qos", seen), providers.Conflict) })
	})
}

// TestQoSTakesEffect asks the kernel for the classes that a real switch creates on a network interface.
func TestQoSTakesEffect(t *testing.T) {
	s := ovstest.Start(t)
	n := newShaped(t, s, ovs.Options{})
	if out, err := s.Command(t, "ip", "link", "add", "veth0", "up", "type", "veth", "peer", "name", "veth1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	classes := func(want ...string) {
		t.Helper()
		out, err := s.Command(t, "tc", "class", "show", "dev", "veth0").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, w := range want {
			if !strings.Contains(string(out), w) {
				t.Errorf("tc does not show %q:\n%s", w, out)
			}
		}
		if len(want) == 0 && len(out) > 0 {
			t.Errorf("tc still shows\n%s", out)
		}
	}
	n.must(n.update("ovs.qos", "uplink", schema.Object{"other_config": map[string]any{"max-rate": "100000000"}}))
	classes()
	n.must(n.create("ovs.port", "veth0", schema.Object{"bridge": "br0", "qos": "uplink"}))
	classes("class htb 1:fffe root rate 100Mbit ceil 100Mbit", "class htb 1:6 parent 1:fffe prio 0 rate 20Mbit ceil 100Mbit", "class htb 1:1 ")
	n.must(n.update("ovs.queue", "gold", schema.Object{"other_config": map[string]any{"min-rate": "30000000", "max-rate": "50000000"}}))
	classes("class htb 1:6 parent 1:fffe prio 0 rate 30Mbit ceil 50Mbit")
	n.must(n.update("ovs.qos", "uplink", schema.Object{"queues": map[string]any{"9": "gold"}}))
	classes("class htb 1:a parent 1:fffe prio 0 rate 30Mbit ceil 50Mbit")
	n.must(n.update("ovs.port", "veth0", schema.Object{"qos": ""}))
	classes()
	for _, thing := range [][2]string{{"ovs.port", "veth0"}, {"ovs.qos", "uplink"}, {"ovs.queue", "gold"}} {
		n.must(n.delete(thing[0], thing[1]))
	}
	for _, table := range []string{"QoS", "Queue"} {
		if out := s.Vsctl(t, "list", table); out != "" {
			t.Errorf("ovs-vsctl list %s still shows\n%s", table, out)
		}
	}
}
