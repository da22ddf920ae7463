package ovs_test

import (
	"fmt"
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

var mirrorCases = []providertest.Case{{
	Kind: "ovs.mirror", Name: "span-web",
	Needs: []providertest.Made{lawBridge, lawPort("tap-a"), lawPort("tap-b"), lawPort("probe")},
	Want: schema.Object{
		"bridge": lawBridge.Name, "select_src_ports": []any{"tap-b", "tap-a"}, "select_dst_ports": []any{"tap-a"},
		"select_vlan": []any{int64(7), int64(5)}, "output_port": "probe", "snaplen": int64(128),
		"external_ids": map[string]any{"ticket": "1"},
	},
	Update: schema.Object{
		"bridge": lawBridge.Name, "select_all": true, "select_src_ports": []any{"tap-b"}, "output_vlan": int64(900),
		"external_ids": map[string]any{"owner": "acme"},
	},
	Invalid: schema.Object{"bridge": lawBridge.Name, "select_all": true, "output_vlan": int64(5000)},
}}

// aMirror mirrors what arrives at p0.
var aMirror = schema.Object{"bridge": "br0", "select_src_ports": []any{"p0"}, "output_port": "probe"}

// newMirrored returns a node with a bridge br0, its ports p0 and probe, and another bridge.
func newMirrored(t *testing.T, s *ovstest.Switch, o ovs.Options) *node {
	n := newNode(t, s, o)
	n.must(n.create("ovs.bridge", "br0", aBridge))
	n.must(n.create("ovs.bridge", "br1", aBridge))
	n.must(n.create("ovs.port", "p0", aPort))
	n.must(n.create("ovs.port", "probe", aPort))
	return n
}

// deletePort deletes a port like another client.
func deletePort(t *testing.T, s *ovstest.Switch, bridge, port string) {
	t.Helper()
	s.Transact(t, ovsdb.Operation{
		Op: ovsdb.OperationMutate, Table: vswitch.BridgeTable,
		Where: []ovsdb.Condition{ovsdb.NewCondition("name", ovsdb.ConditionEqual, bridge)},
		Mutations: []ovsdb.Mutation{{
			Column: "ports", Mutator: ovsdb.MutateOperationDelete,
			Value: ovsdb.OvsSet{GoSet: []any{s.Row(t, vswitch.PortTable, port)["_uuid"]}},
		}},
	})
	s.Settle(t)
}

// TestForeignMirrorsSurvive has mirrors that others created, with names that the database does not keep unique.
func TestForeignMirrorsSurvive(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newMirrored(t, s, ovs.Options{})
		s.AddMirror(t, "br0", "m0", ovsdb.Row{"select_all": true, "output_vlan": 900})
		s.AddMirror(t, "br1", "m0", ovsdb.Row{"select_all": true, "output_vlan": 901})
		s.AddMirror(t, "br1", "", ovsdb.Row{"output_vlan": 902})
		s.AddMirror(t, "br1", "alone", ovsdb.Row{"output_vlan": 903})
		want := []string{"alone"}
		for _, row := range s.Rows(t, vswitch.MirrorTable) {
			if row["name"] != "alone" {
				want = append(want, row["_uuid"].(ovsdb.UUID).GoUUID)
			}
		}
		slices.Sort(want)
		foreign := n.list("ovs.mirror")
		if !slices.Equal(foreign, want) {
			t.Fatalf("observed mirrors %q, want %q", foreign, want)
		}
		n.unchanged(func() {
			for _, id := range foreign {
				n.fails(n.delete("ovs.mirror", id), providers.Denied, "no ownership mark")
			}
			n.fails(n.create("ovs.mirror", "m0", aMirror), providers.Exists, "a mirror of bridge br")
			n.fails(n.delete("ovs.bridge", "br1"), providers.Invalid, "mirrors")
			n.must(n.create("ovs.mirror", "ours", aMirror))
			n.must(n.update("ovs.mirror", "ours", schema.Object{"select_all": true}))
			n.must(n.delete("ovs.mirror", "ours"))
		})

		// A namesake of ours takes nothing from it, and an adopted one keeps its name.
		n.must(n.create("ovs.mirror", "ours", aMirror))
		s.AddMirror(t, "br1", "ours", ovsdb.Row{"output_vlan": 904})
		if th := n.look("ovs.mirror", "ours"); th.Spec["bridge"] != "br0" {
			t.Errorf("the mirror called ours is now that of bridge %v", th.Spec["bridge"])
		}
		n.must(n.delete("ovs.mirror", "ours"))
		n.must(n.update("ovs.mirror", "alone", schema.Object{"snaplen": int64(64)}))
		if got, want := n.look("ovs.mirror", "alone").Mark, call("ovs.mirror", "alone", nil).Mark; got != want {
			t.Errorf("an adopted mirror has mark %q, want %q", got, want)
		}
	})
}

// TestMirrorOutlivesItsPorts deletes what a mirror refers to: it stays, shows what it lost, and can be restored.
func TestMirrorOutlivesItsPorts(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newMirrored(t, s, ovs.Options{})
		n.must(n.create("ovs.mirror", "m0", aMirror))
		n.unchanged(func() {
			n.fails(n.delete("ovs.port", "p0"), providers.Invalid, "mirror m0")
			n.fails(n.delete("ovs.port", "probe"), providers.Invalid, "mirror m0")
		})
		whole := n.look("ovs.mirror", "m0")
		deletePort(t, s, "br0", "probe")
		deletePort(t, s, "br0", "p0")
		th := n.look("ovs.mirror", "m0")
		if _, has := th.Spec["output_port"]; has || len(th.Spec["select_src_ports"].([]any)) > 0 || th.Version == whole.Version {
			t.Errorf("without its ports the mirror is observed as %v", th.Spec)
		}
		n.unchanged(func() {
			n.fails(n.update("ovs.mirror", "m0", aMirror), providers.Absent, "port p0 does not exist")
			n.fails(n.updateSeen("ovs.mirror", whole, nil), providers.Conflict)
		})
		n.must(n.create("ovs.port", "p0", aPort))
		n.must(n.create("ovs.port", "probe", aPort))
		n.must(n.update("ovs.mirror", "m0", aMirror))
		if d := cmp.Diff(whole.Spec, n.look("ovs.mirror", "m0").Spec); d != "" {
			t.Errorf("the mirror is not what it was (-was +is):\n%s", d)
		}
	})
}

// TestMirrorSuccessor replaces a mirror with another that looks the same.
func TestMirrorSuccessor(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newMirrored(t, s, ovs.Options{})
		n.must(n.create("ovs.mirror", "m0", aMirror))
		seen := n.look("ovs.mirror", "m0")
		s.Set(t, vswitch.BridgeTable, "br0", "mirrors", ovsdb.OvsSet{})
		n.must(n.create("ovs.mirror", "m0", aMirror))
		n.unchanged(func() { n.fails(n.deleteSeen("ovs.mirror", seen), providers.Conflict) })
	})
}

// TestMirrorChangesInBetween makes another client change the database between what a verb reads and what it sends.
func TestMirrorChangesInBetween(t *testing.T) {
	cases := []meddling{
		{
			name:   "its selection before an update",
			change: func(t *testing.T, s *ovstest.Switch) { s.Set(t, vswitch.MirrorTable, "m0", "select_all", true) },
			act:    func(n *node) error { return n.update("ovs.mirror", "m0", schema.Object{"snaplen": int64(64)}) },
			class:  providers.Conflict,
		},
		{
			name:   "its selection before a delete",
			change: func(t *testing.T, s *ovstest.Switch) { s.Set(t, vswitch.MirrorTable, "m0", "select_vlan", 5) },
			act:    func(n *node) error { return n.delete("ovs.mirror", "m0") },
			class:  providers.Conflict,
		},
		{
			name: "the name of a new one",
			change: func(t *testing.T, s *ovstest.Switch) {
				s.AddMirror(t, "br1", "m1", ovsdb.Row{"output_vlan": 900})
			},
			act:   func(n *node) error { return n.create("ovs.mirror", "m1", aMirror) },
			class: providers.Exists,
		},
		{
			name:   "a port of a new one",
			change: func(t *testing.T, s *ovstest.Switch) { deletePort(t, s, "br0", "probe") },
			act:    func(n *node) error { return n.create("ovs.mirror", "m1", aMirror) },
			class:  providers.Absent,
		},
		{
			name:   "the bridge of a new one",
			change: func(t *testing.T, s *ovstest.Switch) { s.Clear(t) },
			act: func(n *node) error {
				return n.create("ovs.mirror", "m1", schema.Object{"bridge": "br1", "output_vlan": int64(900)})
			},
			class: providers.Absent,
		},
	}
	meddledWith(t, cases, func(t *testing.T, s *ovstest.Switch, o ovs.Options) *node {
		t.Helper()
		n := newMirrored(t, s, o)
		n.must(n.create("ovs.mirror", "m0", aMirror))
		return n
	})
}

func TestRefusedMirrors(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newMirrored(t, s, ovs.Options{})
		n.must(n.create("ovs.mirror", "m0", aMirror))
		with := func(field string, value any) schema.Object {
			o := aMirror.Clone()
			o[field] = value
			return o
		}
		n.unchanged(func() {
			n.fails(n.create("ovs.mirror", "m0", aMirror), providers.Exists, "a mirror of bridge br0")
			n.fails(n.create("ovs.mirror", "m1", with("colour", "red")), providers.Invalid, "colour")
			n.fails(n.create("ovs.mirror", "m1", with("bridge", "br2")), providers.Absent, "bridge br2 does not exist")
			n.fails(n.create("ovs.mirror", "m1", with("bridge", "br1")), providers.Invalid, "not on bridge br1")
			n.fails(n.create("ovs.mirror", "m1", with("output_port", "nope")), providers.Absent, "port nope does not exist")
			n.fails(n.create("ovs.mirror", "m1", with("select_dst_ports", []any{"nope"})), providers.Absent, "port nope does not exist")
			n.fails(n.create("ovs.mirror", "m1", with("external_ids", map[string]any{providers.MarkKey: "x"})), providers.Invalid, providers.MarkKey)
			n.fails(n.update("ovs.mirror", "m0", schema.Object{"snaplen": int64(1)}), providers.Invalid)
			moved := schema.Object{"bridge": "br1", "select_src_ports": []any{}, "output_port": ""}
			n.fails(n.update("ovs.mirror", "m0", moved), providers.Invalid, "bridge cannot be changed in place")
		})
		for i := 1; i < 32; i++ {
			s.AddMirror(t, "br0", fmt.Sprintf("more-%d", i), ovsdb.Row{"output_vlan": 900})
		}
		n.unchanged(func() {
			n.fails(n.create("ovs.mirror", "m32", aMirror), providers.Invalid, "32 mirrors")
		})
	})
}

// TestMirrorTakesEffect asks a real switch where it sends a packet.
func TestMirrorTakesEffect(t *testing.T) {
	s := ovstest.Start(t)
	n := newMirrored(t, s, ovs.Options{})
	want := aMirror.Clone()
	want["snaplen"] = int64(64)
	for _, made := range []bool{false, true, false} {
		if made {
			n.must(n.create("ovs.mirror", "m0", want))
		} else if len(n.list("ovs.mirror")) > 0 {
			n.must(n.delete("ovs.mirror", "m0"))
		}
		out, err := s.Command(t, "ovs-appctl", "ofproto/trace", "br0", "in_port=p0,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if cut := strings.Contains(string(out), "trunc(64)"); cut != made { // only the copy for the mirror is truncated
			t.Errorf("mirrored is %t, want %t:\n%s", cut, made, out)
		}
	}
}
