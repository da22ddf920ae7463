package rules

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"converge.dev/converge/schema"
)

// A flow is a set of packets that are permitted or denied: those of policy.management, or those that a rule matches.
type flow struct {
	egress   bool
	protocol string // any: all protocols
	src, dst netip.Prefix
	ports    [2]int64 // destination ports; the whole range when none are stated
	sources  bool     // restricted to some source ports
}

var allPorts = [2]int64{0, 65535}

// overlaps reports whether some packets belong to both.
func (f flow) overlaps(o flow) bool {
	return f.egress == o.egress && f.src.Overlaps(o.src) && f.dst.Overlaps(o.dst) &&
		(f.protocol == o.protocol || f.protocol == "any" || o.protocol == "any") &&
		f.ports[0] <= o.ports[1] && o.ports[0] <= f.ports[1]
}

// covers reports whether all packets of o belong to f.
func (f flow) covers(o flow) bool {
	within := func(outer, inner netip.Prefix) bool { return outer.Bits() <= inner.Bits() && outer.Overlaps(inner) }
	return f.overlaps(o) && !f.sources && within(f.src, o.src) && within(f.dst, o.dst) &&
		(f.protocol == "any" || f.protocol == o.protocol) && f.ports[0] <= o.ports[0] && o.ports[1] <= f.ports[1]
}

// A managementFlow is an entry of policy.management.
type managementFlow struct {
	name string
	flow
}

// managementFlows reads policy.management; malformed values are left to other rules.
func managementFlows(policy map[string]any) (flows []managementFlow) {
	for name, v := range sorted(policy["management"]) {
		m := objectOf(v)
		src, err := netip.ParsePrefix(textOf(m, "src_prefix"))
		if err != nil {
			continue
		}
		f := flow{egress: textOf(m, "direction") == "egress", protocol: cmp.Or(textOf(m, "protocol"), "tcp"), src: src.Masked(), ports: allPorts}
		everywhere := "0.0.0.0/0"
		if src.Addr().Is6() {
			everywhere = "::/0"
		}
		if f.dst, err = netip.ParsePrefix(cmp.Or(textOf(m, "dst_prefix"), everywhere)); err != nil {
			continue
		}
		if port := intOf(m, "port"); port != 0 {
			f.ports = [2]int64{port, port}
		}
		flows = append(flows, managementFlow{name, f})
	}
	return flows
}

// A filterRule is a rule of a security group.
type filterRule struct {
	flow
	id       string
	permits  bool
	priority int64
	index    int // in the spec
}

func filterRules(spec schema.Object) []filterRule {
	var rules []filterRule
	for i, e := range listOf(spec, "rules") {
		o := objectOf(e)
		r := filterRule{id: textOf(o, "id"), permits: textOf(o, "action") == "permit", priority: intOf(o, "priority"), index: i}
		r.egress, r.protocol, r.ports = textOf(o, "direction") == "egress", textOf(o, "protocol"), allPorts
		var errs [2]error
		r.src, errs[0] = netip.ParsePrefix(textOf(o, "src_prefix"))
		r.dst, errs[1] = netip.ParsePrefix(textOf(o, "dst_prefix"))
		if errs[0] != nil || errs[1] != nil {
			continue
		}
		if p := objectOf(o["dst_ports"]); p != nil {
			r.ports = [2]int64{intOf(p, "start"), intOf(p, "end")}
		}
		r.sources = o["src_ports"] != nil
		rules = append(rules, r)
	}
	slices.SortFunc(rules, func(a, b filterRule) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), strings.Compare(a.id, b.id))
	})
	return rules
}

// guards checks each group that something names. Rules apply to a packet in the order of their numbers, and among
// equals in the order of ids; a packet that no rule permits counts as denied.
var guards = &sharing{
	of: named(carbideSecurityGroup, carbideVPC, carbideInstance),
	keys: func(st *Site, r *Resource, has func(k key, path ...string)) {
		if len(st.management) == 0 {
			return
		}
		if r.Ref.Kind == carbideSecurityGroup {
			has(key{r.Ref.Name})
		} else if group := textOf(r.Spec, "network_security_group"); group != "" {
			has(key{group})
		}
	},
	check: func(st *Site, r *Resource, _ []string, _ key, shared []*Resource, n int, p *reporter) {
		if r.Ref.Kind != carbideSecurityGroup {
			return
		}
		guarded := shared[0] // instances come before groups, and VPCs after them
		if n+1 < len(shared) {
			guarded = shared[n+1]
		}
		rules := filterRules(r.Spec)
		for _, f := range st.management {
			if cut, path := cutBy(rules, f.flow); cut != "" {
				p.report(r, path, "The group is used by %s, and %s. Permit this traffic in a rule with a lower priority number, or change policy.management.%s.", guarded.Ref, fmt.Sprintf(cut, f.name), f.name)
			}
		}
	},
}

// cutBy returns what blocks a flow, and the path of its name; empty when the flow gets through.
func cutBy(rules []filterRule, f flow) (cut string, path []string) {
	for _, r := range rules {
		switch {
		case r.permits && r.covers(f):
			return "", nil
		case !r.permits && r.overlaps(f):
			return "its rule " + strings.ReplaceAll(r.id, "%", "%%") + " denies the management traffic %q", []string{"rules", strconv.Itoa(r.index)}
		}
	}
	return "none of its rules permits all of the management traffic %q", nil
}
