package carbidesim

import (
	"context"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

// instance is a machine that is allocated to a tenant.
type instance struct {
	Machine    string                      `json:"machine"`
	Type       string                      `json:"type,omitempty"`
	Metadata   metadata                    `json:"metadata"`
	Config     kept[*forge.InstanceConfig] `json:"config"` // as it reads back
	Interfaces []port                      `json:"interfaces,omitempty"`
	State      forge.TenantState           `json:"state"`
	Injected   *forge.TenantState          `json:"injected,omitempty"` // shown instead of State
	Waits      bool                        `json:"waits,omitempty"`    // for the guest to phone home
	Rewiring   bool                        `json:"rewiring,omitempty"` // a network change is in progress
	Version    token                       `json:"version"`
	Network    token                       `json:"networkVersion"`
	Infiniband token                       `json:"infinibandVersion"`
	NVLink     token                       `json:"nvlinkVersion"`
	Services   token                       `json:"servicesVersion"`
	GroupSince time.Time                   `json:"groupSince"`      // when its own security group was attached
	Behind     time.Time                   `json:"behind,omitzero"` // since when its host does not apply security groups
	Due        time.Time                   `json:"due,omitzero"`    // when the site acts on it next
}

// AllocateInstance allocates a machine to a tenant. The client picks the machine.
func (s *site) AllocateInstance(_ context.Context, r *forge.InstanceAllocationRequest) (*forge.Instance, error) {
	return s.allocate(r)
}

// AllocateInstances allocates all or none.
func (s *site) AllocateInstances(_ context.Context, r *forge.BatchInstanceAllocationRequest) (*forge.BatchInstanceAllocationResponse, error) {
	if len(r.InstanceRequests) == 0 {
		return nil, invalid("at least one instance request is required")
	}
	out := &forge.BatchInstanceAllocationResponse{}
	for _, one := range r.InstanceRequests {
		i, err := s.allocate(one)
		if err != nil {
			return nil, err
		}
		out.Instances = append(out.Instances, i)
	}
	return out, nil
}

func (s *site) allocate(r *forge.InstanceAllocationRequest) (*forge.Instance, error) {
	if r.MachineId == nil {
		return nil, missing("machine_id")
	}
	host := r.MachineId.Id
	if machineType(host) == 'd' {
		return nil, invalid("machine %s is a DPU", host)
	}
	if r.Config == nil {
		return nil, missing("config")
	}
	m, err := optionalMetadata(r.Metadata)
	if err != nil {
		return nil, err
	}
	machine := s.machines.get(host)
	if machine == nil {
		return nil, notFound("Machine", host)
	}
	if r.InstanceTypeId != nil && *r.InstanceTypeId != machine.Type {
		return nil, precondition("machine %s is not of InstanceType %s", host, *r.InstanceTypeId)
	}
	i := &instance{
		Machine:    host,
		Type:       r.GetInstanceTypeId(),
		Metadata:   m,
		State:      forge.TenantState_PROVISIONING,
		Waits:      r.Config.GetOs().GetPhoneHomeEnabled(),
		Version:    firstToken(s.now),
		Network:    firstToken(s.now),
		Infiniband: firstToken(s.now),
		NVLink:     firstToken(s.now),
		Services:   firstToken(s.now),
		GroupSince: s.now,
	}
	config, err := s.readConfig(r.Config)
	if err != nil {
		return nil, err
	}
	if r.InstanceTypeId != nil {
		if err := s.admit(config.GetTenant().GetTenantOrganizationId(), *r.InstanceTypeId); err != nil {
			return nil, err
		}
	}
	if machine.State != hostReady || s.instanceOn(host) != nil {
		return nil, invalid("machine %s is in state %s and cannot take an instance", host, machine.State)
	}
	if machine.prevents("PreventAllocations") && !r.AllowUnhealthyMachine {
		return nil, precondition("machine %s has a health alert that prevents allocations", host)
	}
	id := s.chosen(r.InstanceId.GetValue())
	if s.instances.get(id) != nil {
		return nil, duplicate("instances_pkey")
	}
	if len(machine.DPUs) == 0 && config.DpuExtensionServices != nil {
		return nil, invalid("machine %s has no DPU for extension services", host)
	}
	if err := s.fitInfiniband(machine, config); err != nil {
		return nil, err
	}
	if err := s.fitSpx(machine, config); err != nil {
		return nil, err
	}
	if i.Interfaces, err = s.wireUp(id, machine, config.Network, nil); err != nil {
		return nil, err
	}
	i.Config = keep(config)
	for _, name := range i.hostNames() {
		if len(s.instancesByName.of(name)) > 0 {
			return nil, duplicate("instances_unique_hostname")
		}
	}
	i.Due = s.after(s.timing.Provision, "instance ready", id)
	s.instances.put(id, i)
	s.setHostState(host, hostProvisioning)
	return s.wireInstance(id, i), nil
}

// ReleaseInstance takes the machine back. The instance stays in the list until the site is done with it; the host is
// cleaned only after that.
func (s *site) ReleaseInstance(_ context.Context, r *forge.InstanceReleaseRequest) (*forge.InstanceReleaseResult, error) {
	if r.Id == nil {
		return nil, missing("id")
	}
	id := r.Id.Value
	have := s.instances.get(id)
	if have == nil {
		return nil, notFound("instance", id)
	}
	if have.State == forge.TenantState_TERMINATING {
		return &forge.InstanceReleaseResult{}, nil
	}
	if s.machines.get(have.Machine).prevents("PreventInstanceDeletion") {
		return nil, invalid("a health alert on machine %s prevents the deletion of instances", have.Machine)
	}
	if r.Issue != nil {
		m := *s.machines.get(have.Machine)
		m.Alerts = append(m.Alerts[:len(m.Alerts):len(m.Alerts)], alert{
			ID: "TenantReportedIssue", Message: r.Issue.Summary, Since: s.now,
			Classifications: []string{"PreventAllocations"},
		})
		s.machines.put(have.Machine, &m)
	}
	i := *have
	i.State = forge.TenantState_TERMINATING
	i.Injected = nil
	i.Due = s.after(s.timing.Release, "instance gone", id)
	s.instances.put(id, &i)
	s.setHostState(i.Machine, hostReleasing)
	return &forge.InstanceReleaseResult{}, nil
}

// InvokeInstancePower reboots the machine, on request into the instance's own iPXE script.
func (s *site) InvokeInstancePower(_ context.Context, r *forge.InstancePowerRequest) (*forge.InstancePowerResult, error) {
	if r.Operation != forge.InstancePowerRequest_POWER_RESET {
		return nil, invalid("invalid operation %d", r.Operation)
	}
	id := r.InstanceId.GetValue()
	if id == "" {
		if r.MachineId == nil {
			return nil, missing("instance_id")
		}
		for on := range s.instancesByHost.of(r.MachineId.Id) {
			id = on
		}
	}
	have := s.instances.get(id)
	if have == nil {
		return nil, notFound("instance", firstOf(id, r.MachineId.GetId()))
	}
	if have.State != forge.TenantState_READY {
		return nil, invalid("instance %s is %s, not READY", id, have.State)
	}
	m := *s.machines.get(have.Machine)
	m.Rebooted = s.now
	s.machines.put(have.Machine, &m)
	if r.BootWithCustomIpxe {
		i := *have
		s.configure(id, &i)
	}
	return &forge.InstancePowerResult{}, nil
}

// configure keeps a ready instance busy for a while.
func (s *site) configure(id string, i *instance) {
	i.State = forge.TenantState_CONFIGURING
	i.Due = s.after(s.timing.Configure, "instance configured", id)
	s.instances.put(id, i)
	s.setHostState(i.Machine, hostConfiguring)
}

func (s *site) instanceReady(id string) {
	i := s.instances.get(id)
	if i == nil || !i.Due.Equal(s.now) || i.Waits || s.frozen(i.Machine) {
		return
	}
	s.enterReady(id, i)
}

func (s *site) instanceConfigured(id string) {
	if i := s.instances.get(id); i != nil && i.Due.Equal(s.now) && !s.frozen(i.Machine) {
		s.enterReady(id, i)
	}
}

func (s *site) enterReady(id string, have *instance) {
	i := *have
	i.State = forge.TenantState_READY
	i.Rewiring = false
	s.instances.put(id, &i)
	s.setHostState(i.Machine, hostAssigned)
}

// phoneHome is the guest phoning home: a booted instance that waited for it is now ready.
func (s *site) phoneHome(id string) error {
	have := s.instances.get(id)
	if have == nil {
		return notFound("instance", id)
	}
	i := *have
	i.Waits = false
	s.instances.put(id, &i)
	if i.State == forge.TenantState_PROVISIONING && !s.now.Before(i.Due) && !s.frozen(i.Machine) {
		s.enterReady(id, &i)
	}
	return nil
}

// inject shows another state instead of the instance's own; nil shows its own again.
func (s *site) inject(id string, state *forge.TenantState) error {
	have := s.instances.get(id)
	if have == nil {
		return notFound("instance", id)
	}
	i := *have
	i.Injected = state
	s.instances.put(id, &i)
	return nil
}

// leaveBehind keeps security groups from an instance, or lets them through again.
func (s *site) leaveBehind(id string, behind bool) error {
	have := s.instances.get(id)
	if have == nil {
		return notFound("instance", id)
	}
	i := *have
	i.Behind = time.Time{}
	if behind {
		i.Behind = s.now
	}
	s.instances.put(id, &i)
	return nil
}

// instanceGone removes a released instance. Only now do its link networks begin to drain, and the cleanup of its host begins.
func (s *site) instanceGone(id string) {
	i := s.instances.get(id)
	if i == nil || !i.Due.Equal(s.now) || s.frozen(i.Machine) {
		return
	}
	s.instances.drop(id)
	for _, p := range i.Interfaces {
		if n := s.segments.get(p.Segment); n != nil && n.Link {
			s.endSegment(p.Segment, n)
		}
	}
	s.setHostState(i.Machine, hostCleaning)
}

// FindInstanceIds filters by label, tenant, VPC and instance type. The list includes instances that are being released.
func (s *site) FindInstanceIds(_ context.Context, r *forge.InstanceSearchFilter) (*forge.InstanceIdList, error) {
	if err := checkFilter(r.Label); err != nil {
		return nil, err
	}
	var inVpc map[string]bool
	if r.VpcId != nil {
		id, err := uuid.Parse(*r.VpcId)
		if err != nil {
			return nil, invalid("invalid VPC id %q", *r.VpcId)
		}
		inVpc = map[string]bool{}
		for _, i := range s.instancesIn(id.String()) {
			inVpc[i] = true
		}
	}
	out := &forge.InstanceIdList{}
	for id, i := range s.instances.rows {
		if (inVpc == nil || inVpc[id]) && is(r.TenantOrgId, i.organization()) && is(r.InstanceTypeId, i.Type) && i.Metadata.matches(r.Label) {
			out.InstanceIds = append(out.InstanceIds, &forge.InstanceId{Value: id})
		}
	}
	return out, nil
}

// FindInstancesByIds returns the instances that exist.
func (s *site) FindInstancesByIds(_ context.Context, r *forge.InstancesByIdsRequest) (*forge.InstanceList, error) {
	if err := s.page(len(r.InstanceIds)); err != nil {
		return nil, err
	}
	return &forge.InstanceList{Instances: each(s.instances, texts(r.InstanceIds), s.wireInstance)}, nil
}

// FindInstanceByMachineID returns a list of at most one.
func (s *site) FindInstanceByMachineID(_ context.Context, r *forge.MachineId) (*forge.InstanceList, error) {
	return &forge.InstanceList{Instances: each(s.instances, sortedKeys(s.instancesByHost.of(r.Id)), s.wireInstance)}, nil
}

// instanceOn returns the instance on a machine, or nil.
func (s *site) instanceOn(machine string) *instance {
	for id := range s.instancesByHost.of(machine) {
		return s.instances.get(id)
	}
	return nil
}

// instancesIn returns the ids of the instances that have an address in a VPC, sorted.
func (s *site) instancesIn(vpc string) []string {
	found := map[string]bool{}
	for segmentID := range s.segmentsByVpc.of(vpc) {
		for id := range s.instancesByNet.of(segmentID) {
			found[id] = true
		}
	}
	return sortedKeys(found)
}

// toChange finds an instance for an update.
func (s *site) toChange(id *forge.InstanceId, want *string) (*instance, error) {
	if id == nil {
		return nil, missing("instance_id")
	}
	have := s.instances.get(id.Value)
	if have == nil {
		return nil, notFound("instance", id.Value)
	}
	if have.State == forge.TenantState_TERMINATING {
		return nil, invalid("instance %s is being released", id.Value)
	}
	return have, expect("instance", have.Version, want, codes.Internal)
}

// UpdateInstanceOperatingSystem replaces what the instance boots next time; it does not reinstall.
func (s *site) UpdateInstanceOperatingSystem(_ context.Context, r *forge.InstanceOperatingSystemUpdateRequest) (*forge.Instance, error) {
	have, err := s.toChange(r.InstanceId, r.IfVersionMatch)
	if err != nil {
		return nil, err
	}
	os, err := s.readOS(r.Os)
	if err != nil {
		return nil, err
	}
	config := proto.Clone(have.config()).(*forge.InstanceConfig)
	config.Os = os
	i := *have
	i.Config = keep(config)
	i.Version = have.Version.next(s.now)
	s.instances.put(r.InstanceId.Value, &i)
	return s.wireInstance(r.InstanceId.Value, &i), nil
}

// UpdateInstanceConfig replaces configuration and metadata as a whole: what the request leaves out is removed.
func (s *site) UpdateInstanceConfig(_ context.Context, r *forge.InstanceConfigUpdateRequest) (*forge.Instance, error) {
	m, err := requiredMetadata(r.Metadata)
	if err != nil {
		return nil, err
	}
	if r.Config == nil {
		return nil, missing("config")
	}
	have, err := s.toChange(r.InstanceId, r.IfVersionMatch)
	if err != nil {
		return nil, err
	}
	if have.Rewiring {
		return nil, invalid("a network change of instance %s is under way", r.InstanceId.Value)
	}
	config, err := s.readConfig(r.Config)
	if err != nil {
		return nil, err
	}
	old := have.config()
	if config.Tenant.TenantOrganizationId != old.Tenant.TenantOrganizationId {
		return nil, invalid("the tenant of an instance cannot change")
	}
	if config.Network.Auto != old.Network.Auto {
		return nil, invalid("network.auto of an instance cannot change")
	}
	if !proto.Equal(config.Network.AutoConfig, old.Network.AutoConfig) {
		return nil, invalid("cannot change `InstanceNetworkConfig.auto_config`")
	}
	config.Tenant.Hostname = old.Tenant.Hostname // changes are silently ignored

	i := *have
	i.Metadata = m
	i.Version = have.Version.next(s.now)
	if config.GetNetworkSecurityGroupId() != old.GetNetworkSecurityGroupId() {
		i.GroupSince = s.now
	}
	refitted, err := s.refit(&i, old, config)
	if err != nil {
		return nil, err
	}
	rewired := !sameNetwork(config.Network, old.Network)
	if (rewired || refitted) && have.State != forge.TenantState_READY {
		return nil, status.Errorf(codes.InvalidArgument, "instance %s is not Ready yet", r.InstanceId.Value)
	}
	if !rewired {
		config.Network = old.Network
		i.Config = keep(config)
		if refitted {
			s.configure(r.InstanceId.Value, &i)
		} else {
			s.instances.put(r.InstanceId.Value, &i)
		}
		return s.wireInstance(r.InstanceId.Value, &i), nil
	}
	if i.Interfaces, err = s.wireUp(r.InstanceId.Value, s.machines.get(i.Machine), config.Network, have); err != nil {
		return nil, err
	}
	i.Config = keep(config)
	i.Network = i.Network.next(s.now)
	i.Rewiring = true
	s.configure(r.InstanceId.Value, &i)
	s.unplug(have.Interfaces, i.Interfaces)
	return s.wireInstance(r.InstanceId.Value, &i), nil
}

func (i *instance) config() *forge.InstanceConfig { return i.Config.message }

func (i *instance) organization() string { return i.config().GetTenant().GetTenantOrganizationId() }

// partitions returns the ids of the partitions that the instance uses and that cannot be deleted while it does.
func (i *instance) partitions() []string {
	var ids []string
	for _, port := range i.config().GetInfiniband().GetIbInterfaces() {
		ids = append(ids, port.GetIbPartitionId().GetValue())
	}
	for _, gpu := range i.config().GetNvlink().GetGpuConfigs() {
		ids = append(ids, gpu.GetLogicalPartitionId().GetValue())
	}
	return some(ids...)
}

// onPartition reports whether any instance uses a partition.
func (s *site) onPartition(id string) bool { return len(s.instancesByPartition.of(id)) > 0 }

// hostNames returns the key under which a host name is unique: within its tenant.
func (i *instance) hostNames() []string {
	name := i.config().GetTenant().GetHostname()
	if name == "" {
		return nil
	}
	return []string{i.organization() + "/" + name}
}
