package carbidesim

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

const (
	tcp   = forge.NetworkSecurityGroupRuleProtocol_NSG_RULE_PROTO_TCP
	icmp  = forge.NetworkSecurityGroupRuleProtocol_NSG_RULE_PROTO_ICMP
	icmp6 = forge.NetworkSecurityGroupRuleProtocol_NSG_RULE_PROTO_ICMP6
	anyIP = forge.NetworkSecurityGroupRuleProtocol_NSG_RULE_PROTO_ANY
)

// permit returns a rule that permits a protocol from 10.0.0.0/8 to anywhere.
func permit(id string, p forge.NetworkSecurityGroupRuleProtocol) *forge.NetworkSecurityGroupRuleAttributes {
	return &forge.NetworkSecurityGroupRuleAttributes{
		Id:             optional(id),
		Direction:      forge.NetworkSecurityGroupRuleDirection_NSG_RULE_DIRECTION_INGRESS,
		Protocol:       p,
		Action:         forge.NetworkSecurityGroupRuleAction_NSG_RULE_ACTION_PERMIT,
		Priority:       100,
		SourceNet:      &forge.NetworkSecurityGroupRuleAttributes_SrcPrefix{SrcPrefix: "10.0.0.0/8"},
		DestinationNet: &forge.NetworkSecurityGroupRuleAttributes_DstPrefix{DstPrefix: "0.0.0.0/0"},
	}
}

func ruleSet(rules ...*forge.NetworkSecurityGroupRuleAttributes) *forge.NetworkSecurityGroupAttributes {
	return &forge.NetworkSecurityGroupAttributes{Rules: rules}
}

func (b *workbench) group(id, org, name string) error {
	return failed(b.CreateNetworkSecurityGroup(ctx, &forge.CreateNetworkSecurityGroupRequest{
		Id: &id, TenantOrganizationId: org, Metadata: named(name),
	}))
}

func (b *workbench) findGroup(id string) *forge.NetworkSecurityGroup {
	b.Helper()
	found := ok(b.FindNetworkSecurityGroupsByIds(ctx, &forge.FindNetworkSecurityGroupsByIdsRequest{NetworkSecurityGroupIds: []string{id}})).NetworkSecurityGroups
	if len(found) != 1 {
		b.Fatalf("%d groups with id %s", len(found), id)
	}
	return found[0]
}

func TestSecurityGroupRules(t *testing.T) {
	b := start(t, Options{Rules: Rules{MaxRules: 10}})
	b.tenant("acme")
	n := 0
	create := func(rules ...*forge.NetworkSecurityGroupRuleAttributes) error {
		n++
		return failed(b.CreateNetworkSecurityGroup(ctx, &forge.CreateNetworkSecurityGroupRequest{
			TenantOrganizationId: "acme", Metadata: named(strings.Repeat("x", n+1)), NetworkSecurityGroupAttributes: ruleSet(rules...),
		}))
	}
	but := func(r *forge.NetworkSecurityGroupRuleAttributes, change func(*forge.NetworkSecurityGroupRuleAttributes)) *forge.NetworkSecurityGroupRuleAttributes {
		change(r)
		return r
	}
	type rule = forge.NetworkSecurityGroupRuleAttributes
	ports := func(from, to uint32) func(*rule) {
		return func(r *rule) { r.DstPortStart, r.DstPortEnd = &from, &to }
	}
	six := func(r *rule) {
		r.Ipv6 = true
		r.SourceNet = &forge.NetworkSecurityGroupRuleAttributes_SrcPrefix{SrcPrefix: "fd00::/8"}
		r.DestinationNet = &forge.NetworkSecurityGroupRuleAttributes_DstPrefix{DstPrefix: "::/0"}
	}
	b.refusals([]refusal{
		{"no rules", create(), codes.OK, ""},
		{"no direction", create(but(permit("a", tcp), func(r *rule) { r.Direction = 0 })), codes.InvalidArgument, "direction"},
		{"no protocol", create(permit("a", 0)), codes.InvalidArgument, "protocol"},
		{"unknown protocol", create(permit("a", 77)), codes.InvalidArgument, "protocol"},
		{"no action", create(but(permit("a", tcp), func(r *rule) { r.Action = 0 })), codes.InvalidArgument, "action"},
		{"highest priority", create(but(permit("a", tcp), func(r *rule) { r.Priority = 60000 })), codes.OK, ""},
		{"priority too high", create(but(permit("a", tcp), func(r *rule) { r.Priority = 60001 })), codes.InvalidArgument, "priority"},
		{"no source", create(but(permit("a", tcp), func(r *rule) { r.SourceNet = nil })), codes.InvalidArgument, "source_net"},
		{"no destination", create(but(permit("a", tcp), func(r *rule) { r.DestinationNet = nil })), codes.InvalidArgument, "destination_net"},
		{"wrong family", create(but(permit("a", tcp), func(r *rule) { r.Ipv6 = true })), codes.InvalidArgument, "family"},
		{"IPv6", create(but(permit("a", tcp), six)), codes.OK, ""},
		{"ports without TCP", create(but(permit("a", anyIP), ports(1, 2))), codes.InvalidArgument, "UDP or TCP"},
		{"start without end", create(but(permit("a", tcp), func(r *rule) { r.SrcPortStart = proto.Uint32(1) })), codes.InvalidArgument, "together"},
		{"end before start", create(but(permit("a", tcp), ports(2, 1))), codes.InvalidArgument, "range"},
		{"port too high", create(but(permit("a", tcp), ports(1, 65536))), codes.InvalidArgument, "range"},
		{"ICMP in IPv6", create(but(permit("a", icmp), six)), codes.InvalidArgument, "IPv4 only"},
		{"ICMP6 in IPv4", create(permit("a", icmp6)), codes.InvalidArgument, "IPv6 only"},
		{"ICMP6 in IPv6", create(but(permit("a", icmp6), six)), codes.OK, ""},
		{"ids twice", create(permit("a", tcp), permit("a", tcp)), codes.InvalidArgument, "duplicate rule id"},
		{"ten after expansion", create(but(permit("a", tcp), ports(1, 9)), permit("b", tcp)), codes.OK, ""},
		{"eleven after expansion", create(but(permit("a", tcp), ports(1, 10)), permit("b", tcp)), codes.InvalidArgument, "expand to 11"},
	})
}

func TestSecurityGroupReadsBackAsItWasSent(t *testing.T) {
	b := start(t, Options{})
	b.tenant("acme")
	first, second := permit("b", tcp), permit("a", tcp)
	second.SourceNet = &forge.NetworkSecurityGroupRuleAttributes_SrcPrefix{SrcPrefix: "10.0.0.5"}
	nameless := permit("", icmp)
	sent := ruleSet(first, second, nameless)
	sent.StatefulEgress = true
	ok(b.CreateNetworkSecurityGroup(ctx, &forge.CreateNetworkSecurityGroupRequest{
		Id: text("web"), TenantOrganizationId: "acme", Metadata: named("web"), NetworkSecurityGroupAttributes: sent,
	}))
	g := b.findGroup("web")
	rules := g.Attributes.Rules
	if len(rules) != 3 || *rules[0].Id != "b" || *rules[1].Id != "a" || !g.Attributes.StatefulEgress {
		t.Fatalf("read back %v", g.Attributes)
	}
	if rules[1].GetSrcPrefix() != "10.0.0.5/32" {
		t.Errorf("prefix reads back as %s", rules[1].GetSrcPrefix())
	}
	// A rule without an id gets another one with every update, and every update changes the token.
	again := ok(b.UpdateNetworkSecurityGroup(ctx, &forge.UpdateNetworkSecurityGroupRequest{
		Id: "web", TenantOrganizationId: "acme", Metadata: named("web"), NetworkSecurityGroupAttributes: sent, IfVersionMatch: &g.Version,
	})).NetworkSecurityGroup
	if again.Attributes.Rules[2].GetId() == rules[2].GetId() || again.Version == g.Version {
		t.Errorf("after the same update: %v", again)
	}
	bare := ok(b.UpdateNetworkSecurityGroup(ctx, &forge.UpdateNetworkSecurityGroupRequest{Id: "web", TenantOrganizationId: "acme", Metadata: named("web")})).NetworkSecurityGroup
	if len(bare.Attributes.Rules) != 0 || bare.Attributes.StatefulEgress {
		t.Errorf("rules that were left out are still there: %v", bare)
	}
}

func TestSecurityGroupNamesAndIDs(t *testing.T) {
	b := start(t, Options{})
	b.tenant("acme")
	b.tenant("other")
	update := func(id, org, name string) error {
		return failed(b.UpdateNetworkSecurityGroup(ctx, &forge.UpdateNetworkSecurityGroupRequest{Id: id, TenantOrganizationId: org, Metadata: named(name)}))
	}
	remove := func(id, org string) error {
		return failed(b.DeleteNetworkSecurityGroup(ctx, &forge.DeleteNetworkSecurityGroupRequest{Id: id, TenantOrganizationId: org}))
	}
	b.refusals([]refusal{
		{"first", b.group("web", "acme", "web"), codes.OK, ""},
		{"name taken", b.group("web2", "acme", "web"), codes.FailedPrecondition, "already exists"},
		{"id taken", b.group("web", "acme", "db"), codes.FailedPrecondition, "already exists"},
		{"id taken by another tenant", b.group("web", "other", "db"), codes.FailedPrecondition, "already exists"},
		{"name of another tenant's", b.group("web2", "other", "web"), codes.OK, ""},
		{"unknown tenant", b.group("web3", "nobody", "web"), codes.Internal, "violates"},
		{"empty id", b.group("", "acme", "x1"), codes.InvalidArgument, "empty"},
		{"long id", b.group(strings.Repeat("x", 65), "acme", "x1"), codes.Internal, "too long"},

		{"update may not take another tenant's name", func() error { _ = b.group("db", "other", "db"); return update("web", "acme", "db") }(), codes.FailedPrecondition, "already exists"},
		{"not even keep its own, which both have", update("web", "acme", "web"), codes.FailedPrecondition, "already exists"},
		{"wrong tenant", update("web", "other", "w"), codes.InvalidArgument, "name"},
		{"wrong tenant", update("web", "other", "ww"), codes.NotFound, "web"},
		{"unknown", update("x", "acme", "ww"), codes.NotFound, "x"},
		{"delete from the wrong tenant", remove("web", "other"), codes.InvalidArgument, "another tenant"},
		{"delete", remove("web", "acme"), codes.OK, ""},
		{"delete again", remove("web", "acme"), codes.NotFound, "web"},
		{"id again", b.group("web", "acme", "new"), codes.Internal, "duplicate key"},
		{"name again", b.group("web9", "acme", "web"), codes.OK, ""},
	})
	for _, c := range []struct {
		filter *forge.FindNetworkSecurityGroupIdsRequest
		want   int
	}{
		{&forge.FindNetworkSecurityGroupIdsRequest{}, 3},
		{&forge.FindNetworkSecurityGroupIdsRequest{Name: text("web")}, 2},
		{&forge.FindNetworkSecurityGroupIdsRequest{Name: text("web"), TenantOrganizationId: text("acme")}, 1},
	} {
		if got := ok(b.FindNetworkSecurityGroupIds(ctx, c.filter)).NetworkSecurityGroupIds; len(got) != c.want {
			t.Errorf("filter %v: %v", c.filter, got)
		}
	}
}

func TestSecurityGroupInUse(t *testing.T) {
	b := start(t, Options{Hosts: Hosts{Count: 2}})
	b.tenant("acme")
	if err := b.group("web", "acme", "web"); err != nil {
		t.Fatal(err)
	}
	remove := func() error {
		return failed(b.DeleteNetworkSecurityGroup(ctx, &forge.DeleteNetworkSecurityGroupRequest{Id: "web", TenantOrganizationId: "acme"}))
	}
	ok(b.CreateVpc(ctx, &forge.VpcCreationRequest{Id: vpcID(uid(1)), TenantOrganizationId: "acme", NetworkSecurityGroupId: text("web")}))
	b.refuses(remove(), codes.FailedPrecondition, "attached")

	ok(b.CreateVpcPrefix(ctx, &forge.VpcPrefixCreationRequest{Id: prefixID(uid(2)), VpcId: vpcID(uid(1)), Prefix: "10.0.0.0/24"}))
	hosts := b.hosts(&forge.MachineSearchConfig{})
	own := onPrefix(uid(2))
	own.NetworkSecurityGroupId = text("web")
	b.allocate(uid(0x10), hosts[0], own)
	b.allocate(uid(0x11), hosts[1], onPrefix(uid(2)))

	got := ok(b.GetNetworkSecurityGroupAttachments(ctx, &forge.GetNetworkSecurityGroupAttachmentsRequest{NetworkSecurityGroupIds: []string{"web"}})).Attachments
	if len(got) != 1 || len(got[0].VpcIds) != 1 || got[0].VpcIds[0] != uid(1) || len(got[0].InstanceIds) != 1 || got[0].InstanceIds[0] != uid(0x10) {
		t.Errorf("attachments %v", got)
	}

	spread := func() (vpc, instance *forge.NetworkSecurityGroupPropagationObjectStatus) {
		t.Helper()
		r := ok(b.GetNetworkSecurityGroupPropagationStatus(ctx, &forge.GetNetworkSecurityGroupPropagationStatusRequest{
			VpcIds: []string{uid(1)}, InstanceIds: []string{uid(0x10), uid(0x11)},
		}))
		if len(r.Vpcs) != 1 || len(r.Instances) != 1 { // the second instance has no group of its own
			t.Fatalf("propagation %v", r)
		}
		return r.Vpcs[0], r.Instances[0]
	}
	const full, none = forge.NetworkSecurityGroupPropagationStatus_NSG_PROP_STATUS_FULL, forge.NetworkSecurityGroupPropagationStatus_NSG_PROP_STATUS_NONE
	vpc, instance := spread()
	if vpc.Status != none || instance.Status != none || len(vpc.UnpropagatedInstanceIds) != 1 || vpc.RelatedInstanceIds[0] != uid(0x11) {
		t.Errorf("while the hosts are prepared: %v, %v", vpc, instance)
	}
	b.clock.pass(RealTiming.Provision)
	if vpc, instance = spread(); vpc.Status != full || instance.Status != full {
		t.Errorf("when they are ready: %v, %v", vpc, instance)
	}
	ok(b.UpdateNetworkSecurityGroup(ctx, &forge.UpdateNetworkSecurityGroupRequest{Id: "web", TenantOrganizationId: "acme", Metadata: named("web")}))
	if vpc, _ = spread(); vpc.Status != none {
		t.Errorf("after a change: %v", vpc)
	}
	b.clock.pass(RealTiming.Tick)
	if vpc, _ = spread(); vpc.Status != full {
		t.Errorf("one round later: %v", vpc)
	}

	if err := b.world.LeaveBehind(uid(0x11), true); err != nil {
		t.Fatal(err)
	}
	if vpc, _ = spread(); vpc.Status != full {
		t.Errorf("an instance that is left behind forgot what it has: %v", vpc)
	}
	ok(b.UpdateNetworkSecurityGroup(ctx, &forge.UpdateNetworkSecurityGroupRequest{Id: "web", TenantOrganizationId: "acme", Metadata: named("web")}))
	b.clock.pass(time.Hour)
	if vpc, instance = spread(); vpc.Status != none || instance.Status != full || vpc.UnpropagatedInstanceIds[0] != uid(0x11) {
		t.Errorf("with an instance left behind: %v, %v", vpc, instance)
	}
	if err := b.world.LeaveBehind(uid(0x11), false); err != nil {
		t.Fatal(err)
	}
	if vpc, _ = spread(); vpc.Status != full {
		t.Errorf("when it has caught up: %v", vpc)
	}

	ok(b.UpdateVpc(ctx, &forge.VpcUpdateRequest{Id: vpcID(uid(1))})) // removes the group
	b.refuses(remove(), codes.FailedPrecondition, "attached")
	ok(b.ReleaseInstance(ctx, &forge.InstanceReleaseRequest{Id: instanceID(uid(0x10))}))
	b.refuses(remove(), codes.FailedPrecondition, "attached")
	b.clock.pass(RealTiming.Release)
	if err := remove(); err != nil {
		t.Error(err)
	}
}
