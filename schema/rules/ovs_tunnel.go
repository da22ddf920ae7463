package rules

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"converge.dev/converge/schema"
)

const ovsMirror = "ovs.mirror"

// ovsTunnelRules report tunnels that the switch would refuse, and those of several nodes that do not fit together. The switch of one
// node cannot see the others.
var ovsTunnelRules = []Rule{
	{"CV1180", "ovs-tunnel-twice", "Tunnels exclude each other", "No two tunnels of a node may have the same ends, type and key", checks{sharedEnds, sharedExtensions}},
	{"CV1181", "ovs-tunnel-options", "Tunnel cannot be made", "The addresses, keys and UDP port of a tunnel must be what its type takes", checks{each{named(ovsPort), checkTunnels}}},
	{"CV1182", "ovs-tunnel-one-way", "Tunnel in one direction only", "Where a tunnel leads to another node of the document, one must lead back", checks{acrossNodes{checkWayBack}}},
	{"CV1183", "ovs-tunnel-loop", "Tunnels form a loop", "Bridges that tunnels connect in a loop must not forward in circles", checks{acrossNodes{checkLoops}}},
}

// flowDecides is the value of a key or address that flows set for each packet.
const flowDecides = "flow"

// keyBits is the size of a key by the type of the tunnel. Others have none.
var keyBits = map[string]int{"vxlan": 24, "geneve": 24, "gre": 32, "ip6gre": 32, "gtpu": 32, "erspan": 10, "ip6erspan": 10}

// udpPorts are the defaults of dst_port by the type of the tunnel. Others have no dst_port.
var udpPorts = map[string]string{"vxlan": "4789", "geneve": "6081", "gtpu": "2152", "bareudp": "0"}

// A tunnel is an interface of a port that leads to another host.
type tunnel struct {
	port *Resource
	path []string // of the options
	link
	packets string // what they begin with, if packet_type says so
	policy  bool   // with the extension for group policies
}

// A link is what tunnels are told apart by. Addresses and numbers have one spelling each.
type link struct {
	sort, remote, local string // of addresses: flow, too; no local one means any
	in, out             string // keys: flow, too
	udp                 string // port; empty when the type has none
}

// tunnelsOf calls visit with the tunnels of a port that are wholly known. It reports whether these are all that the port may have.
func tunnelsOf(r *Resource, visit func(t tunnel)) (all bool) {
	if openEnded(r) {
		return false
	}
	all = true
	eachInterface(r, func(i map[string]any, at ...string) {
		sort := textOf(i, "type")
		if !slices.Contains(tunnels, sort) {
			return
		}
		options := objectOf(i["options"])
		t := tunnel{port: r, link: link{sort: sort, udp: udpPorts[sort]}, packets: textOf(options, "packet_type")}
		t.policy = slices.Contains(strings.Split(textOf(options, "exts"), ","), "gbp")
		remote, ok := address(textOf(options, "remote_ip"))
		local, ok2 := address(cmp.Or(textOf(options, "local_ip"), flowDecides))
		in, ok3 := keyOf(options, "in_key")
		out, ok4 := keyOf(options, "out_key")
		if port := textOf(options, "dst_port"); port != "" && t.udp != "" {
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				all = false
				return
			}
			t.udp = strconv.FormatUint(n, 10)
		}
		if !ok || !ok2 || !ok3 || !ok4 {
			all = false // which is said elsewhere
			return
		}
		t.remote, t.in, t.out = remote, in, out
		if options["local_ip"] != nil {
			t.local = local
		}
		t.path = append(at, "options")
		visit(t)
	})
	return all
}

// eachInterface calls visit with the interfaces of a port, and where they are in it.
func eachInterface(r *Resource, visit func(i map[string]any, at ...string)) {
	if i := objectOf(r.Spec["interface"]); i != nil {
		visit(i, "interface")
	}
	bond := objectOf(r.Spec["interfaces"])
	for _, name := range slices.Sorted(maps.Keys(bond)) {
		visit(objectOf(bond[name]), "interfaces", name)
	}
}

// openEnded reports whether a port may have options that the document does not state: one that is adopted keeps those of others.
func openEnded(r *Resource) bool {
	return !r.sound || r.Lifecycle.Adopt == schema.AdoptMatch || slices.ContainsFunc(r.Lifecycle.Ignore, func(path string) bool {
		return path == "interface" || strings.HasPrefix(path, "interface.options") || strings.HasPrefix(path, "interfaces")
	})
}

// address returns the one spelling of an address that OVS takes: no name, prefix or zone.
func address(text string) (string, bool) {
	if text == flowDecides {
		return text, true
	}
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return "", false
	}
	return a.Unmap().String(), true
}

// keyOf returns the one spelling of the key of one direction, which is written as a number in C. OVS takes anything else for as much of a
// number as it begins with.
func keyOf(options map[string]any, direction string) (string, bool) {
	text := cmp.Or(textOf(options, direction), textOf(options, "key"), "0")
	if text == flowDecides {
		return text, true
	}
	n, err := strconv.ParseUint(text, 0, 64)
	inGo := strings.Contains(text, "_") || len(text) > 1 && text[0] == '0' && strings.ContainsRune("bBoO", rune(text[1]))
	return strconv.FormatUint(n, 10), err == nil && !inGo
}

// checkTunnels checks every value by itself. OVS refuses some of what is wrong, and silently does something else for the rest.
func checkTunnels(_ *Site, r *Resource, p *reporter) {
	eachInterface(r, func(i map[string]any, at ...string) {
		sort, options := textOf(i, "type"), objectOf(i["options"])
		if !slices.Contains(tunnels, sort) {
			return
		}
		in := func(name string) []string { return append(slices.Clip(at), "options", name) }
		ends := map[string]string{}
		for _, name := range []string{"remote_ip", "local_ip"} {
			text, ok := options[name].(string)
			end, valid := address(text)
			switch {
			case !ok:
			case !valid:
				p.report(r, in(name), "%q is no address. OVS takes an IPv4 or IPv6 address, without a prefix length, or \"flow\".", text)
			case end != flowDecides && name == "remote_ip" && netip.MustParseAddr(end).IsMulticast():
				p.report(r, in(name), "OVS makes no tunnel to a multicast address. Declare one tunnel to each of the other ends.")
			default:
				ends[name] = end
			}
		}
		switch remote, local := ends["remote_ip"], ends["local_ip"]; {
		case remote == "" || local == "" || remote == flowDecides:
		case local == flowDecides:
			p.report(r, in("local_ip"), "With local_ip \"flow\", OVS requires that remote_ip is \"flow\", too. Name an address, or set both.")
		case strings.Contains(remote, ":") != strings.Contains(local, ":"):
			p.report(r, in("local_ip"), "Both ends of a tunnel are IPv4 addresses or both are IPv6 addresses, and remote_ip is %s. Change one of the two.", remote)
		}
		for _, name := range []string{"key", "in_key", "out_key"} {
			text, ok := options[name].(string)
			key, valid := keyOf(options, name)
			n, err := strconv.ParseUint(key, 10, 64)
			bits := keyBits[sort]
			if !ok || bits == 0 || valid && key == flowDecides {
				continue
			}
			if text == "" || !valid || err != nil || n>>bits != 0 {
				p.report(r, in(name), "The key of a %s tunnel is \"flow\" or a number from 0 to %d, and %q is neither.", sort, uint64(1)<<bits-1, text)
			}
		}
		if text, ok := options["dst_port"].(string); ok && udpPorts[sort] != "" {
			if n, err := strconv.ParseUint(text, 10, 16); err != nil || n == 0 {
				p.report(r, in("dst_port"), "A UDP port is a number from 1 to 65535, and %q is none.", text)
			}
		}
	})
}

// sharedEnds checks that the switch can tell the tunnels of a node by the packets that arrive: it refuses the second of those that it
// cannot. Flows and addresses that are left open are told from all others, and all bridges of a datapath share their tunnels.
var sharedEnds = &sharing{
	of: named(ovsPort),
	keys: func(st *Site, r *Resource, has func(k key, path ...string)) {
		tunnelsOf(r, func(t tunnel) {
			has(key{strings.Join([]string{datapath(st, r), t.sort, t.remote, t.local, t.in, t.udp, t.packets}, " "), r.Ref.Scope}, t.path...)
		})
	},
	check: func(_ *Site, r *Resource, path []string, _ key, shared []*Resource, n int, p *reporter) {
		if n > 0 {
			p.report(r, path, "OVS cannot tell what arrives here from what arrives on %s, and refuses the second of the two: both have the same type, remote_ip, local_ip, key and dst_port, as declared or by default. Change one of these, or remove one of the two.", shared[0].Ref)
		}
	},
}

// datapath returns a name of what forwards the packets of a port.
func datapath(st *Site, r *Resource) string {
	b := st.target(r, ovsBridge, r.Spec["bridge"])
	if b == nil || b.Lifecycle.Adopt == schema.AdoptMatch || ignores(b, "datapath_type") {
		return "of " + textOf(r.Spec, "bridge")
	}
	return cmp.Or(textOf(b.Spec, "datapath_type"), "system")
}

// sharedExtensions checks that tunnels of VXLAN on one UDP port agree on the extension for group policies: OVS refuses one or both
// otherwise.
var sharedExtensions = &sharing{
	of: named(ovsPort),
	keys: func(st *Site, r *Resource, has func(k key, path ...string)) {
		tunnelsOf(r, func(t tunnel) {
			if t.sort == "vxlan" {
				has(key{t.udp + " " + datapath(st, r), r.Ref.Scope}, t.path...)
			}
		})
	},
	check: func(_ *Site, r *Resource, path []string, k key, shared []*Resource, n int, p *reporter) {
		udp, _, _ := strings.Cut(k[0], " ")
		if has := groupPolicy(r, udp); n > 0 && has != groupPolicy(shared[0], udp) {
			p.report(r, path, "Either all VXLAN tunnels of a node on UDP port %s have the extension gbp in exts, or none; %s differs. Change one of the two, or its dst_port.", udp, shared[0].Ref)
		}
	},
}

// groupPolicy reports whether the first tunnel of VXLAN that a port has on a UDP port has that extension.
func groupPolicy(r *Resource, udp string) (has bool) {
	found := false
	tunnelsOf(r, func(t tunnel) {
		if t.sort == "vxlan" && t.udp == udp && !found {
			found, has = true, t.policy
		}
	})
	return has
}

// acrossNodes checks the tunnels of all nodes together. It is done again only for a change of what it looks at, which includes what
// is removed: a way back may have been.
type acrossNodes struct {
	check func(st *Site, p *reporter)
}

func (c acrossNodes) whole(st *Site, p *reporter) { c.check(st, p) }

func (c acrossNodes) again(st *Site, t *Touched, p *reporter) {
	of := func(r *Resource) bool {
		switch r.Ref.Kind {
		case ovsPort:
			found := openEnded(r)
			tunnelsOf(r, func(tunnel) { found = true })
			return found
		case ovsBridge, ovsController, ovsMirror:
			return true
		}
		return false
	}
	if slices.ContainsFunc(t.Changed, of) || slices.ContainsFunc(t.old, of) {
		c.check(st, p)
	}
}

// A mesh is what the document says about the tunnels between its nodes.
type mesh struct {
	tunnels []tunnel          // between two nodes, in the order of refs
	owners  map[string]string // nodes by the addresses that their tunnels have; empty when several have one
	open    map[string]bool   // nodes with ports of which not everything is known
	outputs map[key]bool      // ports that get what a mirror selects
}

// meshed are the types of tunnels that carry Ethernet and whose two ends are the same.
var meshed = []string{"vxlan", "geneve", "gre", "ip6gre"}

// meshOf collects the tunnels of all nodes. Which node has an address is known only from the local ones.
func (st *Site) meshOf() *mesh {
	m := &mesh{owners: map[string]string{}, open: map[string]bool{}, outputs: map[key]bool{}}
	var all []tunnel
	for _, r := range st.byKind[ovsPort] {
		known := tunnelsOf(r, func(t tunnel) {
			if owner, ok := m.owners[t.local]; ok && owner != r.Ref.Scope {
				m.owners[t.local] = ""
			} else if t.local != "" && t.local != flowDecides {
				m.owners[t.local] = r.Ref.Scope
			}
			if slices.Contains(meshed, t.sort) {
				if t.sort == "ip6gre" {
					t.sort = "gre" // on the wire
				}
				all = append(all, t)
			}
		})
		if !known {
			m.open[r.Ref.Scope] = true
		}
	}
	for _, t := range all {
		if m.owners[t.local] == t.port.Ref.Scope || t.local == "" || t.local == flowDecides {
			m.tunnels = append(m.tunnels, t)
		}
	}
	if len(m.tunnels) > 0 {
		for _, r := range st.byKind[ovsMirror] {
			m.outputs[key{textOf(r.Spec, "output_port"), r.Ref.Scope}] = true
		}
	}
	return m
}

// leads returns the node that a tunnel leads to; empty when that is not known, or the tunnel is the output of a mirror.
func (m *mesh) leads(t tunnel) string {
	to := m.owners[t.remote]
	if to == t.port.Ref.Scope || m.owners[t.local] == "" || m.outputs[key{t.port.Ref.Name, t.port.Ref.Scope}] {
		return ""
	}
	return to
}

// checkWayBack warns of tunnels whose other end is on a node of the document that takes nothing from this one.
func checkWayBack(st *Site, p *reporter) {
	m := st.meshOf()
	type taker struct{ node, sort, remote, local, in, udp string }
	takes := map[taker]bool{}
	for _, t := range m.tunnels {
		k := taker{t.port.Ref.Scope, t.sort, t.remote, t.local, t.in, t.udp}
		takes[k] = true
		k.in = "any"
		takes[k] = true
	}
	for _, t := range m.tunnels {
		to := m.leads(t)
		if to == "" || m.open[to] {
			continue
		}
		back, out := false, t.out
		if out == flowDecides {
			out = "any"
		}
		for _, remote := range []string{t.local, flowDecides} {
			for _, local := range []string{t.remote, "", flowDecides} {
				back = back || takes[taker{to, t.sort, remote, local, out, t.udp}] || takes[taker{to, t.sort, remote, local, flowDecides, t.udp}]
			}
		}
		switch {
		case back:
		case p.full():
			p.drop(true)
		default:
			with := "any key"
			if out != "any" {
				with = "key " + out
			}
			if t.udp != "" {
				with += " and UDP port " + t.udp
			}
			p.warn(t.port, append(slices.Clip(t.path), "remote_ip"), "The address %s is one of %s, and the document has no %s tunnel from it to %s with %s: what arrives there is dropped. Declare that tunnel, or correct this one.", t.remote, scopeNoun(to), t.sort, t.local, with)
		}
	}
}

// A segment is a VLAN of a bridge, or all of them, for ports that carry all.
type segment struct {
	bridge *Resource
	vlan   string
}

// segmentOf returns what a tunnel is a part of, when the bridge surely forwards to it whatever it floods; nil otherwise.
func segmentOf(st *Site, t tunnel, guided map[key]bool) *segment {
	r := t.port
	b := st.target(r, ovsBridge, r.Spec["bridge"])
	_, mode := r.Spec["vlan_mode"]
	_, trunks := r.Spec["trunks"]
	switch {
	case b == nil || b.Lifecycle.Adopt == schema.AdoptMatch || len(b.Lifecycle.Ignore) > 0 || len(r.Lifecycle.Ignore) > 0:
	case textOf(b.Spec, "fail_mode") == "secure" || boolOf(b.Spec, "stp_enable") || boolOf(b.Spec, "rstp_enable") || guided[key{b.Ref.Name, b.Ref.Scope}]:
	case boolOf(r.Spec, "protected") || mode || trunks || t.path[0] != "interface" || t.packets != "":
	case r.Spec["tag"] != nil:
		return &segment{b, fmt.Sprint(r.Spec["tag"])}
	default:
		return &segment{b, ""}
	}
	return nil
}

// checkLoops warns of a loop of segments that tunnels connect, once for all segments that are connected.
func checkLoops(st *Site, p *reporter) {
	m := st.meshOf()
	guided := map[key]bool{} // bridges whose flows a controller decides
	for _, c := range st.byKind[ovsController] {
		guided[key{textOf(c.Spec, "bridge"), c.Ref.Scope}] = true
	}
	ends := map[link]*segment{}
	number := map[segment]int{}
	var segments []segment
	var joined joints
	var next [][]int // segments by number, that tunnels have connected without a loop so far
	told := map[int]bool{}
	for _, t := range m.tunnels {
		if m.leads(t) == "" || t.in == flowDecides || t.out == flowDecides {
			continue
		}
		here := segmentOf(st, t, guided)
		if here == nil {
			continue
		}
		ends[t.link] = here
		there := ends[link{t.sort, t.local, t.remote, t.out, t.in, t.udp}]
		if there == nil {
			continue // or it is the first of the two
		}
		var pair [2]int
		for i, s := range []*segment{here, there} {
			n, ok := number[*s]
			if !ok {
				n = len(segments)
				number[*s], segments, joined, next = n, append(segments, *s), append(joined, n), append(next, nil)
			}
			pair[i] = n
		}
		a, b := pair[0], pair[1]
		if joined.join(a, b) {
			next[a], next[b] = append(next[a], b), append(next[b], a)
			continue
		}
		if told[joined.root(a)] {
			continue
		}
		told[joined.root(a)] = true
		var refs []string
		for _, n := range route(next, a, b) {
			if len(refs) == 50 {
				refs = append(refs, "…")
				break
			}
			refs = append(refs, segments[n].bridge.Ref.String())
		}
		remedy := "Set protected: true on the tunnels of each bridge that has one to every other bridge, or rstp_enable on all bridges."
		if len(refs) == 2 {
			remedy = "Remove one of the two tunnels, give them different tags, or set rstp_enable on both bridges."
		}
		p.warn(t.port, nil, "What a bridge forwards to all ports comes back to it, again and again: %s -> %s. %s", strings.Join(refs, " -> "), refs[0], remedy)
	}
}

// joints are the parents of segments in sets of connected ones; a root is its own.
type joints []int

func (j joints) root(n int) int {
	for j[n] != n {
		j[n] = j[j[n]]
		n = j[n]
	}
	return n
}

// join connects two segments; it reports whether they were not connected before.
func (j joints) join(a, b int) bool {
	a, b = j.root(a), j.root(b)
	j[max(a, b)] = min(a, b)
	return a != b
}

// route returns the way from one segment to another in a tree.
func route(next [][]int, from, to int) []int {
	before := map[int]int{from: from}
	for work := []int{from}; len(work) > 0; work = work[1:] {
		for _, n := range next[work[0]] {
			if _, seen := before[n]; !seen {
				before[n] = work[0]
				work = append(work, n)
			}
		}
	}
	way := []int{to}
	for n := to; n != from; way = append(way, n) {
		n = before[n]
	}
	slices.Reverse(way)
	return way
}
