package carbidesim

import (
	"cmp"
	"context"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"converge.dev/converge/providers/carbide/forge"
)

// AddExpectedPowerShelf declares that a power shelf is to be found.
func (s *site) AddExpectedPowerShelf(_ context.Context, r *forge.ExpectedPowerShelf) (*emptypb.Empty, error) {
	e, err := readExpectedShelf(r, nil)
	if err != nil {
		return nil, err
	}
	id, err := s.chosenUUID(r.ExpectedPowerShelfId)
	if err != nil {
		return nil, err
	}
	if len(s.shelvesByMAC.of(e.Said.message.BmcMacAddress)) > 0 {
		return nil, internal("Duplicate MAC address for expected host BMC interface: %s", e.Said.message.BmcMacAddress)
	}
	if s.expectedShelves.get(id) != nil {
		return nil, duplicate("expected_power_shelves_pkey")
	}
	s.expectedShelves.put(id, e)
	return &emptypb.Empty{}, nil
}

// UpdateExpectedPowerShelf replaces everything but id, MAC address and, when it is absent, bmc_retain_credentials.
func (s *site) UpdateExpectedPowerShelf(_ context.Context, r *forge.ExpectedPowerShelf) (*emptypb.Empty, error) {
	id, have, name, err := selected(s.expectedShelves, s.shelvesByMAC, r.ExpectedPowerShelfId, r.BmcMacAddress)
	if err != nil {
		return nil, err
	}
	e, err := readExpectedShelf(r, have)
	if err != nil {
		return nil, err
	}
	if err := s.reserve(e.Said.message.BmcMacAddress, e.Said.message.BmcIpAddress); err != nil {
		return nil, err
	}
	if have == nil {
		return nil, notFound("expected_power_shelf", name)
	}
	e.Said.message.BmcMacAddress = have.Said.message.BmcMacAddress
	s.expectedShelves.put(id, e)
	return &emptypb.Empty{}, nil
}

// DeleteExpectedPowerShelf deletes the declaration. The row of a shelf that was found refers to it.
func (s *site) DeleteExpectedPowerShelf(_ context.Context, r *forge.ExpectedPowerShelfRequest) (*emptypb.Empty, error) {
	id, have, name, err := selected(s.expectedShelves, s.shelvesByMAC, r.ExpectedPowerShelfId, r.BmcMacAddress)
	if err != nil {
		return nil, err
	}
	if have == nil {
		return nil, notFound("expected_power_shelf", name)
	}
	if s.devices.get(have.Said.message.BmcMacAddress) != nil {
		return nil, violation("power_shelves_bmc_mac_address_fkey")
	}
	s.expectedShelves.drop(id)
	return &emptypb.Empty{}, nil
}

// GetExpectedPowerShelf returns one.
func (s *site) GetExpectedPowerShelf(_ context.Context, r *forge.ExpectedPowerShelfRequest) (*forge.ExpectedPowerShelf, error) {
	id, have, name, err := selected(s.expectedShelves, s.shelvesByMAC, r.ExpectedPowerShelfId, r.BmcMacAddress)
	if err != nil {
		return nil, err
	}
	if have == nil {
		return nil, notFound("expected_power_shelf", name)
	}
	return wireExpectedShelf(id, have), nil
}

// GetAllExpectedPowerShelves returns all, including passwords.
func (s *site) GetAllExpectedPowerShelves(context.Context, *emptypb.Empty) (*forge.ExpectedPowerShelfList, error) {
	out := &forge.ExpectedPowerShelfList{}
	for id, e := range s.expectedShelves.rows {
		out.ExpectedPowerShelves = append(out.ExpectedPowerShelves, wireExpectedShelf(id, e))
	}
	return out, nil
}

// GetAllExpectedPowerShelvesLinked returns which of them were found, by their serial numbers.
func (s *site) GetAllExpectedPowerShelvesLinked(context.Context, *emptypb.Empty) (*forge.LinkedExpectedPowerShelfList, error) {
	out := &forge.LinkedExpectedPowerShelfList{}
	for _, mac := range sortedKeys(s.shelvesByMAC.ids) {
		for id := range s.shelvesByMAC.of(mac) {
			m := s.expectedShelves.get(id).Said.message
			linked := &forge.LinkedExpectedPowerShelf{
				ShelfSerialNumber: m.ShelfSerialNumber, BmcMacAddress: mac, ExpectedPowerShelfId: &forge.UUID{Value: id}, RackId: m.RackId,
			}
			for found := range s.devicesBySerial.of(m.ShelfSerialNumber) {
				linked.PowerShelfId = &forge.PowerShelfId{Id: s.devices.get(found).ID}
			}
			if ip := s.reserved.get(mac); ip != nil && s.devices.get(mac) != nil {
				linked.ExploredEndpointAddress = optional(ip.String())
			}
			out.ExpectedPowerShelves = append(out.ExpectedPowerShelves, linked)
		}
	}
	return out, nil
}

// readExpectedShelf makes a new row, which keeps parts of have.
func readExpectedShelf(in *forge.ExpectedPowerShelf, have *expected[*forge.ExpectedPowerShelf]) (*expected[*forge.ExpectedPowerShelf], error) {
	out := proto.CloneOf(in)
	out.ExpectedPowerShelfId, out.Metadata = nil, nil
	var ok bool
	if out.BmcMacAddress, ok = hardwareAddress(in.BmcMacAddress); !ok {
		return nil, invalid("invalid MAC address %q", in.BmcMacAddress)
	}
	out.BmcIpAddress = readable(in.BmcIpAddress)
	if have != nil {
		out.BmcRetainCredentials = cmp.Or(in.BmcRetainCredentials, have.Said.message.BmcRetainCredentials)
	}
	if !out.GetBmcRetainCredentials() {
		out.BmcRetainCredentials = nil
	}
	m, err := freeMetadata(in.Metadata)
	return &expected[*forge.ExpectedPowerShelf]{m, keep(out)}, cmp.Or(
		err, tooLong(in.ShelfSerialNumber, 32), tooLong(in.BmcUsername, 16), tooLong(in.BmcPassword, 255), tooLong(in.GetRackId().GetId(), 64),
	)
}

func wireExpectedShelf(id string, e *expected[*forge.ExpectedPowerShelf]) *forge.ExpectedPowerShelf {
	out := proto.CloneOf(e.Said.message)
	out.ExpectedPowerShelfId, out.Metadata = &forge.UUID{Value: id}, e.Metadata.wire()
	return out
}
