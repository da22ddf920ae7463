//lint:file-ignore SA1019 older clients read the flat fields, so they are filled as the real service fills them

package carbidesim

import (
	"net/netip"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"converge.dev/converge/providers/carbide/forge"
)

// wireSegment fills the nested fields and, like the real service, the flat ones that they replace.
func (s *site) wireSegment(id string, n *segment, withHistory, withFree bool) *forge.NetworkSegment {
	config := &forge.NetworkSegmentConfig{Mtu: proto.Int32(n.MTU), SegmentType: n.Type}
	if n.VPC != "" {
		config.VpcId = &forge.VpcId{Value: n.VPC}
	}
	if n.Domain != "" {
		config.SubdomainId = &forge.DomainId{Value: n.Domain}
	}
	for _, sp := range n.Prefixes {
		p := &forge.NetworkPrefix{
			Id:           &forge.NetworkPrefixId{Value: sp.ID},
			Prefix:       sp.Prefix.String(),
			Gateway:      optional(sp.Gateway),
			ReserveFirst: sp.ReserveFirst,
			SviIp:        optional(s.svi(n, sp)),
		}
		if withFree {
			p.FreeIpCount = s.freeAddresses(id, n, sp)
		}
		config.Prefixes = append(config.Prefixes, p)
	}
	now := n.History[len(n.History)-1]
	life := &forge.LifecycleStatus{
		State:       now.State,
		Version:     n.Version.String(),
		StateReason: &forge.ControllerStateReason{Outcome: forge.ControllerStateOutcome_DO_NOTHING},
		Sla:         &forge.StateSla{Sla: durationpb.New(s.timing.Drain + s.timing.Tick)},
	}
	status := &forge.NetworkSegmentStatus{Lifecycle: life, TenantState: n.State}
	if !n.Link {
		status.Flags = []forge.NetworkSegmentFlag{forge.NetworkSegmentFlag_CAN_STRETCH}
	}
	out := &forge.NetworkSegment{
		Id:          &forge.NetworkSegmentId{Value: id},
		VpcId:       config.VpcId,
		Name:        n.Name,
		SubdomainId: config.SubdomainId,
		Mtu:         config.Mtu,
		Prefixes:    config.Prefixes,
		Created:     timestamppb.New(n.Created),
		Updated:     timestamppb.New(n.Updated),
		SegmentType: n.Type,
		Flags:       status.Flags,
		Config:      config,
		Status:      status,
		Metadata:    &forge.Metadata{Name: n.Name},
		Version:     n.Version.String(),
		State:       n.State,
		StateReason: life.StateReason,
		StateSla:    life.Sla,
	}
	if !n.Deleted.IsZero() {
		out.Deleted = timestamppb.New(n.Deleted)
	}
	if withHistory {
		for _, h := range n.History {
			out.History = append(out.History, &forge.NetworkSegmentStateHistory{
				State: h.State, Version: n.Version.String(), Time: timestamppb.New(h.At),
			})
		}
	}
	return out
}

// svi returns the address of the switch in a segment on the FNN fabric, or "".
func (s *site) svi(n *segment, sp span) string {
	v := s.vpcs.get(n.VPC)
	if v == nil || v.Type != forge.VpcVirtualizationType_FNN || n.Link || sp.Prefix.Addr().Is6() {
		return ""
	}
	// The first address that is neither the network's nor the gateway's.
	a := sp.Prefix.Addr().Next()
	if a.String() == sp.Gateway {
		a = a.Next()
	}
	return a.String()
}

// usable visits the addresses of a prefix that instances can have, until visit returns false.
func (s *site) usable(n *segment, sp span, visit func(netip.Addr) bool) {
	svi := s.svi(n, sp)
	var last netip.Addr
	if sp.Prefix.Addr().Is4() {
		last = lastAddr(sp.Prefix)
	}
	for i, a := int32(0), sp.Prefix.Addr(); sp.Prefix.Contains(a) && a != last; i, a = i+1, a.Next() {
		if i == 0 || i < sp.ReserveFirst || a.String() == sp.Gateway || a.String() == svi {
			continue
		}
		if !visit(a) {
			return
		}
	}
}

// freeAddresses counts them; the real service does so for IPv4 only.
func (s *site) freeAddresses(id string, n *segment, sp span) uint32 {
	if sp.Prefix.Addr().Is6() || n.Link {
		return 0
	}
	var free uint32
	s.usable(n, sp, func(a netip.Addr) bool {
		if len(s.instancesByNet.of(id+"/"+a.String())) == 0 {
			free++
		}
		return true
	})
	return free
}
