package carbidesim

import (
	"context"
	"net/netip"
	"time"

	"converge.dev/converge/providers/carbide/forge"
)

// segment is a subnet. It cannot be changed; it becomes ready, and disappears, with time.
type segment struct {
	Name     string                   `json:"name"`
	VPC      string                   `json:"vpc,omitempty"`
	Type     forge.NetworkSegmentType `json:"type"`
	Domain   string                   `json:"domain,omitempty"`
	MTU      int32                    `json:"mtu"`
	Prefixes []span                   `json:"prefixes"`
	VLAN     uint32                   `json:"vlan,omitempty"`
	Link     bool                     `json:"link,omitempty"` // created by the site for one interface of an instance
	State    forge.TenantState        `json:"state"`
	Version  token                    `json:"version"`
	Created  time.Time                `json:"created"`
	Updated  time.Time                `json:"updated"`
	Deleted  time.Time                `json:"deleted,omitzero"`
	History  []passage                `json:"history,omitempty"`
	Due      time.Time                `json:"due,omitzero"` // when the site acts on it next
}

// span is one prefix of a segment.
type span struct {
	ID           string       `json:"id"`
	Prefix       netip.Prefix `json:"prefix"`
	Gateway      string       `json:"gateway,omitempty"`
	ReserveFirst int32        `json:"reserveFirst,omitempty"`
	Parent       string       `json:"parent,omitempty"` // the VPC prefix that it is tied to
}

// passage is a state that an object has reached.
type passage struct {
	State string    `json:"state"`
	At    time.Time `json:"at"`
}

// CreateNetworkSegment creates a segment; it is ready one round of the controller later.
func (s *site) CreateNetworkSegment(_ context.Context, r *forge.NetworkSegmentCreationRequest) (*forge.NetworkSegment, error) {
	n := &segment{
		Name:    r.Name,
		VPC:     r.VpcId.GetValue(),
		Type:    r.SegmentType,
		Domain:  r.SubdomainId.GetValue(),
		Version: firstToken(s.now),
		Created: s.now,
		Updated: s.now,
	}
	if _, ok := forge.NetworkSegmentType_name[int32(n.Type)]; !ok {
		return nil, invalid("invalid segment type %d", n.Type)
	}
	n.MTU = 1500
	if n.Type == forge.NetworkSegmentType_TENANT {
		n.MTU = 9000
	}
	if r.Mtu != nil {
		n.MTU = *r.Mtu
	}
	for _, p := range r.Prefixes {
		sp, err := s.readSpan(n.Type, p)
		if err != nil {
			return nil, err
		}
		n.Prefixes = append(n.Prefixes, sp)
	}
	if len(n.Prefixes) == 0 {
		return nil, invalid("a network segment needs at least one prefix")
	}
	id := s.chosen(r.Id.GetValue())
	if err := s.admitSegment(id, n); err != nil {
		return nil, err
	}
	for i := range n.Prefixes {
		n.Prefixes[i].ID = s.newID()
	}
	n.enter(forge.TenantState_PROVISIONING, s.now)
	n.Due = s.after(s.timing.Tick, "segment ready", id)
	s.segments.put(id, n)
	return s.wireSegment(id, n, false, false), nil
}

// readSpan checks what depends on a prefix alone.
func (s *site) readSpan(t forge.NetworkSegmentType, p *forge.NetworkPrefix) (span, error) {
	if p.Id != nil {
		return span{}, invalid("the id of a prefix is given by the site")
	}
	prefix, err := parseCIDR(p.Prefix)
	if err != nil {
		return span{}, err
	}
	if p.Gateway != nil {
		if _, err := netip.ParseAddr(*p.Gateway); err != nil {
			return span{}, invalid("invalid gateway %q", *p.Gateway)
		}
	}
	if t == forge.NetworkSegmentType_TENANT {
		if prefix.Bits() >= linkBits(prefix) {
			return span{}, invalid("prefix %s is too small for a tenant segment", prefix)
		}
		if err := s.inFabric(prefix); err != nil {
			return span{}, err
		}
	}
	return span{Prefix: prefix, Gateway: p.GetGateway(), ReserveFirst: p.ReserveFirst}, nil
}

// admitSegment checks a new segment against the rest of the site.
func (s *site) admitSegment(id string, n *segment) error {
	if n.VPC != "" {
		v := s.vpcs.get(n.VPC)
		if v == nil {
			return violation("network_segments_vpc_id_fkey")
		}
		flat := v.Type == forge.VpcVirtualizationType_FLAT
		if inband := n.Type == forge.NetworkSegmentType_HOST_INBAND; flat != inband {
			return invalid("a VPC of type %s takes no segment of type %s", v.Type, n.Type)
		}
		for _, sp := range n.Prefixes {
			if sp.Prefix.Addr().Is6() && v.Type == forge.VpcVirtualizationType_ETHERNET_VIRTUALIZER {
				return invalid("IPv6 needs a VPC of type FNN or FLAT")
			}
		}
	}
	for i, sp := range n.Prefixes {
		if others := s.segmentSpace.overlapping(sp.Prefix); len(others) > 0 {
			return invalid("prefix %s overlaps network segment %s (%s)", sp.Prefix, others[0].id, others[0].prefix)
		}
		for _, o := range s.prefixSpace.overlapping(sp.Prefix) {
			if s.prefixes.get(o.id).VPC == n.VPC && within(sp.Prefix, []netip.Prefix{o.prefix}) {
				n.Prefixes[i].Parent = o.id
			}
		}
	}
	// The rest is left to the database.
	if s.segments.get(id) != nil {
		return duplicate("network_segments_pkey")
	}
	if n.MTU < 576 || n.MTU > 9000 {
		return violation("network_segments_mtu_check")
	}
	families := map[int]bool{}
	for _, sp := range n.Prefixes {
		if families[sp.Prefix.Addr().BitLen()] {
			return violation("network_prefix_family")
		}
		families[sp.Prefix.Addr().BitLen()] = true
		if sp.Gateway != "" {
			gateway := netip.MustParseAddr(sp.Gateway)
			if gateway.Is6() || !sp.Prefix.Contains(gateway) || sp.Prefix.IsSingleIP() {
				return violation("gateway_within_network")
			}
		}
	}
	if n.Type == forge.NetworkSegmentType_TENANT {
		vlan, ok := s.segmentVLANs.free(s.rules.VLANs)
		if !ok {
			return exhausted("vlan-id")
		}
		n.VLAN = vlan
	}
	return nil
}

// DeleteNetworkSegment starts deleting a segment: it is drained of addresses and then disappears with its VLAN.
func (s *site) DeleteNetworkSegment(_ context.Context, r *forge.NetworkSegmentDeletionRequest) (*forge.NetworkSegmentDeletionResult, error) {
	if r.Id == nil {
		return nil, missing("id")
	}
	id := r.Id.GetValue()
	have := s.segments.get(id)
	if have == nil {
		return nil, notFound("network segment", id)
	}
	if !have.Deleted.IsZero() {
		return &forge.NetworkSegmentDeletionResult{}, nil
	}
	if len(s.instancesByNet.of(id)) > 0 || len(s.machinesByNet.of(id)) > 0 {
		return nil, invalid("network segment %s has allocated addresses", id)
	}
	s.endSegment(id, have)
	return &forge.NetworkSegmentDeletionResult{}, nil
}

func (s *site) endSegment(id string, have *segment) {
	n := *have
	n.Deleted, n.Updated = s.now, s.now
	n.enter(forge.TenantState_TERMINATING, s.now)
	n.Due = s.after(s.timing.Drain, "segment drained", id)
	s.segments.put(id, &n)
}

func (s *site) segmentReady(id string) {
	if have := s.segments.get(id); have != nil && have.Due.Equal(s.now) {
		n := *have
		n.Updated = s.now
		n.enter(forge.TenantState_READY, s.now)
		s.segments.put(id, &n)
	}
}

func (s *site) segmentDrained(id string) {
	if have := s.segments.get(id); have != nil && have.Due.Equal(s.now) {
		s.segments.drop(id)
	}
}

// FindNetworkSegmentIds filters by name, and by the tenant of the VPC. The list includes all segments of the site: those of
// its operator, those being deleted, and those created for interfaces.
func (s *site) FindNetworkSegmentIds(_ context.Context, r *forge.NetworkSegmentSearchFilter) (*forge.NetworkSegmentIdList, error) {
	pass := func(n *segment) bool {
		if r.TenantOrgId != nil {
			if v := s.vpcs.get(n.VPC); v == nil || v.Organization != *r.TenantOrgId {
				return false
			}
		}
		return is(r.Name, n.Name)
	}
	wire := func(id string) *forge.NetworkSegmentId { return &forge.NetworkSegmentId{Value: id} }
	return &forge.NetworkSegmentIdList{NetworkSegmentsIds: where(s.segments, pass, wire)}, nil
}

// FindNetworkSegmentsByIds returns the segments that exist.
func (s *site) FindNetworkSegmentsByIds(_ context.Context, r *forge.NetworkSegmentsByIdsRequest) (*forge.NetworkSegmentList, error) {
	if err := s.page(len(r.NetworkSegmentsIds)); err != nil {
		return nil, err
	}
	wire := func(id string, n *segment) *forge.NetworkSegment {
		return s.wireSegment(id, n, r.IncludeHistory, r.IncludeNumFreeIps)
	}
	return &forge.NetworkSegmentList{NetworkSegments: each(s.segments, texts(r.NetworkSegmentsIds), wire)}, nil
}

// enter records a state, in the terms of the lifecycle.
func (n *segment) enter(state forge.TenantState, now time.Time) {
	n.State = state
	words := map[forge.TenantState]string{
		forge.TenantState_PROVISIONING: `{"state":"provisioning"}`,
		forge.TenantState_READY:        `{"state":"ready"}`,
		forge.TenantState_TERMINATING:  `{"state":"deleting","deletion_state":{"state":"drainallocatedips"}}`,
	}
	history := n.History[:len(n.History):len(n.History)] // the older object keeps its own
	n.History = append(history, passage{words[state], now})
}

// tie ties the segment's prefixes inside a VPC prefix to it.
func (n *segment) tie(id string, prefix netip.Prefix) {
	tied := make([]span, len(n.Prefixes))
	for i, sp := range n.Prefixes {
		if within(sp.Prefix, []netip.Prefix{prefix}) {
			sp.Parent = id
		}
		tied[i] = sp
	}
	n.Prefixes = tied
}

func (n *segment) spans() []netip.Prefix {
	out := make([]netip.Prefix, len(n.Prefixes))
	for i, sp := range n.Prefixes {
		out[i] = sp.Prefix
	}
	return out
}

func (n *segment) parents() []string {
	var out []string
	for _, sp := range n.Prefixes {
		out = append(out, some(sp.Parent)...)
	}
	return out
}
