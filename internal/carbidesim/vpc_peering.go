package carbidesim

import (
	"context"
	"slices"
	"strings"

	"converge.dev/converge/providers/carbide/forge"
)

// PeeringPolicy says which VPCs of a site may be peered.
type PeeringPolicy string

// The policies. Nothing is permitted by default.
const (
	PeeringNone      PeeringPolicy = ""
	PeeringExclusive PeeringPolicy = "exclusive" // VPCs of the same virtualization
	PeeringMixed     PeeringPolicy = "mixed"     // any VPCs
)

// peering lets two VPCs reach each other. The pair is stored in the order of ids, whatever the order in the request.
type peering struct {
	VPCs [2]string `json:"vpcs"`
}

// pair returns the key under which two VPCs are peered once.
func (p *peering) pair() string { return strings.Join(p.VPCs[:], "/") }

// CreateVpcPeering creates a peering if the site's policy permits it. Only one of the policies checks the VPCs.
func (s *site) CreateVpcPeering(_ context.Context, r *forge.VpcPeeringCreationRequest) (*forge.VpcPeering, error) {
	switch {
	case r.VpcId == nil:
		return nil, missing("vpc_id")
	case r.PeerVpcId == nil:
		return nil, missing("peer_vpc_id")
	}
	p := &peering{[2]string{r.VpcId.GetValue(), r.PeerVpcId.GetValue()}}
	slices.Sort(p.VPCs[:])
	switch s.rules.Peering {
	case PeeringExclusive:
		if err := s.alike(p); err != nil {
			return nil, err
		}
	case PeeringMixed:
	default:
		return nil, internal("VPC Peering feature disabled.")
	}
	if p.VPCs[0] == p.VPCs[1] {
		return nil, invalid("cannot create a peering between the same VPC")
	}
	id := s.chosen(r.Id.GetValue())
	if s.peerings.get(id) != nil || len(s.peeringsByPair.of(p.pair())) > 0 {
		return nil, alreadyExists("VpcPeering", "id="+id+" between "+p.pair())
	}
	for _, vpcID := range p.VPCs {
		if s.vpcs.get(vpcID) == nil && !s.isBurned("vpc", vpcID) { // the row of a deleted VPC can still be referred to
			return nil, violation("vpc_peerings_vpc_id_fkey")
		}
	}
	s.peerings.put(id, p)
	return p.wire(id), nil
}

// alike checks that both VPCs exist and that the exclusive policy permits their types.
func (s *site) alike(p *peering) error {
	var types []forge.VpcVirtualizationType
	for _, vpcID := range p.VPCs {
		v := s.vpcs.get(vpcID)
		if v == nil {
			return notFound("VPC", vpcID)
		}
		types = append(types, v.Type)
	}
	if types[0] != types[1] && !slices.Contains(types, forge.VpcVirtualizationType_FLAT) {
		return invalid("VPC peering between VPCs of different network virtualization type not allowed.")
	}
	return nil
}

// FindVpcPeeringIds filters by either VPC.
func (s *site) FindVpcPeeringIds(_ context.Context, r *forge.VpcPeeringSearchFilter) (*forge.VpcPeeringIdList, error) {
	pass := func(p *peering) bool { return r.VpcId == nil || slices.Contains(p.VPCs[:], r.VpcId.GetValue()) }
	return &forge.VpcPeeringIdList{
		VpcPeeringIds: where(s.peerings, pass, func(id string) *forge.VpcPeeringId { return &forge.VpcPeeringId{Value: id} }),
	}, nil
}

// FindVpcPeeringsByIds returns the peerings that exist. Unlike its siblings it accepts any number of ids.
func (s *site) FindVpcPeeringsByIds(_ context.Context, r *forge.VpcPeeringsByIdsRequest) (*forge.VpcPeeringList, error) {
	return &forge.VpcPeeringList{
		VpcPeerings: each(s.peerings, texts(r.VpcPeeringIds), func(id string, p *peering) *forge.VpcPeering { return p.wire(id) }),
	}, nil
}

// DeleteVpcPeering deletes permanently. An unknown id is an error of the database.
func (s *site) DeleteVpcPeering(_ context.Context, r *forge.VpcPeeringDeletionRequest) (*forge.VpcPeeringDeletionResult, error) {
	if r.Id == nil {
		return nil, missing("id")
	}
	if s.peerings.get(r.Id.GetValue()) == nil {
		return nil, noRows()
	}
	s.peerings.drop(r.Id.GetValue())
	return &forge.VpcPeeringDeletionResult{}, nil
}

// endPeerings deletes the peerings of a VPC.
func (s *site) endPeerings(vpcID string) {
	for _, id := range sortedKeys(s.peeringsByVpc.of(vpcID)) {
		s.peerings.drop(id)
	}
}

func (p *peering) wire(id string) *forge.VpcPeering {
	return &forge.VpcPeering{
		Id:        &forge.VpcPeeringId{Value: id},
		VpcId:     &forge.VpcId{Value: p.VPCs[0]},
		PeerVpcId: &forge.VpcId{Value: p.VPCs[1]},
	}
}
