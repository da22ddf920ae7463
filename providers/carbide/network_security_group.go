package carbide

import (
	"cmp"
	"context"
	"slices"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

var groupTraits = providers.Traits{
	Create: providers.Conditional, Update: providers.Versioned, Delete: providers.Blind,
	Mark: true, Burned: true, Late: late,
	UndoCreate: providers.Exact, UndoUpdate: providers.Exact, UndoDelete: providers.Replace,
	Reach: providers.ReachTenant,
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

type groups struct{ *service }

func (groups) known(id string) bool { return id != "" }

func (k groups) list(ctx context.Context) ([]string, error) {
	r, err := k.FindNetworkSecurityGroupIds(ctx, &forge.FindNetworkSecurityGroupIdsRequest{})
	return r.GetNetworkSecurityGroupIds(), err
}

func (k groups) get(ctx context.Context, ids []string) ([]*forge.NetworkSecurityGroup, error) {
	r, err := k.FindNetworkSecurityGroupsByIds(ctx, &forge.FindNetworkSecurityGroupsByIdsRequest{NetworkSecurityGroupIds: ids})
	return r.GetNetworkSecurityGroups(), err
}

func (groups) thing(o *forge.NetworkSecurityGroup) providers.Thing {
	spec := schema.Object{
		"tenant":          o.GetTenantOrganizationId(),
		"stateful_egress": o.GetAttributes().GetStatefulEgress(),
	}
	mark := readMetadata(o.GetMetadata(), spec)
	putList(spec, "rules", list(o.GetAttributes().GetRules(), func(r *forge.NetworkSecurityGroupRuleAttributes) any { return readRule(r) }))
	return providers.Thing{
		ID: o.GetId(), Name: o.GetMetadata().GetName(), Mark: mark, Version: o.GetVersion(), Spec: spec, Phase: providers.Ready,
	}
}

func (k groups) create(ctx context.Context, c *providers.Call) error {
	_, err := k.CreateNetworkSecurityGroup(ctx, &forge.CreateNetworkSecurityGroupRequest{
		Id:                             &c.ID,
		TenantOrganizationId:           text(c.Want, "tenant"),
		Metadata:                       newMetadata(c),
		NetworkSecurityGroupAttributes: writeRules(c, nil),
	})
	return unless(ctx, err, tenants(k).get, text(c.Want, "tenant"))
}

func (k groups) update(ctx context.Context, c *providers.Call, now *forge.NetworkSecurityGroup) error {
	_, err := k.UpdateNetworkSecurityGroup(ctx, &forge.UpdateNetworkSecurityGroupRequest{
		Id:                             now.Id,
		TenantOrganizationId:           now.TenantOrganizationId,
		Metadata:                       writeMetadata(c, now.Metadata, c.Ref.Name),
		IfVersionMatch:                 &now.Version,
		NetworkSecurityGroupAttributes: writeRules(c, now.Attributes),
	})
	return err
}

// delete must say whose group it is, and looks it up when the caller did not see it.
func (k groups) delete(ctx context.Context, c *providers.Call) error {
	tenant := text(c.Have, "tenant")
	if tenant == "" {
		found, err := k.get(ctx, []string{c.ID})
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

func readRule(r *forge.NetworkSecurityGroupRuleAttributes) map[string]any {
	rule := map[string]any{
		"id":         r.GetId(),
		"direction":  directions.word(r.GetDirection()),
		"ipv6":       r.GetIpv6(),
		"protocol":   protocols.word(r.GetProtocol()),
		"action":     actions.word(r.GetAction()),
		"priority":   int64(r.GetPriority()),
		"src_prefix": r.GetSrcPrefix(),
		"dst_prefix": r.GetDstPrefix(),
	}
	ports := func(field string, start, end *uint32) {
		if start != nil && end != nil {
			rule[field] = map[string]any{"start": int64(*start), "end": int64(*end)}
		}
	}
	ports("src_ports", r.SrcPortStart, r.SrcPortEnd)
	ports("dst_ports", r.DstPortStart, r.DstPortEnd)
	return rule
}

// writeRules replaces the rules of a group. The service keeps their order, which we make that of their effect.
func writeRules(c *providers.Call, now *forge.NetworkSecurityGroupAttributes) *forge.NetworkSecurityGroupAttributes {
	if now == nil {
		now = &forge.NetworkSecurityGroupAttributes{}
	}
	have := make(map[string]*forge.NetworkSecurityGroupRuleAttributes, len(now.Rules))
	for _, r := range now.Rules {
		have[r.GetId()] = r
	}
	now.StatefulEgress, now.Rules = truth(c.Want, "stateful_egress"), nil
	for _, rule := range structs(c.Want, "rules") {
		r := have[text(rule, "id")]
		if r == nil {
			r = &forge.NetworkSecurityGroupRuleAttributes{}
		}
		writeRule(rule, r)
		now.Rules = append(now.Rules, r)
	}
	slices.SortFunc(now.Rules, func(a, b *forge.NetworkSecurityGroupRuleAttributes) int {
		return cmp.Or(cmp.Compare(a.GetPriority(), b.GetPriority()), cmp.Compare(a.GetId(), b.GetId()))
	})
	return now
}

func writeRule(rule map[string]any, r *forge.NetworkSecurityGroupRuleAttributes) {
	r.Id = optional(rule, "id")
	r.Direction = directions.value(rule["direction"])
	r.Ipv6 = truth(rule, "ipv6")
	r.Protocol = protocols.value(rule["protocol"])
	r.Action = actions.value(rule["action"])
	if p := number[uint32](rule, "priority"); p != nil {
		r.Priority = *p
	}
	r.SourceNet = &forge.NetworkSecurityGroupRuleAttributes_SrcPrefix{SrcPrefix: text(rule, "src_prefix")}
	r.DestinationNet = &forge.NetworkSecurityGroupRuleAttributes_DstPrefix{DstPrefix: text(rule, "dst_prefix")}
	src, _ := rule["src_ports"].(map[string]any)
	dst, _ := rule["dst_ports"].(map[string]any)
	r.SrcPortStart, r.SrcPortEnd = number[uint32](src, "start"), number[uint32](src, "end")
	r.DstPortStart, r.DstPortEnd = number[uint32](dst, "start"), number[uint32](dst, "end")
}
