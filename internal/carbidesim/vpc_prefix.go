package carbidesim

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"converge.dev/converge/providers/carbide/forge"
)

// vpcPrefix is a block of addresses of a VPC. Segments inside are tied to it and keep it from being deleted.
type vpcPrefix struct {
	VPC      string       `json:"vpc"`
	Prefix   netip.Prefix `json:"prefix"`
	Metadata metadata     `json:"metadata"`

	// From v2.0 on a prefix becomes ready, and disappears, with time.
	State forge.TenantState `json:"state,omitempty"`
	Due   time.Time         `json:"due,omitzero"` // when the site acts on it next
}

// CreateVpcPrefix creates a prefix, adopts the VPC's own segments in it, and changes the VPC's token.
func (s *site) CreateVpcPrefix(_ context.Context, r *forge.VpcPrefixCreationRequest) (*forge.VpcPrefix, error) {
	m, err := optionalMetadata(r.Metadata)
	if err != nil {
		return nil, err
	}
	if r.VpcId == nil {
		return nil, missing("vpc_id")
	}
	vpcID := r.VpcId.GetValue()
	v, err := s.liveVpc(vpcID)
	if err != nil {
		return nil, err
	}
	prefix, err := parseCIDR(firstOf(r.Config.GetPrefix(), r.Prefix))
	if err != nil {
		return nil, err
	}
	if err := s.inFabric(prefix); err != nil {
		return nil, err
	}
	if prefix.Addr().Is6() && v.Type == forge.VpcVirtualizationType_ETHERNET_VIRTUALIZER {
		return nil, invalid("IPv6 prefixes need a VPC of type FNN or FLAT")
	}
	if others := s.prefixSpace.overlapping(prefix); len(others) > 0 {
		return nil, invalid("prefix %s overlaps VPC prefix %s (%s)", prefix, others[0].id, others[0].prefix)
	}
	inside := map[string]bool{}
	for _, o := range s.segmentSpace.overlapping(prefix) {
		if s.segments.get(o.id).VPC != vpcID {
			return nil, invalid("prefix %s overlaps network segment %s (%s)", prefix, o.id, o.prefix)
		}
		if !within(o.prefix, []netip.Prefix{prefix}) {
			return nil, invalid("prefix %s is too small for network segment %s (%s)", prefix, o.id, o.prefix)
		}
		inside[o.id] = true
	}
	id := s.chosen(r.Id.GetValue())
	if s.prefixes.get(id) != nil {
		return nil, duplicate("network_vpc_prefixes_pkey")
	}
	p := &vpcPrefix{VPC: vpcID, Prefix: prefix, Metadata: m}
	if s.later {
		p.State, p.Due = forge.TenantState_PROVISIONING, s.after(s.timing.Tick, "prefix ready", id)
	}
	s.prefixes.put(id, p)
	for segmentID := range inside {
		n := *s.segments.get(segmentID)
		n.tie(id, prefix)
		s.segments.put(segmentID, &n)
	}
	moved := *v
	s.changeVpc(vpcID, &moved)
	return s.wirePrefix(id, p), nil
}

// UpdateVpcPrefix replaces the metadata; a prefix cannot be resized.
func (s *site) UpdateVpcPrefix(_ context.Context, r *forge.VpcPrefixUpdateRequest) (*forge.VpcPrefix, error) {
	m, err := optionalMetadata(r.Metadata)
	if err != nil {
		return nil, err
	}
	if r.Id == nil {
		return nil, missing("id")
	}
	if r.Config.GetPrefix() != "" || r.GetPrefix() != "" {
		return nil, invalid("resizing a VPC prefix is not supported")
	}
	id := r.Id.GetValue()
	have := s.prefixes.get(id)
	if have == nil {
		return nil, noRows()
	}
	p := *have
	p.Metadata = m
	s.prefixes.put(id, &p)
	return s.wirePrefix(id, &p), nil
}

// DeleteVpcPrefix looks up the live VPC to change its token, so the prefixes of a deleted VPC can never be deleted.
func (s *site) DeleteVpcPrefix(_ context.Context, r *forge.VpcPrefixDeletionRequest) (*forge.VpcPrefixDeletionResult, error) {
	if r.Id == nil {
		return nil, missing("id")
	}
	id := r.Id.GetValue()
	p := s.prefixes.get(id)
	if p == nil {
		return nil, notFound("vpc_prefix", id)
	}
	v, err := s.liveVpc(p.VPC)
	if err != nil {
		return nil, err
	}
	if len(s.segmentsByPrefix.of(id)) > 0 {
		return nil, violation("network_prefixes_vpc_prefix_id_fkey")
	}
	if s.later {
		if p.State != forge.TenantState_TERMINATING {
			leaving := *p
			leaving.State, leaving.Due = forge.TenantState_TERMINATING, s.after(s.timing.Drain, "prefix gone", id)
			s.prefixes.put(id, &leaving)
		}
	} else {
		s.prefixes.drop(id)
	}
	moved := *v
	s.changeVpc(p.VPC, &moved)
	return &forge.VpcPrefixDeletionResult{}, nil
}

func (s *site) prefixReady(id string) {
	if have := s.prefixes.get(id); have != nil && have.Due.Equal(s.now) {
		p := *have
		p.State = forge.TenantState_READY
		s.prefixes.put(id, &p)
	}
}

func (s *site) prefixGone(id string) {
	if have := s.prefixes.get(id); have != nil && have.Due.Equal(s.now) {
		s.prefixes.drop(id)
	}
}

// passes reports whether a filter passes a prefix, which may be in deletion.
func (p *vpcPrefix) passes(filter forge.DeletedFilter) bool {
	leaving := p.State == forge.TenantState_TERMINATING
	return filter == forge.DeletedFilter_DELETED_FILTER_INCLUDE || leaving == (filter == forge.DeletedFilter_DELETED_FILTER_ONLY)
}

// SearchVpcPrefixes filters by VPC, name, and how a prefix relates to a given one.
func (s *site) SearchVpcPrefixes(_ context.Context, r *forge.VpcPrefixSearchQuery) (*forge.VpcPrefixIdList, error) {
	if r.TenantPrefixId != nil {
		return nil, invalid("searching by tenant_prefix_id is not supported")
	}
	matches := func(netip.Prefix) bool { return true }
	if r.PrefixMatch != nil {
		want, err := parseCIDR(*r.PrefixMatch)
		if err != nil {
			return nil, err
		}
		if r.PrefixMatchType == nil {
			return nil, missing("prefix_match_type")
		}
		switch *r.PrefixMatchType {
		case forge.PrefixMatchType_PREFIX_EXACT:
			matches = func(p netip.Prefix) bool { return p == want }
		case forge.PrefixMatchType_PREFIX_CONTAINS:
			matches = func(p netip.Prefix) bool { return within(want, []netip.Prefix{p}) }
		case forge.PrefixMatchType_PREFIX_CONTAINED_BY:
			matches = func(p netip.Prefix) bool { return within(p, []netip.Prefix{want}) }
		default:
			return nil, invalid("invalid prefix_match_type %d", *r.PrefixMatchType)
		}
	}
	pass := func(p *vpcPrefix) bool {
		return p.passes(r.Deleted) && (r.VpcId == nil || r.VpcId.GetValue() == p.VPC) && is(r.Name, p.Metadata.Name) && matches(p.Prefix)
	}
	return &forge.VpcPrefixIdList{
		VpcPrefixIds: where(s.prefixes, pass, func(id string) *forge.VpcPrefixId { return &forge.VpcPrefixId{Value: id} }),
	}, nil
}

// GetVpcPrefixes returns the prefixes that exist. Unlike its siblings it accepts an empty list.
func (s *site) GetVpcPrefixes(_ context.Context, r *forge.VpcPrefixGetRequest) (*forge.VpcPrefixList, error) {
	if err := s.atMost(len(r.VpcPrefixIds)); err != nil {
		return nil, err
	}
	ids := slices.DeleteFunc(texts(r.VpcPrefixIds), func(id string) bool {
		p := s.prefixes.get(id)
		return p != nil && !p.passes(r.Deleted)
	})
	return &forge.VpcPrefixList{VpcPrefixes: each(s.prefixes, ids, s.wirePrefix)}, nil
}

// prefixWords are the states as the controller writes them.
var prefixWords = map[forge.TenantState]string{
	forge.TenantState_PROVISIONING: "provisioning", forge.TenantState_READY: "ready", forge.TenantState_TERMINATING: "deleting",
}

func (s *site) wirePrefix(id string, p *vpcPrefix) *forge.VpcPrefix {
	total := links(p.Prefix)
	available := total
	for segmentID := range s.segmentsByPrefix.of(id) {
		for _, span := range s.segments.get(segmentID).Prefixes {
			if span.Parent == id {
				available -= min(available, links(span.Prefix))
			}
		}
	}
	status := &forge.VpcPrefixStatus{TotalLinknetSegments: total, AvailableLinknetSegments: available}
	if s.later {
		state := p.State
		if p.Due.IsZero() { // from a world before v2.0
			state = forge.TenantState_READY
		}
		status.Lifecycle = &forge.LifecycleStatus{State: fmt.Sprintf(`{"state":%q}`, prefixWords[state])}
		status.TenantState = state
	}
	if p.Prefix.Addr().Is4() {
		status.Total_31Segments = uint32(min(total, math.MaxUint32))
		status.Available_31Segments = uint32(min(available, math.MaxUint32))
	}
	return &forge.VpcPrefix{
		Id:                   &forge.VpcPrefixId{Value: id},
		VpcId:                &forge.VpcId{Value: p.VPC},
		Prefix:               p.Prefix.String(),
		Config:               &forge.VpcPrefixConfig{Prefix: p.Prefix.String()},
		Metadata:             p.Metadata.wire(),
		Status:               status,
		Total_31Segments:     status.Total_31Segments,
		Available_31Segments: status.Available_31Segments,
	}
}

// inFabric checks that a tenant's prefix lies where the site allows.
func (s *site) inFabric(p netip.Prefix) error {
	if len(s.rules.FabricPrefixes) > 0 && !within(p, s.rules.FabricPrefixes) {
		return invalid("prefix %s is not within the site's fabric prefixes", p)
	}
	return nil
}

// firstOf returns the first text that is not empty.
func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}
