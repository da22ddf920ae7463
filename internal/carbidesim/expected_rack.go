package carbidesim

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/protobuf/types/known/emptypb"

	"converge.dev/converge/providers/carbide/forge"
)

// expectedRack is a rack that is to be found, by its id.
type expectedRack struct {
	Metadata metadata `json:"metadata"`
	Profile  string   `json:"profile"`
}

// AddExpectedRack declares that a rack is to be found.
func (s *site) AddExpectedRack(_ context.Context, r *forge.ExpectedRack) (*emptypb.Empty, error) {
	e, err := s.readExpectedRack(r)
	if err != nil {
		return nil, err
	}
	id := r.RackId.Id
	if s.expectedRacks.get(id) != nil {
		return nil, alreadyExists("expected_rack", id)
	}
	if err := cmp.Or(tooLong(id, 128), e.tooLong()); err != nil {
		return nil, err
	}
	s.expectedRacks.put(id, e)
	return &emptypb.Empty{}, nil
}

// UpdateExpectedRack replaces everything but the id.
func (s *site) UpdateExpectedRack(_ context.Context, r *forge.ExpectedRack) (*emptypb.Empty, error) {
	e, err := s.readExpectedRack(r)
	if err != nil {
		return nil, err
	}
	if s.expectedRacks.get(r.RackId.Id) == nil {
		return nil, notFound("expected_rack", r.RackId.Id)
	}
	if err := e.tooLong(); err != nil {
		return nil, err
	}
	s.expectedRacks.put(r.RackId.Id, e)
	return &emptypb.Empty{}, nil
}

// DeleteExpectedRack deletes the declaration. A rack that was found stays.
func (s *site) DeleteExpectedRack(_ context.Context, r *forge.ExpectedRackRequest) (*emptypb.Empty, error) {
	if r.RackId == "" {
		return nil, invalid("Invalid rack ID: empty")
	}
	if s.expectedRacks.get(r.RackId) == nil {
		return nil, notFound("expected_rack", r.RackId)
	}
	s.expectedRacks.drop(r.RackId)
	return &emptypb.Empty{}, nil
}

// GetExpectedRack returns one.
func (s *site) GetExpectedRack(_ context.Context, r *forge.ExpectedRackRequest) (*forge.ExpectedRack, error) {
	if r.RackId == "" {
		return nil, invalid("Invalid rack ID: empty")
	}
	e := s.expectedRacks.get(r.RackId)
	if e == nil {
		return nil, notFound("expected_rack", r.RackId)
	}
	return e.wire(r.RackId), nil
}

// GetAllExpectedRacks returns all.
func (s *site) GetAllExpectedRacks(context.Context, *emptypb.Empty) (*forge.ExpectedRackList, error) {
	out := &forge.ExpectedRackList{}
	for id, e := range s.expectedRacks.rows {
		out.ExpectedRacks = append(out.ExpectedRacks, e.wire(id))
	}
	return out, nil
}

// readExpectedRack makes a row. Whether the database has room for it is checked later.
func (s *site) readExpectedRack(in *forge.ExpectedRack) (*expectedRack, error) {
	profile := in.GetRackProfileId().GetId()
	switch {
	case in.RackId == nil:
		return nil, missing("rack_id")
	case profile == "":
		return nil, missing("rack_profile_id")
	}
	m, err := uniqueLabels(in.Metadata)
	if err == nil && !slices.Contains(s.rules.RackProfiles, profile) {
		err = invalid("Unknown rack_profile_id: %s. Must be one of: %q", profile, s.rules.RackProfiles)
	}
	return &expectedRack{m, profile}, err
}

func (e *expectedRack) tooLong() error {
	return cmp.Or(tooLong(e.Profile, 256), e.Metadata.tooLong())
}

func (e *expectedRack) wire(id string) *forge.ExpectedRack {
	return &forge.ExpectedRack{RackId: &forge.RackId{Id: id}, RackProfileId: &forge.RackProfileId{Id: e.Profile}, Metadata: e.Metadata.wire()}
}
