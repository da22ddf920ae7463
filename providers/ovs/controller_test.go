package ovs_test

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
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

var controllerCases = []providertest.Case{{
	Kind: "ovs.controller", Name: "ctl-web", Needs: []providertest.Made{lawBridge},
	Want: schema.Object{
		"bridge": lawBridge.Name, "target": "tcp:192.0.2.1:6653", "type": "primary", "connection_mode": "out-of-band",
		"max_backoff": int64(4000), "inactivity_probe": int64(0), "enable_async_messages": false, "controller_queue_size": int64(64),
		"controller_rate_limit": int64(1000), "controller_burst_limit": int64(250), "other_config": map[string]any{"dscp": "46"},
		"external_ids": map[string]any{"ticket": "1"},
	},
	Update: schema.Object{
		"bridge": lawBridge.Name, "target": "ptcp:6653:127.0.0.1", "type": "primary", "inactivity_probe": int64(7000),
		"enable_async_messages": true, "external_ids": map[string]any{"owner": "acme"},
	},
	Invalid: schema.Object{"bridge": lawBridge.Name, "target": "tcp:192.0.2.1:6653", "max_backoff": int64(5)},
	Other: func(i int) providertest.Made { // a target is unique on a bridge
		return providertest.Made{Kind: "ovs.controller", Name: fmt.Sprintf("ctl-%d", i), Spec: schema.Object{
			"bridge": lawBridge.Name, "target": fmt.Sprintf("tcp:192.0.2.%d:6653", 100+i),
		}}
	},
}}

const aTarget = "tcp:192.0.2.1:6653"

var aController = schema.Object{"bridge": "br0", "target": aTarget}

// named returns the external_ids of a controller with this name.
func named(t *testing.T, name string) ovsdb.OvsMap {
	t.Helper()
	return ofMap(t, map[string]string{"converge.dev/name": name})
}

// newControlled returns a node with two bridges.
func newControlled(t *testing.T, s *ovstest.Switch, o ovs.Options) *node {
	t.Helper()
	n := newNode(t, s, o)
	n.must(n.create("ovs.bridge", "br0", aBridge))
	n.must(n.create("ovs.bridge", "br1", aBridge))
	return n
}

// controls returns an operation that adds a controller to a bridge, or removes it, like another client.
func controls(bridge string, how ovsdb.Mutator, uuid string) ovsdb.Operation {
	return ovsdb.Operation{
		Op: ovsdb.OperationMutate, Table: vswitch.BridgeTable,
		Where:     []ovsdb.Condition{ovsdb.NewCondition("name", ovsdb.ConditionEqual, bridge)},
		Mutations: []ovsdb.Mutation{{Column: "controller", Mutator: how, Value: ovsdb.OvsSet{GoSet: []any{ovsdb.UUID{GoUUID: uuid}}}}},
	}
}

// addController adds a controller to a bridge like another client, and returns its UUID.
func addController(t *testing.T, s *ovstest.Switch, bridge string, row ovsdb.Row) string {
	t.Helper()
	uuid := s.Transact(t,
		ovsdb.Operation{Op: ovsdb.OperationInsert, Table: vswitch.ControllerTable, UUIDName: "controller", Row: row},
		controls(bridge, ovsdb.MutateOperationInsert, "controller"))[0].UUID.GoUUID
	s.Settle(t)
	return uuid
}

// TestForeignControllersSurvive has controllers that others created: without a name, and with names that ours have.
func TestForeignControllersSurvive(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newControlled(t, s, ovs.Options{})
		theirs := []string{
			addController(t, s, "br0", ovsdb.Row{"target": aTarget}),
			addController(t, s, "br1", ovsdb.Row{"target": aTarget, "external_ids": named(t, "twice")}),
			addController(t, s, "br1", ovsdb.Row{"target": "ptcp:6654:127.0.0.1", "external_ids": named(t, "twice")}),
		}
		slices.Sort(theirs)
		if got := n.list("ovs.controller"); !slices.Equal(got, theirs) {
			t.Fatalf("observed controllers %q, want %q", got, theirs)
		}
		n.unchanged(func() {
			for _, id := range theirs {
				if th := n.look("ovs.controller", id); !th.Mark.IsZero() || th.Phase != providers.Ready {
					t.Errorf("a foreign controller is observed as %+v", th)
				}
				n.fails(n.delete("ovs.controller", id), providers.Denied, "no ownership mark")
				n.fails(n.create("ovs.controller", id, aController), providers.Exists, "another controller")
			}
			twice := schema.Object{"bridge": "br0", "target": "tcp:192.0.2.9:6653"}
			n.fails(n.create("ovs.controller", "twice", twice), providers.Exists, "another controller")
			n.fails(n.delete("ovs.bridge", "br0"), providers.Invalid, "controller")
			n.must(n.create("ovs.controller", "ours", schema.Object{"bridge": "br0", "target": "tcp:192.0.2.2:6653"}))
			n.must(n.update("ovs.controller", "ours", schema.Object{"target": "tcp:192.0.2.3:6653"}))
			n.must(n.delete("ovs.controller", "ours"))
		})

		n.must(n.create("ovs.controller", "ours", schema.Object{"bridge": "br0", "target": "tcp:192.0.2.2:6653"}))
		namesake := addController(t, s, "br1", ovsdb.Row{"target": "tcp:192.0.2.4:6653", "external_ids": named(t, "ours")})
		if th := n.look("ovs.controller", "ours"); th.Spec["bridge"] != "br0" {
			t.Errorf("the controller called ours is now that of bridge %v", th.Spec["bridge"])
		}
		n.look("ovs.controller", namesake)
		n.must(n.delete("ovs.controller", "ours"))
	})
}

// TestControllerKeepsItsID adopts a controller that others created, and releases one of ours: the meaning of an id stays
// the same.
func TestControllerKeepsItsID(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newControlled(t, s, ovs.Options{})
		id := addController(t, s, "br0", ovsdb.Row{"target": aTarget, "external_ids": ofMap(t, map[string]string{"note": "theirs"})})
		n.must(n.update("ovs.controller", id, schema.Object{"max_backoff": int64(2000)}))
		th := n.look("ovs.controller", id)
		if d := cmp.Diff(map[string]any{"note": "theirs"}, th.Spec["external_ids"]); d != "" || th.Mark != call("ovs.controller", id, nil).Mark {
			t.Errorf("a controller that was taken over has mark %q and other notes (-want +got):\n%s", th.Mark, d)
		}
		n.must(n.delete("ovs.controller", id))
		n.must(n.create("ovs.controller", id, th.Spec)) // undone
		n.must(n.delete("ovs.controller", id))

		n.must(n.create("ovs.controller", "c0", aController))
		c := call("ovs.controller", "c0", aController)
		c.Have, c.Mark = n.look("ovs.controller", "c0").Spec, providers.Mark{}
		n.must(n.kind("ovs.controller").Update(t.Context(), c))
		n.must(n.update("ovs.controller", "c0", nil))
		if th := n.look("ovs.controller", "c0"); th.Name != "c0" || th.Mark != call("ovs.controller", "c0", nil).Mark {
			t.Errorf("a controller that was given back and taken over is observed as %+v", th)
		}
	})
}

// TestControllerComesBack: the traits do not promise that an undo restores the flows, but no setting is lost.
func TestControllerComesBack(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newControlled(t, s, ovs.Options{})
		example := controllerCases[0]
		want, other := example.Want.Clone(), example.Update.Clone()
		want["bridge"], other["bridge"] = "br0", "br0"
		n.must(n.create("ovs.controller", "c0", want))
		before := n.look("ovs.controller", "c0")
		same := func(what string) {
			t.Helper()
			if d := cmp.Diff(before.Spec, n.look("ovs.controller", "c0").Spec); d != "" {
				t.Errorf("%s was undone, and the controller is not what it was (-was +is):\n%s", what, d)
			}
		}
		n.must(n.update("ovs.controller", "c0", other))
		n.must(n.update("ovs.controller", "c0", before.Spec))
		same("an update")
		n.must(n.delete("ovs.controller", "c0"))
		n.must(n.create("ovs.controller", "c0", before.Spec))
		same("a delete")
	})
}

// TestControllerSuccessor replaces a controller with another that looks the same.
func TestControllerSuccessor(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newControlled(t, s, ovs.Options{})
		n.must(n.create("ovs.controller", "c0", aController))
		seen := n.look("ovs.controller", "c0")
		s.Set(t, vswitch.BridgeTable, "br0", "controller", ovsdb.OvsSet{})
		if got := s.Rows(t, vswitch.ControllerTable); len(got) != 0 {
			t.Errorf("%d controllers outlive their reference", len(got))
		}
		n.must(n.create("ovs.controller", "c0", aController))
		n.unchanged(func() { n.fails(n.deleteSeen("ovs.controller", seen), providers.Conflict) })
	})
}

// TestBridgeOfController: the state of a bridge does not depend on its controllers, but it is not deleted with them.
func TestBridgeOfController(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newControlled(t, s, ovs.Options{})
		before := n.look("ovs.bridge", "br0")
		n.must(n.create("ovs.controller", "c0", aController))
		if d := cmp.Diff(before, n.look("ovs.bridge", "br0")); d != "" {
			t.Errorf("with a controller the bridge is another (-without +with):\n%s", d)
		}
		n.must(n.updateSeen("ovs.bridge", before, schema.Object{"fail_mode": "secure"}))
		n.look("ovs.controller", "c0")
		n.unchanged(func() { n.fails(n.delete("ovs.bridge", "br0"), providers.Invalid, "controller") })
		n.must(n.delete("ovs.controller", "c0"))
		n.must(n.delete("ovs.bridge", "br0"))
	})
}

// TestControllerOfTwoBridges makes another client give one of ours to a second bridge as well, which would keep it.
func TestControllerOfTwoBridges(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newControlled(t, s, ovs.Options{})
		n.must(n.create("ovs.controller", "c0", aController))
		uuid := rowCalled(t, s, vswitch.ControllerTable, "c0")
		s.Transact(t, controls("br1", ovsdb.MutateOperationInsert, uuid))
		for range 20 { // the rows of a view have no order
			if th := n.look("ovs.controller", "c0"); th.Spec["bridge"] != "br0" || !strings.Contains(th.Detail, "bridge br1") {
				t.Fatalf("a controller of two bridges is observed as %+v", th)
			}
		}
		n.unchanged(func() { n.fails(n.delete("ovs.controller", "c0"), providers.Invalid, "bridge br1") })
		s.Transact(t, controls("br1", ovsdb.MutateOperationDelete, uuid))
		n.must(n.delete("ovs.controller", "c0"))
	})
}

// TestSameTarget: what OVS does with one target twice on a bridge is unspecified. On two bridges it is permitted.
func TestSameTarget(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newControlled(t, s, ovs.Options{})
		elsewhere := schema.Object{"bridge": "br1", "target": aTarget}
		another := schema.Object{"bridge": "br0", "target": "tcp:192.0.2.2:6653"}
		n.must(n.create("ovs.controller", "c0", aController))
		n.must(n.create("ovs.controller", "c1", elsewhere))
		n.must(n.create("ovs.controller", "c2", another))
		n.unchanged(func() {
			n.fails(n.create("ovs.controller", "c3", aController), providers.Invalid, "already has a controller with target")
			n.fails(n.update("ovs.controller", "c2", aController), providers.Invalid, "already has a controller with target")
		})
		i := slices.IndexFunc(n.p.Kinds, func(k providers.Served) bool { return k.Name == "ovs.controller" })
		excludes := func(o schema.Object) bool {
			traits := n.p.Kinds[i].Traits
			return traits.Claims("c0", aController)[0].Excludes(traits.Claims("c3", o)[0])
		}
		if !excludes(aController) || excludes(elsewhere) || excludes(another) {
			t.Error("the traits do not say which controllers exclude each other")
		}
		if th := n.look("ovs.controller", "c0"); strings.Contains(th.Detail, "target") {
			t.Errorf("a controller with a target of its own: %s", th.Detail)
		}

		// One that another client adds is reported, and does not prevent changing ours.
		addController(t, s, "br0", ovsdb.Row{"target": aTarget})
		if th := n.look("ovs.controller", "c0"); th.Phase != providers.Ready || !strings.Contains(th.Detail, "the same target") {
			t.Errorf("beside another one with its target a controller is %s (%s)", th.Phase, th.Detail)
		}
		n.must(n.update("ovs.controller", "c0", schema.Object{"max_backoff": int64(2000)}))
		n.must(n.update("ovs.controller", "c0", schema.Object{"target": "tcp:192.0.2.3:6653"}))
		n.fails(n.update("ovs.controller", "c0", aController), providers.Invalid, "already has a controller with target")
	})
}

// TestControllerChangesInBetween makes another client change the database between what a verb reads and what it sends.
func TestControllerChangesInBetween(t *testing.T) {
	update := func(n *node) error {
		return n.update("ovs.controller", "c0", schema.Object{"max_backoff": int64(2000)})
	}
	remove := func(n *node) error { return n.delete("ovs.controller", "c0") }
	create := func(n *node) error {
		return n.create("ovs.controller", "c1", schema.Object{"bridge": "br1", "target": aTarget})
	}
	set := func(row ovsdb.Row) func(t *testing.T, s *ovstest.Switch) {
		return func(t *testing.T, s *ovstest.Switch) {
			setRow(t, s, vswitch.ControllerTable, rowCalled(t, s, vswitch.ControllerTable, "c0"), row)
		}
	}
	move := func(bridge string, how ovsdb.Mutator) func(t *testing.T, s *ovstest.Switch) {
		return func(t *testing.T, s *ovstest.Switch) {
			s.Transact(t, controls(bridge, how, rowCalled(t, s, vswitch.ControllerTable, "c0")))
		}
	}
	take := func(connected bool) func(t *testing.T, s *ovstest.Switch) {
		return func(t *testing.T, s *ovstest.Switch) {
			row := ovsdb.Row{"target": "tcp:192.0.2.9:6653", "external_ids": named(t, "c1"), "is_connected": connected}
			addController(t, s, "br0", row)
		}
	}
	noted := ovsdb.OvsMap{GoMap: map[any]any{"converge.dev/name": "c0", "note": "theirs"}}
	cases := []meddling{
		{"its target before an update", set(ovsdb.Row{"target": "tcp:192.0.2.9:6653"}), update, providers.Conflict},
		{"its notes before an update", set(ovsdb.Row{"external_ids": noted}), update, providers.Conflict},
		{"its end before an update", move("br0", ovsdb.MutateOperationDelete), update, providers.Conflict},
		{"its probe before a delete", set(ovsdb.Row{"inactivity_probe": 9000}), remove, providers.Conflict},
		{"an address before a delete", set(ovsdb.Row{"local_ip": "192.0.2.5"}), remove, providers.Conflict},
		{"another bridge before a delete", move("br1", ovsdb.MutateOperationInsert), remove, providers.Conflict},
		{"the name of a new one", take(false), create, providers.Exists},
		{"the name of a new one by one that is connected", take(true), create, providers.Exists},
		{"the bridge of a new one", func(t *testing.T, s *ovstest.Switch) { s.Clear(t) }, create, providers.Absent},
	}
	meddledWith(t, cases, func(t *testing.T, s *ovstest.Switch, o ovs.Options) *node {
		t.Helper()
		n := newControlled(t, s, o)
		n.must(n.create("ovs.controller", "c0", aController))
		return n
	})
}

func TestRefusedControllers(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newControlled(t, s, ovs.Options{})
		n.must(n.create("ovs.controller", "c0", aController))
		with := func(field string, value any) schema.Object {
			o := schema.Object{"bridge": "br0", "target": "tcp:192.0.2.2:6653"}
			o[field] = value
			return o
		}
		n.unchanged(func() {
			n.fails(n.create("ovs.controller", "c0", with("max_backoff", int64(2000))), providers.Exists, "another controller")
			n.fails(n.create("ovs.controller", "c1", with("colour", "red")), providers.Invalid, "colour")
			n.fails(n.create("ovs.controller", "c1", with("bridge", "br2")), providers.Absent, "bridge br2 does not exist")
			n.fails(n.create("ovs.controller", "c1", with("type", "manager")), providers.Invalid, "manager")
			for _, key := range []string{providers.MarkKey, "converge.dev/name"} {
				n.fails(n.create("ovs.controller", "c1", with("external_ids", map[string]any{key: "x"})), providers.Invalid, key)
				n.fails(n.update("ovs.controller", "c0", schema.Object{"external_ids": map[string]any{key: "x"}}), providers.Invalid, key)
			}
			n.fails(n.update("ovs.controller", "c0", schema.Object{"controller_rate_limit": int64(1)}), providers.Invalid)
			n.fails(n.update("ovs.controller", "c0", schema.Object{"bridge": "br1"}), providers.Invalid, "bridge cannot be changed in place")
			n.fails(n.update("ovs.controller", "c0", schema.Object{"type": "service"}), providers.Invalid, "type cannot be changed in place")
		})
		uuid := rowCalled(t, s, vswitch.ControllerTable, "c0")
		for _, column := range []string{"local_gateway", "local_ip", "local_netmask"} {
			setRow(t, s, vswitch.ControllerTable, uuid, ovsdb.Row{column: "192.0.2.5"})
			n.unchanged(func() { n.fails(n.delete("ovs.controller", "c0"), providers.Invalid, column+" set by another client") })
			setRow(t, s, vswitch.ControllerTable, uuid, ovsdb.Row{column: ovsdb.OvsSet{}})
		}
		n.must(n.delete("ovs.controller", "c0"))
	})
}

// TestControllerOfBridgeNotMade: a controller is not in effect before its bridge is.
func TestControllerOfBridgeNotMade(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newNode(t, s, ovs.Options{})
		n.fails(n.create("ovs.bridge", "br0", schema.Object{"datapath_type": "system"}), providers.Unknown, "not in effect")
		n.fails(n.create("ovs.controller", "c0", aController), providers.Unknown, "not in effect", "did not create bridge br0")
		if th := n.look("ovs.controller", "c0"); th.Phase != providers.Pending {
			t.Errorf("the controller of a bridge that cannot be made is %s", th.Phase)
		}
		n.must(n.delete("ovs.controller", "c0"))
	})
}

// TestControllerConnects: ovs-vswitchd continuously reports the state of the connection, and none of that is a change.
func TestControllerConnects(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newControlled(t, s, ovs.Options{})
		want := aController.Clone()
		if s.Real {
			want["target"] = "unix:" + filepath.Base(openflow(t, s))
		}
		n.must(n.create("ovs.controller", "c0", want))
		uuid := rowCalled(t, s, vswitch.ControllerTable, "c0")
		if !s.Real {
			setRow(t, s, vswitch.ControllerTable, uuid, ovsdb.Row{"role": "slave", "status": ofMap(t, map[string]string{"state": "BACKOFF"})})
		}
		before := n.look("ovs.controller", "c0")
		if s.Real { // where it may be connected already
			s.Vsctl(t, "wait-until", "Controller", uuid, "is_connected=true")
		} else {
			if d := cmp.Diff(schema.Object{"is_connected": false}, before.Status); d != "" || before.Detail != "not connected" {
				t.Errorf("without a connection it has the detail %q and the status (-want +got):\n%s", before.Detail, d)
			}
			active := ofMap(t, map[string]string{"state": "ACTIVE"})
			setRow(t, s, vswitch.ControllerTable, uuid, ovsdb.Row{"is_connected": true, "role": "other", "status": active})
		}
		th := n.look("ovs.controller", "c0")
		if d := cmp.Diff(schema.Object{"is_connected": true, "role": "other"}, th.Status); d != "" || th.Detail != "" {
			t.Errorf("with a connection it has the status (-want +got):\n%s and the detail %q", d, th.Detail)
		}
		if d := cmp.Diff(before.Spec, th.Spec); d != "" || before.Version != th.Version || th.Phase != providers.Ready {
			t.Errorf("with a connection it is another: %s, version %s after %s, spec (-without +with):\n%s",
				th.Phase, th.Version, before.Version, d)
		}
		n.must(n.updateSeen("ovs.controller", before, schema.Object{"max_backoff": int64(2000)}))
		n.must(n.delete("ovs.controller", "c0"))
	})
}

// openflow runs a controller that greets and then only listens, and returns its socket.
func openflow(t *testing.T, s *ovstest.Switch) string {
	t.Helper()
	socket := filepath.Join(filepath.Dir(strings.TrimPrefix(s.Endpoint, "unix:")), "ctl.sock") // OVS accepts no other directory
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if _, err := conn.Write([]byte{1, 0, 0, 8, 0, 0, 0, 1}); err == nil { // OFPT_HELLO of OpenFlow 1.0
				_, _ = io.Copy(io.Discard, conn)
			}
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-done
	})
	return socket
}

// TestControllerTakesEffect tests a real switch: through the controller that it waits for, and for the flows that the first
// primary controller and the removal of the last one empty.
func TestControllerTakesEffect(t *testing.T) {
	s := ovstest.Start(t)
	n := newControlled(t, s, ovs.Options{})
	ask := func(args ...string) (string, error) {
		out, err := s.Command(t, "ovs-ofctl", args...).CombinedOutput()
		return string(out), err
	}
	listens := func(want bool) {
		t.Helper()
		if out, err := ask("show", "tcp:127.0.0.1:6654"); (err == nil) != want {
			t.Errorf("OVS listens is %t, want %t: %s", err == nil, want, out)
		}
	}
	flows := func(want bool) {
		t.Helper()
		out, err := ask("dump-flows", "br0")
		if got := strings.Contains(out, "priority=7"); err != nil || got != want {
			t.Errorf("the flow is there is %t, want %t: %v: %s", got, want, err, out)
		}
		if out, err := ask("add-flow", "br0", "priority=7,actions=drop"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	flows(false)
	listens(false)
	n.must(n.create("ovs.controller", "look", schema.Object{"bridge": "br0", "target": "ptcp:6654:127.0.0.1"}))
	listens(true)
	flows(true)
	n.must(n.create("ovs.controller", "c0", aController))
	flows(false)
	n.must(n.create("ovs.controller", "c1", schema.Object{"bridge": "br0", "target": "tcp:192.0.2.2:6653", "connection_mode": "out-of-band"}))
	n.must(n.delete("ovs.controller", "c0"))
	flows(true)
	n.must(n.delete("ovs.controller", "look"))
	listens(false)
	flows(true)
	n.must(n.delete("ovs.controller", "c1"))
	flows(false)
}
