package carbide

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

// Releasing a machine wipes its disks, which cannot be undone. The version guards an instance's configuration but not its
// power, so an update is blind.
var instanceTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Blind, Delete: providers.Blind,
	Mark: true, EffectWithin: late, SelfChanging: []string{"power"}, Later: []string{"power"}, ReadyWithin: time.Hour, GoneWithin: time.Hour,
	UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.NoUndo,
	Exclusive: []providers.Exclusive{{Field: "machine"}, {Field: "hostname", Within: "tenant"}},
	Detach: []providers.Detachable{ // an instance without interfaces is refused, and so is a device without its physical function
		{Field: "interfaces", Least: 1, Head: "function", HeadIs: "physical", Group: []string{"device", "device_instance"}},
		{Field: "infiniband"}, {Field: "nvlink"}, {Field: "spx"}, {Field: "dpu_extension_services"},
	},
}

// instanceRefusals are codes with a special meaning.
var instanceRefusals = refusals{
	opCreate: {
		codes.AlreadyExists: providers.Busy,   // a requested address is in a link network that is draining
		codes.Internal:      providers.Absent, // a VPC prefix
	},
	opUpdate: {
		codes.FailedPrecondition: providers.Absent, // the security group or the operating system
	},
	opDelete: {
		codes.InvalidArgument: providers.Busy, // an alert blocks the host
	},
}

type instances struct {
	*service
	uuidKind
}

func (k instances) list(ctx context.Context) ([]string, error) {
	r, err := k.FindInstanceIds(ctx, &forge.InstanceSearchFilter{})
	return texts(r.GetInstanceIds()), err
}

// seenInstance is an instance, what its security group lacks, and the power of its host, nil when that is not monitored.
type seenInstance struct {
	*forge.Instance
	lacks string
	power *forge.PowerOptions
}

func (k instances) get(ctx context.Context, ids []string) ([]seenInstance, error) {
	found, err := k.read(ctx, ids)
	seen := make([]seenInstance, len(found))
	for i, o := range found {
		seen[i].Instance = o
	}
	return seen, err
}

// complete reads where the groups of all instances are in force, and whether their hosts are on.
func (k instances) complete(ctx context.Context, all []seenInstance) error {
	var guarded []string
	hosts := make([]*forge.MachineId, len(all))
	for i, o := range all {
		hosts[i] = o.GetMachineId()
		if o.GetConfig().GetNetworkSecurityGroupId() != "" {
			guarded = append(guarded, o.GetId().GetValue())
		}
	}
	lacks, err := k.lacking(ctx, nil, guarded)
	if err != nil {
		return err
	}
	powers, err := k.powers(ctx, hosts...)
	for i, o := range all {
		all[i].power = powers[o.GetMachineId().GetId()]
		if len(lacks[o.GetId().GetValue()]) > 0 {
			all[i].lacks = "its security group is not in effect yet"
		}
	}
	return err
}

func (k instances) read(ctx context.Context, ids []string) ([]*forge.Instance, error) {
	r, err := k.FindInstancesByIds(ctx, &forge.InstancesByIdsRequest{InstanceIds: wrapped(ids, func(id string) *forge.InstanceId { return &forge.InstanceId{Value: id} })})
	return r.GetInstances(), err
}

func (k instances) thing(o seenInstance) providers.Thing {
	config, tenant := o.GetConfig(), o.GetConfig().GetTenant()
	machine := o.GetMachineId().GetId()
	s := spec.Instance{
		Tenant: tenant.GetTenantOrganizationId(), Machine: &machine, OS: readOS(config.GetOs()),
		AutoNetwork:  config.GetNetwork().GetAuto() || config.GetNetwork().GetAutoConfig() != nil,
		AutoVPC:      unlessZero(config.GetNetwork().GetAutoConfig().GetVpcId().GetValue()),
		InstanceType: unlessZero(o.GetInstanceTypeId()), Hostname: unlessZero(tenant.GetHostname()),
		NetworkSecurityGroup: unlessZero(config.GetNetworkSecurityGroupId()), Power: unlessZero(powerWord(o.power, o.power.GetActualState())),
		Keysets:    each(tenant.GetTenantKeysetIds(), func(id string) string { return keysetID(tenant.GetTenantOrganizationId(), id) }),
		Interfaces: each(config.GetNetwork().GetInterfaces(), readInterface),
	}
	var unfilled []string
	if s.AutoNetwork && s.AutoVPC == nil {
		unfilled = []string{"auto_vpc"}
	}
	var mark providers.Mark
	s.Description, s.Labels, mark = described(o.GetMetadata())
	readFabrics(config, &s)

	state := o.GetStatus().GetTenant()
	word := stateWords[state.GetState()]
	got := spec.InstanceStatus{State: &word, InterfaceStatus: each(o.GetStatus().GetNetwork().GetInterfaces(), readInterfaceStatus)}
	readFabricStatus(o.GetStatus(), &got)
	phase, detail := phaseOf(state.GetState()), ""
	switch {
	case phase != providers.Ready:
		detail = strings.TrimSuffix(word+": "+state.GetStateDetails(), ": ")
	case o.GetStatus().GetConfigsSynced() != forge.SyncState_SYNCED:
		phase, detail = providers.Pending, "its configuration has not reached the host"
	case k.powerDiffers(o.power) != "":
		phase, detail = providers.Pending, k.powerDiffers(o.power)
	case k.deaf(o.power):
		detail = "its host should be off but stays on"
	default:
		phase, detail = spreading(o.lacks), o.lacks
	}
	return providers.Thing{
		ID: o.GetId().GetValue(), Name: o.GetMetadata().GetName(), Mark: mark, Version: o.GetConfigVersion(),
		Spec: s.Object(), Unfilled: unfilled, Status: got.Object(), Phase: phase, Detail: detail,
	}
}

func (k instances) create(ctx context.Context, c *call[spec.Instance]) error {
	powers, err := k.powers(ctx, &forge.MachineId{Id: value(c.want.Machine)})
	switch {
	case err != nil:
		return unsentError{err}
	case value(c.want.Power) != "" && powers[value(c.want.Machine)] == nil:
		return errUnwatched
	}
	request := &forge.InstanceAllocationRequest{
		InstanceId:     &forge.InstanceId{Value: c.ID},
		MachineId:      &forge.MachineId{Id: value(c.want.Machine)},
		InstanceTypeId: c.want.InstanceType,
		Metadata:       newMetadata(c.Call, c.want.Description, c.want.Labels),
		Config: &forge.InstanceConfig{
			Tenant: &forge.TenantConfig{
				TenantOrganizationId: c.want.Tenant,
				Hostname:             c.want.Hostname,
			},
			Os:      &forge.InstanceOperatingSystemConfig{},
			Network: &forge.InstanceNetworkConfig{Auto: c.want.AutoNetwork},
		},
	}
	if id := value(c.want.AutoVPC); id != "" { // which replaces auto
		request.Config.Network.AutoConfig = &forge.InstanceNetworkAutoConfig{VpcId: &forge.VpcId{Value: id}}
	}
	if err := k.writeConfig(ctx, c, request.Config); err != nil {
		return err
	}
	made, err := k.AllocateInstance(ctx, request)
	c.Chose(made.GetId().GetValue())
	if k.early(ctx, value(c.want.Machine), err) {
		return earlyError{err}
	}
	var used []string
	for _, i := range c.want.Interfaces {
		if id := value(i.VPCPrefix); id != "" && !slices.Contains(used, id) {
			used = append(used, id)
		}
	}
	if err != nil { // an existing one has used up the addresses
		return unless(ctx, err, prefixes{service: k.service}.get, used...)
	}
	return nil // the host is on, and the site needs it on until it is ready
}

// early reports whether a refusal is due to the state of the host, for example because it is being cleaned after
// another instance. The code does not distinguish this from wrong values.
func (k instances) early(ctx context.Context, machine string, err error) bool {
	if code := status.Code(err); code != codes.InvalidArgument && code != codes.FailedPrecondition {
		return false
	}
	found, err := machines{k.service}.get(ctx, []string{machine})
	return err == nil && len(found) == 1 && (found[0].GetState() != machineReady || len(found[0].GetHealth().GetAlerts()) > 0)
}

// update sends the whole configuration back: anything missing would be removed. A change of only what is booted has its
// own call, which the service accepts at any time. A host is turned on before anything else changes, and turned off last,
// when the rest is done, because the site does nothing with a host that should be off.
func (k instances) update(ctx context.Context, c *call[spec.Instance], now seenInstance) error {
	want := value(c.want.Power)
	actual, desired := powerWord(now.power, now.power.GetActualState()), powerWord(now.power, now.power.GetDesiredState())
	switches := want != "" && (want != actual || want != desired)
	config := wholeConfig(now.Instance, c.want.Tenant)
	if err := k.writeConfig(ctx, c, config); err != nil {
		return err
	}
	metadata := writeMetadata(c.Call, proto.CloneOf(now.Metadata), c.Called(), c.want.Description, c.want.Labels)
	works := !proto.Equal(wired(config), wired(wholeConfig(now.Instance, "")))
	switch {
	case switches && now.power == nil:
		return errUnwatched
	case works && desired == powerOff && want != powerOn:
		return status.Error(codes.InvalidArgument, "the site does nothing with a host that should be off: turn the instance on to change its networks and services")
	case switches && want == powerOff && now.GetStatus().GetTenant().GetState() != forge.TenantState_READY:
		return status.Error(codes.InvalidArgument, "the instance is not ready, and the site needs its host on")
	case switches && want == powerOn:
		if err := k.turnOn(ctx, now); err != nil {
			return err
		}
	}
	changed, err := k.configure(ctx, now, config, metadata)
	begun := changed || switches && want == powerOn
	if err == nil && switches && want == powerOff && !works { // first wait for what the site has to bring to the host
		err = k.turnOff(ctx, now)
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

// wholeConfig returns a copy of the configuration of an instance, with the required parts.
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

// wired returns the part of a configuration that the site has to bring to the host.
func wired(config *forge.InstanceConfig) *forge.InstanceConfig {
	return &forge.InstanceConfig{
		Network: config.Network, Infiniband: config.Infiniband, Nvlink: config.Nvlink, Spxconfig: config.Spxconfig,
		DpuExtensionServices: config.DpuExtensionServices,
	}
}

// delete first turns on an instance that should be off, because the site would not release it otherwise. An earlier attempt
// may have got no further than that, so the maintenance that allowed it to be off is removed in any case: otherwise no other
// instance could be placed on the host.
func (k instances) delete(ctx context.Context, c *call[spec.Instance]) error {
	found, err := k.read(ctx, []string{c.ID})
	if err != nil {
		return unsentError{err}
	}
	hosts := make([]*forge.MachineId, len(found))
	for i, o := range found {
		hosts[i] = o.GetMachineId()
	}
	powers, err := k.powers(ctx, hosts...)
	if err != nil {
		return unsentError{err}
	}
	woken := false
	for _, o := range found {
		now := seenInstance{Instance: o, power: powers[o.GetMachineId().GetId()]}
		if now.power.GetDesiredState() == forge.PowerState_Off {
			if err := k.turnOn(ctx, now); err != nil {
				return firstError{err}
			}
			woken = true
		} else if now.power != nil {
			if err := k.endMaintenance(ctx, now); err != nil {
				return err
			}
		}
	}
	_, err = k.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: &forge.InstanceId{Value: c.ID}})
	if err != nil && woken {
		return halfwayError{err}
	}
	return err
}
