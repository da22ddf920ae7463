package host

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"converge.dev/converge/internal/netns"
	"converge.dev/converge/providers/host/spec"
	"converge.dev/converge/providers/sysfs"
)

// NetworkOptions say which links are served.
type NetworkOptions struct {
	// Namespace is a file that stands for the network namespace of the links, such as /run/netns/blue. Optional: that of this process,
	// the only one for which it makes sense to combine links with the sysfs of a machine. Others are for tests.
	Namespace string

	// Cards are types of links, such as veth, that count as network cards. Optional: only what the kernel has no type for does.
	Cards []string
}

// A Network is the links of a network namespace.
type Network struct {
	o      NetworkOptions
	handle *netlink.Handle
	turn   chan struct{} // has an element while a change runs: links affect each other

	mu     sync.RWMutex // held for reading while the kernel is asked
	closed bool
}

var errClosed = errors.New("the provider is closed")

// OpenNetwork opens the links of a network namespace. It fails when the kernel does not let this process ask.
func OpenNetwork(o NetworkOptions) (*Network, error) {
	n := &Network{o: o, turn: make(chan struct{}, 1)}
	err := n.within(func() (err error) {
		n.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err == nil {
		if err = n.handle.SetSocketTimeout(sysfs.Settle); err != nil {
			n.handle.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the network links of this machine: %w", err)
	}
	return n, nil
}

// close waits until the kernel has answered: a watch may still be looking.
func (n *Network) close() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	n.handle.Close()
}

// ask makes requests of the kernel, unless the provider is closed.
func (n *Network) ask(requests func() error) error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.closed {
		return errClosed
	}
	return requests()
}

// within opens a socket, which stays in the namespace.
func (n *Network) within(open func() error) error {
	if n.o.Namespace == "" {
		return open()
	}
	return netns.Within(n.o.Namespace, open)
}

// The types of links that are managed.
const (
	physical = "physical"
	dummy    = "dummy"
	vlan     = "vlan"
	bridge   = "bridge"
)

const (
	defaultMTU    = 1500
	leastMTUOfV6  = 1280
	defaultMetric = 1024 // of IPv6; that of IPv4 is none
)

// A view is what the kernel shows of a network namespace.
type view struct {
	cards  []string
	links  map[int]netlink.Link // by their numbers
	addrs  map[int][]netlink.Addr
	routes map[int][]netlink.Route // of the main table
}

// look reads everything. The kernel tells when something has changed while it was read; then it is read anew.
func (n *Network) look() (v *view, err error) {
	for range 10 {
		err = n.ask(func() (err error) {
			v, err = n.read()
			return err
		})
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return v, err
}

func (n *Network) read() (*view, error) {
	v := &view{cards: n.o.Cards, links: map[int]netlink.Link{}, addrs: map[int][]netlink.Addr{}, routes: map[int][]netlink.Route{}}
	links, err := n.handle.LinkList()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		v.links[l.Attrs().Index] = l
	}
	addrs, err := n.handle.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		v.addrs[a.LinkIndex] = append(v.addrs[a.LinkIndex], a)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := n.handle.RouteList(nil, family)
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) { // IPv6 may be switched off
			return nil, err
		}
		for _, r := range routes {
			v.routes[r.LinkIndex] = append(v.routes[r.LinkIndex], r)
			for _, hop := range r.MultiPath {
				v.routes[hop.LinkIndex] = append(v.routes[hop.LinkIndex], r)
			}
		}
	}
	return v, nil
}

// ordered returns the links in the order of their numbers.
func (v *view) ordered() []netlink.Link {
	var links []netlink.Link
	for _, i := range slices.Sorted(maps.Keys(v.links)) {
		links = append(links, v.links[i])
	}
	return links
}

// named returns a link; nil when there is none of that name.
func (v *view) named(name string) netlink.Link {
	for _, l := range v.links {
		if l.Attrs().Name == name {
			return l
		}
	}
	return nil
}

// nameOf returns the name of the link with a number; empty when it is not there.
func (v *view) nameOf(index int) string {
	if l := v.links[index]; l != nil {
		return l.Attrs().Name
	}
	return ""
}

// typeOf returns the type of a link; empty when it is of one that is not managed.
func (v *view) typeOf(l netlink.Link) string {
	a := l.Attrs()
	if a.Flags&net.FlagLoopback != 0 || a.EncapType != "ether" {
		return ""
	}
	switch l := l.(type) {
	case *netlink.Device: // no type of its own
		return physical
	case *netlink.Dummy:
		return dummy
	case *netlink.Bridge:
		return bridge
	case *netlink.Vlan:
		if l.VlanProtocol == netlink.VLAN_PROTOCOL_8021Q && a.NetNsID < 0 && v.links[a.ParentIndex] != nil {
			return vlan
		}
		return ""
	}
	if slices.Contains(v.cards, l.Type()) {
		return physical
	}
	return ""
}

// spec returns what is set of a link of a type that is managed, and what there is besides that cannot be told in a spec.
func (v *view) spec(l netlink.Link) (s spec.Link, besides string) {
	a := l.Attrs()
	s = spec.Link{Type: v.typeOf(l), MTU: new(int64(a.MTU)), State: new("down")}
	if a.Flags&net.FlagUp != 0 {
		s.State = new("up")
	}
	if l, ok := l.(*netlink.Vlan); ok {
		s.Parent, s.VLAN = new(v.nameOf(a.ParentIndex)), new(int64(l.VlanId))
	}
	if s.Type == bridge {
		for _, p := range v.ordered() {
			if p.Attrs().MasterIndex == a.Index && v.typeOf(p) != "" {
				s.Interfaces = append(s.Interfaces, p.Attrs().Name)
			}
		}
	}
	for p := range v.addresses(l) {
		s.Addresses = append(s.Addresses, p.String())
	}
	slices.Sort(s.Addresses)
	for _, r := range v.static(l) {
		if n := len(s.Routes); n > 0 && s.Routes[n-1].To == r.to.String() {
			besides = fmt.Sprintf("there is another static route to %s, with the metric %d", r.to, r.metric)
			continue
		}
		s.Routes = append(s.Routes, r.spec())
	}
	slices.Sort(s.Interfaces)
	return s, besides
}

// addresses returns the addresses of a link that somebody has set and that do not end by themselves.
func (v *view) addresses(l netlink.Link) map[netip.Prefix]netlink.Addr {
	kept := map[netip.Prefix]netlink.Addr{}
	for _, a := range v.addrs[l.Attrs().Index] {
		if p, ok := prefixOf(a.IPNet); ok && lasting(a) {
			kept[p] = a
		}
	}
	return kept
}

func lasting(a netlink.Addr) bool {
	return a.Scope == unix.RT_SCOPE_UNIVERSE && a.Flags&unix.IFA_F_PERMANENT != 0 && (a.Peer == nil || a.Peer.IP.Equal(a.IP))
}

// A route is a static route as far as it can be told.
type route struct {
	to     netip.Prefix
	via    netip.Addr // zero: none
	onLink bool
	metric int64 // that in use: of IPv6 never 0
}

// static returns the static routes through a link, by their destination and metric. Those with attributes that a spec does not have
// are not among them.
func (v *view) static(l netlink.Link) []route {
	var routes []route
	for _, r := range v.routes[l.Attrs().Index] {
		if x, ok := routeOf(r); ok {
			routes = append(routes, x)
		}
	}
	slices.SortFunc(routes, func(a, b route) int {
		return cmp.Or(a.to.Compare(b.to), cmp.Compare(a.metric, b.metric))
	})
	return routes
}

func routeOf(r netlink.Route) (x route, ok bool) {
	to, ok := prefixOf(r.Dst)
	if !ok && r.Dst == nil { // of a default route
		to, ok = netip.PrefixFrom(netip.IPv4Unspecified(), 0), true
		if r.Family == netlink.FAMILY_V6 {
			to = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
	}
	other := r.Protocol != unix.RTPROT_STATIC || r.Type != unix.RTN_UNICAST || len(r.MultiPath) > 0 || r.Src != nil || r.Tos != 0 || r.Via != nil ||
		r.Encap != nil || r.MPLSDst != nil || r.NewDst != nil || r.MTU != 0 || r.Window != 0 || r.AdvMSS != 0 || r.Hoplimit != 0 || r.InitCwnd != 0 || r.InitRwnd != 0 || r.Congctl != ""
	if !ok || other {
		return x, false
	}
	x = route{to: to, onLink: r.Flags&unix.RTNH_F_ONLINK != 0, metric: int64(r.Priority)}
	if r.Gw != nil {
		if x.via, ok = netip.AddrFromSlice(r.Gw); !ok {
			return x, false
		}
		x.via = x.via.Unmap()
	}
	return x, true
}

// spec returns the route with the metric where that is not the one of the kernel for IPv4.
func (r route) spec() spec.Route {
	s := spec.Route{To: r.to.String()}
	if r.via.IsValid() {
		s.Via = new(r.via.String())
	}
	if r.onLink {
		s.OnLink = new(true)
	}
	if r.metric != 0 {
		s.Metric = &r.metric
	}
	return s
}

// request returns the route as the kernel is asked for it.
func (r route) request(link int) *netlink.Route {
	x := &netlink.Route{
		LinkIndex: link, Dst: network(r.to), Priority: int(r.metric), Protocol: unix.RTPROT_STATIC, Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST,
	}
	switch {
	case r.via.IsValid():
		x.Gw = r.via.AsSlice()
	case r.to.Addr().Is4():
		x.Scope = netlink.SCOPE_LINK
	}
	if r.onLink {
		x.Flags = unix.RTNH_F_ONLINK
	}
	return x
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	bits, size := n.Mask.Size()
	if a = a.Unmap(); !ok || size != a.BitLen() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a, bits), true
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func isUp(s spec.Link) bool { return s.State == nil || *s.State == "up" }

// configured reports whether a link is not as the kernel has it by itself.
func configured(s spec.Link) bool {
	return s.Type != physical || isUp(s) || *s.MTU != defaultMTU || len(s.Addresses) > 0 || len(s.Routes) > 0
}

// A use is why a link is needed.
type use struct {
	by  string // the link that needs it; empty: none
	why string
}

// uses returns what others use a link for, which ends when the link goes down or away: what converge has set is none of that.
func (v *view) uses(l netlink.Link) (uses []use) {
	a := l.Attrs()
	add := func(by, format string, args ...any) { uses = append(uses, use{by, fmt.Sprintf(format, args...)}) }
	for _, o := range v.ordered() {
		oa := o.Attrs()
		switch {
		case oa.ParentIndex == a.Index && oa.NetNsID < 0 && o.Type() != "veth": // a veth has its peer there
			add(oa.Name, "%s is on top of it", oa.Name)
		case oa.MasterIndex == a.Index && (v.typeOf(o) == "" || v.typeOf(l) != bridge):
			add(oa.Name, "%s is a port of it", oa.Name)
		}
	}
	if a.MasterIndex != 0 {
		add(v.nameOf(a.MasterIndex), "it is a port of %s", v.nameOf(a.MasterIndex))
	}
	for _, x := range v.addrs[a.Index] {
		if x.Scope == unix.RT_SCOPE_UNIVERSE && !lasting(x) {
			add("", "it has the address %s, which converge does not manage", x.IPNet)
		}
	}
	for _, r := range v.others(l) {
		add("", "it has %s", described(r))
	}
	return uses
}

// others returns the routes through a link that others have set.
func (v *view) others(l netlink.Link) []netlink.Route {
	return slices.DeleteFunc(slices.Clone(v.routes[l.Attrs().Index]), func(r netlink.Route) bool {
		_, ours := routeOf(r)
		return ours || r.Protocol == unix.RTPROT_KERNEL || r.Protocol == unix.RTPROT_RA || r.Type != unix.RTN_UNICAST
	})
}

func described(r netlink.Route) string {
	to := "the default route"
	if p, ok := prefixOf(r.Dst); ok && p.Bits() > 0 {
		to = "a route to " + p.String()
	}
	return fmt.Sprintf("%s, of the protocol %s, which converge does not manage", to, r.Protocol)
}

// flushed returns a route of others that the kernel would remove when a link is left with some addresses; empty when there is none. It
// removes the routes of IPv4 whose source address goes, and all of a link that has no address for a moment: the first address of a
// network takes the others of that network with it.
func (v *view) flushed(l netlink.Link, left []netip.Prefix) string {
	var gone []netip.Prefix
	stays := func(p netip.Prefix) bool {
		return !slices.ContainsFunc(gone, func(g netip.Prefix) bool { return g.Masked() == p.Masked() })
	}
	there := v.addresses(l)
	for p := range there {
		if p.Addr().Is4() && !slices.Contains(left, p) {
			gone = append(gone, p)
		}
	}
	if len(gone) == 0 {
		return ""
	}
	some := slices.ContainsFunc(left, func(p netip.Prefix) bool { return p.Addr().Is4() && stays(p) })
	for _, a := range v.addrs[l.Attrs().Index] {
		if p, ok := prefixOf(a.IPNet); ok && p.Addr().Is4() && !lasting(a) {
			some = some || stays(p)
		}
	}
	for _, r := range v.others(l) {
		if r.Family != netlink.FAMILY_V4 {
			continue
		}
		if !some || slices.ContainsFunc(gone, func(g netip.Prefix) bool { return r.Src.Equal(g.Addr().AsSlice()) }) {
			return described(r)
		}
	}
	return ""
}

// gone reports whether an error says that what was to be removed is not there.
func gone(err error) bool {
	return errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.ENODEV)
}

// number returns a number as the kernel has room for it.
func number(n int64) int { return int(min(max(n, 0), math.MaxInt32)) }
