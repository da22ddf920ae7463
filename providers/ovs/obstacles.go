package ovs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/ovs/vswitch"
)

// usage reads what refers to what.
var usage = []reading{
	{table: vswitch.BridgeTable, row: &vswitch.Bridge{}, columns: []string{"name", "ports"}},
	{table: vswitch.PortTable, row: &vswitch.Port{}, columns: []string{"name", "qos", "interfaces", "external_ids"}},
	{table: vswitch.InterfaceTable, row: &vswitch.Interface{}, columns: []string{"name", "external_ids"}},
	{table: vswitch.MirrorTable, row: &vswitch.Mirror{}, columns: []string{"name", "external_ids", "output_port", "select_dst_port", "select_src_port"}},
	{table: vswitch.QoSTable, row: &vswitch.QoS{}, columns: []string{"external_ids", "queues"}},
	{table: vswitch.QueueTable, row: &vswitch.Queue{}, columns: []string{"external_ids"}},
}

// obstacles is the provider's Obstacles: ports that are left on bridges, and what refers to ports, qos and queues. The ports of virtual machines do
// not count: they go with those.
func (d *db) obstacles(ctx context.Context, deletes, changes []providers.Target) ([]providers.Obstacle, error) {
	v, err := d.view(ctx, usage, nil)
	if err != nil {
		return nil, &providers.Error{Op: "observe", Class: providers.Transient, Err: err}
	}
	moving := map[providers.Target]bool{}
	for _, t := range slices.Concat(deletes, changes) {
		moving[t] = true
	}
	stays := func(kind, id string) bool { return !moving[providers.Target{Kind: kind, ID: id}] }
	port := func(p *vswitch.Port) bool { return stays("ovs.port", p.Name) && !ofMachine(p, v.interfacesOf(p)) }
	var found []providers.Obstacle
	for _, t := range deletes {
		var users []string
		why := "%s"
		switch t.Kind {
		case "ovs.bridge":
			why = "it still has the ports %s"
			if b := v.bridge(t.ID); b != nil {
				for _, uuid := range b.Ports {
					if p := row[vswitch.Port](v, uuid); p != nil && p.Name != b.Name && port(p) {
						users = append(users, p.Name)
					}
				}
			}
		case "ovs.port":
			why = "mirror %s refers to it"
			p := v.port(t.ID)
			for m := range all[vswitch.Mirror](v) {
				refers := p != nil && (value(m.OutputPort) == p.UUID || slices.Contains(m.SelectDstPort, p.UUID) || slices.Contains(m.SelectSrcPort, p.UUID))
				if id := v.mirrorID(m); refers && stays("ovs.mirror", id) {
					users = append(users, id)
				}
			}
		case "ovs.qos":
			why = "it is still used by port %s"
			q := called[vswitch.QoS](v, t.ID)
			for p := range all[vswitch.Port](v) {
				if q != nil && value(p.QOS) == q.UUID && port(p) {
					users = append(users, p.Name)
				}
			}
		case "ovs.queue":
			why = "it is still used by qos %s"
			q := called[vswitch.Queue](v, t.ID)
			for uuid, id := range ids[vswitch.QoS](v) {
				if q != nil && slices.Contains(slices.Collect(maps.Values(row[vswitch.QoS](v, uuid).Queues)), q.UUID) && stays("ovs.qos", id) {
					users = append(users, id)
				}
			}
		}
		if len(users) > 0 {
			found = append(found, providers.Obstacle{Target: t, Why: fmt.Sprintf(why, strings.Join(sorted(users), ", "))})
		}
	}
	return found, nil
}
