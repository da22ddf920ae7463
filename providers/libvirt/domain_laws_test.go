//go:build linux && cgo && libvirt_dlopen

package libvirt

import (
	"fmt"
	"maps"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/schema"
)

// machineType is a hypervisor that the far side has.
func (f far) machineType() string {
	if f.host == nil {
		return "test"
	}
	return "qemu"
}

// machines returns the cases of libvirt.domain. On a real libvirtd, where starting a machine takes a second and a network another one,
// there is only one, whose machine is stopped and needs nothing; TestMachine is about others.
func (f far) machines(pool, network providertest.Made) []providertest.Case {
	disk := providertest.Made{Kind: "libvirt.volume", Name: "law.qcow2", Spec: schema.Object{"pool": pool.Name, "capacity": int64(1 << 20), "format": "qcow2"}}
	medium := providertest.Made{Kind: "libvirt.volume", Name: "law.iso", Spec: schema.Object{"pool": pool.Name, "capacity": int64(1 << 20), "format": "raw"}}
	needs := []providertest.Made{pool, disk, medium, network}
	bare := func(fields schema.Object) schema.Object {
		spec := schema.Object{"type": f.machineType(), "vcpus": int64(1), "memory": int64(64 << 20), "stop_timeout": int64(0)}
		maps.Copy(spec, fields)
		return spec
	}
	card := func(fields map[string]any) map[string]any {
		card := map[string]any{"mac": "52:54:00:00:03:01", "network": network.Name, "port_group": "", "bridge": "", "ovs_bridge": "", "vlan": int64(0), "model": "virtio", "boot_order": int64(0)}
		maps.Copy(card, fields)
		return card
	}
	whole := bare(schema.Object{
		"title": "Web & more", "description": "Serves <the> web.", "state": "stopped", "autostart": false, "vcpus": int64(2), "cpus": []any{int64(0), int64(1)}, "numa_nodes": []any{int64(0)},
		"disks":      []any{map[string]any{"target": "vda", "volume": pool.Name + "/law.qcow2", "bus": "virtio", "read_only": false, "boot_order": int64(1)}},
		"cdroms":     []any{map[string]any{"target": "sda", "volume": pool.Name + "/law.iso", "seed": "", "bus": "sata", "boot_order": int64(2)}},
		"interfaces": []any{card(nil), card(map[string]any{"mac": "52:54:00:00:03:02", "network": "", "ovs_bridge": "br-int", "vlan": int64(42), "target": "web-0"})},
		"hostdevs":   []any{map[string]any{"address": "0000:3b:00.1", "boot_order": int64(0)}},
	})
	if f.host != nil {
		needs = nil
		delete(whole, "disks")
		delete(whole, "cdroms")
		whole["interfaces"] = whole["interfaces"].([]any)[1:]
	}
	cases := []providertest.Case{
		{
			Kind: "libvirt.domain", Name: "law-whole", Needs: needs, Want: whole,
			Update: bare(schema.Object{
				"title": "Other", "state": "stopped", "memory": int64(128 << 20), "stop_timeout": int64(9),
				"disks":      []any{map[string]any{"target": "vdb", "volume": pool.Name + "/law.qcow2", "bus": "virtio", "read_only": true, "boot_order": int64(0)}},
				"cdroms":     []any{map[string]any{"target": "sda", "volume": "", "seed": "", "bus": "sata", "boot_order": int64(0)}},
				"interfaces": []any{card(map[string]any{"mac": "52:54:00:00:03:02", "network": "", "bridge": "br0", "boot_order": int64(3)})},
			}),
			Invalid: bare(schema.Object{"memory": int64(64<<20 + 1)}),
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("law-other-%d", i), Spec: bare(schema.Object{"state": "stopped"})}
			},
		},
		{
			Kind: "libvirt.domain", Name: "law-runs", Needs: needs,
			Want: bare(schema.Object{
				"state": "running", "autostart": false, "disks": []any{map[string]any{"target": "vda", "volume": pool.Name + "/law.qcow2", "bus": "virtio", "read_only": false, "boot_order": int64(0)}},
				"interfaces": []any{card(nil)},
			}),
			Update: bare(schema.Object{
				"state": "paused", "vcpus": int64(2), "autostart": true, "title": "Paused",
				"disks":      []any{map[string]any{"target": "vda", "volume": pool.Name + "/law.qcow2", "bus": "virtio", "read_only": false, "boot_order": int64(1)}},
				"interfaces": []any{card(nil)},
			}),
			Invalid: bare(schema.Object{"interfaces": []any{card(map[string]any{"bridge": "br0"})}}),
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("law-runs-%d", i), Spec: bare(nil)}
			},
		},
	}
	if f.host != nil {
		delete(cases[0].Update, "disks")
		delete(cases[0].Update, "cdroms")
		return cases[:1]
	}
	return cases
}
