package ovs

import (
	"context"
	"slices"
	"strings"

	"github.com/ovn-org/libovsdb/ovsdb"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs/spec"
	"converge.dev/converge/providers/ovs/vswitch"
	"converge.dev/converge/schema"
)

// dpdkInit is the setting of which ovs-vswitchd reports whether it is in effect.
const dpdkInit = "dpdk-init"

// settings is the kind ovs.setting: the members of other_config of the only row of Open_vSwitch. They have no place for a mark: that
// row's external_ids guard the epoch.
type settings struct{}

// reads has the row with the columns that every view has of it, because a view has each row once.
func (settings) reads() []reading {
	return []reading{{
		table: rootRows.table, row: rootRows.row, columns: slices.Concat(rootRows.columns, []string{"other_config", "dpdk_initialized"}),
	}}
}

// traits: what ovs-vswitchd has done for a setting, such as initializing DPDK, it does not undo while it runs.
func (settings) traits(common providers.Traits) providers.Traits {
	common.Mark = false
	common.UndoCreate, common.UndoUpdate, common.UndoDelete = providers.Restart, providers.Restart, providers.Restart
	return common
}

// list leaves out the empty key, which is no name and which OVS does not read.
func (settings) list(v *view) ([]observed, error) {
	var seen []observed
	for key, is := range v.root.OtherConfig {
		if key == "" {
			continue
		}
		s := spec.Setting{Value: is}
		seen = append(seen, observed{
			Thing: providers.Thing{ID: key, Name: key, Spec: s.Object(), Phase: providers.Ready, Detail: v.lag(key, is)},
			rows:  []string{v.root.UUID},
		})
	}
	return seen, nil
}

// lag tells what ovs-vswitchd has not made of a setting. Of most it does not report whether they are in effect.
func (v *view) lag(key, is string) string {
	switch wanted := strings.EqualFold(is, "true") || strings.EqualFold(is, "try"); {
	case key != dpdkInit || wanted == v.root.DpdkInitialized:
		return ""
	case wanted:
		return "DPDK is not initialized; see the log of ovs-vswitchd, which may have to be restarted"
	}
	return "DPDK remains initialized until ovs-vswitchd is restarted"
}

// create inserts the key, which leaves one that exists as it is: so it is checked afterwards. One that has the same value is found before.
func (settings) create(v *view, c *change, name string, want schema.Object, _ providers.Mark) error {
	value, err := wantedSetting(want)
	if err != nil {
		return err
	}
	if is, ok := v.root.OtherConfig[name]; ok {
		return refuse(providers.Exists, "%s has the value %q", name, is)
	}
	taken := refuse(providers.Exists, "another client has just set %s", name)
	c.config(taken, ovsdb.ConditionExcludes, name, value)
	c.setConfig(name, value)
	c.config(taken, ovsdb.ConditionIncludes, name, value)
	return nil
}

func (settings) update(v *view, c *change, name string, want schema.Object, _ providers.Mark) error {
	value, err := wantedSetting(want)
	if err != nil {
		return err
	}
	c.configStays(v, name)
	c.unsetConfig(name)
	c.setConfig(name, value)
	return nil
}

func (settings) remove(_ context.Context, v *view, c *change, name string) error {
	c.configStays(v, name)
	c.unsetConfig(name)
	return nil
}

func wantedSetting(want schema.Object) (string, error) {
	var s spec.Setting
	err := read(want, &s)
	return s.Value, err
}

// config guards that other_config of the only row includes a member, or excludes it. Other members may change.
func (c *change) config(fails error, how ovsdb.ConditionFunction, key, value string) {
	member := ovsdb.OvsMap{GoMap: map[any]any{key: value}}
	c.guard(fails, vswitch.OpenvSwitchTable, ovsdb.NewCondition("other_config", how, member),
		ovsdb.WaitConditionEqual, ovsdb.Row{"_uuid": ovsdb.UUID{GoUUID: c.root}})
}

// configStays guards that a key has the value that was read.
func (c *change) configStays(v *view, key string) {
	c.config(refuse(providers.Conflict, "another client has just changed it"), ovsdb.ConditionIncludes, key, v.root.OtherConfig[key])
}

// setConfig adds a key with a value; one that exists stays as it is.
func (c *change) setConfig(key, value string) {
	c.mutate(vswitch.OpenvSwitchTable, c.root, "other_config", ovsdb.MutateOperationInsert, ovsdb.OvsMap{GoMap: map[any]any{key: value}})
}

func (c *change) unsetConfig(key string) {
	c.mutate(vswitch.OpenvSwitchTable, c.root, "other_config", ovsdb.MutateOperationDelete, ovsdb.OvsSet{GoSet: []any{key}})
}
