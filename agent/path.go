package agent

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"converge.dev/converge/providers"
)

// A Path is what the node's connections to its site go through.
type Path struct {
	Servers []string // HOST:PORT, as in [Options]
}

// Crosses reports whether a change may cut the connections. What cannot be found out counts as yes.
func (p Path) Crosses(kind string, _ providers.Call) bool {
	far, bridged := false, false
	for _, server := range p.Servers {
		hops, err := hops(server)
		if err != nil {
			return true
		}
		for _, l := range hops {
			far = far || l.Type() != "" && l.Attrs().Flags&net.FlagLoopback == 0
			bridged = bridged || l.Type() == "openvswitch" || l.Attrs().Name == "ovs-system" || l.Type() == "tuntap" // the port of a bridge without a kernel datapath
		}
	}
	if strings.HasPrefix(kind, "ovs.") {
		return bridged
	}
	return far
}

// resolving is how long names of servers may take to be resolved.
const resolving = time.Second

// hops returns the links that lead to a server: that of the route, and those that it is made of or a part of.
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
