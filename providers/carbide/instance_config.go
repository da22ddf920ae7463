package carbide

import (
	"cmp"
	"context"
	"strings"

	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// writeConfig changes what may change in a configuration that is there.
func (k instances) writeConfig(ctx context.Context, c *call[spec.Instance], config *forge.InstanceConfig) error {
	config.NetworkSecurityGroupId = c.want.NetworkSecurityGroup
	config.Tenant.TenantKeysetIds = nil
	for _, id := range c.want.Keysets {
		config.Tenant.TenantKeysetIds = append(config.Tenant.TenantKeysetIds, keysetIdentifier(id).KeysetId)
	}
	os, _ := c.Want["os"].(map[string]any)
	writeOS(os, config.Os)
	writeInterfaces(structs(c.Want, "interfaces"), config.Network)
	return k.writeFabrics(ctx, c, config)
}

func readOS(o *forge.InstanceOperatingSystemConfig) map[string]any {
	os := map[string]any{
		"phone_home_enabled":                          o.GetPhoneHomeEnabled(),
		"run_provisioning_instructions_on_every_boot": o.GetRunProvisioningInstructionsOnEveryBoot(),
	}
	put(os, "ipxe", o.GetIpxe().GetIpxeScript())
	put(os, "os_image", o.GetOsImageId().GetValue())
	put(os, "operating_system", o.GetOperatingSystemId().GetValue())
	put(os, "user_data", o.GetUserData())
	return os
}

func writeOS(os map[string]any, o *forge.InstanceOperatingSystemConfig) {
	o.PhoneHomeEnabled = truth(os, "phone_home_enabled")
	o.RunProvisioningInstructionsOnEveryBoot = truth(os, "run_provisioning_instructions_on_every_boot")
	o.UserData = optional(os, "user_data")
	// When the wanted spec was laid over one with another variant it may have both; then the one that is new counts.
	script, image, entry := text(os, "ipxe"), text(os, "os_image"), text(os, "operating_system")
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

func readInterface(i *forge.InstanceInterfaceConfig) map[string]any {
	o := map[string]any{
		"function":        interfaceFunctions.word(i.GetFunctionType()),
		"device_instance": int64(i.GetDeviceInstance()),
	}
	put(o, "vpc_prefix", i.GetVpcPrefixId().GetValue())
	if i.GetVpcPrefixId() == nil && i.GetVpc() == nil { // otherwise this is the link network that the site made
		segment := i.GetSegmentId().GetValue()
		if segment == "" {
			segment = i.GetNetworkSegmentId().GetValue()
		}
		put(o, "segment", segment)
	}
	put(o, "device", i.GetDevice())
	put(o, "ip_address", i.GetIpAddress())
	putNumber(o, "virtual_function_id", i.VirtualFunctionId)
	if six := i.GetIpv6InterfaceConfig(); six != nil {
		ipv6 := map[string]any{"vpc_prefix": six.GetVpcPrefixId().GetValue()}
		put(ipv6, "ip_address", six.GetIpAddress())
		o["ipv6"] = ipv6
	}
	putList(o, "anycast_prefixes", list(i.GetRoutingProfile().GetAllowedAnycastPrefixes(), func(p *forge.PrefixFilterPolicyEntry) any {
		return p.GetPrefix()
	}))
	return o
}

func readInterfaceStatus(i *forge.InstanceInterfaceStatus) map[string]any {
	o := map[string]any{}
	put(o, "mac_address", strings.ToLower(i.GetMacAddress()))
	same := func(s string) any { return s }
	putList(o, "addresses", list(i.GetAddresses(), same))
	putList(o, "gateways", list(i.GetGateways(), same))
	putList(o, "prefixes", list(i.GetPrefixes(), same))
	return o
}

// writeInterfaces replaces the interfaces. One that is on the same port and says the same is left as it is, so that the
// service sees no change.
func writeInterfaces(want []map[string]any, network *forge.InstanceNetworkConfig) {
	network.Interfaces = renewMaps(network.Interfaces, want, readInterface, writeInterface, "function", "device", "device_instance", "virtual_function_id")
}

func writeInterface(o map[string]any, i *forge.InstanceInterfaceConfig) {
	i.FunctionType = interfaceFunctions.value(o["function"])
	i.Device = optional(o, "device")
	i.VirtualFunctionId = number[uint32](o, "virtual_function_id")
	i.IpAddress = optional(o, "ip_address")
	i.DeviceInstance = 0
	if n := number[uint32](o, "device_instance"); n != nil {
		i.DeviceInstance = *n
	}
	if id := text(o, "segment"); id != "" {
		i.NetworkSegmentId = nil
		i.NetworkDetails = &forge.InstanceInterfaceConfig_SegmentId{SegmentId: &forge.NetworkSegmentId{Value: id}}
	}
	if id := text(o, "vpc_prefix"); id != "" {
		i.NetworkSegmentId = nil
		i.NetworkDetails = &forge.InstanceInterfaceConfig_VpcPrefixId{VpcPrefixId: &forge.VpcPrefixId{Value: id}}
	}
	if six, ok := o["ipv6"].(map[string]any); ok {
		i.Ipv6InterfaceConfig = cmp.Or(i.Ipv6InterfaceConfig, &forge.InstanceInterfaceIpv6Config{})
		i.Ipv6InterfaceConfig.VpcPrefixId = &forge.VpcPrefixId{Value: text(six, "vpc_prefix")}
		i.Ipv6InterfaceConfig.IpAddress = optional(six, "ip_address")
	} else {
		i.Ipv6InterfaceConfig = nil
	}
	var prefixes []map[string]any
	for _, p := range words(o, "anycast_prefixes") {
		prefixes = append(prefixes, map[string]any{"prefix": p})
	}
	if len(prefixes) == 0 {
		i.RoutingProfile = nil
		return
	}
	i.RoutingProfile = cmp.Or(i.RoutingProfile, &forge.InstanceInterfaceRoutingProfile{})
	i.RoutingProfile.AllowedAnycastPrefixes = renewMaps(i.RoutingProfile.AllowedAnycastPrefixes, prefixes,
		func(p *forge.PrefixFilterPolicyEntry) map[string]any { return map[string]any{"prefix": p.GetPrefix()} },
		func(o map[string]any, p *forge.PrefixFilterPolicyEntry) { p.Prefix = text(o, "prefix") }, "prefix")
}
