package ovs_test

import (
	"fmt"
	"regexp"
	"slices"
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

var settingCases = []providertest.Case{{
	Kind: "ovs.setting", Name: "max-idle",
	Want: setTo("20000"), Update: setTo("30000"), Invalid: schema.Object{"value": int64(20000)},
}}

// setTo returns the spec of a setting.
func setTo(value string) schema.Object { return schema.Object{"value": value} }

// setConfig gives a key a value like another client.
func setConfig(t *testing.T, s *ovstest.Switch, key, value string) {
	t.Helper()
	s.ChangeRoot(t, ovsdb.Operation{Op: ovsdb.OperationMutate, Mutations: []ovsdb.Mutation{
		withoutConfig(key),
		{Column: "other_config", Mutator: ovsdb.MutateOperationInsert, Value: ofMap(t, map[string]string{key: value})},
	}})
}

// unsetConfig removes a key like another client.
func unsetConfig(t *testing.T, s *ovstest.Switch, key string) {
	t.Helper()
	s.ChangeRoot(t, ovsdb.Operation{Op: ovsdb.OperationMutate, Mutations: []ovsdb.Mutation{withoutConfig(key)}})
}

func withoutConfig(key string) ovsdb.Mutation {
	return ovsdb.Mutation{Column: "other_config", Mutator: ovsdb.MutateOperationDelete, Value: ovsdb.OvsSet{GoSet: []any{key}}}
}

// root returns the columns of the only row of Open_vSwitch that ovs-vswitchd does not write, except for one key of other_config.
func root(t *testing.T, s *ovstest.Switch, but string) map[string]string {
	t.Helper()
	rows := s.Rows(t, vswitch.OpenvSwitchTable)
	if len(rows) != 1 {
		t.Fatalf("Open_vSwitch has %d rows", len(rows))
	}
	if m, ok := rows[0]["other_config"].(ovsdb.OvsMap); ok {
		delete(m.GoMap, but)
	}
	text := map[string]string{}
	for column, v := range rows[0] {
		if !slices.Contains([]string{"_version", "cur_cfg", "next_cfg", "statistics"}, column) {
			text[column] = fmt.Sprintf("%q", v)
		}
	}
	return text
}

// TestSettingsLeaveTheRestAlone: of the row in which a setting is, only its key changes: not the keys of others, and not
// external_ids, which have the epoch and no mark.
func TestSettingsLeaveTheRestAlone(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newNode(t, s, ovs.Options{})
		n.must(n.create("ovs.bridge", "br0", aBridge))
		s.ChangeRoot(t, ovsdb.Operation{Op: ovsdb.OperationUpdate, Row: ovsdb.Row{
			"other_config": ofMap(t, map[string]string{"vlan-limit": "2", "": "no key", "Vendor.Key with spaces": "20000", "max-revalidator": ""}),
			"external_ids": ofMap(t, map[string]string{
				"system-id": "7d9f", "converge.dev/epoch/" + providertest.Site: "0", "converge.dev/epoch/other": "9",
				providers.MarkKey: call("ovs.bridge", "vlan-limit", nil).Mark.String(), // which says nothing of the settings
			}),
		}})
		s.Settle(t)
		if got := n.list("ovs.setting"); !slices.Equal(got, []string{"Vendor.Key with spaces", "max-revalidator", "vlan-limit"}) {
			t.Fatalf("observed settings %q", got)
		}
		if th := n.look("ovs.setting", "vlan-limit"); !th.Mark.IsZero() {
			t.Errorf("a setting has the mark %s", th.Mark)
		}
		before := root(t, s, "max-idle")
		steps := []struct {
			name string
			err  func() error
			want any // the value afterwards; nil: none
		}{
			{"create", func() error { return n.create("ovs.setting", "max-idle", setTo("20000")) }, "20000"},
			{"update", func() error { return n.update("ovs.setting", "max-idle", setTo("30000")) }, "30000"},
			{"update to the empty text", func() error { return n.update("ovs.setting", "max-idle", setTo("")) }, ""},
			{"delete", func() error { return n.delete("ovs.setting", "max-idle") }, nil},
		}
		for _, step := range steps {
			n.must(step.err())
			if d := cmp.Diff(before, root(t, s, "max-idle")); d != "" {
				t.Errorf("%s changed something else (-before +after):\n%s", step.name, d)
			}
			is := s.Rows(t, vswitch.OpenvSwitchTable)[0]["other_config"].(ovsdb.OvsMap).GoMap["max-idle"]
			if is != step.want {
				t.Errorf("after %s the value is %v, want %v", step.name, is, step.want)
			}
		}
	})
}

// TestSettingsOfOthers: a key that has a value is not set by a create, but by an update, which takes it over.
func TestSettingsOfOthers(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newNode(t, s, ovs.Options{})
		setConfig(t, s, "max-idle", "20000")
		s.Settle(t)
		if th := n.look("ovs.setting", "max-idle"); !th.Mark.IsZero() || th.Phase != providers.Ready || th.Spec["value"] != "20000" {
			t.Errorf("a setting of others is observed as %+v", th)
		}
		n.unchanged(func() {
			n.fails(n.create("ovs.setting", "max-idle", setTo("30000")), providers.Exists, `max-idle has the value "20000"`)
			n.fails(n.create("ovs.setting", "max-idle", setTo("20000")), providers.Exists, `max-idle has the value "20000"`)
		})
		n.must(n.update("ovs.setting", "max-idle", setTo("30000")))
		if th := n.look("ovs.setting", "max-idle"); !th.Mark.IsZero() || th.Spec["value"] != "30000" {
			t.Errorf("a setting that was taken over is observed as %+v", th)
		}
		c := call("ovs.setting", "max-idle", setTo("20000"))
		c.Have, c.Mark = setTo("30000"), providers.Mark{} // given back
		n.must(n.kind("ovs.setting").Update(t.Context(), c))
		if is := n.look("ovs.setting", "max-idle").Spec["value"]; is != "20000" {
			t.Errorf("a setting that was given back is %v", is)
		}
		n.must(n.delete("ovs.setting", "max-idle"))
		if got := n.list("ovs.setting"); len(got) > 0 {
			t.Errorf("there are the settings %q, want none", got)
		}
	})
}

func TestSettingErrors(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		n := newNode(t, s, ovs.Options{})
		n.must(n.create("ovs.setting", "max-idle", setTo("20000")))
		seen := n.look("ovs.setting", "max-idle")
		absent := seen
		absent.ID = "vlan-limit"
		unversioned := seen
		unversioned.Version = ""
		n.unchanged(func() {
			n.fails(n.create("ovs.setting", "vlan-limit", schema.Object{"value": int64(2)}), providers.Invalid, "value")
			n.fails(n.create("ovs.setting", "vlan-limit", schema.Object{"value": "2", "colour": "red"}), providers.Invalid, "colour")
			n.fails(n.update("ovs.setting", "max-idle", schema.Object{"value": int64(2)}), providers.Invalid, "value")
			n.fails(n.updateSeen("ovs.setting", absent, setTo("2")), providers.Absent, "vlan-limit does not exist")
			n.must(n.deleteSeen("ovs.setting", absent))
		})
		setConfig(t, s, "max-idle", "40000")
		n.unchanged(func() {
			for _, stale := range []providers.Thing{seen, unversioned} {
				n.fails(n.updateSeen("ovs.setting", stale, setTo("30000")), providers.Conflict, "changed since it was observed")
				n.fails(n.deleteSeen("ovs.setting", stale), providers.Conflict, "changed since it was observed")
			}
		})
	})
}

// TestSettingsChangedInBetween makes another client change a setting after the provider has read it.
func TestSettingsChangedInBetween(t *testing.T) {
	set := func(key, value string) func(t *testing.T, s *ovstest.Switch) {
		return func(t *testing.T, s *ovstest.Switch) { setConfig(t, s, key, value) }
	}
	unset := func(t *testing.T, s *ovstest.Switch) { unsetConfig(t, s, "max-idle") }
	create := func(n *node) error { return n.create("ovs.setting", "vlan-limit", setTo("2")) }
	update := func(n *node) error { return n.update("ovs.setting", "max-idle", setTo("30000")) }
	remove := func(n *node) error { return n.delete("ovs.setting", "max-idle") }
	meddledWith(t, []meddling{
		{"a new setting", set("vlan-limit", "1"), create, providers.Exists},
		{"a new setting to what is wanted", set("vlan-limit", "2"), create, providers.Exists},
		{"a setting", set("max-idle", "40000"), update, providers.Conflict},
		{"a setting to what is wanted", set("max-idle", "30000"), update, providers.Conflict},
		{"a setting that is gone", unset, update, providers.Conflict},
		{"a setting to be deleted", set("max-idle", "40000"), remove, providers.Conflict},
		{"a setting to be deleted that is gone", unset, remove, providers.Conflict},
	}, func(t *testing.T, s *ovstest.Switch, o ovs.Options) *node {
		t.Helper()
		n := newNode(t, s, o)
		n.must(n.create("ovs.setting", "max-idle", setTo("20000")))
		return n
	})
}

// TestOtherSettingsChangeInBetween: what another client does with other keys in the meantime neither is lost nor prevents a change.
func TestOtherSettingsChangeInBetween(t *testing.T) {
	on(t, func(t *testing.T, s *ovstest.Switch) {
		r, endpoint := newRelay(t, s, nil)
		n := newNode(t, s, ovs.Options{Endpoint: endpoint})
		for i, verb := range []func() error{
			func() error { return n.create("ovs.setting", "max-idle", setTo("20000")) },
			func() error { return n.update("ovs.setting", "max-idle", setTo("30000")) },
			func() error { return n.delete("ovs.setting", "max-idle") },
		} {
			theirs := fmt.Sprint(i + 1)
			r.on(func() fate {
				setConfig(t, s, "vlan-limit", theirs)
				return passed
			})
			n.must(verb())
			if is := n.look("ovs.setting", "vlan-limit").Spec["value"]; is != theirs {
				t.Errorf("vlan-limit is %v, and another client has set it to %s", is, theirs)
			}
		}
		if got := n.list("ovs.setting"); !slices.Equal(got, []string{"vlan-limit"}) {
			t.Errorf("there are the settings %q", got)
		}
	})
}

// TestDPDKIsTold: whether DPDK is initialized is what ovs-vswitchd reports, and not what the setting says.
func TestDPDKIsTold(t *testing.T) {
	s := ovstest.Fake(t)
	n := newNode(t, s, ovs.Options{})
	for _, c := range []struct {
		value       string
		initialized bool
		want        string // a pattern
	}{
		{"true", false, "not initialized"}, {"try", false, "not initialized"}, {"false", false, "^$"}, {"yes", false, "^$"},
		{"true", true, "^$"}, {"try", true, "^$"}, {"false", true, "remains initialized"}, {"yes", true, "remains initialized"},
	} {
		s.ChangeRoot(t, ovsdb.Operation{Op: ovsdb.OperationUpdate, Row: ovsdb.Row{"dpdk_initialized": c.initialized}})
		setConfig(t, s, "dpdk-init", c.value)
		setConfig(t, s, "dpdk-extra", c.value)
		s.Settle(t)
		th := n.look("ovs.setting", "dpdk-init")
		if th.Phase != providers.Ready || !regexp.MustCompile(c.want).MatchString(th.Detail) {
			t.Errorf("dpdk-init=%s, initialized: %t: it is %s (%s), want %s", c.value, c.initialized, th.Phase, th.Detail, c.want)
		}
		if th := n.look("ovs.setting", "dpdk-extra"); th.Detail != "" {
			t.Errorf("dpdk-extra says %q", th.Detail)
		}
	}
}

// TestSettingTakesEffect: a real switch has as many threads as a setting says when the call returns.
func TestSettingTakesEffect(t *testing.T) {
	s := ovstest.Start(t)
	n := newNode(t, s, ovs.Options{})
	n.must(n.create("ovs.bridge", "br0", aBridge))
	threads := func() int {
		out, err := s.Command(t, "ovs-appctl", "upcall/show").CombinedOutput()
		if err != nil {
			t.Fatalf("ovs-appctl upcall/show: %v: %s", err, out)
		}
		return len(regexp.MustCompile(`(?m)^\s+[0-9]+: \(keys`).FindAll(out, -1))
	}
	for i, verb := range []func() error{
		func() error { return n.create("ovs.setting", "n-revalidator-threads", setTo("5")) },
		func() error { return n.update("ovs.setting", "n-revalidator-threads", setTo("7")) },
	} {
		n.must(verb())
		if got, want := threads(), []int{5, 7}[i]; got != want {
			t.Errorf("there are %d threads, want %d", got, want)
		}
	}
	n.must(n.delete("ovs.setting", "n-revalidator-threads"))
	if got := threads(); got == 7 {
		t.Error("the setting is gone, and there are as many threads as it said")
	}
}
