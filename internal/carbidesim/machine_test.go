package carbidesim

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/providers/carbide/forge"
)

func TestSeededMachines(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 20, WithoutDPU: 2, Unhealthy: 3, Maintenance: 1}})
	hosts := b.hosts(&forge.MachineSearchConfig{})
	if len(hosts) != 20 {
		t.Fatalf("%d hosts", len(hosts))
	}
	dpus := b.hosts(&forge.MachineSearchConfig{IncludeDpus: true, ExcludeHosts: true})
	if len(dpus) != 18 {
		t.Errorf("%d DPUs", len(dpus))
	}
	racks := map[string]int{}
	addresses := map[string]bool{}
	for _, id := range hosts {
		if len(id) != 59 || !strings.HasPrefix(id, "fm100ht") || machineType(id) != 'h' {
			t.Errorf("machine id %s", id)
		}
		m := b.machine(id)
		if m.State != "Ready" || m.MachineType != forge.MachineType_HOST || len(m.Capabilities.Cpu) == 0 || m.Metadata.Name != id {
			t.Errorf("machine %v", m)
		}
		for _, l := range m.Metadata.Labels {
			if l.Key == "rack" {
				racks[l.GetValue()]++
				if m.RackId.GetId() != l.GetValue() {
					t.Errorf("rack %s, label %s", m.RackId.GetId(), l.GetValue())
				}
			}
		}
		addresses[m.Interfaces[0].Address[0]] = true
		if len(m.AssociatedDpuMachineIds) > 0 && m.Interfaces[0].AttachedDpuMachineId.GetId() != m.AssociatedDpuMachineIds[0].Id {
			t.Errorf("the interface is not attached to the DPU: %v", m)
		}
	}
	if len(racks) != 3 || racks["rack-01"] != 8 || len(addresses) != 20 {
		t.Errorf("racks %v, %d addresses", racks, len(addresses))
	}
	d := b.machine(dpus[0])
	if machineType(dpus[0]) != 'd' || d.MachineType != forge.MachineType_DPU || b.machine(d.AssociatedHostMachineId.GetId()).AssociatedDpuMachineIds[0].Id != dpus[0] {
		t.Errorf("DPU %v", d)
	}
	for _, c := range []struct {
		name   string
		search *forge.MachineSearchConfig
		want   int
	}{
		{"all", &forge.MachineSearchConfig{IncludeDpus: true}, 38},
		{"maintenance", &forge.MachineSearchConfig{OnlyMaintenance: true}, 1},
		{"alert", &forge.MachineSearchConfig{OnlyWithHealthAlert: text("HeartbeatTimeout")}, 3},
		{"rack", &forge.MachineSearchConfig{RackId: &forge.RackId{Id: "rack-03"}}, 4},
		{"type", &forge.MachineSearchConfig{InstanceTypeId: text("gpu")}, 0},
	} {
		if got := b.hosts(c.search); len(got) != c.want {
			t.Errorf("search by %s: %d machines, want %d", c.name, len(got), c.want)
		}
	}
}

// The machines of a large site follow from the seed, and so do the defects of their long use.
func TestSeededSite(t *testing.T) {
	const count = 500
	site := func(seed uint64, count int) *World {
		w, err := New(Options{Seed: seed, Timing: FastTiming, Hosts: Hosts{Count: count, Lived: true}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
		return w
	}
	machines := func(w *World) (hosts, dpus map[string]*forge.Machine) {
		hosts, dpus = map[string]*forge.Machine{}, map[string]*forge.Machine{}
		for _, o := range w.Objects() {
			if m, ok := o.Message.(*forge.Machine); ok && m.MachineType == forge.MachineType_HOST {
				hosts[o.ID] = m
			} else if ok {
				dpus[o.ID] = m
			}
		}
		return hosts, dpus
	}
	first, again, other := site(7, count), site(7, count), site(8, count)
	if !bytes.Equal(first.Dump(), again.Dump()) {
		t.Error("one seed gives two sites")
	}
	hosts, dpus := machines(first)
	others, _ := machines(other)
	if len(hosts) != count || len(dpus) != count || len(others) != count {
		t.Fatalf("%d and %d hosts, %d DPUs", len(hosts), len(others), len(dpus))
	}
	for id := range others {
		if hosts[id] != nil {
			t.Errorf("machine %s is on both sites", id)
		}
	}
	counted := func(hosts map[string]*forge.Machine) map[string]int {
		n := map[string]int{}
		for _, m := range hosts {
			n[m.State]++
			for _, a := range m.Health.Alerts {
				n[a.Id]++
			}
		}
		return n
	}
	want := map[string]int{
		"Ready": count - 8, "HostInitializing/WaitingForDiscovery": 4, "HostReprovisioning/CheckingFirmware": 2, "Failed/Discovery": 2,
		"HeartbeatTimeout": 5, "Maintenance": 5, "BgpPeeringTor": 3, "FanSpeed": 3,
	}
	for _, site := range []map[string]*forge.Machine{hosts, others} {
		if got := counted(site); !maps.Equal(got, want) {
			t.Errorf("states and alerts are %v, want %v", got, want)
		}
	}
	seen, racks, gpus, troubled := map[string]bool{}, map[string]int{}, 0, map[string]bool{}
	for id, m := range hosts {
		place := slices.IndexFunc(m.Metadata.Labels, func(l *forge.Label) bool { return l.Key == "slot" })
		for _, unique := range []string{
			m.Interfaces[0].MacAddress, m.Interfaces[0].Address[0], m.RackId.GetId() + "/" + m.Metadata.Labels[place].GetValue(),
		} {
			if seen[unique] {
				t.Errorf("%s is there twice", unique)
			}
			seen[unique] = true
		}
		racks[m.RackId.GetId()]++
		if len(m.Capabilities.Gpu) > 0 {
			gpus++
		}
		if len(m.Health.Alerts) > 0 || m.State != "Ready" {
			troubled[m.RackId.GetId()] = true
		}
		if dpu := dpus[m.AssociatedDpuMachineIds[0].Id]; dpu.State != m.State || dpu.AssociatedHostMachineId.Id != id {
			t.Errorf("the DPU of %s: %v", id, dpu)
		}
		if failed := strings.HasPrefix(m.State, "Failed/"); failed != (m.GetFailureDetails() != "") {
			t.Errorf("%s in state %s: %q", id, m.State, m.GetFailureDetails())
		}
	}
	if len(racks) != 63 || racks["rack-63"] != 4 || gpus != 375 || len(troubled) < 12 {
		t.Errorf("racks %v, %d of them with trouble, %d hosts with GPUs", racks, len(troubled), gpus)
	}
	small, _ := machines(site(7, 99))
	if got := counted(small); !maps.Equal(got, map[string]int{"Ready": 99}) {
		t.Errorf("a small site is not whole: %v", got)
	}
}

func TestMachineMetadata(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 1}})
	id := &forge.MachineId{Id: b.hosts(&forge.MachineSearchConfig{})[0]}
	before := b.machine(id.Id).Version
	update := func(id *forge.MachineId, m *forge.Metadata) error {
		return failed(b.UpdateMachineMetadata(ctx, &forge.MachineMetadataUpdateRequest{MachineId: id, Metadata: m}))
	}
	b.refusals([]refusal{
		{"no metadata", update(id, nil), codes.InvalidArgument, "metadata"},
		{"unknown", update(&forge.MachineId{Id: machineID('h', 's', 7, 7)}, named("xx")), codes.NotFound, "machine"},
		{"replace", update(id, &forge.Metadata{Name: "gpu-01", Labels: []*forge.Label{label("repair_status", text("done"))}}), codes.OK, ""},
	})
	if m := b.machine(id.Id); m.Metadata.Name != "gpu-01" || len(m.Metadata.Labels) != 1 || m.Version == before {
		t.Errorf("machine %v", m)
	}
}

func TestMaintenance(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 1}})
	id := b.hosts(&forge.MachineSearchConfig{})[0]
	set := func(id string, op forge.MaintenanceOperation, reference string) error {
		return failed(b.SetMaintenance(ctx, &forge.MaintenanceRequest{HostId: &forge.MachineId{Id: id}, Operation: op, Reference: &reference}))
	}
	const enable, disable = forge.MaintenanceOperation_Enable, forge.MaintenanceOperation_Disable
	b.refusals([]refusal{
		{"no host", failed(b.SetMaintenance(ctx, &forge.MaintenanceRequest{})), codes.InvalidArgument, "host_id"},
		{"short reference", set(id, enable, "  OPS-  "), codes.InvalidArgument, "reference"},
		{"DPU", set(b.machine(id).AssociatedDpuMachineIds[0].Id, enable, "OPS-1234"), codes.InvalidArgument, "DPU"},
		{"unknown", set(machineID('h', 's', 7, 7), enable, "OPS-1234"), codes.NotFound, "machine"},
		{"neither", set(id, 7, "OPS-1234"), codes.InvalidArgument, "operation"},
		{"disable without", set(id, disable, ""), codes.OK, ""},
		{"enable", set(id, enable, " OPS-1234 "), codes.OK, ""},
	})
	m := b.machine(id)
	if m.GetMaintenanceReference() != "OPS-1234" || m.MaintenanceStartTime == nil || len(m.Health.Alerts) != 1 || m.Health.Alerts[0].Id != "Maintenance" {
		t.Errorf("machine under maintenance: %v", m)
	}
	if err := set(id, disable, ""); err != nil {
		t.Fatal(err)
	}
	if m = b.machine(id); m.MaintenanceReference != nil || len(m.Health.Alerts) != 0 {
		t.Errorf("machine after maintenance: %v", m)
	}
}
