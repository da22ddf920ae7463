package ovs

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs/spec"
	"converge.dev/converge/providers/ovs/vswitch"
	"converge.dev/converge/schema"
	"github.com/ovn-org/libovsdb/ovsdb"
)

// bridgeSettings are the columns of Bridge that are in a spec.
var bridgeSettings = []string{
	"datapath_type", "external_ids", "fail_mode", "mcast_snooping_enable", "other_config", "protocols", "rstp_enable", "stp_enable",
}

// bridgeExtras are the columns with which others attach things to a bridge; it is not deleted while they are set.
var bridgeExtras = []string{
	"auto_attach", "controller", "flood_vlans", "flow_tables", "ipfix", "mirrors", "netflow", "sflow",
}

// bridges is the kind ovs.bridge.
type bridges struct{}

// bridgeRows reads all bridges: every other thing of a switch is attached to one.
var bridgeRows = reading{
	table: vswitch.BridgeTable, row: &vswitch.Bridge{},
	columns: slices.Concat([]string{"name", "ports", "datapath_id"}, bridgeSettings, bridgeExtras),
}

func (bridges) reads() []reading { return []reading{bridgeRows, portRows, interfaceRows} }

// fewBridges is for how many bridges their local ports are looked for by name: for each, ovsdb-server looks at all ports.
const fewBridges = 64

// narrow reads of the ports only the local ones. Most ports of a switch are others.
func (k bridges) narrow(ctx context.Context, d *db) (*view, error) {
	v, err := d.view(ctx, []reading{{table: vswitch.BridgeTable, row: &vswitch.Bridge{}, columns: []string{"name"}}}, nil)
	if err != nil {
		return nil, err
	}
	names := []string{}
	for b := range all[vswitch.Bridge](v) {
		names = append(names, b.Name)
	}
	if len(names) > fewBridges {
		return nil, nil
	}
	v, err = d.view(ctx, k.reads(), names)
	if err != nil || find(v, func(b *vswitch.Bridge) bool { return v.local(b) == nil }) != nil { // a new one
		return nil, err
	}
	return v, nil
}

func (bridges) traits(common providers.Traits) providers.Traits { return common }

func (bridges) list(v *view) ([]observed, error) {
	var seen []observed
	for b := range all[vswitch.Bridge](v) {
		ids, mark := unmarked(b.ExternalIDs)
		maps.DeleteFunc(ids, isFlowSet)
		datapath := cmp.Or(b.DatapathType, "system")
		o := spec.Bridge{
			DatapathType: &datapath, ExternalIDs: ids, FailMode: b.FailMode, McastSnoopingEnable: &b.McastSnoopingEnable,
			OtherConfig: filled(b.OtherConfig), Protocols: sorted(b.Protocols), RSTPEnable: &b.RSTPEnable, STPEnable: &b.STPEnable,
		}
		s := observed{Thing: providers.Thing{ID: b.Name, UID: b.UUID, Name: b.Name, Mark: mark, Spec: o.Object()}, rows: []string{b.UUID}}
		s.Status = (&spec.BridgeStatus{DatapathID: b.DatapathID}).Object()
		s.Phase, s.Detail = phaseOf(v.interfaceOf(v.local(b)))
		seen = append(seen, s)
	}
	return seen, nil
}

// create creates the bridge with its local port and the internal interface of that.
func (bridges) create(v *view, c *change, name string, want schema.Object, mark providers.Mark) error {
	if err := c.claim(v, name); err != nil {
		return err
	}
	b, err := wantedBridge(want, mark, &vswitch.Bridge{})
	if err != nil {
		return err
	}
	b.Name, b.Ports = name, []string{"local_port"}
	c.insert(vswitch.InterfaceTable, "local_interface", &vswitch.Interface{Name: name, Type: "internal"}, "name", "type")
	c.insert(vswitch.PortTable, "local_port", &vswitch.Port{Name: name, Interfaces: []string{"local_interface"}}, "name", "interfaces")
	c.insert(vswitch.BridgeTable, "bridge", b, slices.Concat(bridgeSettings, []string{"name", "ports"})...)
	c.refer(vswitch.OpenvSwitchTable, c.root, "bridges", ovsdb.MutateOperationInsert, "bridge")
	return nil
}

func (bridges) update(v *view, c *change, name string, want schema.Object, mark providers.Mark) error {
	have := v.bridge(name)
	b, err := wantedBridge(want, mark, have)
	if err != nil {
		return err
	}
	c.unchanged(vswitch.BridgeTable, have.UUID, have, bridgeSettings...)
	c.update(vswitch.BridgeTable, have.UUID, b, bridgeSettings...)
	return nil
}

// remove refuses to delete anything that is not in the spec of the bridge, so that a delete can be undone.
func (k bridges) remove(ctx context.Context, v *view, c *change, name string) error {
	b := v.bridge(name)
	for key := range b.ExternalIDs {
		if set, ok := strings.CutPrefix(key, flowSetKey); ok {
			return refuse(providers.Invalid, "bridge %s still has the flow set %s", name, set)
		}
	}
	local := v.local(b)
	if slices.ContainsFunc(b.Ports, func(p string) bool { return local == nil || p != local.UUID }) {
		return k.occupied(ctx, c.db, name)
	}
	c.unchanged(vswitch.BridgeTable, b.UUID, b, slices.Concat(bridgeSettings, bridgeExtras, []string{"ports"})...)
	extras := c.set(b, &vswitch.Bridge{}, bridgeExtras)
	if local != nil {
		settings := slices.Concat(portSettings, portExtras)
		c.unchanged(vswitch.PortTable, local.UUID, local, settings...)
		extras = append(extras, c.set(local, &vswitch.Port{}, settings)...)
		if i := v.interfaceOf(local); i != nil {
			c.unchanged(vswitch.InterfaceTable, i.UUID, i, interfaceSettings...)
			extras = append(extras, c.set(i, &vswitch.Interface{Type: "internal"}, interfaceSettings)...)
		}
	}
	if len(extras) > 0 {
		return refuse(providers.Invalid, "%s set by another client on bridge %s or its local port would be lost", strings.Join(extras, ", "), name)
	}
	c.refer(vswitch.OpenvSwitchTable, c.root, "bridges", ovsdb.MutateOperationDelete, b.UUID)
	return nil
}

// bridge returns the bridge with a name; nil when there is none.
func (v *view) bridge(name string) *vswitch.Bridge {
	return find(v, func(b *vswitch.Bridge) bool { return b.Name == name })
}

// local returns the local port of a bridge; nil when it has none.
func (v *view) local(b *vswitch.Bridge) *vswitch.Port {
	for _, uuid := range b.Ports {
		if p := row[vswitch.Port](v, uuid); p != nil && p.Name == b.Name {
			return p
		}
	}
	return nil
}

// occupied returns the refusal to delete a bridge with ports, naming them.
func (k bridges) occupied(ctx context.Context, d *db, name string) error {
	v, err := d.view(ctx, k.reads(), nil)
	if err != nil {
		return &fault{providers.Transient, err}
	}
	var ports []string
	if b := v.bridge(name); b != nil {
		for _, uuid := range b.Ports {
			if p := row[vswitch.Port](v, uuid); p != nil && p.Name != name {
				ports = append(ports, p.Name)
			}
		}
	}
	return refuse(providers.Invalid, "bridge %s still has the ports %s: remove them first", name, strings.Join(sorted(ports), ", "))
}

// wantedBridge returns the desired row of a bridge. What cannot change is taken from have where the spec does not state it.
func wantedBridge(want schema.Object, mark providers.Mark, have *vswitch.Bridge) (*vswitch.Bridge, error) {
	var s spec.Bridge
	if err := read(want, &s); err != nil {
		return nil, err
	}
	if have.UUID != "" && s.DatapathType != nil && *s.DatapathType != cmp.Or(have.DatapathType, "system") {
		return nil, refuse(providers.Invalid, "datapath_type cannot be changed in place")
	}
	ids, err := marked(s.ExternalIDs, mark)
	if err != nil {
		return nil, err
	}
	for key := range ids {
		if strings.HasPrefix(key, flowSetKey) {
			return nil, refuse(providers.Invalid, "external_ids cannot contain %s, which is reserved for converge", key)
		}
	}
	for key, note := range have.ExternalIDs {
		if isFlowSet(key, note) {
			ids[key] = note
		}
	}
	b := &vswitch.Bridge{
		DatapathType: value(s.DatapathType), ExternalIDs: ids, FailMode: s.FailMode, McastSnoopingEnable: value(s.McastSnoopingEnable),
		OtherConfig: s.OtherConfig, Protocols: s.Protocols, RSTPEnable: value(s.RSTPEnable), STPEnable: value(s.STPEnable),
	}
	if have.UUID != "" {
		b.DatapathType = have.DatapathType
	}
	return b, nil
}
