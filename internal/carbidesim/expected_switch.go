package carbidesim

import (
	"cmp"
	"context"
	"net/netip"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"converge.dev/converge/providers/carbide/forge"
)

// AddExpectedSwitch declares that a switch is to be found. A taken MAC address is refused in another way than a machine's.
func (s *site) AddExpectedSwitch(_ context.Context, r *forge.ExpectedSwitch) (*emptypb.Empty, error) {
	e, err := readExpectedSwitch(r, nil)
	if err != nil {
		return nil, err
	}
	id, err := s.chosenUUID(r.ExpectedSwitchId)
	if err != nil {
		return nil, err
	}
	if len(s.switchesByMAC.of(e.Said.message.BmcMacAddress)) > 0 {
		return nil, internal("Duplicate MAC address for expected host BMC interface: %s", e.Said.message.BmcMacAddress)
	}
	if s.expectedSwitches.get(id) != nil {
		return nil, duplicate("expected_switches_pkey")
	}
	s.expectedSwitches.put(id, e)
	return &emptypb.Empty{}, nil
}

// UpdateExpectedSwitch replaces everything but id, MAC address and, when it is absent, bmc_retain_credentials.
func (s *site) UpdateExpectedSwitch(_ context.Context, r *forge.ExpectedSwitch) (*emptypb.Empty, error) {
	id, have, name, err := selected(s.expectedSwitches, s.switchesByMAC, r.ExpectedSwitchId, r.BmcMacAddress)
	if err != nil {
		return nil, err
	}
	e, err := readExpectedSwitch(r, have)
	if err != nil {
		return nil, err
	}
	m := e.Said.message
	if err := s.reserve(m.BmcMacAddress, m.BmcIpAddress); err != nil {
		return nil, err
	}
	if m.GetNvosIpAddress() != "" {
		if err := s.reserve(m.NvosMacAddresses[0], m.GetNvosIpAddress()); err != nil {
			return nil, err
		}
	}
	if have == nil {
		return nil, notFound("expected_switch", name)
	}
	m.BmcMacAddress = have.Said.message.BmcMacAddress
	s.expectedSwitches.put(id, e)
	return &emptypb.Empty{}, nil
}

// DeleteExpectedSwitch deletes the declaration. The row of a switch that was found refers to it.
func (s *site) DeleteExpectedSwitch(_ context.Context, r *forge.ExpectedSwitchRequest) (*emptypb.Empty, error) {
	id, have, name, err := selected(s.expectedSwitches, s.switchesByMAC, r.ExpectedSwitchId, r.BmcMacAddress)
	if err != nil {
		return nil, err
	}
	if have == nil {
		return nil, notFound("expected_switch", name)
	}
	if s.devices.get(have.Said.message.BmcMacAddress) != nil {
		return nil, violation("switches_bmc_mac_address_fkey")
	}
	s.expectedSwitches.drop(id)
	return &emptypb.Empty{}, nil
}

// GetExpectedSwitch returns one.
func (s *site) GetExpectedSwitch(_ context.Context, r *forge.ExpectedSwitchRequest) (*forge.ExpectedSwitch, error) {
	id, have, name, err := selected(s.expectedSwitches, s.switchesByMAC, r.ExpectedSwitchId, r.BmcMacAddress)
	if err != nil {
		return nil, err
	}
	if have == nil {
		return nil, notFound("expected_switch", name)
	}
	return wireExpectedSwitch(id, have), nil
}

// GetAllExpectedSwitches returns all, including passwords.
func (s *site) GetAllExpectedSwitches(context.Context, *emptypb.Empty) (*forge.ExpectedSwitchList, error) {
	out := &forge.ExpectedSwitchList{}
	for id, e := range s.expectedSwitches.rows {
		out.ExpectedSwitches = append(out.ExpectedSwitches, wireExpectedSwitch(id, e))
	}
	return out, nil
}

// GetAllExpectedSwitchesLinked returns which of them were found.
func (s *site) GetAllExpectedSwitchesLinked(context.Context, *emptypb.Empty) (*forge.LinkedExpectedSwitchList, error) {
	out := &forge.LinkedExpectedSwitchList{}
	for _, mac := range sortedKeys(s.switchesByMAC.ids) {
		for id := range s.switchesByMAC.of(mac) {
			m := s.expectedSwitches.get(id).Said.message
			linked := &forge.LinkedExpectedSwitch{
				SwitchSerialNumber: m.SwitchSerialNumber, BmcMacAddress: mac, ExpectedSwitchId: &forge.UUID{Value: id}, RackId: m.RackId,
			}
			if d := s.devices.get(mac); d != nil {
				linked.SwitchId = &forge.SwitchId{Id: d.ID}
				if ip := s.reserved.get(mac); ip != nil {
					linked.ExploredEndpointAddress = optional(ip.String())
				}
			}
			out.ExpectedSwitches = append(out.ExpectedSwitches, linked)
		}
	}
	return out, nil
}

// readExpectedSwitch makes a new row, which keeps parts of have.
func readExpectedSwitch(in *forge.ExpectedSwitch, have *expected[*forge.ExpectedSwitch]) (*expected[*forge.ExpectedSwitch], error) {
	out := proto.CloneOf(in)
	out.ExpectedSwitchId, out.Metadata = nil, nil
	var ok bool
	if out.BmcMacAddress, ok = hardwareAddress(in.BmcMacAddress); !ok {
		return nil, invalid("invalid MAC address %q", in.BmcMacAddress)
	}
	for i, mac := range in.NvosMacAddresses {
		if out.NvosMacAddresses[i], ok = hardwareAddress(mac); !ok {
			return nil, invalid("invalid MAC address %q", mac)
		}
	}
	out.BmcIpAddress = readable(in.BmcIpAddress)
	out.NvosIpAddress = optional(readable(in.GetNvosIpAddress()))
	switch {
	case in.GetNvosIpAddress() != "" && out.NvosIpAddress == nil:
		return nil, invalid("invalid nvos_ip_address %q", in.GetNvosIpAddress())
	case out.NvosIpAddress != nil && len(out.NvosMacAddresses) != 1:
		return nil, invalid("nvos_ip_address needs exactly one of nvos_mac_addresses, got %d", len(out.NvosMacAddresses))
	}
	out.BmcRetainCredentials = in.BmcRetainCredentials
	if have != nil {
		out.BmcRetainCredentials = cmp.Or(in.BmcRetainCredentials, have.Said.message.BmcRetainCredentials)
	}
	if !out.GetBmcRetainCredentials() {
		out.BmcRetainCredentials = nil
	}
	m, err := freeMetadata(in.Metadata)
	return &expected[*forge.ExpectedSwitch]{m, keep(out)}, cmp.Or(
		err, tooLong(in.SwitchSerialNumber, 32), tooLong(in.BmcUsername, 16), tooLong(in.BmcPassword, 16),
		tooLong(in.GetNvosUsername(), 64), tooLong(in.GetNvosPassword(), 64), tooLong(in.GetRackId().GetId(), 64),
	)
}

// readable returns an address in its usual spelling; an unreadable one is silently dropped.
func readable(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return ""
	}
	return ip.String()
}

func wireExpectedSwitch(id string, e *expected[*forge.ExpectedSwitch]) *forge.ExpectedSwitch {
	out := proto.CloneOf(e.Said.message)
	out.ExpectedSwitchId, out.Metadata = &forge.UUID{Value: id}, e.Metadata.wire()
	return out
}
