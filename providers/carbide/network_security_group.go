package carbide

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/providers/carbide/spec"
)

var groupTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Versioned, Delete: providers.Blind,
	Mark: true, IDsNotReusable: true, EffectWithin: late, Overlap: []string{"rules"}, ReadyWithin: propagates,
	UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Replace,
	Exclusive: []providers.Exclusive{{Field: "{name}", Within: "tenant"}},
}

var (
	directions = enum[forge.NetworkSecurityGroupRuleDirection]{
		{"", forge.NetworkSecurityGroupRuleDirection_NSG_RULE_DIRECTION_INVALID},
		{"ingress", forge.NetworkSecurityGroupRuleDirection_NSG_RULE_DIRECTION_INGRESS},
		{"egress", forge.NetworkSecurityGroupRuleDirection_NSG_RULE_DIRECTION_EGRESS},
	}
	protocols = enum[forge.NetworkSecurityGroupRuleProtocol]{
		{"", forge.NetworkSecurityGroupRuleProtocol_NSG_RULE_PROTO_INVALID},
		{"any", forge.NetworkSecurityGroupRuleProtocol_NSG_RULE_PROTO_ANY},
		{"icmp", forge.NetworkSecurityGroupRuleProtocol_NSG_RULE_PROTO_ICMP},
		{"icmp6", forge.NetworkSecurityGroupRuleProtocol_NSG_RULE_PROTO_ICMP6},
		{"udp", forge.NetworkSecurityGroupRuleProtocol_NSG_RULE_PROTO_UDP},
		{"tcp", forge.NetworkSecurityGroupRuleProtocol_NSG_RULE_PROTO_TCP},
	}
	actions = enum[forge.NetworkSecurityGroupRuleAction]{
		{"", forge.NetworkSecurityGroupRuleAction_NSG_RULE_ACTION_INVALID},
		{"permit", forge.NetworkSecurityGroupRuleAction_NSG_RULE_ACTION_PERMIT},
		{"deny", forge.NetworkSecurityGroupRuleAction_NSG_RULE_ACTION_DENY},
	}
)

// groupRefusals are codes with a special meaning.
var groupRefusals = refusals{
	opCreate: {
		codes.FailedPrecondition: providers.Exists, // the name or the id is taken
		codes.Internal:           providers.Absent, // the tenant
	},
	opUpdate: {
		codes.FailedPrecondition: providers.Exists, // the name is taken
	},
	opDelete: {
		codes.FailedPrecondition: providers.Busy, // VPCs or instances use it
	},
}

type groups struct {
	*service
	changeableEarly
}

func (groups) known(id string) bool { return id != "" }

func (k groups) list(ctx context.Context) ([]string, error) {
	r, err := k.FindNetworkSecurityGroupIds(ctx, &forge.FindNetworkSecurityGroupIdsRequest{})
	return r.GetNetworkSecurityGroupIds(), err
}

// seenGroup is a group, and where it is not in force yet.
type seenGroup struct {
	*forge.NetworkSecurityGroup
	lacks string
}

func (k groups) get(ctx context.Context, ids []string) ([]seenGroup, error) {
	found, err := k.read(ctx, ids)
	seen := make([]seenGroup, len(found))
	for i, o := range found {
		seen[i].NetworkSecurityGroup = o
	}
	return seen, err
}

// complete reads which objects have the groups, and how far the groups have reached each of them.
func (k groups) complete(ctx context.Context, all []seenGroup) error {
	users, vpcs, instances, err := k.attached(ctx, all)
	if err != nil {
		return err
	}
	lacks, err := k.lacking(ctx, vpcs, instances)
	if err != nil {
		return err
	}
	byGroup := map[string][]string{}
	for group, objects := range users {
		for _, o := range objects {
			if l := lacks[o]; len(l) > 0 {
				byGroup[group] = append(byGroup[group], l...)
			}
		}
	}
	details, err := k.unfinished(ctx, byGroup)
	for i, o := range all {
		all[i].lacks = details[o.GetId()]
	}
	return err
}

// attached returns the VPCs and instances that have the groups, together and by group.
func (k groups) attached(ctx context.Context, all []seenGroup) (users map[string][]string, vpcs, instances []string, err error) {
	pages := slices.Collect(slices.Chunk(all, k.ids))
	answers := make([]*forge.GetNetworkSecurityGroupAttachmentsResponse, len(pages))
	err = k.together(ctx, len(pages), func(ctx context.Context, i int) (err error) {
		request := &forge.GetNetworkSecurityGroupAttachmentsRequest{}
		for _, o := range pages[i] {
			request.NetworkSecurityGroupIds = append(request.NetworkSecurityGroupIds, o.GetId())
		}
		answers[i], err = k.GetNetworkSecurityGroupAttachments(ctx, request)
		return err
	})
	if status.Code(err) == codes.Unimplemented {
		return nil, nil, nil, nil
	}
	users = map[string][]string{}
	for _, r := range answers {
		for _, a := range r.GetAttachments() {
			users[a.GetNetworkSecurityGroupId()] = slices.Concat(a.GetVpcIds(), a.GetInstanceIds())
			vpcs, instances = append(vpcs, a.GetVpcIds()...), append(instances, a.GetInstanceIds()...)
		}
	}
	return users, vpcs, instances, err
}

func (k groups) read(ctx context.Context, ids []string) ([]*forge.NetworkSecurityGroup, error) {
	r, err := k.FindNetworkSecurityGroupsByIds(ctx, &forge.FindNetworkSecurityGroupsByIdsRequest{NetworkSecurityGroupIds: ids})
	return r.GetNetworkSecurityGroups(), err
}

func (groups) thing(o seenGroup) providers.Thing {
	s := spec.NetworkSecurityGroup{
		Tenant: o.GetTenantOrganizationId(), StatefulEgress: o.GetAttributes().GetStatefulEgress(), Rules: each(o.GetAttributes().GetRules(), readRule),
	}
	var mark providers.Mark
	s.Description, s.Labels, mark = described(o.GetMetadata())
	return providers.Thing{
		ID: o.GetId(), Name: o.GetMetadata().GetName(), Mark: mark, Version: o.GetVersion(), Spec: s.Object(),
		Phase: spreading(o.lacks), Detail: o.lacks,
	}
}

func (k groups) create(ctx context.Context, c *call[spec.NetworkSecurityGroup]) error {
	made, err := k.CreateNetworkSecurityGroup(ctx, &forge.CreateNetworkSecurityGroupRequest{
		Id:                             &c.ID,
		TenantOrganizationId:           c.want.Tenant,
		Metadata:                       newMetadata(c.Call, c.want.Description, c.want.Labels),
		NetworkSecurityGroupAttributes: writeRules(c, nil),
	})
	c.Chose(made.GetNetworkSecurityGroup().GetId())
	return unless(ctx, err, tenants{k.service}.get, c.want.Tenant)
}

// update permits before it denies. A change that does both is made in two calls: the first adds what will be permitted to
// the existing rules, the second leaves the desired ones. Where the service does not accept the union of both, for
// example because there are too many rules, the change is made at once.
func (k groups) update(ctx context.Context, c *call[spec.NetworkSecurityGroup], now seenGroup) error {
	after := writeRules(c, proto.CloneOf(now.Attributes))
	request := &forge.UpdateNetworkSecurityGroupRequest{
		Id:                             now.Id,
		TenantOrganizationId:           now.TenantOrganizationId,
		Metadata:                       writeMetadata(c.Call, proto.CloneOf(now.Metadata), c.Called(), c.want.Description, c.want.Labels),
		IfVersionMatch:                 &now.Version,
		NetworkSecurityGroupAttributes: after,
	}
	between := wider(now.GetAttributes(), after)
	if between == nil {
		_, err := k.UpdateNetworkSecurityGroup(ctx, request)
		return err
	}
	r, err := k.UpdateNetworkSecurityGroup(ctx, &forge.UpdateNetworkSecurityGroupRequest{
		Id: now.Id, TenantOrganizationId: now.TenantOrganizationId, Metadata: now.Metadata,
		IfVersionMatch: &now.Version, NetworkSecurityGroupAttributes: between,
	})
	if status.Code(err) == codes.InvalidArgument {
		_, err = k.UpdateNetworkSecurityGroup(ctx, request)
		return err
	}
	if err != nil {
		return firstError{err}
	}
	version := r.GetNetworkSecurityGroup().GetVersion()
	request.IfVersionMatch = &version
	if _, err = k.UpdateNetworkSecurityGroup(ctx, request); err != nil {
		return halfwayError{err}
	}
	return nil
}

// delete must name the tenant of the group, and looks it up when the caller did not observe it.
func (k groups) delete(ctx context.Context, c *call[spec.NetworkSecurityGroup]) error {
	tenant := c.have.Tenant
	if tenant == "" {
		found, err := k.read(ctx, []string{c.ID})
		if err != nil {
			return unsentError{err}
		}
		if len(found) == 0 {
			return nil
		}
		tenant = found[0].GetTenantOrganizationId()
	}
	_, err := k.DeleteNetworkSecurityGroup(ctx, &forge.DeleteNetworkSecurityGroupRequest{Id: c.ID, TenantOrganizationId: tenant})
	return err
}

func readRule(r *forge.NetworkSecurityGroupRuleAttributes) spec.SecurityRule {
	ports := func(start, end *uint32) *spec.PortRange {
		if start == nil || end == nil {
			return nil
		}
		return &spec.PortRange{Start: int64(*start), End: int64(*end)}
	}
	return spec.SecurityRule{
		ID: r.GetId(), Direction: directions.word(r.GetDirection()), IPV6: r.GetIpv6(), Protocol: protocols.word(r.GetProtocol()),
		Action: actions.word(r.GetAction()), Priority: int64(r.GetPriority()), SrcPrefix: r.GetSrcPrefix(), DstPrefix: r.GetDstPrefix(),
		SrcPorts: ports(r.SrcPortStart, r.SrcPortEnd), DstPorts: ports(r.DstPortStart, r.DstPortEnd),
	}
}

// writeRules replaces the rules of a group. The service keeps their order, which we make the order of their effect.
func writeRules(c *call[spec.NetworkSecurityGroup], now *forge.NetworkSecurityGroupAttributes) *forge.NetworkSecurityGroupAttributes {
	if now == nil {
		now = &forge.NetworkSecurityGroupAttributes{}
	}
	now.StatefulEgress = c.want.StatefulEgress
	now.Rules = renew(now.Rules, c.want.Rules, readRule, writeRule, func(w *spec.SecurityRule) string { return w.ID })
	sortRules(now.Rules)
	return now
}

func writeRule(w *spec.SecurityRule, r *forge.NetworkSecurityGroupRuleAttributes) {
	r.Id = unlessZero(w.ID)
	r.Direction, r.Ipv6, r.Protocol = directions.value(w.Direction), w.IPV6, protocols.value(w.Protocol)
	r.Action, r.Priority = actions.value(w.Action), uint32(w.Priority)
	r.SourceNet = &forge.NetworkSecurityGroupRuleAttributes_SrcPrefix{SrcPrefix: w.SrcPrefix}
	r.DestinationNet = &forge.NetworkSecurityGroupRuleAttributes_DstPrefix{DstPrefix: w.DstPrefix}
	ports := func(p *spec.PortRange) (start, end *uint32) {
		if p == nil {
			return nil, nil
		}
		return narrow[uint32](&p.Start), narrow[uint32](&p.End)
	}
	r.SrcPortStart, r.SrcPortEnd = ports(w.SrcPorts)
	r.DstPortStart, r.DstPortEnd = ports(w.DstPorts)
}

// wider returns the intermediate group between two sets of rules when the change both permits and denies something: the
// existing rules with the newly permitting ones. What is denied before and after is also denied in between, so no
// denying rule is removed early. It is nil when a single step is harmless.
func wider(now, after *forge.NetworkSecurityGroupAttributes) *forge.NetworkSecurityGroupAttributes {
	had, has := effects(now), effects(after)
	ids := make(map[string]bool, len(had)+len(has)) // two versions of a rule have two ids for a moment
	for _, r := range slices.Concat(now.GetRules(), after.GetRules()) {
		ids[r.GetId()] = true
	}
	opens, shuts := !now.GetStatefulEgress() && after.GetStatefulEgress(), now.GetStatefulEgress() && !after.GetStatefulEgress()
	for effect, r := range had {
		shuts = shuts || permits(r) && has[effect] == nil
	}
	between := proto.CloneOf(after)
	between.StatefulEgress, between.Rules = now.GetStatefulEgress() || after.GetStatefulEgress(), slices.Clone(now.GetRules())
	for effect, r := range has {
		switch {
		case had[effect] != nil:
		case !permits(r):
			shuts = true
		default:
			opens = true
			r, id := proto.CloneOf(r), r.GetId()
			if slices.ContainsFunc(now.GetRules(), func(o *forge.NetworkSecurityGroupRuleAttributes) bool { return o.GetId() == id }) {
				for ids[id] {
					id += ".next"
				}
				ids[id] = true
			}
			r.Id = &id
			between.Rules = append(between.Rules, r)
		}
	}
	if !opens || !shuts {
		return nil
	}
	sortRules(between.Rules)
	return between
}

// effects returns the rules by what they do, whatever their ids.
func effects(a *forge.NetworkSecurityGroupAttributes) map[string]*forge.NetworkSecurityGroupRuleAttributes {
	m := make(map[string]*forge.NetworkSecurityGroupRuleAttributes, len(a.GetRules()))
	for _, r := range a.GetRules() {
		nameless := proto.CloneOf(r)
		nameless.Id = nil
		b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(nameless) // what came from the wire can be encoded again
		m[string(b)] = r
	}
	return m
}

func permits(r *forge.NetworkSecurityGroupRuleAttributes) bool {
	return r.GetAction() == forge.NetworkSecurityGroupRuleAction_NSG_RULE_ACTION_PERMIT
}

// sortRules sorts rules into the order of their effect.
func sortRules(rules []*forge.NetworkSecurityGroupRuleAttributes) {
	slices.SortFunc(rules, func(a, b *forge.NetworkSecurityGroupRuleAttributes) int {
		return cmp.Or(cmp.Compare(a.GetPriority(), b.GetPriority()), cmp.Compare(a.GetId(), b.GetId()))
	})
}
