package agent

import (
	"context"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"converge.dev/converge/providers"
)

// A Path is what the node's connections to its site go through.
type Path struct {
	Servers []string // HOST:PORT, as in [Options]
}

// Crosses reports whether a change may cut the connections. What cannot be found out counts as yes. Only a change of Open vSwitch
// is seen not to: when no connection goes through it, nor through a tunnel or one of several routes, and when it does not name a link
// that one goes through, which would become a port of it.
func (p Path) Crosses(kind string, c providers.Call) bool {
	if !strings.HasPrefix(kind, "ovs.") {
		return true
	}
	return slices.ContainsFunc(p.Servers, func(server string) bool {
		hops, err := hops(server)
		return err != nil || crosses(hops, c)
	})
}

// crosses reports whether a change of Open vSwitch may cut a connection that goes through some links.
func crosses(hops []netlink.Link, c providers.Call) bool {
	return slices.ContainsFunc(hops, func(l netlink.Link) bool {
		name := l.Attrs().Name
		return !direct(l) || c.ID == name || mentions(map[string]any(c.Want), name) || mentions(map[string]any(c.Have), name)
	})
}

// direct reports whether what goes through a link leaves the machine there, or through another link that is known to be part of the path.
// The other end of a veth in the same namespace may be a port of a switch in user space, of which the kernel knows nothing.
func direct(l netlink.Link) bool {
	if l.Type() == "veth" && l.Attrs().NetNsID < 0 {
		return false
	}
	return slices.Contains([]string{"device", "veth", "vlan", "bridge", "bond", "dummy"}, l.Type()) && l.Attrs().Flags&net.FlagLoopback == 0 && l.Attrs().Name != "ovs-system"
}

// mentions reports whether a name is anywhere in a spec.
func mentions(spec any, name string) bool {
	switch v := spec.(type) {
	case string:
		return v == name
	case []any:
		return slices.ContainsFunc(v, func(e any) bool { return mentions(e, name) })
	case map[string]any:
		for key, e := range v {
			if key == name || mentions(e, name) {
				return true
			}
		}
	}
	return false
}

// resolving is how long names of servers may take to be resolved.
const resolving = time.Second

// hops returns the links that lead to a server: those of its routes, and those that they are made of or a part of.
func hops(server string) (hops []netlink.Link, err error) {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolving)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return nil, err
	}
	all, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	byIndex := map[int]netlink.Link{}
	for _, l := range all {
		byIndex[l.Attrs().Index] = l
	}
	seen := map[int]bool{}
	var visit func(index int)
	visit = func(index int) {
		l := byIndex[index]
		if l == nil || seen[index] {
			return
		}
		seen[index] = true
		hops = append(hops, l)
		visit(l.Attrs().ParentIndex)
		visit(l.Attrs().MasterIndex)
		for _, m := range all { // the ports of a bridge, the members of a bond
			if m.Attrs().MasterIndex == index {
				visit(m.Attrs().Index)
			}
		}
	}
	for _, r := range routes { // a connection may take any of the links of such a route
		for _, hop := range r.MultiPath {
			visit(hop.LinkIndex)
		}
	}
	for _, a := range addresses {
		routes, err := netlink.RouteGet(a.IP)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			visit(r.LinkIndex)
		}
	}
	return hops, nil
}
