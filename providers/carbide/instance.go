package carbide

import (
	"cmp"
	"context"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

// Giving a machine back wipes its disks: nothing undoes that.
var instanceTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Versioned, Delete: providers.Blind,
	Mark: true, Late: late, ReadyWithin: time.Hour, GoneWithin: time.Hour,
	UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.NoUndo,
	Reach: providers.ReachTenant,
}

type instances struct {
	*service
	uuidKind
}

func (k instances) list(ctx context.Context) ([]string, error) {
	r, err := k.FindInstanceIds(ctx, &forge.InstanceSearchFilter{})
	return texts(r.GetInstanceIds()), err
}

// seenInstance is an instance, what its security group lacks, and the power of its host, nil when nobody watches it.
type seenInstance struct {
	*forge.Instance
	lacks string
	power *forge.PowerOptions
}

func (k instances) get(ctx context.Context, ids []string) ([]seenInstance, error) {
	found, err := k.read(ctx, ids)
	if err != nil {
		return nil, err
	}
	var guarded []string
	for _, o := range found {
		if o.GetConfig().GetNetworkSecurityGroupId() != "" {
			guarded = append(guarded, o.GetId().GetValue())
		}
	}
	lacks, err := k.lacking(ctx, nil, guarded)
	if err != nil {
		return nil, err
	}
	powers, err := k.powers(ctx, found)
	if err != nil {
		return nil, err
	}
	seen := make([]seenInstance, len(found))
	for i, o := range found {
		seen[i] = seenInstance{Instance: o, power: powers[o.GetMachineId().GetId()]}
		if len(lacks[o.GetId().GetValue()]) > 0 {
			seen[i].lacks = "its security group is not in force yet"
		}
	}
	return seen, nil
}

func (k instances) read(ctx context.Context, ids []string) ([]*forge.Instance, error) {
	request := &forge.InstancesByIdsRequest{InstanceIds: make([]*forge.InstanceId, len(ids))}
	for i, id := range ids {
		request.InstanceIds[i] = &forge.InstanceId{Value: id}
	}
	r, err := k.FindInstancesByIds(ctx, request)
	return r.GetInstances(), err
}

func (instances) thing(o seenInstance) providers.Thing {
	config, tenant := o.GetConfig(), o.GetConfig().GetTenant()
	spec := schema.Object{
		"tenant":       tenant.GetTenantOrganizationId(),
		"machine":      o.GetMachineId().GetId(),
		"os":           readOS(config.GetOs()),
		"auto_network": config.GetNetwork().GetAuto(),
	}
	mark := readMetadata(o.GetMetadata(), spec)
	put(spec, "instance_type", o.GetInstanceTypeId())
	put(spec, "hostname", tenant.GetHostname())
	put(spec, "network_security_group", config.GetNetworkSecurityGroupId())
	put(spec, "power", powerWord(o.power, o.power.GetActualState()))
	putList(spec, "keysets", list(tenant.GetTenantKeysetIds(), func(id string) any {
		return keysetID(tenant.GetTenantOrganizationId(), id)
	}))
	putList(spec, "interfaces", list(config.GetNetwork().GetInterfaces(), func(i *forge.InstanceInterfaceConfig) any { return readInterface(i) }))

	state := o.GetStatus().GetTenant()
	word := stateWords[state.GetState()]
	got := schema.Object{"state": word}
	putList(got, "interface_status", list(o.GetStatus().GetNetwork().GetInterfaces(), func(i *forge.InstanceInterfaceStatus) any {
		return readInterfaceStatus(i)
	}))
	phase, detail := phaseOf(state.GetState()), ""
	switch {
	case phase != providers.Ready:
		detail = strings.TrimSuffix(word+": "+state.GetStateDetails(), ": ")
	case o.GetStatus().GetConfigsSynced() != forge.SyncState_SYNCED:
		phase, detail = providers.Pending, "its configuration has not reached the host"
	case powerDiffers(o.power) != "":
		phase, detail = providers.Pending, powerDiffers(o.power)
	default:
		phase, detail = spreading(o.lacks), o.lacks
	}
	return providers.Thing{
		ID: o.GetId().GetValue(), Name: o.GetMetadata().GetName(), Mark: mark, Version: o.GetConfigVersion(),
		Spec: spec, Status: got, Phase: phase, Detail: detail,
	}
}

func (k instances) create(ctx context.Context, c *providers.Call) error {
	if text(c.Want, "power") == powerOff {
		return status.Error(codes.InvalidArgument, "a new instance is on: it can be turned off only once it is ready, by a later change")
	}
	request := &forge.InstanceAllocationRequest{
		InstanceId:     &forge.InstanceId{Value: c.ID},
		MachineId:      &forge.MachineId{Id: text(c.Want, "machine")},
		InstanceTypeId: optional(c.Want, "instance_type"),
		Metadata:       newMetadata(c),
		Config: &forge.InstanceConfig{
			Tenant: &forge.TenantConfig{
				TenantOrganizationId: text(c.Want, "tenant"),
				Hostname:             optional(c.Want, "hostname"),
			},
			Os:      &forge.InstanceOperatingSystemConfig{},
			Network: &forge.InstanceNetworkConfig{Auto: truth(c.Want, "auto_network")},
		},
	}
	writeConfig(c, request.Config)
	_, err := k.AllocateInstance(ctx, request)
	if k.early(ctx, text(c.Want, "machine"), err) {
		return earlyError{err}
	}
	return err
}

// early reports whether a refusal goes back to the host: it is being cleaned after another instance, say. The code does
// not tell this apart from wrong values.
func (k instances) early(ctx context.Context, machine string, err error) bool {
	if code := status.Code(err); code != codes.InvalidArgument && code != codes.FailedPrecondition {
		return false
	}
	found, err := machines{k.service}.get(ctx, []string{machine})
	return err == nil && len(found) == 1 && (found[0].GetState() != machineReady || len(found[0].GetHealth().GetAlerts()) > 0)
}

// update sends the whole configuration back: what is not in it would be taken away. A change of what is booted alone has a
// call of its own, which the service takes at any time. What is turned on is so before anything else changes, and what is
// turned off last, for the site does nothing with a host that is to be off.
func (k instances) update(ctx context.Context, c *providers.Call, now seenInstance) error {
	want := text(c.Want, "power")
	actual, desired := powerWord(now.power, now.power.GetActualState()), powerWord(now.power, now.power.GetDesiredState())
	switches := want != "" && (want != actual || want != desired)
	config := wholeConfig(now.Instance, text(c.Want, "tenant"))
	writeConfig(c, config)
	metadata := writeMetadata(c, proto.CloneOf(now.Metadata), c.Ref.Name)
	works := !proto.Equal(wired(config), wired(wholeConfig(now.Instance, "")))
	switch {
	case switches && now.power == nil:
		return errUnwatched
	case works && desired == powerOff && want != powerOn:
		return status.Error(codes.InvalidArgument, "the site does nothing with a host that is to be off: turn the instance on to change its networks and services")
	case switches && want == powerOff && now.GetStatus().GetTenant().GetState() != forge.TenantState_READY:
		return status.Error(codes.InvalidArgument, "the instance is not ready, and the site needs its host on")
	case switches && want == powerOn:
		if err := k.turnOn(ctx, now); err != nil {
			return err
		}
	}
	changed, err := k.configure(ctx, now, config, metadata)
	begun := changed || switches && want == powerOn
	if err == nil && switches && want == powerOff {
		if works {
			err = until(ctx, "the instance is still being changed", func() (bool, error) { return k.settledNow(ctx, c.ID) })
		}
		if err == nil {
			err = k.turnOff(ctx, now)
		}
	}
	if err != nil && begun {
		return halfwayError{err}
	}
	return err
}

// configure writes configuration and metadata if they changed, and reports whether they did.
func (k instances) configure(ctx context.Context, now seenInstance, config *forge.InstanceConfig, metadata *forge.Metadata) (bool, error) {
	before := wholeConfig(now.Instance, "")
	rest := proto.CloneOf(before)
	rest.Os = config.Os
	switch {
	case !sameMetadata(now.Metadata, metadata) || !proto.Equal(rest, config):
	case proto.Equal(before.Os, config.Os):
		return false, nil
	default:
		_, err := k.UpdateInstanceOperatingSystem(ctx, &forge.InstanceOperatingSystemUpdateRequest{
			InstanceId: now.Id, IfVersionMatch: &now.ConfigVersion, Os: config.Os,
		})
		if code := status.Code(err); code != codes.PermissionDenied && code != codes.Unimplemented {
			return err == nil, err
		}
	}
	_, err := k.UpdateInstanceConfig(ctx, &forge.InstanceConfigUpdateRequest{
		InstanceId: now.Id, IfVersionMatch: &now.ConfigVersion, Config: config, Metadata: metadata,
	})
	return err == nil, err
}

// wholeConfig is a copy of the configuration of an instance, with the parts that it must have.
func wholeConfig(now *forge.Instance, tenant string) *forge.InstanceConfig {
	config := &forge.InstanceConfig{}
	if now.GetConfig() != nil {
		config = proto.CloneOf(now.Config)
	}
	if config.Tenant == nil {
		config.Tenant = &forge.TenantConfig{TenantOrganizationId: tenant}
	}
	if config.Os == nil {
		config.Os = &forge.InstanceOperatingSystemConfig{}
	}
	if config.Network == nil {
		config.Network = &forge.InstanceNetworkConfig{}
	}
	return config
}

// wired is the part of a configuration that the site has to bring to the host.
func wired(config *forge.InstanceConfig) *forge.InstanceConfig {
	return &forge.InstanceConfig{
		Network: config.Network, Infiniband: config.Infiniband, Nvlink: config.Nvlink, Spxconfig: config.Spxconfig,
		DpuExtensionServices: config.DpuExtensionServices,
	}
}

// settledNow reports whether the site is done with an instance.
func (k instances) settledNow(ctx context.Context, id string) (bool, error) {
	found, err := k.read(ctx, []string{id})
	if err != nil || len(found) == 0 {
		return false, cmp.Or(err, errAbsent)
	}
	s := found[0].GetStatus()
	return phaseOf(s.GetTenant().GetState()) == providers.Ready && s.GetConfigsSynced() == forge.SyncState_SYNCED, nil
}

// delete turns an instance on that is to be off: the site would not take it back otherwise.
func (k instances) delete(ctx context.Context, c *providers.Call) error {
	found, err := k.read(ctx, []string{c.ID})
	if err != nil {
		return unsentError{err}
	}
	powers, err := k.powers(ctx, found)
	if err != nil {
		return unsentError{err}
	}
	woken := false
	for _, o := range found {
		now := seenInstance{Instance: o, power: powers[o.GetMachineId().GetId()]}
		if now.power.GetDesiredState() == forge.PowerState_Off {
			if err := k.turnOn(ctx, now); err != nil {
				return err
			}
			woken = true
		}
	}
	_, err = k.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: &forge.InstanceId{Value: c.ID}})
	if err != nil && woken {
		return halfwayError{err}
	}
	return err
}

// writeConfig changes what may change in a configuration that is there.
func writeConfig(c *providers.Call, config *forge.InstanceConfig) {
	config.NetworkSecurityGroupId = optional(c.Want, "network_security_group")
	config.Tenant.TenantKeysetIds = nil
	for _, id := range words(c.Want, "keysets") {
		config.Tenant.TenantKeysetIds = append(config.Tenant.TenantKeysetIds, keysetIdentifier(id).KeysetId)
	}
	os, _ := c.Want["os"].(map[string]any)
	writeOS(os, config.Os)
	writeInterfaces(structs(c.Want, "interfaces"), config.Network)
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
	if i.GetVpcPrefixId() == nil { // otherwise this is the link network that the site made
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

// A port says which function of a host an interface is.
type port struct {
	function, device string
	instance, number int64
}

func portOf(o map[string]any) port {
	p := port{text(o, "function"), text(o, "device"), 0, -1}
	p.instance, _ = o["device_instance"].(int64)
	if n, ok := o["virtual_function_id"].(int64); ok {
		p.number = n
	}
	return p
}

// writeInterfaces replaces the interfaces. One that is on the same port and says the same is left as it is, so that the
// service sees no change.
func writeInterfaces(want []map[string]any, network *forge.InstanceNetworkConfig) {
	have := make(map[port]*forge.InstanceInterfaceConfig, len(network.Interfaces))
	for _, i := range network.Interfaces {
		have[portOf(readInterface(i))] = i
	}
	network.Interfaces = nil
	for _, o := range want {
		i := have[portOf(o)]
		if i == nil {
			i = &forge.InstanceInterfaceConfig{}
		}
		if schema.Object(readInterface(i)).Digest() != schema.Object(o).Digest() {
			writeInterface(o, i)
		}
		network.Interfaces = append(network.Interfaces, i)
	}
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
	i.NetworkSegmentId, i.NetworkDetails = nil, nil
	if id := text(o, "segment"); id != "" {
		i.NetworkDetails = &forge.InstanceInterfaceConfig_SegmentId{SegmentId: &forge.NetworkSegmentId{Value: id}}
	}
	if id := text(o, "vpc_prefix"); id != "" {
		i.NetworkDetails = &forge.InstanceInterfaceConfig_VpcPrefixId{VpcPrefixId: &forge.VpcPrefixId{Value: id}}
	}
	i.Ipv6InterfaceConfig = nil
	if six, ok := o["ipv6"].(map[string]any); ok {
		i.Ipv6InterfaceConfig = &forge.InstanceInterfaceIpv6Config{
			VpcPrefixId: &forge.VpcPrefixId{Value: text(six, "vpc_prefix")},
			IpAddress:   optional(six, "ip_address"),
		}
	}
	prefixes := words(o, "anycast_prefixes")
	if len(prefixes) == 0 {
		i.RoutingProfile = nil
		return
	}
	if i.RoutingProfile == nil {
		i.RoutingProfile = &forge.InstanceInterfaceRoutingProfile{}
	}
	i.RoutingProfile.AllowedAnycastPrefixes = nil
	for _, p := range prefixes {
		i.RoutingProfile.AllowedAnycastPrefixes = append(i.RoutingProfile.AllowedAnycastPrefixes, &forge.PrefixFilterPolicyEntry{Prefix: p})
	}
}
