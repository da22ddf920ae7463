package carbidesim

import (
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

// readConfig checks the configuration of a tenant's request, except how the network fits the machine, and converts it to
// the form in which it reads back.
func (s *site) readConfig(in *forge.InstanceConfig) (*forge.InstanceConfig, error) {
	tenant, err := readTenantConfig(in.Tenant)
	if err != nil {
		return nil, err
	}
	os, err := s.readOS(in.Os)
	if err != nil {
		return nil, err
	}
	network, err := readNetwork(in.Network)
	if err != nil {
		return nil, err
	}
	if err := s.autoVPC(tenant.TenantOrganizationId, network.AutoConfig); err != nil {
		return nil, err
	}
	if _, err := s.groupFor(tenant.TenantOrganizationId, in.NetworkSecurityGroupId); err != nil {
		return nil, err
	}
	services, err := s.services(in.DpuExtensionServices)
	if err != nil {
		return nil, err
	}
	out := &forge.InstanceConfig{
		Tenant:                 tenant,
		Os:                     os,
		Network:                network,
		NetworkSecurityGroupId: in.NetworkSecurityGroupId,
		DpuExtensionServices:   services,
	}
	return out, readFabrics(in, out)
}

var hostName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

func readTenantConfig(in *forge.TenantConfig) (*forge.TenantConfig, error) {
	if in == nil {
		return nil, missing("config.tenant")
	}
	if !validOrganization(in.TenantOrganizationId) {
		return nil, invalid("invalid organization id %q", in.TenantOrganizationId)
	}
	keysets := slices.Clone(in.TenantKeysetIds)
	slices.Sort(keysets)
	if len(keysets) > 10 || len(slices.Compact(keysets)) != len(in.TenantKeysetIds) {
		return nil, invalid("at most 10 distinct keyset ids are allowed")
	}
	out := &forge.TenantConfig{
		TenantOrganizationId: in.TenantOrganizationId,
		TenantKeysetIds:      slices.Clone(in.TenantKeysetIds),
	}
	if in.Hostname != nil {
		if !hostName.MatchString(*in.Hostname) {
			return nil, invalid("invalid host name %q", *in.Hostname)
		}
		out.Hostname = proto.String((*in.Hostname)[:min(63, len(*in.Hostname))])
	}
	return out, nil
}

// readOS checks what to boot. A library entry with its own script reads back as that script.
func (s *site) readOS(in *forge.InstanceOperatingSystemConfig) (*forge.InstanceOperatingSystemConfig, error) {
	if in == nil {
		return nil, missing("config.os")
	}
	out := proto.Clone(in).(*forge.InstanceOperatingSystemConfig)
	switch v := in.Variant.(type) {
	case *forge.InstanceOperatingSystemConfig_Ipxe:
		if strings.TrimSpace(v.Ipxe.GetIpxeScript()) == "" {
			return nil, invalid("the iPXE script is empty")
		}
	case *forge.InstanceOperatingSystemConfig_OsImageId:
		id, err := imageID(v.OsImageId)
		if err != nil {
			return nil, err
		}
		if s.osImages.get(id) == nil {
			return nil, precondition("OS image %s does not exist", id)
		}
	case *forge.InstanceOperatingSystemConfig_OperatingSystemId:
		id := v.OperatingSystemId.GetValue()
		have := s.operatingSystems.get(id)
		if have == nil || !have.message.IsActive {
			return nil, precondition("operating system %s does not exist or is not active", id)
		}
		entry := have.message
		if entry.Status != forge.TenantState_READY {
			return nil, precondition("operating system %s is not ready", id)
		}
		if entry.IpxeScript != nil {
			out.Variant = &forge.InstanceOperatingSystemConfig_Ipxe{Ipxe: &forge.InlineIpxe{IpxeScript: *entry.IpxeScript}}
			if out.UserData == nil {
				out.UserData = entry.UserData
			}
		}
	default:
		return nil, invalid("exactly one operating system variant is required")
	}
	return out, nil
}

// autoVPC checks the VPC that a host without a managed DPU joins.
func (s *site) autoVPC(tenant string, c *forge.InstanceNetworkAutoConfig) error {
	if c == nil {
		return nil
	}
	if c.VpcId == nil {
		return missing("vpc_id")
	}
	v := s.vpcs.get(c.VpcId.Value)
	switch {
	case v == nil:
		return precondition("VPC `%s` does not exist", c.VpcId.Value)
	case v.Organization != tenant:
		return precondition("VPC `%s` is not owned by Tenant `%s`", c.VpcId.Value, tenant)
	case v.Type != forge.VpcVirtualizationType_FLAT:
		return precondition("zero-DPU auto allocation requires a Flat VPC; VPC %s uses %s", c.VpcId.Value, v.Type)
	}
	return nil
}

// locator names the device of an interface.
type locator struct {
	device   string
	instance uint32
}

func locatorOf(i *forge.InstanceInterfaceConfig) locator {
	return locator{i.GetDevice(), i.DeviceInstance}
}

// readNetwork checks what depends on the interfaces alone, and numbers virtual functions that have no number.
func readNetwork(in *forge.InstanceNetworkConfig) (*forge.InstanceNetworkConfig, error) {
	if in == nil {
		return nil, missing("config.network")
	}
	out := proto.Clone(in).(*forge.InstanceNetworkConfig)
	out.Auto = in.Auto || in.AutoConfig != nil // each generation reads only one of the two
	if out.Auto != (len(in.Interfaces) == 0) {
		return nil, invalid("a network is either auto or has interfaces")
	}
	physical := map[locator]int{}
	next := map[locator]uint32{}
	taken := map[locator]map[uint32]bool{}
	segments := map[string]bool{}
	numbered, virtual := 0, 0
	for _, i := range out.Interfaces {
		at := locatorOf(i)
		physical[at] += 0
		if err := checkTarget(i); err != nil {
			return nil, err
		}
		if id := segmentOf(i); id != "" {
			if segments[id] {
				return nil, invalid("segment %s is used twice", id)
			}
			segments[id] = true
		}
		switch i.FunctionType {
		case forge.InterfaceFunctionType_PHYSICAL:
			physical[at]++
			if i.VirtualFunctionId != nil {
				return nil, invalid("a physical function has no virtual_function_id")
			}
		case forge.InterfaceFunctionType_VIRTUAL:
			virtual++
			if i.VirtualFunctionId != nil {
				numbered++
			} else {
				i.VirtualFunctionId = proto.Uint32(next[at])
				next[at]++
			}
			if taken[at] == nil {
				taken[at] = map[uint32]bool{}
			}
			if *i.VirtualFunctionId > 15 || taken[at][*i.VirtualFunctionId] {
				return nil, invalid("virtual_function_id %d is out of range or used twice", *i.VirtualFunctionId)
			}
			taken[at][*i.VirtualFunctionId] = true
		default:
			return nil, invalid("invalid function_type %d", i.FunctionType)
		}
	}
	for at, n := range physical {
		if n != 1 {
			return nil, invalid("device %q %d needs exactly one physical function, got %d", at.device, at.instance, n)
		}
	}
	if numbered != 0 && numbered != virtual {
		return nil, invalid("virtual_function_id is given for all virtual functions or for none")
	}
	return out, nil
}

// checkTarget checks what an interface is connected to.
func checkTarget(i *forge.InstanceInterfaceConfig) error {
	switch {
	case i.Ipv6InterfaceConfig != nil:
		return unmodelled("a second address family of an interface")
	case segmentOf(i) == "" && i.GetVpcPrefixId() == nil:
		return invalid("an interface needs a segment or a VPC prefix")
	case i.IpAddress != nil && i.GetVpcPrefixId() == nil:
		return invalid("an explicit address needs a VPC prefix")
	}
	for _, p := range i.RoutingProfile.GetAllowedAnycastPrefixes() {
		if _, err := parseCIDR(p.Prefix); err != nil {
			return err
		}
	}
	return nil
}

// segmentOf returns the segment that an interface names, or "". An interface with a VPC prefix also reads back with a
// segment, so the prefix decides.
func segmentOf(i *forge.InstanceInterfaceConfig) string {
	if i.GetVpcPrefixId() != nil {
		return ""
	}
	return firstOf(i.GetSegmentId().GetValue(), i.NetworkSegmentId.GetValue())
}

// sameNetwork reports whether two networks request the same.
func sameNetwork(a, b *forge.InstanceNetworkConfig) bool {
	return slices.EqualFunc(a.Interfaces, b.Interfaces, samePort)
}

func samePort(a, b *forge.InstanceInterfaceConfig) bool {
	return a.FunctionType == b.FunctionType && locatorOf(a) == locatorOf(b) &&
		same(a.VirtualFunctionId, b.VirtualFunctionId) && same(a.IpAddress, b.IpAddress) &&
		segmentOf(a) == segmentOf(b) && a.GetVpcPrefixId().GetValue() == b.GetVpcPrefixId().GetValue() &&
		proto.Equal(a.RoutingProfile, b.RoutingProfile)
}
