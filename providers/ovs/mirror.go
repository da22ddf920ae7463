package ovs

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs/spec"
	"converge.dev/converge/providers/ovs/vswitch"
	"converge.dev/converge/schema"
	"github.com/ovn-org/libovsdb/ovsdb"
)

// mirrorSettings are the columns of Mirror that are in a spec: all that can be set except the name.
var mirrorSettings = []string{
	"external_ids", "output_port", "output_vlan", "select_all", "select_dst_port", "select_src_port", "select_vlan", "snaplen",
}

// maxMirrors is how many mirrors ovs-vswitchd makes on a bridge; others are only mentioned in its log.
const maxMirrors = 32

// mirrors is the kind ovs.mirror.
type mirrors struct{}

// reads returns all mirrors, because the database allows duplicate names, and the names of all ports.
func (mirrors) reads() []reading {
	return []reading{
		bridgeRows,
		{table: vswitch.MirrorTable, row: &vswitch.Mirror{}, columns: slices.Concat([]string{"name"}, mirrorSettings)},
		{table: vswitch.PortTable, row: &vswitch.Port{}, columns: []string{"name"}},
	}
}

func (mirrors) traits(common providers.Traits) providers.Traits { return common }

func (mirrors) list(v *view) ([]observed, error) {
	var lost error // a reference that leads nowhere, which no intact database has
	names := func(uuids ...string) []string {
		var ports []string
		for _, uuid := range uuids {
			p := row[vswitch.Port](v, uuid)
			if p == nil {
				lost = fmt.Errorf("a mirror refers to port %s, which is not in the database", uuid)
				p = &vswitch.Port{}
			}
			ports = append(ports, p.Name)
		}
		return sorted(ports)
	}
	var seen []observed
	for m := range all[vswitch.Mirror](v) {
		b := v.mirrored(m)
		if b == nil {
			return nil, fmt.Errorf("mirror %s does not belong to any bridge in the database", m.UUID)
		}
		ids, mark := unmarked(m.ExternalIDs)
		s := spec.Mirror{
			Bridge: b.Name, ExternalIDs: ids, OutputVLAN: wide(m.OutputVLAN), SelectAll: &m.SelectAll,
			SelectDstPorts: names(m.SelectDstPort...), SelectSrcPorts: names(m.SelectSrcPort...),
			SelectVLAN: all64(sorted(m.SelectVLAN)), Snaplen: wide(m.Snaplen),
		}
		if m.OutputPort != nil {
			s.OutputPort = &names(*m.OutputPort)[0]
		}
		if lost != nil {
			return nil, lost
		}
		seen = append(seen, observed{
			Thing: providers.Thing{ID: v.mirrorID(m), UID: m.UUID, Name: cmp.Or(m.Name, m.UUID), Mark: mark, Spec: s.Object(), Phase: providers.Ready},
			rows:  []string{b.UUID, m.UUID},
		})
	}
	return seen, nil
}

func (mirrors) create(v *view, c *change, name string, want schema.Object, mark providers.Mark) error {
	if m := find(v, func(m *vswitch.Mirror) bool { return m.Name == name }); m != nil {
		return refuse(providers.Exists, "the name %s is taken by a mirror of bridge %s", name, v.mirrored(m).Name)
	}
	m, b, err := wantedMirror(v, c, want, mark)
	switch {
	case err != nil:
		return err
	case len(b.Mirrors) >= maxMirrors:
		return refuse(providers.Invalid, "bridge %s already has %d mirrors, and Open vSwitch supports no more", b.Name, len(b.Mirrors))
	}
	m.Name = name
	c.absent(vswitch.MirrorTable, name)
	c.present(b)
	c.insert(vswitch.MirrorTable, "mirror", m, slices.Concat(mirrorSettings, []string{"name"})...)
	c.refer(vswitch.BridgeTable, b.UUID, "mirrors", ovsdb.MutateOperationInsert, "mirror")
	return nil
}

func (mirrors) update(v *view, c *change, name string, want schema.Object, mark providers.Mark) error {
	have := v.mirror(name)
	m, b, err := wantedMirror(v, c, want, mark)
	switch {
	case err != nil:
		return err
	case b.UUID != v.mirrored(have).UUID:
		return refuse(providers.Invalid, "bridge cannot be changed in place")
	}
	c.unchanged(vswitch.MirrorTable, have.UUID, have, mirrorSettings...)
	c.update(vswitch.MirrorTable, have.UUID, m, mirrorSettings...)
	return nil
}

func (mirrors) remove(_ context.Context, v *view, c *change, name string) error {
	m := v.mirror(name)
	c.unchanged(vswitch.MirrorTable, m.UUID, m, mirrorSettings...)
	c.refer(vswitch.BridgeTable, v.mirrored(m).UUID, "mirrors", ovsdb.MutateOperationDelete, m.UUID)
	return nil
}

// mirror returns the mirror with an id.
func (v *view) mirror(id string) *vswitch.Mirror {
	return find(v, func(m *vswitch.Mirror) bool { return v.mirrorID(m) == id })
}

// mirrorID returns the name of a mirror, or its UUID when the name is not unique. A marked mirror keeps its name,
// whatever the names of unmarked ones.
func (v *view) mirrorID(m *vswitch.Mirror) string {
	isMarked := func(m *vswitch.Mirror) bool { return m.ExternalIDs[providers.MarkKey] != "" }
	namesake := find(v, func(o *vswitch.Mirror) bool {
		return o.UUID != m.UUID && o.Name == m.Name && (isMarked(o) || !isMarked(m))
	})
	if m.Name == "" || namesake != nil {
		return m.UUID
	}
	return m.Name
}

// mirrored returns the bridge that a mirror belongs to.
func (v *view) mirrored(m *vswitch.Mirror) *vswitch.Bridge {
	return find(v, func(b *vswitch.Bridge) bool { return slices.Contains(b.Mirrors, m.UUID) })
}

// wantedMirror returns the desired row of a mirror, and its bridge.
func wantedMirror(v *view, c *change, want schema.Object, mark providers.Mark) (*vswitch.Mirror, *vswitch.Bridge, error) {
	var s spec.Mirror
	if err := read(want, &s); err != nil {
		return nil, nil, err
	}
	ids, err := marked(s.ExternalIDs, mark)
	if err != nil {
		return nil, nil, err
	}
	b := v.bridge(s.Bridge)
	if b == nil {
		return nil, nil, refuse(providers.Absent, "bridge %s does not exist", s.Bridge)
	}
	m := &vswitch.Mirror{
		ExternalIDs: ids, OutputVLAN: narrow(s.OutputVLAN), SelectAll: value(s.SelectAll), SelectVLAN: ints(s.SelectVLAN), Snaplen: narrow(s.Snaplen),
	}
	if m.SelectDstPort, err = c.needs(v, b, s.SelectDstPorts...); err != nil {
		return nil, nil, err
	}
	if m.SelectSrcPort, err = c.needs(v, b, s.SelectSrcPorts...); err != nil {
		return nil, nil, err
	}
	if port := value(s.OutputPort); port != "" {
		output, err := c.needs(v, b, port)
		if err != nil {
			return nil, nil, err
		}
		m.OutputPort = &output[0]
	}
	return m, b, nil
}

// needs returns the UUIDs of ports of a bridge and guards that they stay: the database would silently leave a missing
// one out of the mirror.
func (c *change) needs(v *view, b *vswitch.Bridge, ports ...string) ([]string, error) {
	var uuids []string
	for _, name := range ports {
		p := v.port(name)
		switch {
		case p == nil:
			return nil, refuse(providers.Absent, "port %s does not exist", name)
		case !slices.Contains(b.Ports, p.UUID):
			return nil, refuse(providers.Invalid, "port %s is not on bridge %s", name, b.Name)
		}
		c.guard(refuse(providers.Absent, "port %s has just been deleted", name),
			vswitch.PortTable, uuidIs(p.UUID), ovsdb.WaitConditionEqual, ovsdb.Row{"name": name})
		uuids = append(uuids, p.UUID)
	}
	return uuids, nil
}
