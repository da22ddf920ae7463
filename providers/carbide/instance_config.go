package carbide

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// writeConfig changes what may change in an existing configuration.
func (k instances) writeConfig(ctx context.Context, c *call[spec.Instance], config *forge.InstanceConfig) error {
	config.NetworkSecurityGroupId = c.want.NetworkSecurityGroup
	config.Tenant.TenantKeysetIds = nil
	for _, id := range c.want.Keysets {
		config.Tenant.TenantKeysetIds = append(config.Tenant.TenantKeysetIds, keysetIdentifier(id).KeysetId)
	}
	writeOS(value(c.want.OS), config.Os)
	writeInterfaces(c.want.Interfaces, config.Network)
	return k.writeFabrics(ctx, c, config)
}

func readOS(o *forge.InstanceOperatingSystemConfig) *spec.InstanceOS {
	return &spec.InstanceOS{
		PhoneHomeEnabled: o.GetPhoneHomeEnabled(), RunProvisioningInstructionsOnEveryBoot: o.GetRunProvisioningInstructionsOnEveryBoot(),
		IPXE: unlessZero(o.GetIpxe().GetIpxeScript()), OSImage: unlessZero(o.GetOsImageId().GetValue()),
		OperatingSystem: unlessZero(o.GetOperatingSystemId().GetValue()), UserData: unlessZero(o.GetUserData()),
	}
}

func writeOS(want spec.InstanceOS, o *forge.InstanceOperatingSystemConfig) {
	o.PhoneHomeEnabled, o.UserData = want.PhoneHomeEnabled, want.UserData
	o.RunProvisioningInstructionsOnEveryBoot = want.RunProvisioningInstructionsOnEveryBoot
	// When the desired spec was merged over one with another variant it may have both; then the new one counts.
	script, image, entry := value(want.IPXE), value(want.OSImage), value(want.OperatingSystem)
	switch {
	case image != "" && image != o.GetOsImageId().GetValue():
		o.Variant = &forge.InstanceOperatingSystemConfig_OsImageId{OsImageId: &forge.UUID{Value: image}}
	case entry != "" && entry != o.GetOperatingSystemId().GetValue():
		o.Variant = &forge.InstanceOperatingSystemConfig_OperatingSystemId{OperatingSystemId: &forge.OperatingSystemId{Value: entry}}
	case script != "" && script != o.GetIpxe().GetIpxeScript():
		o.Variant = &forge.InstanceOperatingSystemConfig_Ipxe{Ipxe: &forge.InlineIpxe{IpxeScript: script}}
	}
}

var interfaceFunctions = enum[forge.InterfaceFunctionType]{
	{"physical", forge.InterfaceFunctionType_PHYSICAL},
	{"virtual", forge.InterfaceFunctionType_VIRTUAL},
}

func readInterface(i *forge.InstanceInterfaceConfig) spec.Interface {
	function := interfaceFunctions.word(i.GetFunctionType())
	s := spec.Interface{
		Function: &function, DeviceInstance: int64(i.GetDeviceInstance()), VPCPrefix: unlessZero(i.GetVpcPrefixId().GetValue()),
		Device: unlessZero(i.GetDevice()), IPAddress: unlessZero(i.GetIpAddress()), VirtualFunctionID: widen(i.VirtualFunctionId),
		AnycastPrefixes: each(i.GetRoutingProfile().GetAllowedAnycastPrefixes(), (*forge.PrefixFilterPolicyEntry).GetPrefix),
	}
	if i.GetVpcPrefixId() == nil && i.GetVpc() == nil { // otherwise this is a link network that the site made
		s.Segment = unlessZero(cmp.Or(i.GetSegmentId().GetValue(), i.GetNetworkSegmentId().GetValue()))
	}
	if six := i.GetIpv6InterfaceConfig(); six != nil {
		s.IPV6 = &spec.InterfaceIPV6{VPCPrefix: six.GetVpcPrefixId().GetValue(), IPAddress: unlessZero(six.GetIpAddress())}
	}
	return s
}

func readInterfaceStatus(i *forge.InstanceInterfaceStatus) spec.InterfaceStatus {
	return spec.InterfaceStatus{
		MACAddress: unlessZero(strings.ToLower(i.GetMacAddress())), Addresses: i.GetAddresses(), Gateways: i.GetGateways(), Prefixes: i.GetPrefixes(),
	}
}

// writeInterfaces replaces the interfaces. One on the same port with the same settings is left as it is, so that the
// service sees no change.
func writeInterfaces(want []spec.Interface, network *forge.InstanceNetworkConfig) {
	type port struct{ function, device, instance, virtual string }
	network.Interfaces = renew(network.Interfaces, want, readInterface, writeInterface, func(i *spec.Interface) port {
		return port{value(i.Function), value(i.Device), fmt.Sprint(i.DeviceInstance), asJSON(i.VirtualFunctionID)}
	})
}

func writeInterface(w *spec.Interface, i *forge.InstanceInterfaceConfig) {
	i.FunctionType = interfaceFunctions.value(value(w.Function))
	i.Device, i.IpAddress, i.VirtualFunctionId = w.Device, w.IPAddress, narrow[uint32](w.VirtualFunctionID)
	i.DeviceInstance = uint32(w.DeviceInstance)
	if id := value(w.Segment); id != "" {
		i.NetworkSegmentId = nil
		i.NetworkDetails = &forge.InstanceInterfaceConfig_SegmentId{SegmentId: &forge.NetworkSegmentId{Value: id}}
	}
	if id := value(w.VPCPrefix); id != "" {
		i.NetworkSegmentId = nil
		i.NetworkDetails = &forge.InstanceInterfaceConfig_VpcPrefixId{VpcPrefixId: &forge.VpcPrefixId{Value: id}}
	}
	if six := w.IPV6; six != nil {
		i.Ipv6InterfaceConfig = cmp.Or(i.Ipv6InterfaceConfig, &forge.InstanceInterfaceIpv6Config{})
		i.Ipv6InterfaceConfig.VpcPrefixId = &forge.VpcPrefixId{Value: six.VPCPrefix}
		i.Ipv6InterfaceConfig.IpAddress = six.IPAddress
	} else {
		i.Ipv6InterfaceConfig = nil
	}
	if len(w.AnycastPrefixes) == 0 {
		i.RoutingProfile = nil
		return
	}
	i.RoutingProfile = cmp.Or(i.RoutingProfile, &forge.InstanceInterfaceRoutingProfile{})
	i.RoutingProfile.AllowedAnycastPrefixes = renew(i.RoutingProfile.AllowedAnycastPrefixes, w.AnycastPrefixes, (*forge.PrefixFilterPolicyEntry).GetPrefix,
		func(w *string, p *forge.PrefixFilterPolicyEntry) { p.Prefix = *w }, func(w *string) string { return *w })
}
