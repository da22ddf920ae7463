package rules

import (
	"net/netip"
	"slices"
	"strconv"
)

// The kinds of Carbide that rules refer to.
const (
	carbideVPC           = "carbide.vpc"
	carbidePrefix        = "carbide.vpc_prefix"
	carbideSegment       = "carbide.network_segment"
	carbideSecurityGroup = "carbide.network_security_group"
	carbideKeyset        = "carbide.tenant_keyset"
	carbideInstance      = "carbide.instance"
	carbideInstanceType  = "carbide.instance_type"
	carbideMachine       = "carbide.machine"
)

// carbideRules report in advance what the site's service would refuse in the middle of a run, mostly as an internal error.
var carbideRules = []Rule{
	{"CV1121", "carbide-duplicate-vni", "VNI is used twice", "A VNI must belong to only one VPC", checks{sharedVNIs}},
	{"CV1122", "carbide-prefix-overlap", "VPC prefixes overlap", "VPC prefixes must not overlap, even across VPCs", checks{together{[]string{carbidePrefix}, checkPrefixOverlap}}},
	{"CV1123", "carbide-segment-overlap", "Segments overlap", "Segments must not overlap, even across VPCs", checks{together{[]string{carbideSegment}, checkSegmentOverlap}}},
	{"CV1124", "carbide-segment-in-prefix", "Segment conflicts with VPC prefix", "A segment that overlaps a VPC prefix must be inside it and in the same VPC", checks{together{[]string{carbidePrefix, carbideSegment}, checkSegmentInPrefix}}},
	{"CV1125", "carbide-gateway", "Gateway is not in its network", "A gateway must be an address strictly inside its network", checks{each{named(carbideSegment), checkGateways}}},
	{"CV1126", "carbide-segment-prefixes", "Segment networks are invalid", "A segment must have at least one network, at most one per IP version, each large enough for hosts", checks{each{named(carbideSegment), checkSegmentPrefixes}}},
	{"CV1127", "carbide-virtualization", "VPC does not support this", "A VPC can contain only what its virtualization supports", checks{each{named(carbideVPC), checkRoutingProfile}, each{named(carbideInstance), checkAutoVPC}, each{named(carbidePrefix), checkPrefixVPC}, each{named(carbideSegment), checkSegmentVPC}}},
	{"CV1128", "carbide-security-group-size", "Security group is too large", "A security group may have at most 200 rules after expansion", checks{each{named(carbideSecurityGroup), checkSecurityGroupSize}}},
	{"CV1129", "carbide-security-rule", "Security rule contradicts itself", "The parts of a security rule must be consistent", checks{each{named(carbideSecurityGroup), checkSecurityRules}}},
	{"CV1130", "carbide-metadata", "More than the service can store", "Labels and descriptions must fit within the limits of the service", checks{each{carbideKinds, checkMetadata}}},
	{"CV1131", "carbide-tenant", "Tenants do not match", "A resource may refer only to resources of the same tenant", checks{each{named(carbideVPC), checkVPCTenants}, each{named(carbideInstance), checkInstanceTenants}}},
	{"CV1132", "carbide-machine", "Machine cannot be used", "A machine can run only one instance, of its own type", checks{sharedMachines}},
	{"CV1133", "carbide-hostname", "Host name is used twice", "A host name must be unique within a tenant", checks{sharedHostnames}},
	{"CV1134", "carbide-instance-os", "Boot source is unclear", "An instance must have exactly one boot source", checks{each{named(carbideInstance), checkInstanceOS}}},
	{"CV1135", "carbide-interfaces", "Interfaces are inconsistent", "The interfaces of an instance must be consistent", checks{each{named(carbideInstance), checkInterfaces}}},
	{"CV1139", "carbide-management", "Management traffic would be blocked", "A security group that is in use must permit the traffic of policy.management", checks{guards}},
	{"CV1136", "carbide-address", "Address cannot be used", "An address must be used only once, and be inside the network it is requested from", checks{each{named(carbideInstance), checkAddresses}, sharedAddresses}},
	{"CV1137", "carbide-instance-script", "Entry would be stored as a script", "An instance may refer only to library entries that are based on a template", checks{each{named(carbideInstance), checkInstanceScripts}}},
	{"CV1138", "carbide-instance-fabrics", "Ports or services conflict", "An instance may have each port and service only once, and services only where it has a DPU", checks{each{named(carbideInstance), checkInstanceFabrics}}},
	{"CV1151", "carbide-peering", "VPCs are peered twice", "Two VPCs may be peered only once", checks{sharedPeerings}},
	{"CV1152", "carbide-partition-number", "Partition number is used twice", "A partition key or Spectrum-X VNI must belong to only one partition", checks{sharedPartitionNumbers}},
}

var sharedVNIs = &sharing{
	of: named(carbideVPC),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		if vni := intOf(r.Spec, "vni"); vni != 0 {
			has(key{strconv.FormatInt(vni, 10)}, "vni")
		}
	},
	check: taken("The VNI %s is already used by %s. Choose another, or omit it and the site chooses one."),
}

// A network is a block of addresses, and where it was declared.
type network struct {
	netip.Prefix
	of   *Resource
	path []string
}

// networks lists the networks of all resources of one kind, sorted so that a network comes before those inside it.
func (st *Site) networks(kind string) []network {
	var list []network
	add := func(r *Resource, text string, path ...string) {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			list = append(list, network{prefix.Masked(), r, path})
		}
	}
	for r := range st.sound(kind) {
		if kind == carbidePrefix {
			add(r, textOf(r.Spec, "prefix"), "prefix")
			continue
		}
		for i, e := range listOf(r.Spec, "prefixes") {
			add(r, textOf(objectOf(e), "prefix"), "prefixes", strconv.Itoa(i), "prefix")
		}
	}
	slices.SortStableFunc(list, compareNetworks)
	return list
}

func compareNetworks(a, b network) int { return a.Prefix.Compare(b.Prefix) }

// eachInside visits every network of a sorted list that is inside others, with those, the smallest last. Two networks
// are either nested or disjoint, so the enclosing ones form a stack.
func eachInside(list []network, visit func(inner network, around []network)) {
	var around []network
	for _, n := range list {
		for len(around) > 0 && !around[len(around)-1].Overlaps(n.Prefix) {
			around = around[:len(around)-1]
		}
		if len(around) > 0 {
			visit(n, around)
		}
		around = append(around, n)
	}
}

func checkPrefixOverlap(st *Site, p *reporter)  { checkOverlap(st, p, carbidePrefix) }
func checkSegmentOverlap(st *Site, p *reporter) { checkOverlap(st, p, carbideSegment) }

func checkOverlap(st *Site, p *reporter, kind string) {
	eachInside(st.networks(kind), func(inner network, around []network) {
		outer := around[len(around)-1]
		p.report(inner.of, inner.path, "The network %s overlaps with %s of %s. Use separate addresses for each.", inner, outer, outer.of.Ref)
	})
}

func checkSegmentInPrefix(st *Site, p *reporter) {
	// Prefixes first: the sort keeps the order of equals, so a segment that fills a prefix counts as inside it.
	list := slices.Concat(st.networks(carbidePrefix), st.networks(carbideSegment))
	slices.SortStableFunc(list, compareNetworks)
	eachInside(list, func(inner network, around []network) {
		i := len(around) - 1
		for i >= 0 && around[i].of.Ref.Kind == inner.of.Ref.Kind { // those are checked by the rules above
			i--
		}
		if i < 0 {
			return
		}
		outer := around[i]
		switch {
		case inner.of.Ref.Kind == carbidePrefix:
			p.report(inner.of, inner.path, "The VPC prefix %s covers only part of the segment %s of %s. Make the prefix cover the whole segment, or use addresses that do not overlap.", inner, outer, outer.of.Ref)
		case inner.of.Spec["vpc"] != outer.of.Spec["vpc"]:
			p.report(inner.of, inner.path, "The segment is in VPC %v, but its network %s is inside %s of %s, which belongs to VPC %v. Use addresses outside it.", inner.of.Spec["vpc"], inner, outer, outer.of.Ref, outer.of.Spec["vpc"])
		}
	})
}

func checkGateways(_ *Site, r *Resource, p *reporter) {
	for i, e := range listOf(r.Spec, "prefixes") {
		m := objectOf(e)
		prefix, err := netip.ParsePrefix(textOf(m, "prefix"))
		gateway, err2 := netip.ParseAddr(textOf(m, "gateway"))
		if err != nil || err2 != nil {
			continue
		}
		path := []string{"prefixes", strconv.Itoa(i), "gateway"}
		switch {
		case !prefix.Addr().Is4():
			p.report(r, path, "Only an IPv4 network can have a gateway. Remove it from %s.", prefix)
		case !prefix.Contains(gateway):
			p.report(r, path, "The gateway %s is not in %s. Use an address in the network, for example %s.", gateway, prefix, prefix.Masked().Addr().Next())
		case prefix.Bits() < 31 && (gateway == prefix.Masked().Addr() || gateway == lastAddr(prefix)):
			p.report(r, path, "The gateway %s is the network or broadcast address. Use an address between them, for example %s.", gateway, prefix.Masked().Addr().Next())
		}
	}
}

// lastAddr returns the last address of an IPv4 network.
func lastAddr(prefix netip.Prefix) netip.Addr {
	a := prefix.Masked().Addr().As4()
	for bit := prefix.Bits(); bit < 32; bit++ {
		a[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(a)
}

func checkSegmentPrefixes(_ *Site, r *Resource, p *reporter) {
	prefixes := listOf(r.Spec, "prefixes")
	if len(prefixes) == 0 {
		p.report(r, []string{"prefixes"}, "A segment needs at least one network: write prefixes: [{prefix: \"10.0.0.0/24\"}].")
	}
	var v4, v6 int
	for i, e := range prefixes {
		prefix, err := netip.ParsePrefix(textOf(objectOf(e), "prefix"))
		if err != nil {
			continue
		}
		path := []string{"prefixes", strconv.Itoa(i), "prefix"}
		count := &v6
		if prefix.Addr().Is4() {
			count = &v4
		}
		if *count++; *count == 2 {
			p.report(r, path, "The segment already has a network of this IP version. Use a separate segment for each network.")
		}
		if free := prefix.Addr().BitLen() - prefix.Bits(); textOf(r.Spec, "type") == "tenant" && free < 2 {
			p.report(r, path, "A tenant segment needs at least four addresses; %s has %d. Use a /%d or larger.", prefix, 1<<free, prefix.Addr().BitLen()-2)
		}
	}
}

func checkRoutingProfile(_ *Site, r *Resource, p *reporter) {
	if how := textOf(r.Spec, "virtualization"); how != "fnn" && r.Spec["routing_profile"] != nil {
		p.report(r, []string{"routing_profile"}, "Only a VPC with virtualization \"fnn\" can have a routing profile; this one has %q. Remove the profile, or change the virtualization.", how)
	}
}

func checkAutoVPC(st *Site, r *Resource, p *reporter) {
	vpc := st.target(r, carbideVPC, r.Spec["auto_vpc"])
	if vpc == nil {
		return
	}
	if how := textOf(vpc.Spec, "virtualization"); how != "flat" {
		p.report(r, []string{"auto_vpc"}, "The field auto_vpc needs a flat VPC; %s is %q. Use another VPC.", vpc.Ref.Name, how)
	}
}

func checkPrefixVPC(st *Site, r *Resource, p *reporter) {
	if vpc := st.target(r, carbideVPC, r.Spec["vpc"]); vpc != nil {
		checkIPv6(vpc, r, textOf(r.Spec, "prefix"), []string{"prefix"}, p)
	}
}

func checkSegmentVPC(st *Site, r *Resource, p *reporter) {
	vpc := st.target(r, carbideVPC, r.Spec["vpc"])
	if vpc == nil {
		return
	}
	how, sort := textOf(vpc.Spec, "virtualization"), textOf(r.Spec, "type")
	switch {
	case how == "flat" && sort != "host_inband":
		p.report(r, []string{"type"}, "The VPC %s is flat and accepts only segments of type \"host_inband\"; this one is %q.", vpc.Ref.Name, sort)
	case how != "flat" && sort == "host_inband":
		p.report(r, []string{"type"}, "Only a flat VPC accepts segments of type \"host_inband\"; %s is %q.", vpc.Ref.Name, how)
	}
	for i, e := range listOf(r.Spec, "prefixes") {
		checkIPv6(vpc, r, textOf(objectOf(e), "prefix"), []string{"prefixes", strconv.Itoa(i), "prefix"}, p)
	}
}

// checkIPv6 checks that a VPC carries a network of r.
func checkIPv6(vpc, r *Resource, text string, path []string, p *reporter) {
	prefix, err := netip.ParsePrefix(text)
	if err == nil && prefix.Addr().Is6() && textOf(vpc.Spec, "virtualization") == "ethernet_virtualizer" {
		p.report(r, path, "The VPC %s does not support IPv6: its virtualization is \"ethernet_virtualizer\". Use an IPv4 network, or another VPC.", vpc.Ref.Name)
	}
}

// maxSecurityRules is the maximum number of rules of a security group, where a rule counts as its source ports times its
// destination ports.
const maxSecurityRules = 200

func checkSecurityGroupSize(_ *Site, r *Resource, p *reporter) {
	var size int64
	for _, e := range listOf(r.Spec, "rules") {
		rule := objectOf(e)
		size += portCount(rule["src_ports"]) * portCount(rule["dst_ports"])
	}
	if size > maxSecurityRules {
		p.report(r, []string{"rules"}, "The rules expand to %d, %d more than the service accepts: each counts its source ports times its destination ports. Use fewer ports, all ports, or a second group.", size, size-maxSecurityRules)
	}
}

// portCount counts the ports of a range; an absent range is one entry for all ports.
func portCount(v any) int64 {
	m := objectOf(v)
	if m == nil {
		return 1
	}
	return max(intOf(m, "end")-intOf(m, "start")+1, 1)
}

func checkSecurityRules(_ *Site, r *Resource, p *reporter) {
	for i, e := range listOf(r.Spec, "rules") {
		checkSecurityRule(p, r, objectOf(e), []string{"rules", strconv.Itoa(i)})
	}
}

func checkSecurityRule(p *reporter, r *Resource, rule map[string]any, path []string) {
	at := func(names ...string) []string { return slices.Concat(path, names) }
	protocol, ipv6 := textOf(rule, "protocol"), boolOf(rule, "ipv6")
	if ipv6 && protocol == "icmp" || !ipv6 && protocol == "icmp6" {
		p.report(r, at("protocol"), "The protocol %s does not match the rule's IP version. ICMP needs ipv6: false, ICMP6 needs ipv6: true.", protocol)
	}
	for _, name := range []string{"src_prefix", "dst_prefix"} {
		prefix, err := netip.ParsePrefix(textOf(rule, name))
		if err == nil && prefix.Addr().Is6() != ipv6 {
			p.report(r, at(name), "The network %s does not match the rule's IP version: the rule has ipv6: %v.", prefix, ipv6)
		}
	}
	for _, name := range []string{"src_ports", "dst_ports"} {
		ports := objectOf(rule[name])
		if ports == nil {
			continue
		}
		if protocol != "tcp" && protocol != "udp" {
			p.report(r, at(name), "Only TCP and UDP have ports; the protocol is %q. Remove the ports, or write one rule each for TCP and UDP.", protocol)
		}
		if start, end := intOf(ports, "start"), intOf(ports, "end"); end < start {
			p.report(r, at(name, "end"), "The last port, %d, is below the first, %d. Swap them.", end, start)
		}
	}
}

// maxLabels is how many labels of an object are left to the document: the service stores ten, converge needs one.
const maxLabels = 9

// maxLabel is how many bytes of a label's value the service stores; the schema counts characters.
const maxLabel = 255

// maxDescription is how many bytes of a description the service stores.
const maxDescription = 1024

func checkMetadata(_ *Site, r *Resource, p *reporter) {
	if n := len(objectOf(r.Spec["labels"])); n > maxLabels {
		p.report(r, []string{"labels"}, "There are %d labels. The service stores 10 and converge needs one for its ownership mark, so %d are left. Remove %d.", n, maxLabels, n-maxLabels)
	}
	for key, v := range sorted(r.Spec["labels"]) {
		if value, _ := v.(string); len(value) > maxLabel {
			p.report(r, []string{"labels", key}, "The value has %d bytes; the service stores at most %d. Shorten it.", len(value), maxLabel)
		}
	}
	if n := len(textOf(r.Spec, "description")); n > maxDescription {
		p.report(r, []string{"description"}, "The description has %d bytes; the service stores at most %d. Shorten it.", n, maxDescription)
	}
}
