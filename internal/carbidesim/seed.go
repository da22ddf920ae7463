package carbidesim

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

// The site's own networks lie in the shared address space, where no tenant has networks.
var (
	adminNetwork  = netip.MustParsePrefix("100.64.0.0/11")
	inbandNetwork = netip.MustParsePrefix("100.96.0.0/11")
	bmcNetwork    = netip.MustParsePrefix("198.18.0.0/15")
)

const hostsPerRack = 8

// discover fills a new site with the machines in its operator's racks. Three of four are GPU servers. The same seed
// results in the same machines.
func (s *site) discover(h Hosts, seed uint64) {
	if h.Count == 0 {
		return
	}
	admin := s.operatorSegment("admin", forge.NetworkSegmentType_ADMIN, adminNetwork)
	inband := ""
	if h.WithoutDPU > 0 {
		inband = s.operatorSegment("inband", forge.NetworkSegmentType_HOST_INBAND, inbandNetwork)
	}
	for n := range h.Count {
		id := machineID('h', 't', seed, n)
		rack := fmt.Sprintf("rack-%02d", n/hostsPerRack+1)
		m := &machine{
			Metadata:     metadata{Name: id, Labels: map[string]string{"rack": rack, "slot": fmt.Sprint(n%hostsPerRack + 1)}},
			State:        hostReady,
			StateVersion: firstToken(s.now),
			Version:      firstToken(s.now),
			Rack:         rack,
			MAC:          s.mac(id),
			Segment:      admin,
			Address:      nth(adminNetwork, n).String(),
			Discovered:   s.now,
			BMC:          strings.ToUpper(s.mac("BMC " + id)),
			BMCAddress:   nth(bmcNetwork, n).String(),
		}
		managed := n < h.Count-h.WithoutDPU
		m.Capabilities = keep(hardware(n%4 != 3, managed))
		if managed {
			dpu := machineID('d', 's', seed, n)
			m.DPUs = []string{dpu}
			s.machines.put(dpu, &machine{
				Metadata:     metadata{Name: dpu},
				State:        hostReady,
				StateVersion: firstToken(s.now),
				Version:      firstToken(s.now),
				Rack:         rack,
				Host:         id,
				MAC:          s.mac(dpu),
				Capabilities: keep(&forge.MachineCapabilitiesSet{}),
				Discovered:   s.now,
			})
		} else {
			m.Segment, m.Address = inband, nth(inbandNetwork, n).String()
		}
		switch {
		case n < h.Unhealthy:
			m.Alerts = []alert{{
				ID: "HeartbeatTimeout", Message: "no health report from the host for 5 minutes",
				Classifications: []string{"PreventAllocations"}, Since: s.now,
			}}
		case n < h.Unhealthy+h.Maintenance:
			m.Maintenance = &maintenance{"replacing a power supply", s.now}
		}
		s.machines.put(id, m)
	}
	if h.Lived {
		s.wear(h.Count, seed)
	}
}

// wear gives hosts the defects of long use. Each affects one host of so many, so small sites have none.
func (s *site) wear(count int, seed uint64) {
	order := make([]int, count)
	for n := range order {
		order[n] = n
	}
	lot := func(n int) string { return machineID('w', 'w', seed, n) } // as good as random, and not in the order of ids
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(lot(a), lot(b)) })
	alerts := func(id, message string, classifications ...string) func(*machine) {
		return func(m *machine) {
			m.Alerts = append(m.Alerts, alert{id, message, classifications, s.now})
		}
	}
	stays := func(state, failure string) func(*machine) {
		return func(m *machine) { m.State, m.Failure = state, failure }
	}
	for _, w := range []struct {
		of      int
		befalls func(*machine)
	}{
		{100, alerts("HeartbeatTimeout", "no health report from the host for 5 minutes", "PreventAllocations")},
		{100, func(m *machine) { m.Maintenance = &maintenance{"replacing a power supply", s.now} }},
		{125, stays("HostInitializing/WaitingForDiscovery", "")},
		{150, alerts("BgpPeeringTor", "the session with the second leaf switch is down", "PreventAllocations")},
		{150, alerts("FanSpeed", "fan 7 turns at 40 % of its speed")}, // prevents nothing
		{200, stays("HostReprovisioning/CheckingFirmware", "")},
		{250, stays("Failed/Discovery", "one of 32 memory modules was not found")},
	} {
		for range count / w.of {
			id := machineID('h', 't', seed, order[0])
			order = order[1:]
			m := *s.machines.get(id)
			w.befalls(&m)
			s.machines.put(id, &m)
			for _, d := range m.DPUs { // which share the state of their host
				dpu := *s.machines.get(d)
				dpu.State = m.State
				s.machines.put(d, &dpu)
			}
		}
	}
}

// stock fills the library of a new site with the operator's entries.
func (s *site) stock(r Rules) {
	const operator = "operator"
	for _, entry := range r.OperatingSystems {
		o := &forge.OperatingSystem{
			Id: &forge.OperatingSystemId{Value: entry.ID}, Name: "library", TenantOrganizationId: operator,
			Type: forge.OperatingSystemType_OS_TYPE_IPXE, Status: forge.TenantState_READY, IsActive: !entry.Inactive,
			UserData: optional(entry.UserData), IpxeScript: optional(entry.Script), Created: s.stamp(), Updated: s.stamp(),
		}
		if entry.Script == "" {
			o.Type, o.IpxeTemplateId = forge.OperatingSystemType_OS_TYPE_TEMPLATED_IPXE, ipxeTemplates[1].Id
			o.IpxeTemplateParameters = []*forge.IpxeTemplateParameter{{Name: "image_url", Value: "https://images.example/library.qcow2"}}
			o.IpxeTemplateDefinitionHash = proto.String(definitionHash(o))
		}
		s.keepOS(o)
	}
	for _, id := range r.OSImages {
		s.keepImage(&forge.OsImage{
			Attributes: &forge.OsImageAttributes{
				Id: &forge.UUID{Value: id}, SourceUrl: "https://images.example/" + id, Digest: "sha256:" + id, TenantOrganizationId: operator,
				Name: proto.String("library"),
			},
			Status: forge.OsImageStatus_ImageReady, CreatedAt: proto.String(s.stamp()),
		})
	}
}

// operatorSegment creates a network of the site itself and returns its id.
func (s *site) operatorSegment(name string, t forge.NetworkSegmentType, prefix netip.Prefix) string {
	id := s.newID()
	n := &segment{
		Name: name, Type: t, MTU: 1500, Version: firstToken(s.now), Created: s.now, Updated: s.now,
		Prefixes: []span{{ID: s.newID(), Prefix: prefix, Gateway: prefix.Addr().Next().String(), ReserveFirst: 10}},
	}
	n.enter(forge.TenantState_READY, s.now)
	s.segments.put(id, n)
	return id
}

// machineID returns the id of a machine: its type, what the hash was made from, and the hash of its hardware.
func machineID(kind, source byte, seed uint64, n int) string {
	hash := sha256.Sum256(fmt.Appendf(nil, "carbidesim machine %c %d %d", kind, seed, n))
	return fmt.Sprintf("fm100%c%c%s", kind, source, hardwareHash.EncodeToString(hash[:]))
}

// nth returns the address of the n-th host in a network, after the reserved addresses.
func nth(p netip.Prefix, n int) netip.Addr {
	a := p.Addr().As4()
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])+uint32(10+n))
	return netip.AddrFrom4(a)
}

func hardware(gpus, dpu bool) *forge.MachineCapabilitiesSet {
	c := &forge.MachineCapabilitiesSet{
		Cpu: []*forge.MachineCapabilityAttributesCpu{{
			Name: "Xeon Platinum 8480C", Count: 2, Vendor: proto.String("Intel"), Cores: proto.Uint32(56), Threads: proto.Uint32(112),
		}},
		Memory: []*forge.MachineCapabilityAttributesMemory{{
			Name: "DDR5", Count: 32, Vendor: proto.String("Micron"), Capacity: proto.String("64 GB"),
		}},
		Storage: []*forge.MachineCapabilityAttributesStorage{{
			Name: "MZQL23T8HCLS-00A07", Count: 8, Vendor: proto.String("Samsung"), Capacity: proto.String("3.84 TB"),
		}},
		Network: []*forge.MachineCapabilityAttributesNetwork{{
			Name: "MT42822 BlueField-2 integrated ConnectX-6 Dx network controller", Count: 2, Vendor: proto.String("Mellanox Technologies"),
		}},
	}
	if gpus {
		c.Gpu = []*forge.MachineCapabilityAttributesGpu{{
			Name: "NVIDIA H100 80GB HBM3", Count: 8, Vendor: proto.String("NVIDIA"),
			Frequency: proto.String("1980 MHz"), Capacity: proto.String("81559 MiB"),
		}}
		// The last of them has no cable.
		c.Infiniband = []*forge.MachineCapabilityAttributesInfiniband{{
			Name: "MT2910 Family [ConnectX-7]", Count: 4, Vendor: proto.String("Mellanox Technologies"), InactiveDevices: []uint32{3},
		}}
	}
	if dpu {
		c.Dpu = []*forge.MachineCapabilityAttributesDpu{{Name: "BlueField-3", Count: 1, HardwareRevision: proto.String("B1")}}
	}
	return c
}
