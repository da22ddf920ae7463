package carbidesim

import (
	"cmp"
	"context"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"converge.dev/converge/providers/carbide/forge"
)

// serialNumber matches the serial number of a chassis, which has 4 to 64 characters. (Every process compiles this, and
// {4,64} would cost more than everything else here.)
var serialNumber = regexp.MustCompile(`^[A-Za-z0-9_-]*$`)

// AddExpectedMachine declares that a machine is to be found.
func (s *site) AddExpectedMachine(_ context.Context, r *forge.ExpectedMachine) (*emptypb.Empty, error) {
	if n := len(r.ChassisSerialNumber); n < 4 || n > 64 || !serialNumber.MatchString(r.ChassisSerialNumber) {
		return nil, invalid("chassis serial is not formatted properly %s", r.ChassisSerialNumber)
	}
	e, err := readExpectedMachine(r, nil)
	if err != nil {
		return nil, err
	}
	id, err := s.chosenUUID(r.Id)
	if err != nil {
		return nil, err
	}
	if len(s.expectedByMAC.of(e.Said.message.BmcMacAddress)) > 0 {
		return nil, precondition("Duplicate MAC address for expected host BMC interface: %s", e.Said.message.BmcMacAddress)
	}
	if s.expectedMachines.get(id) != nil {
		return nil, duplicate("expected_machines_pkey")
	}
	s.expectedMachines.put(id, e)
	return &emptypb.Empty{}, nil
}

// UpdateExpectedMachine replaces what the request has, and some of what it lacks: absent switches keep their values.
// Neither id nor MAC address change. Addresses are assigned to their interfaces at once.
func (s *site) UpdateExpectedMachine(_ context.Context, r *forge.ExpectedMachine) (*emptypb.Empty, error) {
	mac, ok := hardwareAddress(r.BmcMacAddress)
	if !ok {
		return nil, internal("invalid MAC address %q", r.BmcMacAddress)
	}
	id, have, name, err := selected(s.expectedMachines, s.expectedByMAC, r.Id, r.BmcMacAddress)
	if err != nil {
		return nil, err
	}
	if s.later && have != nil {
		keepLater(r, have.Said.message)
	}
	e, err := readExpectedMachine(r, have)
	if err != nil {
		return nil, err
	}
	if err := s.reserve(mac, e.Said.message.GetBmcIpAddress()); err != nil {
		return nil, err
	}
	for _, nic := range e.Said.message.HostNics {
		if err := s.reserve(nic.MacAddress, nic.GetFixedIp()); err != nil {
			return nil, err
		}
	}
	if have == nil {
		return nil, notFound("expected_machine", name)
	}
	e.Said.message.BmcMacAddress = have.Said.message.BmcMacAddress
	s.expectedMachines.put(id, e)
	return &emptypb.Empty{}, nil
}

// keepLater puts into an update what servers from v2.0 on keep when it is left out: the address of the BMC, and an interface
// that is a BMC, which has to be removed explicitly.
func keepLater(r *forge.ExpectedMachine, have *forge.ExpectedMachine) {
	r.BmcIpAddress = cmp.Or(r.BmcIpAddress, have.BmcIpAddress)
	r.BmcIpAllocation = cmp.Or(r.BmcIpAllocation, have.BmcIpAllocation)
	for _, nic := range have.HostNics {
		stays := slices.ContainsFunc(r.HostNics, func(n *forge.ExpectedHostNic) bool { return strings.EqualFold(n.MacAddress, nic.MacAddress) })
		if nic.GetRole() == forge.ExpectedInterfaceRole_EXPECTED_INTERFACE_ROLE_HOST_BMC && !stays && !r.ReplaceHostNics {
			r.HostNics = append(r.HostNics, nic)
		}
	}
}

// DeleteExpectedMachine deletes the declaration.
func (s *site) DeleteExpectedMachine(_ context.Context, r *forge.ExpectedMachineRequest) (*emptypb.Empty, error) {
	id, have, name, err := selected(s.expectedMachines, s.expectedByMAC, r.Id, r.BmcMacAddress)
	if err != nil {
		return nil, err
	}
	if have == nil {
		return nil, notFound("expected_machine", name)
	}
	s.expectedMachines.drop(id)
	return &emptypb.Empty{}, nil
}

// GetExpectedMachine returns one.
func (s *site) GetExpectedMachine(_ context.Context, r *forge.ExpectedMachineRequest) (*forge.ExpectedMachine, error) {
	id, have, name, err := selected(s.expectedMachines, s.expectedByMAC, r.Id, r.BmcMacAddress)
	if err != nil {
		return nil, err
	}
	if have == nil {
		return nil, notFound("expected_machine", name)
	}
	return wireExpectedMachine(id, have), nil
}

// GetAllExpectedMachines returns all, including passwords.
func (s *site) GetAllExpectedMachines(context.Context, *emptypb.Empty) (*forge.ExpectedMachineList, error) {
	out := &forge.ExpectedMachineList{}
	for id, e := range s.expectedMachines.rows {
		out.ExpectedMachines = append(out.ExpectedMachines, wireExpectedMachine(id, e))
	}
	return out, nil
}

// GetAllExpectedMachinesLinked returns which of them were found.
func (s *site) GetAllExpectedMachinesLinked(context.Context, *emptypb.Empty) (*forge.LinkedExpectedMachineList, error) {
	out := &forge.LinkedExpectedMachineList{}
	for _, mac := range sortedKeys(s.expectedByMAC.ids) {
		for id := range s.expectedByMAC.of(mac) {
			m := s.expectedMachines.get(id).Said.message
			linked := &forge.LinkedExpectedMachine{
				ChassisSerialNumber: m.ChassisSerialNumber, BmcMacAddress: mac, ExpectedMachineId: &forge.UUID{Value: id},
			}
			for machineID := range s.machinesByBMC.of(mac) {
				linked.MachineId = &forge.MachineId{Id: machineID}
				linked.ExploredEndpointAddress = optional(s.machines.get(machineID).BMCAddress)
			}
			if linked.MachineId != nil || s.reserved.get(mac) != nil {
				linked.InterfaceId = optional(s.derived("BMC interface", mac))
			}
			out.ExpectedMachines = append(out.ExpectedMachines, linked)
		}
	}
	return out, nil
}

// readExpectedMachine makes a new row, which keeps parts of have.
func readExpectedMachine(in *forge.ExpectedMachine, have *expected[*forge.ExpectedMachine]) (*expected[*forge.ExpectedMachine], error) {
	seen := map[string]bool{}
	for _, serial := range in.FallbackDpuSerialNumbers {
		if seen[serial] {
			return nil, invalid("duplicate dpu serial number found")
		}
		seen[serial] = true
	}
	mac, ok := hardwareAddress(in.BmcMacAddress)
	if !ok {
		return nil, internal("invalid MAC address %q", in.BmcMacAddress)
	}
	m, err := lenientMetadata(in.Metadata)
	if err != nil {
		return nil, err
	}
	out := &forge.ExpectedMachine{
		BmcMacAddress:            mac,
		BmcUsername:              in.BmcUsername,
		BmcPassword:              in.BmcPassword,
		ChassisSerialNumber:      in.ChassisSerialNumber,
		FallbackDpuSerialNumbers: in.FallbackDpuSerialNumbers,
		SkuId:                    in.SkuId,
		RackId:                   in.RackId,
		HostNics:                 proto.CloneOf(in).HostNics,
		BmcIpAllocation:          in.BmcIpAllocation,
	}
	if in.GetBmcIpAddress() != "" {
		ip, err := netip.ParseAddr(in.GetBmcIpAddress())
		if err != nil {
			return nil, invalid("Invalid BMC IP address: %s", in.GetBmcIpAddress())
		}
		out.BmcIpAddress = optional(ip.String())
	}
	primaries := 0
	for _, nic := range out.HostNics {
		if nic.GetPrimary() {
			primaries++
		}
		if nic.MacAddress, ok = hardwareAddress(nic.MacAddress); !ok {
			nic.MacAddress = "00:00:00:00:00:00" // an unreadable address is not refused here
		}
	}
	if primaries > 1 {
		return nil, invalid("at most one host_nic may be flagged primary=true, got %d", primaries)
	}
	if mode := in.GetDpuMode(); mode == forge.DpuMode_NIC_MODE || mode == forge.DpuMode_NO_DPU {
		out.DpuMode = &mode // the default reads back absent
	}
	was := &forge.ExpectedMachine{DefaultPauseIngestionAndPoweron: proto.Bool(false), IsDpfEnabled: proto.Bool(true)}
	if have != nil {
		was = have.Said.message
	}
	out.DefaultPauseIngestionAndPoweron = cmp.Or(in.DefaultPauseIngestionAndPoweron, was.DefaultPauseIngestionAndPoweron)
	out.IsDpfEnabled = cmp.Or(in.IsDpfEnabled, was.IsDpfEnabled)
	if retain := cmp.Or(in.BmcRetainCredentials, was.BmcRetainCredentials); retain != nil && *retain {
		out.BmcRetainCredentials = retain
	}
	out.HostLifecycleProfile = was.HostLifecycleProfile
	if lockdown := in.GetHostLifecycleProfile(); lockdown != nil && lockdown.DisableLockdown != nil {
		out.HostLifecycleProfile = &forge.HostLifecycleProfile{DisableLockdown: lockdown.DisableLockdown}
	}
	return &expected[*forge.ExpectedMachine]{m, keep(out)}, cmp.Or(
		tooLong(in.ChassisSerialNumber, 32), tooLong(in.BmcUsername, 16), tooLong(in.BmcPassword, 20),
	)
}

func wireExpectedMachine(id string, e *expected[*forge.ExpectedMachine]) *forge.ExpectedMachine {
	out := proto.CloneOf(e.Said.message)
	out.Id, out.Metadata = &forge.UUID{Value: id}, e.Metadata.wire()
	//lint:ignore SA1019 the service still fills it in for its older clients
	out.DpfEnabled = out.GetIsDpfEnabled()
	return out
}
