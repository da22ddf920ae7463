package rules

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"converge.dev/converge/schema"
)

// The kinds of Open vSwitch that rules refer to.
const (
	ovsBridge     = "ovs.bridge"
	ovsController = "ovs.controller"
	ovsFlowSet    = "ovs.flow_set"
	ovsPort       = "ovs.port"
	ovsQoS        = "ovs.qos"
	ovsQueue      = "ovs.queue"
)

// ovsRules report what the database would accept and the switch would then not do.
var ovsRules = []Rule{
	{"CV1161", "ovs-port-name", "Port has the name of a bridge", "A port must not have the name of a bridge of its node", checks{sharedPortNames}},
	{"CV1162", "ovs-vlan", "VLAN settings contradict each other", "The VLAN settings of a port must match its mode", checks{each{named(ovsPort), checkPortVLANs}}},
	{"CV1163", "ovs-interface", "Interface does not match its type", "An interface must have the options that its type needs", checks{each{named(ovsPort), checkPortInterfaces}, patches}},
	{"CV1164", "ovs-spanning-tree", "Two spanning tree protocols", "A bridge may run only one spanning tree protocol", checks{each{named(ovsBridge), checkSpanningTree}}},
	{"CV1165", "ovs-controller-target", "Controller is declared twice", "A bridge may have only one controller per target", checks{sharedTargets}},
	{"CV1166", "ovs-qos", "Quality of service does not match its type", "The settings and queues of a qos must be what its type reads", checks{each{named(ovsQoS), checkQoS}, each{named(ovsQueue), checkQueue}}},
	{"CV1167", "ovs-bond", "Bond cannot be made", "A bond must have several interfaces, which nothing else has", checks{each{named(ovsPort), checkBond}, sharedMembers}},
	{"CV1168", "ovs-flows", "Flow set cannot be made", "The flows of a set must be of a bridge that leaves them alone, and stay as they are", checks{each{named(ovsFlowSet), checkFlowSet}, flowPorts}},
}

var sharedPortNames = &sharing{
	of: named(ovsBridge, ovsPort), external: true,
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) { has(key{r.Ref.Name, r.Ref.Scope}) },
	check: func(_ *Site, r *Resource, _ []string, _ key, shared []*Resource, _ int, p *reporter) {
		if bridge := shared[0]; r.Ref.Kind == ovsPort { // no two ports of a node have one name
			p.report(r, nil, "The bridge %s has a local port of that name, which is created and deleted with it. Choose another name.", bridge.Ref)
		}
	},
}

func checkPortVLANs(_ *Site, r *Resource, p *reporter) {
	mode := textOf(r.Spec, "vlan_mode")
	_, tagged := r.Spec["tag"]
	trunks := len(listOf(r.Spec, "trunks")) > 0
	switch {
	case mode == "access" && trunks:
		p.report(r, []string{"trunks"}, "An access port carries one VLAN, its tag. Remove trunks, or change vlan_mode.")
	case mode == "trunk" && tagged:
		p.report(r, []string{"tag"}, "A trunk port has no VLAN of its own. Remove tag, or use vlan_mode \"native-tagged\" or \"native-untagged\".")
	case mode == "" && tagged && trunks:
		p.report(r, []string{"trunks"}, "A port with a tag is an access port unless vlan_mode says otherwise. Remove tag or trunks, or set vlan_mode.")
	case slices.Contains([]string{"native-tagged", "native-untagged", "dot1q-tunnel"}, mode) && !tagged:
		p.report(r, []string{"vlan_mode"}, "With vlan_mode %q, the port needs a tag.", mode)
	}
}

// tunnels are the types of interfaces that lead to another host.
var tunnels = []string{"vxlan", "geneve", "gre", "ip6gre", "erspan", "ip6erspan", "gtpu", "bareudp"}

func checkPortInterfaces(_ *Site, r *Resource, p *reporter) {
	checkInterface(r, objectOf(r.Spec["interface"]), []string{"interface"}, p)
	bond := objectOf(r.Spec["interfaces"])
	for _, name := range slices.Sorted(maps.Keys(bond)) {
		checkInterface(r, objectOf(bond[name]), []string{"interfaces", name}, p)
	}
}

func checkInterface(r *Resource, i map[string]any, at []string, p *reporter) {
	sort, options := textOf(i, "type"), objectOf(i["options"])
	path := append(slices.Clip(at), "options")
	switch peer := textOf(options, "peer"); {
	case sort == "patch" && peer == "" && !openEnded(r):
		p.report(r, path, "A patch needs options: {peer: …}, the name of the port at the other end.")
	case sort == "patch" && peer == r.Ref.Name:
		p.report(r, append(path, "peer"), "The patch is its own peer. Name the port at the other end.")
	case slices.Contains(tunnels, sort) && options["remote_ip"] == nil && !openEnded(r):
		p.report(r, path, "A tunnel needs options: {remote_ip: …}, an address or \"flow\".")
	}
	if i["mac"] != nil && sort != "internal" {
		p.report(r, append(slices.Clip(at), "mac"), "Only an interface of type \"internal\" gets its address from OVS; this one is %q.", sort)
	}
}

func checkBond(_ *Site, r *Resource, p *reporter) {
	bond := objectOf(r.Spec["interfaces"])
	if len(bond) > 0 {
		switch {
		case r.Spec["interface"] != nil:
			p.report(r, []string{"interface"}, "A port has one interface, or it is a bond. Remove interface or interfaces.")
		case len(bond) == 1:
			p.report(r, []string{"interfaces"}, "A bond has at least two interfaces. Add one, or use interface.")
		}
		return
	}
	for _, name := range []string{"bond_mode", "bond_updelay", "bond_downdelay"} {
		if textOf(r.Spec, name) != "" || intOf(r.Spec, name) != 0 { // 0 is what OVS has for every port
			p.report(r, []string{name}, "OVS ignores this setting of a port that is not a bond. Remove it, or declare interfaces.")
		}
	}
}

// sharedMembers checks that the interfaces of bonds have names that no other interface has: not those of a bridge, of a port, or of
// another bond.
var sharedMembers = &sharing{
	of: named(ovsBridge, ovsPort), external: true,
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		has(key{r.Ref.Name, r.Ref.Scope})
		if r.Ref.Kind == ovsPort {
			for name := range objectOf(r.Spec["interfaces"]) {
				if name != r.Ref.Name {
					has(key{name, r.Ref.Scope}, "interfaces", name)
				}
			}
		}
	},
	check: func(_ *Site, r *Resource, path []string, k key, shared []*Resource, _ int, p *reporter) {
		if i := slices.IndexFunc(shared, func(o *Resource) bool { return o.Ref != r.Ref }); len(path) > 0 && i >= 0 {
			p.report(r, path, "An interface called %s also belongs to %s. Choose another, or remove it there.", k[0], shared[i].Ref)
		}
	},
}

// patches checks that the two ends of a patch name each other, where both are declared.
var patches = &sharing{
	of: named(ovsPort),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		has(key{r.Ref.Name, r.Ref.Scope})
		if peer := peerOf(r); peer != r.Ref.Name && peer != "" {
			has(key{peer, r.Ref.Scope}, "interface", "options", "peer")
		}
	},
	check: func(st *Site, r *Resource, path []string, k key, _ []*Resource, _ int, p *reporter) {
		other := st.index[schema.Ref{Scope: r.Ref.Scope, Kind: ovsPort, Name: k[0]}]
		if other == r || other == nil || !other.sound {
			return // otherwise a port that others made
		}
		if peerOf(other) != r.Ref.Name {
			p.report(r, path, "The peer port %s does not point back here: set its type to \"patch\" and its peer to %q.", other.Ref, r.Ref.Name)
		}
	},
}

// peerOf returns the name of the port at the other end of a patch; empty when r is no patch.
func peerOf(r *Resource) string {
	if i := objectOf(r.Spec["interface"]); textOf(i, "type") == "patch" {
		return textOf(objectOf(i["options"]), "peer")
	}
	return ""
}

func checkSpanningTree(_ *Site, r *Resource, p *reporter) {
	if boolOf(r.Spec, "stp_enable") && boolOf(r.Spec, "rstp_enable") {
		p.report(r, []string{"rstp_enable"}, "The bridge enables both STP and RSTP. Enable only one of the two.")
	}
}

var sharedTargets = &sharing{
	of: named(ovsController),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		has(key{textOf(r.Spec, "target"), r.Ref.Scope + "/" + textOf(r.Spec, "bridge")}, "target")
	},
	check: func(_ *Site, r *Resource, path []string, k key, shared []*Resource, n int, p *reporter) {
		if n > 0 {
			p.report(r, path, "The bridge %s already has a controller at %s: %s. Remove one of the two.", textOf(r.Spec, "bridge"), k[0], shared[0].Ref)
		}
	},
}

// qosKeys are the keys of other_config that each type of a qos reads, and queueKeys those that the types read of its queues.
var (
	qosKeys = map[string][]string{
		"linux-htb": {"max-rate"}, "linux-hfsc": {"max-rate"}, "linux-sfq": {"perturb", "quantum"},
		"linux-codel": {"interval", "limit", "target"}, "linux-fq_codel": {"flows", "interval", "limit", "quantum", "target"},
		"linux-netem": {"latency", "limit", "loss"}, "linux-noop": nil,
		"egress-policer": {"cbs", "cir"}, "trtcm-policer": {"cbs", "cir", "ebs", "eir"},
	}
	queueKeys = []string{"burst", "cbs", "cir", "ebs", "eir", "max-rate", "min-rate", "priority"}
)

// qosQueues is how many queues the types have that have any; zero means all that the database can number.
var qosQueues = map[string]uint64{"linux-htb": 61440, "linux-hfsc": 61440, "trtcm-policer": 0}

func checkQoS(_ *Site, r *Resource, p *reporter) {
	sort := textOf(r.Spec, "type")
	checkRates(r, qosKeys[sort], "a qos of type "+strconv.Quote(sort), p)
	numbers := slices.Sorted(maps.Keys(objectOf(r.Spec["queues"])))
	most, has := qosQueues[sort]
	if !has && len(numbers) > 0 {
		p.report(r, []string{"queues"}, "A qos of type %q has no queues; OVS ignores them. Remove queues, or change type.", sort)
		return
	}
	for _, number := range numbers {
		switch n, err := strconv.ParseUint(number, 10, 32); {
		case err != nil:
			p.report(r, []string{"queues", number}, "A queue has a number of 32 bits.")
		case most > 0 && n >= most:
			p.report(r, []string{"queues", number}, "A qos of type %q has queues 0 to %d. Choose another number.", sort, most-1)
		}
	}
}

func checkQueue(_ *Site, r *Resource, p *reporter) {
	checkRates(r, queueKeys, "a queue", p)
	rates := objectOf(r.Spec["other_config"])
	least, err := strconv.ParseUint(textOf(rates, "min-rate"), 10, 64)
	most, err2 := strconv.ParseUint(textOf(rates, "max-rate"), 10, 64)
	if err == nil && err2 == nil && least > most {
		p.report(r, []string{"other_config", "max-rate"}, "The maximum rate is below the minimum rate, %d bit/s, and OVS would raise it. Change one of the two.", least)
	}
}

// checkRates checks the keys that OVS reads as numbers: it takes anything else for a number that is not there.
func checkRates(r *Resource, known []string, of string, p *reporter) {
	config := objectOf(r.Spec["other_config"])
	for _, name := range slices.Sorted(maps.Keys(config)) {
		path := []string{"other_config", name}
		if !slices.Contains(known, name) {
			reads := "no settings"
			if len(known) > 0 {
				reads = strings.Join(known, ", ")
			}
			p.warn(r, path, "OVS does not read this setting of %s. It reads %s.", of, reads)
			continue
		}
		if _, err := strconv.ParseUint(textOf(config, name), 10, 64); err != nil {
			p.report(r, path, "OVS reads decimal integers here, without a unit, and ignores %q.", textOf(config, name))
		}
	}
}

// openFlow is the version of OpenFlow in which converge changes flows.
const openFlow = "OpenFlow14"

// flowOptions are what a flow cannot have in a set: the set determines the cookie, and OVS must not remove flows by itself.
var flowOptions = []string{
	"cookie", "idle_timeout", "hard_timeout", "importance", "send_flow_rem", "check_overlap", "reset_counts", "no_packet_counts", "no_byte_counts",
}

// What a flow set may have at most: the database of the switch keeps it in one value.
const (
	maxFlows = 256
	maxFlow  = 1000 // characters
)

func checkFlowSet(st *Site, r *Resource, p *reporter) {
	if bridge := st.target(r, ovsBridge, r.Spec["bridge"]); bridge != nil {
		if textOf(bridge.Spec, "fail_mode") != "secure" {
			p.report(r, []string{"bridge"}, "OVS changes the flows of %s by itself unless its fail_mode is \"secure\". Set fail_mode there.", bridge.Ref)
		}
		if protocols := listOf(bridge.Spec, "protocols"); len(protocols) > 0 && !slices.Contains(protocols, any(openFlow)) {
			p.report(r, []string{"bridge"}, "Flows are changed in %s, which %s does not accept. Add it to protocols there.", openFlow, bridge.Ref)
		}
	}
	flows := listOf(r.Spec, "flows")
	if len(flows) > maxFlows {
		p.report(r, []string{"flows"}, "A flow set has at most %d flows; this one has %d. Declare several sets.", maxFlows, len(flows))
	}
	for i, line := range flows {
		text, _ := line.(string)
		if len(text) > maxFlow {
			p.report(r, []string{"flows", strconv.Itoa(i)}, "A flow has at most %d characters; this one has %d.", maxFlow, len(text))
		}
		match, actions, _ := strings.Cut(text, "actions=")
		for _, action := range []string{"learn", "fin_timeout"} {
			if strings.Contains(actions, action+"(") {
				p.report(r, []string{"flows", strconv.Itoa(i)}, "By the action %s the switch changes flows itself, and not only those of the set. Remove it.", action)
			}
		}
		for _, word := range strings.FieldsFunc(match, func(c rune) bool { return c == ' ' || c == ',' }) {
			if word = word[:max(0, strings.IndexAny(word+"=", "=:("))]; slices.Contains(flowOptions, word) {
				p.report(r, []string{"flows", strconv.Itoa(i)}, "A flow of a set has a table, a priority, a match and actions. Remove %s.", word)
			}
		}
	}
}

// flowPorts checks that a flow set depends on the ports that it names: it cannot be made before they are.
var flowPorts = &sharing{
	of: named(ovsFlowSet, ovsPort),
	keys: func(_ *Site, r *Resource, has func(k key, path ...string)) {
		if r.Ref.Kind == ovsPort {
			has(key{r.Ref.Name, r.Ref.Scope})
			return
		}
		named := map[string]bool{}
		for i, line := range listOf(r.Spec, "flows") {
			text, _ := line.(string)
			for n, name := range strings.Split(text, `"`) {
				if n%2 == 1 && !named[name] {
					named[name] = true
					has(key{name, r.Ref.Scope}, "flows", strconv.Itoa(i))
				}
			}
		}
	},
	check: func(_ *Site, r *Resource, path []string, _ key, shared []*Resource, _ int, p *reporter) {
		port := shared[len(shared)-1] // ports come after flow sets, and only one has the name
		if r.Ref.Kind == ovsFlowSet && port.Ref.Kind == ovsPort && !slices.Contains(r.depends, port.Ref.String()) {
			p.report(r, path, "The flow names the port %s, which must exist before it. Add it to depends_on.", port.Ref)
		}
	},
}
