package carbidesim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"converge.dev/converge/providers/carbide/forge"
)

// machine is a host or a DPU that the site has discovered.
type machine struct {
	Metadata     metadata                            `json:"metadata"`
	State        string                              `json:"state"`
	StateVersion token                               `json:"stateVersion"`
	Version      token                               `json:"version"`
	Type         string                              `json:"type,omitempty"` // the instance type that it is offered under
	SKU          string                              `json:"sku,omitempty"`
	BMC          string                              `json:"bmc,omitempty"` // MAC address of its management controller
	BMCAddress   string                              `json:"bmcAddress,omitempty"`
	Rack         string                              `json:"rack,omitempty"`
	Capabilities kept[*forge.MachineCapabilitiesSet] `json:"capabilities"`
	DPUs         []string                            `json:"dpus,omitempty"`
	Host         string                              `json:"host,omitempty"` // of a DPU
	MAC          string                              `json:"mac"`
	Segment      string                              `json:"segment,omitempty"` // where its own interface is
	Address      string                              `json:"address,omitempty"`
	Alerts       []alert                             `json:"alerts,omitempty"`
	Failure      string                              `json:"failure,omitempty"` // why it is in a failed state
	Maintenance  *maintenance                        `json:"maintenance,omitempty"`
	Discovered   time.Time                           `json:"discovered"`
	Rebooted     time.Time                           `json:"rebooted,omitzero"`
	Power        power                               `json:"power,omitzero"`
	Due          time.Time                           `json:"due,omitzero"` // when the site acts on it next
}

// alert is a finding about a machine's health; its classifications say what it prevents.
type alert struct {
	ID              string    `json:"id"`
	Message         string    `json:"message"`
	Classifications []string  `json:"classifications"`
	Since           time.Time `json:"since"`
}

type maintenance struct {
	Reference string    `json:"reference"`
	Since     time.Time `json:"since"`
}

const (
	hostReady        = "Ready"
	hostProvisioning = "Assigned/WaitingForNetworkConfig"
	hostAssigned     = "Assigned/Ready"
	hostConfiguring  = "Assigned/NetworkConfigUpdate"
	hostReleasing    = "Assigned/SwitchToAdminNetwork"
	hostCleaning     = "WaitingForCleanup/HostCleanup"
)

// FindMachineIds returns hosts unless requested otherwise.
func (s *site) FindMachineIds(_ context.Context, r *forge.MachineSearchConfig) (*forge.MachineIdList, error) {
	switch {
	case r.OnlyQuarantine:
		return nil, unmodelled("quarantine")
	case r.MnnvlOnly:
		return nil, unmodelled("NVLink domains")
	case r.OnlyWithPowerState != nil:
		return nil, unmodelled("filters by power state")
	}
	pass := func(m *machine) bool {
		if isDPU := m.Host != ""; isDPU && !r.IncludeDpus || !isDPU && r.ExcludeHosts {
			return false
		}
		return (!r.OnlyMaintenance || m.Maintenance != nil) &&
			is(r.InstanceTypeId, m.Type) &&
			(r.RackId == nil || r.RackId.Id == m.Rack) &&
			(r.OnlyWithHealthAlert == nil || slices.ContainsFunc(m.findings(), func(a alert) bool { return a.ID == *r.OnlyWithHealthAlert }))
	}
	return &forge.MachineIdList{
		MachineIds: where(s.machines, pass, func(id string) *forge.MachineId { return &forge.MachineId{Id: id} }),
	}, nil
}

// FindMachinesByIds returns the machines that exist.
func (s *site) FindMachinesByIds(_ context.Context, r *forge.MachinesByIdsRequest) (*forge.MachineList, error) {
	if err := s.page(len(r.MachineIds)); err != nil {
		return nil, err
	}
	ids := make([]string, len(r.MachineIds))
	for i, id := range r.MachineIds {
		ids[i] = id.Id
	}
	return &forge.MachineList{Machines: each(s.machines, ids, s.wireMachine)}, nil
}

// UpdateMachineMetadata replaces it.
func (s *site) UpdateMachineMetadata(_ context.Context, r *forge.MachineMetadataUpdateRequest) (*emptypb.Empty, error) {
	m, err := requiredMetadata(r.Metadata)
	if err != nil {
		return nil, err
	}
	have := s.machines.get(r.MachineId.GetId())
	if have == nil {
		return nil, notFound("machine", r.MachineId.GetId())
	}
	if err := expect("machine", have.Version, r.IfVersionMatch, codes.Internal); err != nil {
		return nil, err
	}
	changed := *have
	changed.Metadata = m
	changed.Version = have.Version.next(s.now)
	s.machines.put(r.MachineId.Id, &changed)
	return &emptypb.Empty{}, nil
}

// SetMaintenance sets or clears an alert that keeps instances off a host.
func (s *site) SetMaintenance(_ context.Context, r *forge.MaintenanceRequest) (*emptypb.Empty, error) {
	id := r.HostId.GetId()
	switch {
	case r.HostId == nil:
		return nil, missing("host_id")
	case machineType(id) == 'd':
		return nil, invalid("machine %s is a DPU", id)
	case s.machines.get(id) == nil:
		return nil, notFound("machine", id)
	}
	m := *s.machines.get(id)
	switch r.Operation {
	case forge.MaintenanceOperation_Enable:
		reference := strings.TrimSpace(r.GetReference())
		if len(reference) < 5 {
			return nil, invalid("a maintenance reference of at least 5 characters is required")
		}
		m.Maintenance = &maintenance{reference, s.now}
	case forge.MaintenanceOperation_Disable:
		m.Maintenance = nil
	default:
		return nil, invalid("invalid operation %d", r.Operation)
	}
	s.machines.put(id, &m)
	return &emptypb.Empty{}, nil
}

// hostClean ends the cleanup after an instance: the host is ready for the next one.
func (s *site) hostClean(id string) {
	if m := s.machines.get(id); m != nil && m.Due.Equal(s.now) && !s.frozen(id) {
		s.setHostState(id, hostReady)
	}
}

func (s *site) setHostState(id, state string) {
	m := *s.machines.get(id)
	m.State = state
	m.StateVersion = m.StateVersion.next(s.now)
	if state == hostCleaning {
		m.Due = s.after(s.timing.Cleanup, "host clean", id)
	}
	s.machines.put(id, &m)
}

// findings returns a machine's alerts; maintenance is one of them.
func (m *machine) findings() []alert {
	if m.Maintenance == nil {
		return m.Alerts
	}
	return append(slices.Clip(m.Alerts), alert{
		ID: "Maintenance", Message: m.Maintenance.Reference, Since: m.Maintenance.Since,
		Classifications: []string{"PreventAllocations", "SuppressExternalAlerting"},
	})
}

func (m *machine) prevents(classification string) bool {
	return slices.ContainsFunc(m.findings(), func(a alert) bool { return slices.Contains(a.Classifications, classification) })
}

func (s *site) wireMachine(id string, m *machine) *forge.Machine {
	out := &forge.Machine{
		Id:                          &forge.MachineId{Id: id},
		State:                       m.State,
		StateVersion:                m.StateVersion.String(),
		StateReason:                 &forge.ControllerStateReason{Outcome: forge.ControllerStateOutcome_DO_NOTHING},
		MachineType:                 forge.MachineType_HOST,
		LastRebootTime:              timestamppb.New(m.Discovered),
		LastObservationTime:         timestamppb.New(s.now),
		Metadata:                    m.Metadata.wire(),
		Version:                     m.Version.String(),
		InstanceTypeId:              optional(m.Type),
		Capabilities:                m.Capabilities.message,
		UpdateComplete:              true,
		Health:                      &forge.HealthReport{Source: "aggregate-host-health", ObservedAt: timestamppb.New(s.now)},
		InstanceNetworkRestrictions: &forge.InstanceNetworkRestrictions{},
	}
	out.FailureDetails = optional(m.Failure)
	for _, a := range m.findings() {
		out.Health.Alerts = append(out.Health.Alerts, &forge.HealthProbeAlert{
			Id: a.ID, Message: a.Message, Classifications: a.Classifications, InAlertSince: timestamppb.New(a.Since),
		})
	}
	for _, dpu := range m.DPUs {
		out.AssociatedDpuMachineIds = append(out.AssociatedDpuMachineIds, &forge.MachineId{Id: dpu})
	}
	if t := s.skus.get(m.SKU); t != nil {
		out.HwSku, out.HwSkuDeviceType = &m.SKU, t.DeviceType
	}
	if m.Rack != "" {
		out.RackId = &forge.RackId{Id: m.Rack}
	}
	if m.Maintenance != nil {
		out.MaintenanceReference = proto.String(m.Maintenance.Reference)
		out.MaintenanceStartTime = timestamppb.New(m.Maintenance.Since)
	}
	if !m.Rebooted.IsZero() {
		out.LastRebootRequestedTime = timestamppb.New(m.Rebooted)
		out.LastRebootRequestedMode = proto.String("Reboot")
	}
	if m.Host != "" {
		out.MachineType = forge.MachineType_DPU
		out.AssociatedHostMachineId = &forge.MachineId{Id: m.Host}
	}
	if m.Segment != "" {
		i := &forge.MachineInterface{
			Id:               &forge.MachineInterfaceId{Value: s.derived("interface", id)},
			MachineId:        out.Id,
			SegmentId:        &forge.NetworkSegmentId{Value: m.Segment},
			Hostname:         strings.ReplaceAll(m.Address, ".", "-"),
			DomainId:         &forge.DomainId{Value: s.derived("domain", "")},
			PrimaryInterface: true,
			MacAddress:       m.MAC,
			Address:          []string{m.Address},
			Created:          timestamppb.New(m.Discovered),
			AssociationType:  forge.InterfaceAssociationType_MACHINE.Enum(),
			InterfaceType:    forge.InterfaceType_INTERFACE_TYPE_DATA.Enum(),
		}
		if len(m.DPUs) > 0 {
			i.AttachedDpuMachineId = &forge.MachineId{Id: m.DPUs[0]}
		}
		out.Interfaces = []*forge.MachineInterface{i}
	}
	if s.later {
		out.Config = &forge.MachineConfig{
			MaintenanceReference: out.MaintenanceReference, MaintenanceStartTime: out.MaintenanceStartTime,
			InstanceTypeId: out.InstanceTypeId, HwSku: out.HwSku,
		}
		out.Status = &forge.MachineStatus{
			AssociatedDpuMachineIds: out.AssociatedDpuMachineIds, Health: out.Health, FailureDetails: out.FailureDetails,
			Lifecycle: &forge.LifecycleStatus{State: lifecycle(out.State), Version: out.StateVersion},
		}
	}
	return out
}

// lifecycle returns the state of a machine as its controller writes it.
func lifecycle(state string) string {
	lower := func(s string) string { return strings.ToLower(s[:min(len(s), 1)]) + s[min(len(s), 1):] }
	word, inner, ok := strings.Cut(state, "/")
	if !ok {
		return fmt.Sprintf(`{"state":%q}`, lower(word))
	}
	return fmt.Sprintf(`{"state":%q,"instance_state":{"state":%q}}`, lower(word), lower(inner))
}
