package carbidesim

import (
	"net/netip"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"converge.dev/converge/providers/carbide/forge"
)

// readRules checks a rule set and converts it to the stored form. Rules keep their order. A rule without an id gets a new
// one every time, so ids are stable only for a client that sends them.
func (s *site) readRules(in *forge.NetworkSecurityGroupAttributes) (*forge.NetworkSecurityGroupAttributes, error) {
	out := &forge.NetworkSecurityGroupAttributes{StatefulEgress: in.GetStatefulEgress()}
	ids := map[string]bool{}
	size := 0
	for i, r := range in.GetRules() {
		rule := proto.Clone(r).(*forge.NetworkSecurityGroupRuleAttributes)
		if rule.Id == nil {
			rule.Id = proto.String(s.newID())
		}
		if ids[*rule.Id] {
			return nil, invalid("duplicate rule id %s", *rule.Id)
		}
		ids[*rule.Id] = true
		n, err := checkRule(rule)
		if err != nil {
			return nil, invalid("rule %d: %s", i, status.Convert(err).Message())
		}
		size += n
		out.Rules = append(out.Rules, rule)
	}
	if size > s.rules.MaxRules {
		return nil, invalid("the rules expand to %d, at most %d are allowed", size, s.rules.MaxRules)
	}
	return out, nil
}

// checkRule normalises the prefixes of a rule and returns how many rules it expands to on a host.
func checkRule(r *forge.NetworkSecurityGroupRuleAttributes) (size int, err error) {
	for _, e := range []struct {
		what  string
		value int32
		names map[int32]string
	}{
		{"direction", int32(r.Direction), forge.NetworkSecurityGroupRuleDirection_name},
		{"protocol", int32(r.Protocol), forge.NetworkSecurityGroupRuleProtocol_name},
		{"action", int32(r.Action), forge.NetworkSecurityGroupRuleAction_name},
	} {
		if e.value == 0 || e.names[e.value] == "" {
			return 0, invalid("invalid %s %d", e.what, e.value)
		}
	}
	if r.Priority > 60000 {
		return 0, invalid("priority must be at most 60000, got %d", r.Priority)
	}
	source, ok := r.SourceNet.(*forge.NetworkSecurityGroupRuleAttributes_SrcPrefix)
	if !ok {
		return 0, missing("source_net")
	}
	if source.SrcPrefix, err = rulePrefix(source.SrcPrefix, r.Ipv6); err != nil {
		return 0, err
	}
	destination, ok := r.DestinationNet.(*forge.NetworkSecurityGroupRuleAttributes_DstPrefix)
	if !ok {
		return 0, missing("destination_net")
	}
	if destination.DstPrefix, err = rulePrefix(destination.DstPrefix, r.Ipv6); err != nil {
		return 0, err
	}
	switch r.Protocol {
	case forge.NetworkSecurityGroupRuleProtocol_NSG_RULE_PROTO_ICMP:
		if r.Ipv6 {
			return 0, invalid("ICMP is for IPv4 only")
		}
	case forge.NetworkSecurityGroupRuleProtocol_NSG_RULE_PROTO_ICMP6:
		if !r.Ipv6 {
			return 0, invalid("ICMP6 is for IPv6 only")
		}
	}
	ports := r.Protocol == forge.NetworkSecurityGroupRuleProtocol_NSG_RULE_PROTO_UDP ||
		r.Protocol == forge.NetworkSecurityGroupRuleProtocol_NSG_RULE_PROTO_TCP
	from, err := portCount(ports, r.SrcPortStart, r.SrcPortEnd)
	if err != nil {
		return 0, err
	}
	to, err := portCount(ports, r.DstPortStart, r.DstPortEnd)
	return from * to, err
}

// rulePrefix parses and prints, which is all the normalisation that the real service does: host bits stay.
func rulePrefix(text string, ipv6 bool) (string, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return "", invalid("invalid prefix %q", text)
		}
		prefix = netip.PrefixFrom(address, address.BitLen())
	}
	if prefix.Addr().Is6() != ipv6 {
		return "", invalid("prefix %s is of the wrong address family", text)
	}
	return prefix.String(), nil
}

func portCount(allowed bool, start, end *uint32) (int, error) {
	switch {
	case start == nil && end == nil:
		return 1, nil
	case start == nil || end == nil:
		return 0, invalid("start and end of a port range go together")
	case !allowed:
		return 0, invalid("ports need protocol UDP or TCP")
	case *start > *end || *end > 65535:
		return 0, invalid("invalid port range %d-%d", *start, *end)
	}
	return int(*end-*start) + 1, nil
}
