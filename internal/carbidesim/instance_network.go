package carbidesim

import (
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

// port is an interface of an instance as the site has wired it, in the order of the configuration.
type port struct {
	Function  *uint32   `json:"function,omitempty"`
	Device    *string   `json:"device,omitempty"`
	Instance  uint32    `json:"instance,omitempty"`
	MAC       string    `json:"mac"`
	Segment   string    `json:"segment,omitempty"`
	Addresses []address `json:"addresses,omitempty"`
}

// address is an interface's address, with the gateway and the prefix that go with it.
type address struct {
	Address netip.Addr   `json:"address"`
	Gateway string       `json:"gateway,omitempty"`
	Prefix  netip.Prefix `json:"prefix"`
}

// networks returns the keys under which an instance is found by what it is connected to.
func (i *instance) networks() []string {
	var out []string
	for _, p := range i.Interfaces {
		if p.Segment == "" {
			continue
		}
		out = append(out, p.Segment)
		for _, a := range p.Addresses {
			out = append(out, p.Segment+"/"+a.Address.String())
		}
	}
	return out
}

// wireUp connects the interfaces of an instance and completes the configuration with what the site has chosen. Existing
// interfaces keep their addresses.
func (s *site) wireUp(id string, m *machine, network *forge.InstanceNetworkConfig, have *instance) ([]port, error) {
	if managed := len(m.DPUs) > 0; managed == network.Auto {
		return nil, invalid("hosts without a managed DPU need network.auto, others refuse it")
	}
	if network.Auto {
		return s.inband(m), nil
	}
	vpcs := map[string]bool{}
	ports := make([]port, len(network.Interfaces))
	for n, i := range network.Interfaces {
		vpcID, err := s.vpcOf(i)
		if err != nil {
			return nil, err
		}
		vpcs[vpcID] = true
		if old := have.port(i); old != nil {
			ports[n] = *old
			complete(i, old.Segment)
			continue
		}
		p := port{Function: i.VirtualFunctionId, Device: i.Device, Instance: i.DeviceInstance}
		p.MAC = s.mac(fmt.Sprint(id, p.Instance, i.GetDevice(), i.FunctionType, i.GetVirtualFunctionId()))
		if i.GetVpcPrefixId() != nil {
			p.Segment, p.Addresses, err = s.link(i)
		} else {
			p.Segment = segmentOf(i)
			p.Addresses, err = s.lease(p.Segment)
		}
		if err != nil {
			return nil, err
		}
		complete(i, p.Segment)
		ports[n] = p
	}
	if len(vpcs) > 1 {
		for vpcID := range vpcs {
			if s.vpcs.get(vpcID).Type != forge.VpcVirtualizationType_FNN {
				return nil, invalid("an instance in several VPCs needs all of them to be FNN")
			}
		}
	}
	return ports, nil
}

// complete fills in the segment of an interface, for readers that know only segments.
func complete(i *forge.InstanceInterfaceConfig, segment string) {
	i.NetworkSegmentId = &forge.NetworkSegmentId{Value: segment}
}

// port returns how an interface is already wired, or nil.
func (i *instance) port(want *forge.InstanceInterfaceConfig) *port {
	if i == nil {
		return nil
	}
	n := slices.IndexFunc(i.config().Network.Interfaces, func(c *forge.InstanceInterfaceConfig) bool { return samePort(c, want) })
	if n < 0 {
		return nil
	}
	return &i.Interfaces[n]
}

// vpcOf checks that an interface may be connected to what it names, and returns the VPC.
func (s *site) vpcOf(i *forge.InstanceInterfaceConfig) (string, error) {
	var vpcID string
	if i.GetVpcPrefixId() != nil {
		p := s.prefixes.get(i.GetVpcPrefixId().GetValue())
		if p == nil {
			return "", internal("VPC prefix %s does not exist", i.GetVpcPrefixId().GetValue())
		}
		vpcID = p.VPC
	} else {
		n := s.segments.get(segmentOf(i))
		if n == nil || n.State != forge.TenantState_READY || n.Link {
			return "", invalid("segment %s is not ready", segmentOf(i))
		}
		vpcID = n.VPC
	}
	v := s.vpcs.get(vpcID)
	if v == nil {
		return "", invalid("the interface's network does not belong to a VPC")
	}
	if v.Type == forge.VpcVirtualizationType_FLAT {
		return "", precondition("VPC %s is of type FLAT, which hosts with a managed DPU cannot join", vpcID)
	}
	return vpcID, nil
}

// inband returns the interface of a host without a managed DPU: the host's own.
func (s *site) inband(m *machine) []port {
	n := s.segments.get(m.Segment)
	if n == nil {
		return nil
	}
	a := address{Address: netip.MustParseAddr(m.Address), Prefix: n.Prefixes[0].Prefix}
	a.Gateway = gatewayText(n.Prefixes[0])
	return []port{{MAC: m.MAC, Segment: m.Segment, Addresses: []address{a}}}
}

// lease takes the lowest free address of each prefix of a segment.
func (s *site) lease(segmentID string) ([]address, error) {
	n := s.segments.get(segmentID)
	var out []address
	for _, sp := range n.Prefixes {
		var found netip.Addr
		s.usable(n, sp, func(a netip.Addr) bool {
			if len(s.instancesByNet.of(segmentID+"/"+a.String())) == 0 {
				found = a
			}
			return !found.IsValid()
		})
		if !found.IsValid() {
			return nil, status.Errorf(codes.ResourceExhausted, "no free address in %s", sp.Prefix)
		}
		out = append(out, address{found, gatewayText(sp), sp.Prefix})
	}
	return out, nil
}

func gatewayText(sp span) string {
	if sp.Gateway == "" {
		return ""
	}
	return fmt.Sprintf("%s/%d", sp.Gateway, sp.Prefix.Bits())
}

// link allocates a link network in a VPC prefix for one interface: the even address is the DPU's, the odd one the host's.
func (s *site) link(i *forge.InstanceInterfaceConfig) (string, []address, error) {
	parent := i.GetVpcPrefixId().GetValue()
	p := s.prefixes.get(parent)
	cut, err := s.cut(p.Prefix, i.IpAddress)
	if err != nil {
		return "", nil, err
	}
	n := &segment{
		Name:     "vpc_prefix_" + cut.Addr().String(),
		VPC:      p.VPC,
		MTU:      9000,
		Link:     true,
		Version:  firstToken(s.now),
		Created:  s.now,
		Updated:  s.now,
		Prefixes: []span{{ID: s.newID(), Prefix: cut, Parent: parent}},
	}
	n.enter(forge.TenantState_READY, s.now)
	id := s.newID()
	s.segments.put(id, n)
	gateway := fmt.Sprintf("%s/%d", cut.Addr(), cut.Bits())
	return id, []address{{cut.Addr().Next(), gateway, cut}}, nil
}

// cut finds a free link network: that of the requested address, or the lowest.
func (s *site) cut(prefix netip.Prefix, want *string) (netip.Prefix, error) {
	bits := linkBits(prefix)
	if want != nil {
		a, err := netip.ParseAddr(*want)
		if err != nil {
			return netip.Prefix{}, invalid("invalid address %q", *want)
		}
		cut := netip.PrefixFrom(a, bits).Masked()
		if !prefix.Contains(a) || a == cut.Addr() {
			return netip.Prefix{}, invalid("address %s is not the host's end of a link network in %s", a, prefix)
		}
		if len(s.segmentSpace.overlapping(cut)) > 0 {
			return netip.Prefix{}, status.Error(codes.AlreadyExists, "prefix already exists")
		}
		return cut, nil
	}
	for cut := netip.PrefixFrom(prefix.Addr(), bits); prefix.Contains(cut.Addr()); {
		if len(s.segmentSpace.overlapping(cut)) == 0 {
			return cut, nil
		}
		cut = netip.PrefixFrom(cut.Addr().Next().Next(), bits)
	}
	return netip.Prefix{}, internal("VPC prefix %s has no free link network", prefix)
}

// unplug releases the link networks that an instance no longer has.
func (s *site) unplug(had, has []port) {
	for _, p := range had {
		still := slices.ContainsFunc(has, func(q port) bool { return q.Segment == p.Segment })
		if n := s.segments.get(p.Segment); !still && n != nil && n.Link {
			s.endSegment(p.Segment, n)
		}
	}
}

// mac derives a locally administered address.
func (s *site) mac(of string) string {
	h := s.derived("mac", of)
	return fmt.Sprintf("02:%s:%s:%s:%s:%s", h[0:2], h[2:4], h[4:6], h[6:8], h[9:11])
}

func (s *site) wireInstance(id string, i *instance) *forge.Instance {
	state := i.State
	if i.Injected != nil {
		state = *i.Injected
	}
	synced := forge.SyncState_PENDING
	if i.State == forge.TenantState_READY {
		synced = forge.SyncState_SYNCED
	}
	network := &forge.InstanceNetworkStatus{ConfigsSynced: synced}
	for _, p := range i.Interfaces {
		w := &forge.InstanceInterfaceStatus{
			VirtualFunctionId: p.Function,
			MacAddress:        proto.String(p.MAC),
			Device:            p.Device,
			DeviceInstance:    p.Instance,
		}
		for _, a := range p.Addresses {
			w.Addresses = append(w.Addresses, a.Address.String())
			w.Gateways = append(w.Gateways, a.Gateway)
			w.Prefixes = append(w.Prefixes, a.Prefix.String())
		}
		network.Interfaces = append(network.Interfaces, w)
	}
	details := map[forge.TenantState]string{
		forge.TenantState_PROVISIONING: "the host is being prepared",
		forge.TenantState_CONFIGURING:  "the host is being configured",
		forge.TenantState_TERMINATING:  "the host is being taken back",
		forge.TenantState_FAILED:       "the site has declared a failure",
	}
	out := &forge.Instance{
		Id:             &forge.InstanceId{Value: id},
		MachineId:      &forge.MachineId{Id: i.Machine},
		Metadata:       i.Metadata.wire(),
		InstanceTypeId: optional(i.Type),
		Config:         i.config(),
		Status: &forge.InstanceStatus{
			Tenant:        &forge.InstanceTenantStatus{State: state, StateDetails: details[state]},
			Network:       network,
			ConfigsSynced: synced,
		},
		ConfigVersion:              i.Version.String(),
		NetworkConfigVersion:       i.Network.String(),
		IbConfigVersion:            i.Infiniband.String(),
		NvlinkConfigVersion:        i.NVLink.String(),
		DpuExtensionServiceVersion: i.Services.String(),
	}
	s.wireFabrics(id, i, out.Status)
	return out
}
