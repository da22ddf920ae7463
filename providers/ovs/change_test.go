package ovs_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs"
	"converge.dev/converge/providers/ovs/vswitch"
	"converge.dev/converge/schema"
	"github.com/google/go-cmp/cmp"
	"github.com/ovn-org/libovsdb/ovsdb"
)

// A node is a switch with a provider, and a short form of the engine's part.
type node struct {
	*testing.T
	s *ovstest.Switch
	p *providers.Provider
}

func newNode(t *testing.T, s *ovstest.Switch, o ovs.Options) *node {
	t.Helper()
	if o.Endpoint == "" {
		o.Endpoint = s.Endpoint
	}
	n := &node{t, s, open(t, o)}
	t.Cleanup(func() {
		if err := n.p.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func (n *node) kind(name string) providers.Kind {
	n.Helper()
	i := slices.IndexFunc(n.p.Kinds, func(k providers.Served) bool { return k.Name == name })
	return n.p.Kinds[i].Kind
}

func call(kind, name string, spec schema.Object) providers.Call {
	ref := schema.Ref{Scope: "gpu-01", Kind: kind, Name: name}
	return providers.Call{Ref: ref, ID: name, Mark: providers.Mark{Site: providertest.Site, Ref: ref, Incarnation: 1}, Want: spec}
}

func (n *node) create(kind, name string, spec schema.Object) error {
	return n.kind(kind).Create(n.Context(), call(kind, name, spec))
}

// update writes fields over the current state of the thing.
func (n *node) update(kind, name string, fields schema.Object) error {
	n.Helper()
	return n.updateSeen(kind, n.look(kind, name), fields)
}

func (n *node) updateSeen(kind string, seen providers.Thing, fields schema.Object) error {
	c := call(kind, seen.ID, seen.Spec.Clone())
	c.Have, c.Version = seen.Spec, seen.Version
	for k, v := range fields {
		c.Want[k] = v
	}
	return n.kind(kind).Update(n.Context(), c)
}

func (n *node) delete(kind, name string) error {
	n.Helper()
	return n.deleteSeen(kind, n.look(kind, name))
}

func (n *node) deleteSeen(kind string, seen providers.Thing) error {
	c := call(kind, seen.ID, nil)
	c.Have, c.Version = seen.Spec, seen.Version
	return n.kind(kind).Delete(n.Context(), c)
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// fails checks class and text of an error.
func (n *node) fails(err error, class providers.Class, text ...string) {
	n.Helper()
	if err == nil {
		n.Fatalf("it succeeded, want it to fail with class %s", class)
	}
	if providers.ClassOf(err) != class {
		n.Errorf("it failed with class %s, want %s: %v", providers.ClassOf(err), class, err)
	}
	for _, s := range text {
		if !strings.Contains(err.Error(), s) {
			n.Errorf("the error does not say %q: %v", s, err)
		}
	}
}

func (n *node) list(kind string) []string {
	n.Helper()
	things, err := providers.Collect(n.kind(kind).List(n.Context()))
	n.must(err)
	var ids []string
	for _, th := range things {
		ids = append(ids, th.ID)
	}
	return ids
}

func (n *node) look(kind, name string) providers.Thing {
	n.Helper()
	things, err := n.kind(kind).Get(n.Context(), []string{name})
	n.must(err)
	if len(things) != 1 {
		n.Fatalf("there is no %s %s", kind, name)
	}
	return things[0]
}

// unchanged runs f and checks that the database is as before.
func (n *node) unchanged(f func()) {
	n.Helper()
	before := n.s.Dump(n)
	f()
	if d := cmp.Diff(before, n.s.Dump(n)); d != "" {
		n.Errorf("the database changed (-before +after):\n%s", d)
	}
}

var (
	aBridge = schema.Object{"datapath_type": ovstest.Datapath}
	aPort   = schema.Object{"bridge": "br0", "interface": map[string]any{"type": "internal"}}
)

func ofMap(t *testing.T, m map[string]string) ovsdb.OvsMap {
	t.Helper()
	o, err := ovsdb.NewOvsMap(m)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestForeignPortsSurvive(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newNode(t, s, ovs.Options{})
		n.must(n.create("ovs.bridge", "br0", aBridge))
		s.AddPort(t, "br0", "vnet0", map[string]string{"vm-id": "4c1f", "iface-id": "a"})
		s.AddPort(t, "br0", "mystery", nil)
		if got := n.list("ovs.port"); !slices.Equal(got, []string{"mystery", "vnet0"}) {
			t.Fatalf("observed ports %q; want the foreign ones, and not the local port of the bridge", got)
		}
		if th := n.look("ovs.port", "vnet0"); !th.Mark.IsZero() || th.Phase != providers.Ready || th.Passing == "" {
			t.Errorf("the port of a machine is observed as %+v", th)
		}
		if th := n.look("ovs.port", "mystery"); th.Passing != "" {
			t.Errorf("a foreign port is observed as %+v", th)
		}
		n.unchanged(func() {
			n.fails(n.create("ovs.port", "vnet0", aPort), providers.Exists, "port of bridge br0")
			n.fails(n.update("ovs.port", "vnet0", schema.Object{"tag": int64(7)}), providers.Denied, "virtual machine")
			n.fails(n.delete("ovs.port", "vnet0"), providers.Denied, "no ownership mark")
			n.fails(n.delete("ovs.port", "mystery"), providers.Denied, "no ownership mark")
			n.fails(n.delete("ovs.bridge", "br0"), providers.Invalid, "mystery, vnet0")
			n.must(n.create("ovs.port", "ours", aPort))
			n.must(n.update("ovs.port", "ours", schema.Object{"tag": int64(7)}))
			n.must(n.delete("ovs.port", "ours"))
		})
	})
}

func TestThingsOfOthersAreRefused(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newNode(t, s, ovs.Options{})
		n.must(n.create("ovs.bridge", "br0", aBridge))
		n.must(n.create("ovs.port", "p0", aPort))
		for _, mark := range []string{
			"00000000-0000-4000-8000-000000000000/gpu-01/ovs.port/p0#1", // another site
			providertest.Site + "/gpu-01/ovs.port/p1#1",                 // another resource
		} {
			s.Set(t, vswitch.PortTable, "p0", "external_ids", ofMap(t, map[string]string{providers.MarkKey: mark}))
			n.unchanged(func() {
				n.fails(n.update("ovs.port", "p0", schema.Object{"tag": int64(7)}), providers.Denied, "belongs to")
				n.fails(n.delete("ovs.port", "p0"), providers.Denied, "belongs to")
			})
		}
		s.Set(t, vswitch.PortTable, "p0", "external_ids", ofMap(t, nil))
		seen := n.look("ovs.port", "p0")
		c := call("ovs.port", "p0", seen.Spec)
		c.Mark, c.Version = providers.Mark{}, seen.Version
		n.unchanged(func() { n.fails(n.kind("ovs.port").Update(t.Context(), c), providers.Denied, "no ownership mark") })
		n.must(n.update("ovs.port", "p0", nil)) // adopts
		if got, want := n.look("ovs.port", "p0").Mark, call("ovs.port", "p0", nil).Mark; got != want {
			t.Errorf("an adopted port has mark %q, want %q", got, want)
		}
	})
}

// A meddling is what another client changes between what a verb reads and what it writes.
type meddling struct {
	name   string
	change func(t *testing.T, s *ovstest.Switch)
	act    func(n *node) error
	class  providers.Class // of the error with which the verb fails
}

// meddledWith tries each meddling on a switch with what begin creates: the verb fails, and what the other client did is all that is there.
func meddledWith(t *testing.T, cases []meddling, begin func(t *testing.T, s *ovstest.Switch, o ovs.Options) *node) {
	t.Helper()
	on(t, func(t *testing.T, s *ovstest.Switch) {
		for _, c := range cases {
			t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
				s.Clear(t)
				r, endpoint := newRelay(t, s, nil)
				n := begin(t, s, ovs.Options{Endpoint: endpoint})
				var theirs string
				r.on(func() fate {
					c.change(t, s)
					theirs = s.Dump(t)
					return passed
				})
				n.fails(c.act(n), c.class)
				if d := cmp.Diff(theirs, s.Dump(t)); d != "" {
					t.Errorf("what the others did is not what is there (-theirs +now):\n%s", d)
				}
			})
		}
	})
}

// TestChangesInBetween makes another client change the database after the provider has read it and before its transaction
// arrives there.
func TestChangesInBetween(t *testing.T) {
	const port = "p0"
	noted := map[string]string{"note": "theirs"}
	cases := []meddling{
		{
			name:   "a tag where there was none",
			change: func(t *testing.T, s *ovstest.Switch) { s.Set(t, vswitch.PortTable, port, "tag", 9) },
			act:    func(n *node) error { return n.update("ovs.port", port, schema.Object{"tag": int64(7)}) },
			class:  providers.Conflict,
		},
		{
			name: "the mark and a note",
			change: func(t *testing.T, s *ovstest.Switch) {
				s.Set(t, vswitch.PortTable, port, "external_ids", ofMap(t, noted))
			},
			act:   func(n *node) error { return n.update("ovs.port", port, schema.Object{"tag": int64(7)}) },
			class: providers.Conflict,
		},
		{
			name: "a note on the interface",
			change: func(t *testing.T, s *ovstest.Switch) {
				s.Set(t, vswitch.InterfaceTable, port, "external_ids", ofMap(t, noted))
			},
			act:   func(n *node) error { return n.update("ovs.port", port, schema.Object{"tag": int64(7)}) },
			class: providers.Conflict,
		},
		{
			name:   "a port to be deleted",
			change: func(t *testing.T, s *ovstest.Switch) { s.Set(t, vswitch.PortTable, port, "protected", true) },
			act:    func(n *node) error { return n.delete("ovs.port", port) },
			class:  providers.Conflict,
		},
		{
			name: "a mirror of a port to be deleted",
			change: func(t *testing.T, s *ovstest.Switch) {
				ref := ovsdb.OvsSet{GoSet: []any{s.Row(t, vswitch.PortTable, port)["_uuid"]}}
				s.AddMirror(t, "br0", "theirs", ovsdb.Row{"output_port": ref})
			},
			act:   func(n *node) error { return n.delete("ovs.port", port) },
			class: providers.Conflict,
		},
		{
			name: "a mirror that turns to a port to be deleted",
			change: func(t *testing.T, s *ovstest.Switch) {
				ref := ovsdb.OvsSet{GoSet: []any{s.Row(t, vswitch.PortTable, port)["_uuid"]}}
				s.Set(t, vswitch.MirrorTable, "watch", "select_src_port", ref)
			},
			act: func(n *node) error {
				n.s.AddMirror(n.T, "br0", "watch", ovsdb.Row{"output_vlan": 900})
				return n.delete("ovs.port", port)
			},
			class: providers.Conflict,
		},
		{
			name: "a bridge",
			change: func(t *testing.T, s *ovstest.Switch) {
				s.Set(t, vswitch.BridgeTable, "br0", "fail_mode", "secure")
			},
			act:   func(n *node) error { return n.update("ovs.bridge", "br0", schema.Object{"stp_enable": true}) },
			class: providers.Conflict,
		},
		{
			name:   "a port on a bridge to be deleted",
			change: func(t *testing.T, s *ovstest.Switch) { s.AddPort(t, "empty", "vnet0", nil) },
			act:    func(n *node) error { return n.delete("ovs.bridge", "empty") },
			class:  providers.Conflict,
		},
		{
			name:   "the name of a new port",
			change: func(t *testing.T, s *ovstest.Switch) { s.AddPort(t, "br0", "p1", nil) },
			act:    func(n *node) error { return n.create("ovs.port", "p1", aPort) },
			class:  providers.Exists,
		},
		{
			name:   "the bridge of a new port",
			change: func(t *testing.T, s *ovstest.Switch) { s.Clear(t) },
			act:    func(n *node) error { return n.create("ovs.port", "p1", aPort) },
			class:  providers.Absent,
		},
	}
	meddledWith(t, cases, func(t *testing.T, s *ovstest.Switch, o ovs.Options) *node {
		t.Helper()
		n := newNode(t, s, o)
		n.must(n.create("ovs.bridge", "br0", aBridge))
		n.must(n.create("ovs.bridge", "empty", aBridge))
		n.must(n.create("ovs.port", port, aPort))
		return n
	})
}

func TestStaleWithoutVersion(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newNode(t, s, ovs.Options{})
		n.must(n.create("ovs.bridge", "br0", aBridge))
		seen := n.look("ovs.bridge", "br0")
		seen.Version = ""
		s.Set(t, vswitch.BridgeTable, "br0", "fail_mode", "secure")
		n.unchanged(func() {
			n.fails(n.updateSeen("ovs.bridge", seen, nil), providers.Conflict)
			n.fails(n.deleteSeen("ovs.bridge", seen), providers.Conflict)
		})
	})
}

// TestSuccessor replaces a thing with another that looks the same.
func TestSuccessor(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newNode(t, s, ovs.Options{})
		n.must(n.create("ovs.bridge", "br0", aBridge))
		seen := n.look("ovs.bridge", "br0")
		s.Clear(t)
		n.must(n.create("ovs.bridge", "br0", aBridge))
		n.unchanged(func() { n.fails(n.deleteSeen("ovs.bridge", seen), providers.Conflict) })
	})
}

func TestAnswerLost(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		for _, f := range []fate{lost, unheard} {
			r, endpoint := newRelay(t, s, nil)
			n := newNode(t, s, ovs.Options{Endpoint: endpoint})
			s.Clear(t)
			r.on(func() fate { return f })
			n.fails(n.create("ovs.bridge", "br0", aBridge), providers.Unknown)
			s.Settle(t)
			var want []string
			if f == unheard {
				want = []string{"br0"}
			}
			if got := n.list("ovs.bridge"); !slices.Equal(got, want) {
				t.Errorf("after fate %d there are the bridges %q, want %q", f, got, want)
			}
		}
	})
}

// TestConnectionHangs has a connection on which nothing passes any more: the next call uses another one.
func TestConnectionHangs(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		r, endpoint := newRelay(t, s, nil)
		n := newNode(t, s, ovs.Options{Endpoint: endpoint, Settle: time.Second})
		r.on(func() fate { return stuck })
		n.fails(n.create("ovs.bridge", "br0", aBridge), providers.Unknown, "no answer")
		if got := n.list("ovs.bridge"); len(got) != 0 {
			t.Errorf("observed %q, want nothing", got)
		}
	})
}

// TestConnectionLost breaks an idle connection: the next observation is of the current state, or an error, never of
// a part of an earlier one.
func TestConnectionLost(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		r, endpoint := newRelay(t, s, nil)
		n := newNode(t, s, ovs.Options{Endpoint: endpoint})
		n.must(n.create("ovs.bridge", "br0", aBridge))
		r.cut()
		s.Clear(t)
		things, err := providers.Collect(n.kind("ovs.bridge").List(t.Context()))
		if err != nil {
			n.fails(err, providers.Transient)
			things, err = providers.Collect(n.kind("ovs.bridge").List(t.Context()))
			n.must(err)
		}
		if len(things) != 0 {
			t.Errorf("observed %d bridges that are gone", len(things))
		}
		r.listener.Close()
		r.cut()
		for range 2 { // the connection may be found broken first
			_, err = providers.Collect(n.kind("ovs.bridge").List(t.Context()))
		}
		n.fails(err, providers.Transient)
	})
}

func TestVswitchdDoesNotAct(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newNode(t, s, ovs.Options{Settle: time.Second})
		n.must(n.create("ovs.bridge", "br0", aBridge))
		s.Freeze(t)
		n.fails(n.create("ovs.port", "p0", aPort), providers.Unknown, "ovs-vswitchd did not apply it within 1s")
		n.fails(n.update("ovs.bridge", "br0", schema.Object{"stp_enable": true}), providers.Unknown, "did not apply it")
		for kind, name := range map[string]string{"ovs.port": "p0", "ovs.bridge": "br0"} {
			if th := n.look(kind, name); th.Phase != providers.Pending || th.Detail == "" {
				t.Errorf("%s is %s (%s) while ovs-vswitchd does not act", name, th.Phase, th.Detail)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		context.AfterFunc(t.Context(), cancel)
		cancel()
		c := call("ovs.port", "p1", aPort)
		n.unchanged(func() { n.fails(n.kind("ovs.port").Create(ctx, c), providers.Transient) })
		s.Thaw(t)
		s.Settle(t)
		for kind, name := range map[string]string{"ovs.port": "p0", "ovs.bridge": "br0"} {
			if th := n.look(kind, name); th.Phase != providers.Ready {
				t.Errorf("%s is %s (%s) after ovs-vswitchd went on", name, th.Phase, th.Detail)
			}
		}
	})
}

// TestBusySwitch: a thing is waited for until ovs-vswitchd has its own last change, whatever others request of the switch.
func TestBusySwitch(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		patient := newNode(t, s, ovs.Options{})
		patient.must(patient.create("ovs.bridge", "br0", aBridge))
		n := newNode(t, s, ovs.Options{Settle: time.Second}) // which the update below uses up
		is := func(want providers.Phase, when string) {
			t.Helper()
			if th := n.look("ovs.bridge", "br0"); th.Phase != want {
				t.Errorf("the bridge is %s (%s) %s", th.Phase, th.Detail, when)
			}
		}
		is(providers.Ready, "when it was made")
		s.Freeze(t)
		s.Request(t)
		is(providers.Ready, "when something else was requested")
		n.fails(n.update("ovs.bridge", "br0", schema.Object{"stp_enable": true}), providers.Unknown, "did not apply it")
		is(providers.Pending, "before its change was applied")
		next := s.Request(t)
		s.Reach(t, next-2)
		is(providers.Pending, "before its change was applied")
		s.Reach(t, next-1)
		is(providers.Ready, "once its change was applied")
	})
}

func TestVswitchdFails(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newNode(t, s, ovs.Options{})
		n.must(n.create("ovs.bridge", "br0", aBridge))
		const cause = "could not open network device bad0"
		n.fails(n.create("ovs.port", "bad0", schema.Object{"bridge": "br0"}), providers.Unknown, cause)
		if th := n.look("ovs.port", "bad0"); th.Phase != providers.Failed || !strings.Contains(th.Detail, cause) {
			t.Errorf("a port without device is %s (%s)", th.Phase, th.Detail)
		}
		n.must(n.delete("ovs.port", "bad0"))
		n.fails(n.create("ovs.bridge", "br1", schema.Object{"datapath_type": "system"}), providers.Unknown, "not in effect")
		if th := n.look("ovs.bridge", "br1"); th.Phase == providers.Ready {
			t.Errorf("a bridge that cannot be made is %s", th.Phase)
		}
		n.must(n.delete("ovs.bridge", "br1"))
	})
}

// TestDrift changes things past the provider: observations show it, and undeclared values survive an update.
func TestDrift(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newNode(t, s, ovs.Options{})
		n.must(n.create("ovs.bridge", "br0", aBridge))
		n.must(n.create("ovs.port", "p0", aPort))
		before := n.look("ovs.port", "p0")
		if s.Real {
			s.Vsctl(t, "set", "port", "p0", "tag=99", "--", "set", "interface", "p0", "external_ids:note=theirs")
		} else {
			s.Set(t, vswitch.PortTable, "p0", "tag", 99)
			s.Set(t, vswitch.InterfaceTable, "p0", "external_ids", ofMap(t, map[string]string{"note": "theirs"}))
		}
		th := n.look("ovs.port", "p0")
		if th.Spec["tag"] != int64(99) || th.Version == before.Version {
			t.Errorf("the drift of the tag is not observed: %v, version %s", th.Spec, th.Version)
		}
		n.must(n.update("ovs.port", "p0", schema.Object{"tag": int64(7)}))
		ids := n.look("ovs.port", "p0").Spec["interface"].(map[string]any)["external_ids"]
		if d := cmp.Diff(map[string]any{"note": "theirs"}, ids); d != "" {
			t.Errorf("the note of others (-want +got):\n%s", d)
		}
	})
}

// TestNothingElseIsLost sets what a spec does not contain: a delete could not be undone exactly, so it is refused.
func TestNothingElseIsLost(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newNode(t, s, ovs.Options{})
		n.must(n.create("ovs.bridge", "br0", aBridge))
		n.must(n.create("ovs.port", "p0", aPort))
		s.Set(t, vswitch.PortTable, "p0", "cvlans", 5)
		s.Set(t, vswitch.PortTable, "p0", "mac", "02:00:00:00:00:2a")
		n.fails(n.delete("ovs.port", "p0"), providers.Invalid, "cvlans, mac")
		s.Set(t, vswitch.PortTable, "p0", "cvlans", ovsdb.OvsSet{})
		s.Set(t, vswitch.PortTable, "p0", "mac", ovsdb.OvsSet{})
		n.must(n.delete("ovs.port", "p0"))
		s.Set(t, vswitch.BridgeTable, "br0", "flood_vlans", 5)
		n.fails(n.delete("ovs.bridge", "br0"), providers.Invalid, "flood_vlans")
		s.Set(t, vswitch.BridgeTable, "br0", "flood_vlans", ovsdb.OvsSet{})
		s.Set(t, vswitch.PortTable, "br0", "tag", 5)
		n.fails(n.delete("ovs.bridge", "br0"), providers.Invalid, "tag")
		s.Set(t, vswitch.PortTable, "br0", "tag", ovsdb.OvsSet{})
		s.Set(t, vswitch.InterfaceTable, "br0", "ingress_policing_rate", 1000)
		n.fails(n.delete("ovs.bridge", "br0"), providers.Invalid, "ingress_policing_rate")
		s.Set(t, vswitch.InterfaceTable, "br0", "ingress_policing_rate", 0)
		n.must(n.delete("ovs.bridge", "br0"))
	})
}

// TestMirroredPortStays has a mirror that refers to a port: the database would remove the reference from it.
func TestMirroredPortStays(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newNode(t, s, ovs.Options{})
		n.must(n.create("ovs.bridge", "br0", aBridge))
		n.must(n.create("ovs.port", "p0", aPort))
		ref := ovsdb.OvsSet{GoSet: []any{s.Row(t, vswitch.PortTable, "p0")["_uuid"]}}
		for _, column := range []string{"output_port", "select_dst_port", "select_src_port"} {
			s.AddMirror(t, "br0", "theirs", ovsdb.Row{column: ref})
			n.unchanged(func() { n.fails(n.delete("ovs.port", "p0"), providers.Invalid, "mirror theirs") })
			s.Set(t, vswitch.BridgeTable, "br0", "mirrors", ovsdb.OvsSet{})
		}
		n.must(n.delete("ovs.port", "p0"))
	})
}

func TestRefusedValues(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newNode(t, s, ovs.Options{})
		n.must(n.create("ovs.bridge", "br0", aBridge))
		n.must(n.create("ovs.bridge", "br1", aBridge))
		n.must(n.create("ovs.port", "p0", aPort))
		n.unchanged(func() {
			n.fails(n.create("ovs.port", "br1", aPort), providers.Exists, "a bridge")
			n.fails(n.create("ovs.bridge", "p0", aBridge), providers.Exists, "port of bridge br0")
			n.fails(n.create("ovs.bridge", "br2", schema.Object{"colour": "red"}), providers.Invalid, "colour")
			n.fails(n.create("ovs.bridge", "br2", schema.Object{"external_ids": map[string]any{providers.MarkKey: "x"}}), providers.Invalid, providers.MarkKey)
			n.fails(n.update("ovs.bridge", "br0", schema.Object{"datapath_type": "system"}), providers.Invalid, "datapath_type")
			n.fails(n.update("ovs.port", "p0", schema.Object{"bridge": "br1"}), providers.Invalid, "bridge")
			n.fails(n.update("ovs.port", "p0", schema.Object{"interface": map[string]any{"type": "tap"}}), providers.Invalid, "type")
			n.fails(n.update("ovs.port", "p0", schema.Object{"tag": int64(5000)}), providers.Invalid)
		})
		n.must(n.update("ovs.port", "p0", schema.Object{"interface": map[string]any{}}))
		if got := n.look("ovs.port", "p0").Spec["interface"].(map[string]any)["type"]; got != "internal" {
			t.Errorf("an update that does not mention the type made it %q", got)
		}
	})
}

func TestBondIsReported(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newNode(t, s, ovs.Options{})
		n.must(n.create("ovs.bridge", "br0", aBridge))
		refs := func(names ...string) (set ovsdb.OvsSet) {
			for _, name := range names {
				set.GoSet = append(set.GoSet, ovsdb.UUID{GoUUID: name})
			}
			return set
		}
		s.Transact(t,
			ovsdb.Operation{Op: "insert", Table: vswitch.InterfaceTable, UUIDName: "one", Row: ovsdb.Row{"name": "one", "type": "internal"}},
			ovsdb.Operation{Op: "insert", Table: vswitch.InterfaceTable, UUIDName: "two", Row: ovsdb.Row{"name": "two", "type": "internal"}},
			ovsdb.Operation{Op: "insert", Table: vswitch.PortTable, UUIDName: "bond", Row: ovsdb.Row{"name": "bond0", "interfaces": refs("one", "two")}},
			ovsdb.Operation{
				Op: "mutate", Table: vswitch.BridgeTable, Where: []ovsdb.Condition{ovsdb.NewCondition("name", "==", "br0")},
				Mutations: []ovsdb.Mutation{{Column: "ports", Mutator: "insert", Value: refs("bond")}},
			})
		s.Settle(t)
		th := n.look("ovs.port", "bond0")
		if th.Spec["interface"] != nil || th.Spec["bridge"] != "br0" || !slices.Equal(membersOf(th), []string{"one", "two"}) {
			t.Errorf("a bond is observed as %v", th.Spec)
		}
		n.unchanged(func() {
			n.fails(n.delete("ovs.port", "bond0"), providers.Denied, "no ownership mark")
			n.fails(n.create("ovs.port", "one", aPort), providers.Exists, "interface")
		})
	})
}

// TestListOfBridges: what a list of bridges reads hardly grows with their ports, and a list has the same bridges as a look at each, however
// many there are.
func TestListOfBridges(t *testing.T) {
	s := ovstest.Fake(t)
	r, endpoint := newRelay(t, s, nil)
	n := newNode(t, s, ovs.Options{Endpoint: endpoint})
	list := func() []providers.Thing {
		t.Helper()
		things, err := providers.Collect(n.kind("ovs.bridge").List(t.Context()))
		n.must(err)
		for _, th := range things {
			if d := cmp.Diff(n.look("ovs.bridge", th.ID), th); d != "" {
				t.Errorf("a look at a bridge, and the list (-look +list):\n%s", d)
			}
		}
		return things
	}
	size := func() int64 {
		t.Helper()
		before := r.answered.Load()
		_, err := providers.Collect(n.kind("ovs.bridge").List(t.Context()))
		n.must(err)
		return r.answered.Load() - before
	}
	list()
	n.must(n.create("ovs.bridge", "br0", aBridge))
	list()
	before := size()
	const ports = 40
	for i := range ports {
		s.AddPort(t, "br0", fmt.Sprint("port", i), nil)
	}
	if more := size() - before; more > 100*ports { // of which a UUID has about half
		t.Errorf("for each of %d ports, %d bytes more are read", ports, more/ports)
	}
	var bridges []string
	for i := range 70 { // which is too many to look for the local port of each
		bridges = append(bridges, fmt.Sprint("many", i))
	}
	s.AddBridges(t, bridges...)
	if things := list(); len(things) != 71 {
		t.Errorf("it lists %d bridges, want 71", len(things))
	}
}

// TestNetworkInterface attaches one end of a veth pair, on a real switch.
func TestNetworkInterface(t *testing.T) {
	s := ovstest.Start(t)
	n := newNode(t, s, ovs.Options{})
	if out, err := s.Command(t, "ip", "link", "add", "veth0", "type", "veth", "peer", "name", "veth1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n.must(n.create("ovs.bridge", "br0", aBridge))
	n.must(n.create("ovs.port", "veth0", schema.Object{"bridge": "br0", "tag": int64(42)}))
	th := n.look("ovs.port", "veth0")
	if th.Phase != providers.Ready || th.Spec["interface"].(map[string]any)["type"] != "system" || th.Status["ofport"] == nil {
		t.Errorf("observed %+v", th)
	}
	if got := strings.TrimSpace(s.Vsctl(t, "get", "port", "veth0", "tag")); got != "42" {
		t.Errorf("ovs-vsctl says that the tag is %s", got)
	}
}
