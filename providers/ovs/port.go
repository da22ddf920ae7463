package ovs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs/spec"
	"converge.dev/converge/providers/ovs/vswitch"
	"converge.dev/converge/schema"
	"github.com/ovn-org/libovsdb/ovsdb"
)

// portSettings and interfaceSettings are the columns of Port and Interface that are in a spec.
var (
	portSettings = []string{
		"bond_downdelay", "bond_mode", "bond_updelay", "external_ids", "lacp", "other_config", "protected", "qos", "tag", "trunks", "vlan_mode",
	}
	interfaceSettings = []string{
		"bfd", "cfm_mpid", "external_ids", "ingress_policing_burst", "ingress_policing_kpkts_burst", "ingress_policing_kpkts_rate",
		"ingress_policing_rate", "lldp", "mac", "mtu_request", "ofport_request", "options", "other_config", "type",
	}
)

// portExtras are the columns with which others set what is not in a spec; a port is not deleted while they are set.
var portExtras = []string{"bond_fake_iface", "cvlans", "fake_bridge", "mac"}

// qosKey is the key of external_ids of a port that holds the UUID of the QoS that converge has set on it. Another one that has no
// mark of the site was set by another client.
const qosKey = "converge.dev/qos"

// ports is the kind ovs.port.
type ports struct{}

// portRows and interfaceRows read the requested ports and the interfaces that have their names.
var (
	portRows = reading{
		table: vswitch.PortTable, row: &vswitch.Port{}, named: true,
		columns: slices.Concat([]string{"name", "interfaces"}, portSettings, portExtras),
	}
	interfaceRows = reading{
		table: vswitch.InterfaceTable, row: &vswitch.Interface{}, named: true,
		columns: slices.Concat([]string{"name", "error", "ofport"}, interfaceSettings),
	}
)

// selections reads where mirrors refer to ports.
var selections = reading{
	table: vswitch.MirrorTable, row: &vswitch.Mirror{},
	columns: []string{"name", "output_port", "select_dst_port", "select_src_port"},
}

func (ports) reads() []reading {
	return []reading{bridgeRows, portRows, interfaceRows, selections, {table: vswitch.QoSTable, row: &vswitch.QoS{}, columns: []string{"external_ids"}}}
}

func (ports) traits(common providers.Traits) providers.Traits { return common }

func (ports) list(v *view) ([]observed, error) {
	var seen []observed
	qoses := ids[vswitch.QoS](v)
	for b := range all[vswitch.Bridge](v) {
		for _, uuid := range b.Ports {
			p := row[vswitch.Port](v, uuid)
			if p == nil || p.Name == b.Name {
				continue // it was not requested, or it is the local port, which is a part of the bridge
			}
			rest, mark := unmarked(p.ExternalIDs)
			delete(rest, qosKey)
			o, status := spec.Port{
				BondDowndelay: wide(&p.BondDowndelay), BondMode: p.BondMode, BondUpdelay: wide(&p.BondUpdelay), Bridge: b.Name, ExternalIDs: rest, LACP: p.LACP, OtherConfig: filled(p.OtherConfig), Protected: &p.Protected, Tag: wide(p.Tag),
				Trunks: all64(sorted(p.Trunks)), VLANMode: p.VLANMode,
			}, spec.PortStatus{}
			if p.QOS != nil {
				id, ok := qoses[*p.QOS]
				if !ok { // which no intact database has
					return nil, fmt.Errorf("port %s refers to QoS %s, which is not in the database", p.Name, *p.QOS)
				}
				o.QoS = &id
			}
			s := observed{Thing: providers.Thing{ID: p.Name, UID: p.UUID, Name: p.Name, Mark: mark}, rows: []string{b.UUID, p.UUID}}
			if mark.IsZero() && ofMachine(p, v.interfacesOf(p)) {
				s.Passing = machines
			}
			if i := v.interfaceOf(p); i != nil {
				o.Interface, status.Ofport = shownInterface(i), wide(i.Ofport)
				s.Phase, s.Detail = phaseOf(i)
				s.rows = append(s.rows, i.UUID)
			} else {
				o.Interfaces = map[string]spec.Interface{}
				s.Phase = providers.Ready
				bond := v.interfacesOf(p)
				for _, name := range slices.Sorted(maps.Keys(bond)) {
					i := bond[name]
					o.Interfaces[name] = *shownInterface(i)
					s.rows = append(s.rows, i.UUID)
					if phase, why := phaseOf(i); s.Phase == providers.Ready && phase != providers.Ready {
						s.Phase, s.Detail = phase, "interface "+name+": "+why
					}
				}
			}
			s.Spec, s.Status = o.Object(), status.Object()
			seen = append(seen, s)
		}
	}
	return seen, nil
}

func (ports) create(v *view, c *change, name string, want schema.Object, mark providers.Mark) error {
	if err := c.claim(v, name); err != nil {
		return err
	}
	p, interfaces, s, err := wantedPort(name, want, mark, nil)
	if err != nil {
		return err
	}
	b := v.bridge(s.Bridge)
	if b == nil {
		return refuse(providers.Absent, "bridge %s does not exist", s.Bridge)
	}
	if err := c.shape(v, &vswitch.Port{}, p, s.QoS); err != nil {
		return err
	}
	if p.Interfaces, err = c.connect(v, name, interfaces, nil); err != nil {
		return err
	}
	c.present(b)
	p.Name = name
	c.join(interfaces, nil)
	c.insert(vswitch.PortTable, "port", p, slices.Concat(portSettings, []string{"name", "interfaces"})...)
	c.refer(vswitch.BridgeTable, b.UUID, "ports", ovsdb.MutateOperationInsert, "port")
	return nil
}

func (ports) update(v *view, c *change, name string, want schema.Object, mark providers.Mark) error {
	have := v.port(name)
	had := v.interfacesOf(have)
	if have.ExternalIDs[providers.MarkKey] == "" && ofMachine(have, had) {
		return refuse(providers.Denied, "port %s: %s", name, machines)
	}
	p, interfaces, s, err := wantedPort(name, want, mark, had)
	if err != nil {
		return err
	}
	if s.Bridge != v.bridgeOf(have).Name {
		return refuse(providers.Invalid, "bridge cannot be changed in place")
	}
	if err := c.shape(v, have, p, s.QoS); err != nil {
		return err
	}
	if p.Interfaces, err = c.connect(v, name, interfaces, had); err != nil {
		return err
	}
	c.unchanged(vswitch.PortTable, have.UUID, have, slices.Concat(portSettings, []string{"interfaces"})...)
	for _, i := range had {
		c.unchanged(vswitch.InterfaceTable, i.UUID, i, interfaceSettings...)
	}
	c.join(interfaces, had)
	c.update(vswitch.PortTable, have.UUID, p, slices.Concat(portSettings, []string{"interfaces"})...)
	return nil
}

// connect returns the references of a port to its interfaces, and guards that the names of new ones are free.
func (c *change) connect(v *view, port string, interfaces, had map[string]*vswitch.Interface) (refs []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(interfaces)) {
		if i := had[name]; i != nil {
			refs = append(refs, i.UUID)
			continue
		}
		if name != port { // whose name is claimed with the port
			if err := c.claim(v, name); err != nil {
				return nil, err
			}
		}
		refs = append(refs, interfaces[name].UUID)
	}
	return refs, nil
}

// join writes the interfaces of a port. Those that it no longer refers to are deleted by the database.
func (c *change) join(interfaces, had map[string]*vswitch.Interface) {
	for _, name := range slices.Sorted(maps.Keys(interfaces)) {
		if i := had[name]; i != nil {
			c.update(vswitch.InterfaceTable, i.UUID, interfaces[name], interfaceSettings...)
		} else {
			c.insert(vswitch.InterfaceTable, interfaces[name].UUID, interfaces[name], slices.Concat(interfaceSettings, []string{"name"})...)
		}
	}
}

// machines is why a port, a queue or a qos that libvirt made for a virtual machine is never taken over.
const machines = "it belongs to a virtual machine"

// ofMachine reports whether libvirt added a port for a virtual machine.
func ofMachine(p *vswitch.Port, interfaces map[string]*vswitch.Interface) bool {
	if p.ExternalIDs["vm-id"] != "" {
		return true
	}
	for _, i := range interfaces {
		if i.ExternalIDs["vm-id"] != "" {
			return true
		}
	}
	return false
}

// remove refuses to delete anything that is not in the spec of the port, so that a delete can be undone.
func (ports) remove(_ context.Context, v *view, c *change, name string) error {
	p := v.port(name)
	c.unchanged(vswitch.PortTable, p.UUID, p, slices.Concat(portSettings, portExtras, []string{"interfaces"})...)
	for _, i := range v.interfacesOf(p) {
		c.unchanged(vswitch.InterfaceTable, i.UUID, i, interfaceSettings...)
	}
	extras := c.set(p, &vswitch.Port{}, portExtras)
	if !c.shaped(v, p) {
		extras = append(extras, "qos")
	}
	if len(extras) > 0 {
		return refuse(providers.Invalid, "%s set by another client on port %s would be lost", strings.Join(extras, ", "), name)
	}
	// The database silently removes a deleted port from every mirror.
	b := v.bridgeOf(p)
	c.unchanged(vswitch.BridgeTable, b.UUID, b, "mirrors")
	for m := range all[vswitch.Mirror](v) {
		c.unchanged(vswitch.MirrorTable, m.UUID, m, selections.columns...)
		if m.OutputPort != nil && *m.OutputPort == p.UUID || slices.Contains(m.SelectDstPort, p.UUID) || slices.Contains(m.SelectSrcPort, p.UUID) {
			return refuse(providers.Invalid, "mirror %s refers to port %s: the reference would be lost", m.Name, name)
		}
	}
	c.refer(vswitch.BridgeTable, b.UUID, "ports", ovsdb.MutateOperationDelete, p.UUID)
	return nil
}

// port returns the port with a name; nil when there is none.
func (v *view) port(name string) *vswitch.Port {
	return find(v, func(p *vswitch.Port) bool { return p.Name == name })
}

// bridgeOf returns the bridge that a port is on.
func (v *view) bridgeOf(p *vswitch.Port) *vswitch.Bridge {
	return find(v, func(b *vswitch.Bridge) bool { return slices.Contains(b.Ports, p.UUID) })
}

// interfaceOf returns the only interface of a port, which has its name; nil for a bond, and for no port.
func (v *view) interfaceOf(p *vswitch.Port) *vswitch.Interface {
	if p == nil || len(p.Interfaces) != 1 {
		return nil
	}
	i := row[vswitch.Interface](v, p.Interfaces[0])
	if i == nil || i.Name != p.Name {
		return nil
	}
	return i
}

// interfacesOf returns the interfaces of a port by their names.
func (v *view) interfacesOf(p *vswitch.Port) map[string]*vswitch.Interface {
	interfaces := map[string]*vswitch.Interface{}
	for _, uuid := range p.Interfaces {
		if i := row[vswitch.Interface](v, uuid); i != nil {
			interfaces[i.Name] = i
		}
	}
	return interfaces
}

// phaseOf returns how far ovs-vswitchd is with an interface; without one the phase is ready.
func phaseOf(i *vswitch.Interface) (providers.Phase, string) {
	switch {
	case i == nil:
		return providers.Ready, ""
	case i.Error != nil:
		return providers.Failed, "ovs-vswitchd: " + *i.Error
	case i.Ofport == nil:
		return providers.Pending, "ovs-vswitchd did not create it; see its log"
	case *i.Ofport < 0:
		return providers.Failed, "ovs-vswitchd could not create it; see its log"
	}
	return providers.Ready, ""
}

// claim guards that a name is free. Bridges, ports and interfaces share their names.
func (c *change) claim(v *view, name string) error {
	const taken = "the name %s is taken by %s"
	p := v.port(name)
	switch {
	case v.bridge(name) != nil:
		return refuse(providers.Exists, taken, name, "a bridge")
	case p != nil && v.bridgeOf(p) != nil:
		return refuse(providers.Exists, taken, name, "a port of bridge "+v.bridgeOf(p).Name)
	case find(v, func(i *vswitch.Interface) bool { return i.Name == name }) != nil:
		return refuse(providers.Exists, taken, name, "an interface")
	}
	c.absent(vswitch.BridgeTable, name)
	c.absent(vswitch.PortTable, name)
	c.absent(vswitch.InterfaceTable, name)
	return nil
}

// shaped reports whether the QoS of a port is none, is ours, or was set by converge.
func (c *change) shaped(v *view, p *vswitch.Port) bool {
	if p.QOS == nil || p.ExternalIDs[qosKey] == *p.QOS {
		return true
	}
	q := row[vswitch.QoS](v, *p.QOS)
	return q != nil && providers.ParseMark(q.ExternalIDs[providers.MarkKey]).Site == c.db.Site
}

// shape sets the QoS of the desired row of a port by its id. One that another client has set stays.
func (c *change) shape(v *view, have, p *vswitch.Port, id *string) error {
	if id != nil && *id != "" {
		q := called[vswitch.QoS](v, *id)
		if q == nil {
			return refuse(providers.Absent, "qos %s does not exist", *id)
		}
		p.QOS = &q.UUID
	}
	if value(p.QOS) == value(have.QOS) { // which does not show who has set it
		if ours, ok := have.ExternalIDs[qosKey]; ok {
			p.ExternalIDs[qosKey] = ours
		}
		return nil
	}
	if !c.shaped(v, have) {
		return refuse(providers.Denied, "another client has set QoS %s on port %s: clear it first", *have.QOS, have.Name)
	}
	if p.QOS != nil {
		c.exists(vswitch.QoSTable, *p.QOS, "qos "+*id)
		p.ExternalIDs[qosKey] = *p.QOS
	}
	return nil
}

// members returns the names of the interfaces of a bond in the spec of a port; nil for other ports and kinds.
func members(want schema.Object) []string {
	bond, _ := want["interfaces"].(map[string]any)
	return slices.Sorted(maps.Keys(bond))
}

// shownInterface returns the spec of an interface.
func shownInterface(i *vswitch.Interface) *spec.Interface {
	kind := cmp.Or(i.Type, "system")
	return &spec.Interface{
		BFD: filled(i.BFD), CFMMpid: wide(i.CFMMpid), ExternalIDs: filled(i.ExternalIDs),
		IngressPolicingBurst: wide(&i.IngressPolicingBurst), IngressPolicingKpktsBurst: wide(&i.IngressPolicingKpktsBurst),
		IngressPolicingKpktsRate: wide(&i.IngressPolicingKpktsRate), IngressPolicingRate: wide(&i.IngressPolicingRate),
		LLDP: filled(i.LLDP), MAC: i.MAC, MTURequest: wide(i.MTURequest), OfportRequest: wide(i.OfportRequest),
		Options: filled(i.Options), OtherConfig: filled(i.OtherConfig), Type: &kind,
	}
}

// wantedPort returns the desired rows of a port, without its QoS, and the spec that they are made from. What cannot change is
// taken from the interfaces that it had where the spec does not state it. The UUIDs of new interfaces are names within the transaction.
func wantedPort(
	name string, want schema.Object, mark providers.Mark, had map[string]*vswitch.Interface,
) (*vswitch.Port, map[string]*vswitch.Interface, *spec.Port, error) {
	var s spec.Port
	if err := read(want, &s); err != nil {
		return nil, nil, nil, err
	}
	if _, ok := s.ExternalIDs[qosKey]; ok {
		return nil, nil, nil, refuse(providers.Invalid, "external_ids cannot contain %s, which is reserved for converge", qosKey)
	}
	ids, err := marked(s.ExternalIDs, mark)
	if err != nil {
		return nil, nil, nil, err
	}
	p := &vswitch.Port{
		BondDowndelay: int(value(s.BondDowndelay)), BondMode: s.BondMode, BondUpdelay: int(value(s.BondUpdelay)), ExternalIDs: ids,
		LACP: s.LACP, OtherConfig: s.OtherConfig, Protected: value(s.Protected), Tag: narrow(s.Tag), Trunks: ints(s.Trunks), VLANMode: s.VLANMode,
	}
	bond := s.Interfaces
	_, alone := bond[name]
	switch {
	case len(bond) == 0:
		bond = map[string]spec.Interface{name: *cmp.Or(s.Interface, &spec.Interface{})}
	case alone && len(bond) == 1:
		return nil, nil, nil, refuse(providers.Invalid, "port %s has one interface of its own name: that is interface, not interfaces", name)
	case s.Interface != nil && (had[name] == nil || len(had) > 1): // otherwise it is what was observed, and gives way to the bond
		return nil, nil, nil, refuse(providers.Invalid, "port %s cannot have both interface and interfaces", name)
	}
	interfaces := map[string]*vswitch.Interface{}
	for n, called := range slices.Sorted(maps.Keys(bond)) {
		f := bond[called]
		i := &vswitch.Interface{
			UUID: fmt.Sprintf("interface_%d", n), Name: called,
			BFD: f.BFD, CFMMpid: narrow(f.CFMMpid), ExternalIDs: f.ExternalIDs,
			IngressPolicingBurst: int(value(f.IngressPolicingBurst)), IngressPolicingKpktsBurst: int(value(f.IngressPolicingKpktsBurst)),
			IngressPolicingKpktsRate: int(value(f.IngressPolicingKpktsRate)), IngressPolicingRate: int(value(f.IngressPolicingRate)),
			LLDP: f.LLDP, MAC: f.MAC, MTURequest: narrow(f.MTURequest), OfportRequest: narrow(f.OfportRequest),
			Options: f.Options, OtherConfig: f.OtherConfig, Type: value(f.Type),
		}
		if was := had[called]; was != nil {
			if f.Type != nil && *f.Type != cmp.Or(was.Type, "system") {
				return nil, nil, nil, refuse(providers.Invalid, "the type of an interface cannot be changed in place")
			}
			i.Type = was.Type
		}
		interfaces[called] = i
	}
	return p, interfaces, &s, nil
}
