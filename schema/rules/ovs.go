package rules

import (
	"slices"

	"converge.dev/converge/schema"
)

// The kinds of Open vSwitch that rules refer to.
const (
	ovsBridge = "ovs.bridge"
	ovsPort   = "ovs.port"
)

// ovsRules report what the database would accept and the switch would then not do.
var ovsRules = []Rule{
	{"CV1161", "ovs-port-name", "Port is called like a bridge", "A port is not called like a bridge of its node", checkPortNames},
	{"CV1162", "ovs-vlan", "VLAN settings contradict each other", "The VLAN settings of a port fit its mode", checkPortVLANs},
	{"CV1163", "ovs-interface", "Interface does not fit its type", "An interface has the options that its type needs", checkPortInterfaces},
	{"CV1164", "ovs-spanning-tree", "Two spanning tree protocols", "A bridge runs one spanning tree protocol", checkSpanningTree},
}

func checkPortNames(st *Site, p *reporter) {
	for _, r := range st.byKind[ovsPort] {
		bridge := schema.Ref{Scope: r.Ref.Scope, Kind: ovsBridge, Name: r.Ref.Name}
		if st.index[bridge] != nil {
			p.report(r, nil, "The bridge %s has a local port of that name, which comes and goes with it. Choose another name.", bridge)
		}
	}
}

func checkPortVLANs(st *Site, p *reporter) {
	for r := range st.sound(ovsPort) {
		mode := textOf(r.Spec, "vlan_mode")
		_, tagged := r.Spec["tag"]
		trunks := len(listOf(r.Spec, "trunks")) > 0
		switch {
		case mode == "access" && trunks:
			p.report(r, []string{"trunks"}, "An access port carries one VLAN, its tag. Remove trunks, or change vlan_mode.")
		case mode == "trunk" && tagged:
			p.report(r, []string{"tag"}, "A trunk has no VLAN of its own. Remove tag, or use vlan_mode \"native-tagged\" or \"native-untagged\".")
		case mode == "" && tagged && trunks:
			p.report(r, []string{"trunks"}, "A port with a tag is an access port unless vlan_mode says otherwise. Remove one of the two, or give vlan_mode.")
		case slices.Contains([]string{"native-tagged", "native-untagged", "dot1q-tunnel"}, mode) && !tagged:
			p.report(r, []string{"vlan_mode"}, "With vlan_mode %q the port needs a tag.", mode)
		}
	}
}

// tunnels are the types of interfaces that lead to another host.
var tunnels = []string{"vxlan", "geneve", "gre", "ip6gre", "erspan", "ip6erspan", "gtpu", "bareudp"}

func checkPortInterfaces(st *Site, p *reporter) {
	for r := range st.sound(ovsPort) {
		i := objectOf(r.Spec["interface"])
		sort, options := textOf(i, "type"), objectOf(i["options"])
		path := []string{"interface", "options"}
		switch {
		case sort == "patch":
			checkPatch(st, p, r, textOf(options, "peer"))
		case slices.Contains(tunnels, sort) && textOf(options, "remote_ip") == "":
			p.report(r, path, "A tunnel needs options: {remote_ip: …}, an address or \"flow\".")
		}
		if i["mac"] != nil && sort != "internal" {
			p.report(r, []string{"interface", "mac"}, "Only an interface of type \"internal\" gets its address from OVS; this one is %q.", sort)
		}
	}
}

// checkPatch checks that the two ends of a patch name each other, where both are declared.
func checkPatch(st *Site, p *reporter, r *Resource, peer string) {
	path := []string{"interface", "options", "peer"}
	switch {
	case peer == "":
		p.report(r, path[:2], "A patch needs options: {peer: …}, the name of the port at its other end.")
		return
	case peer == r.Ref.Name:
		p.report(r, path, "The patch ends in itself. Name the port at its other end.")
		return
	}
	other := st.index[schema.Ref{Scope: r.Ref.Scope, Kind: ovsPort, Name: peer}]
	if other == nil || !other.sound {
		return // a port that others made
	}
	end := objectOf(other.Spec["interface"])
	if back := textOf(objectOf(end["options"]), "peer"); textOf(end, "type") != "patch" || back != r.Ref.Name {
		p.report(r, path, "The port %s at the other end does not lead back here: give it type \"patch\" and the peer %q.", other.Ref, r.Ref.Name)
	}
}

func checkSpanningTree(st *Site, p *reporter) {
	for r := range st.sound(ovsBridge) {
		if boolOf(r.Spec, "stp_enable") && boolOf(r.Spec, "rstp_enable") {
			p.report(r, []string{"rstp_enable"}, "The bridge is to run both STP and RSTP. Enable one of the two.")
		}
	}
}
