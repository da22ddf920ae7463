package libvirt

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/libvirt/spec"
	"converge.dev/converge/schema"
)

// networks is the kind libvirt.network.
type networks struct{}

// traits: a network is started once it is stored, and restarted for what is changed. libvirt starts and stops one after the other.
func (networks) traits(common providers.Traits) providers.Traits {
	common.Serial = true
	common.SetLast, common.SelfChanging = []string{"active", "autostart", "in_effect"}, []string{"in_effect"} // whoever restarts it
	return common
}

// excludes: libvirt has no conditional change, so ours exclude at least each other; and it may choose the same bridge for two networks that
// are defined at the same time, or one that is about to be defined.
func (networks) excludes(c providers.Call) []string {
	bridge, named := c.Want["bridge"].(string)
	number, chosen := strings.CutPrefix(bridge, "virbr")
	if c.Have == nil && (!named || chosen && strings.Trim(number, "0123456789") == "") {
		return []string{c.ID, anyBridge}
	}
	return []string{c.ID}
}

// anyBridge excludes changes for which libvirt chooses a bridge; no network has this name.
const anyBridge = ""

func (networks) told() (object, func(string) []string, bool) {
	return networkObject, func(name string) []string { return []string{name} }, true
}

func (networks) list(ctx context.Context, c conn, ids []string) ([]providers.Thing, error) {
	return things(ctx, c, networkObject, ids, func(d definition) (*providers.Thing, error) {
		s, err := networkSpec(d)
		if err != nil {
			return nil, err
		}
		return &providers.Thing{ID: d.name, Name: d.name, Spec: s.Object(), Phase: providers.Ready}, nil
	})
}

// networkSpec returns the spec of a network.
func networkSpec(d definition) (*spec.Network, error) {
	n, err := parseNetwork(d.stored)
	if err != nil {
		return nil, err
	}
	active, same := d.running != "", !d.transient
	if active && same {
		r, err := parseNetwork(d.running)
		if err != nil {
			return nil, err
		}
		same = described(r).Object().Equal(described(n).Object())
	}
	s := described(n)
	s.Active, s.Autostart, s.InEffect, s.UUID = &active, &d.autostart, &same, optional(n.UUID)
	return s, nil
}

func parseNetwork(xml string) (*libvirtxml.Network, error) {
	var n libvirtxml.Network
	if err := n.Unmarshal(xml); err != nil {
		return nil, err
	}
	normalize(&n)
	return &n, nil
}

// isolated is the mode of a network that leads nowhere; libvirt leaves it out.
const isolated = "none"

// modeOf returns the forward mode of a network.
func modeOf(n *libvirtxml.Network) string {
	if n.Forward == nil {
		return isolated
	}
	return cmp.Or(n.Forward.Mode, "nat")
}

// normalize gives addresses their prefixes: libvirt has them in three forms.
func normalize(n *libvirtxml.Network) {
	for i := range n.IPs {
		ip := &n.IPs[i]
		addr, err := netip.ParseAddr(ip.Address)
		if err != nil {
			continue
		}
		if ip.Prefix == 0 {
			ip.Prefix = uint(prefixOf(addr, ip.Netmask))
		}
		ip.Netmask = ""
		if ip.Family == "ipv4" {
			ip.Family = ""
		}
	}
}

// prefixOf returns the length of a prefix that is given as a mask, or not at all.
func prefixOf(addr netip.Addr, mask string) int {
	if m, err := netip.ParseAddr(mask); err == nil && m.Is4() {
		ones, _ := net.IPMask(m.AsSlice()).Size()
		return ones
	}
	if addr.Is4() {
		ones, _ := net.IP(addr.AsSlice()).DefaultMask().Size()
		return ones
	}
	return 64
}

// described returns what a spec has of a definition.
func described(n *libvirtxml.Network) *spec.Network {
	mode := modeOf(n)
	s := &spec.Network{ForwardMode: &mode, IPs: []spec.NetworkIP{}, PortGroups: []spec.PortGroup{}}
	if n.Forward != nil {
		s.ForwardDev = optional(n.Forward.Dev)
	}
	if n.Bridge != nil {
		s.Bridge = optional(n.Bridge.Name)
	}
	s.Virtualport = optional(portType(n.VirtualPort))
	if n.MTU != nil {
		s.MTU = optional(int64(n.MTU.Size))
	}
	if n.MAC != nil {
		s.MAC = optional(n.MAC.Address)
	}
	if n.Domain != nil {
		s.Domain = optional(n.Domain.Name)
	}
	for _, ip := range n.IPs {
		out := spec.NetworkIP{Address: addressOf(ip), DHCPRanges: []spec.DHCPRange{}}
		if ip.DHCP != nil {
			for _, r := range ip.DHCP.Ranges {
				out.DHCPRanges = append(out.DHCPRanges, spec.DHCPRange{Start: r.Start, End: r.End})
			}
		}
		s.IPs = append(s.IPs, out)
	}
	for _, g := range n.PortGroups {
		s.PortGroups = append(s.PortGroups, spec.PortGroup{Name: g.Name, Default: g.Default == "yes", VLANs: tagsOf(g.VLAN)})
	}
	return s
}

// addressOf returns an address with its prefix, of a normalized definition.
func addressOf(ip libvirtxml.NetworkIP) string { return fmt.Sprintf("%s/%d", ip.Address, ip.Prefix) }

// portType returns the type of a virtual port; empty when there is none.
func portType(p *libvirtxml.NetworkVirtualPort) string {
	switch {
	case p == nil || p.Params == nil:
		return ""
	case p.Params.OpenVSwitch != nil:
		return "openvswitch"
	case p.Params.MidoNet != nil:
		return "midonet"
	case p.Params.VEPA8021QBG != nil:
		return "802.1Qbg"
	case p.Params.VNTag8011QBH != nil:
		return "802.1Qbh"
	}
	return ""
}

// tagsOf returns the VLANs of a group, sorted; never nil.
func tagsOf(v *libvirtxml.NetworkVLAN) []int64 {
	tags := []int64{}
	if v != nil {
		for _, t := range v.Tags {
			tags = append(tags, int64(t.ID))
		}
	}
	slices.Sort(tags)
	return tags
}

// describe makes a definition as a spec wants it, and leaves the rest of it as it is.
func describe(n *libvirtxml.Network, s *spec.Network) error {
	mode := or(s.ForwardMode, isolated)
	was := modeOf(n)
	if mode == isolated {
		n.Forward = nil
	} else {
		if n.Forward == nil || was != mode {
			n.Forward = &libvirtxml.NetworkForward{}
		}
		if dev := or(s.ForwardDev, ""); n.Forward.Dev != dev {
			n.Forward.Dev, n.Forward.Interfaces = dev, nil
		}
		n.Forward.Mode = mode
	}
	// The bridge of others has no settings here, and libvirt gives it no address.
	foreign := mode == "bridge"
	if n.Bridge == nil || foreign != (was == "bridge") {
		n.Bridge = &libvirtxml.NetworkBridge{}
	}
	if n.Bridge.Name = or(s.Bridge, ""); *n.Bridge == (libvirtxml.NetworkBridge{}) {
		n.Bridge = nil
	}
	n.MAC, n.MTU = nil, nil
	if s.MAC != nil && !foreign {
		n.MAC = &libvirtxml.NetworkMAC{Address: *s.MAC}
	}
	if s.MTU != nil {
		n.MTU = &libvirtxml.NetworkMTU{Size: uint(*s.MTU)}
	}
	switch name := or(s.Domain, ""); {
	case name == "":
		n.Domain = nil
	case n.Domain == nil:
		n.Domain = &libvirtxml.NetworkDomain{Name: name}
	default:
		n.Domain.Name = name
	}
	switch port := or(s.Virtualport, ""); {
	case port == portType(n.VirtualPort):
	case port == "openvswitch":
		n.VirtualPort = &libvirtxml.NetworkVirtualPort{Params: &libvirtxml.NetworkVirtualPortParams{OpenVSwitch: &libvirtxml.NetworkVirtualPortParamsOpenVSwitch{}}}
	case port == "":
		n.VirtualPort = nil
	default:
		return refuse(providers.Invalid, "virtualport cannot be changed to %q", port)
	}
	describeGroups(n, s.PortGroups)
	return describeIPs(n, s.IPs)
}

func describeGroups(n *libvirtxml.Network, want []spec.PortGroup) {
	var groups []libvirtxml.NetworkPortGroup
	for _, w := range want {
		g := libvirtxml.NetworkPortGroup{Name: w.Name}
		if i := slices.IndexFunc(n.PortGroups, func(g libvirtxml.NetworkPortGroup) bool { return g.Name == w.Name }); i >= 0 {
			g = n.PortGroups[i]
		}
		g.Default = ""
		if w.Default {
			g.Default = "yes"
		}
		tags := slices.Sorted(slices.Values(w.VLANs))
		if !slices.Equal(tags, tagsOf(g.VLAN)) {
			g.VLAN = nil
			if len(tags) > 0 {
				g.VLAN = &libvirtxml.NetworkVLAN{}
			}
			if len(tags) > 1 {
				g.VLAN.Trunk = "yes"
			}
			for _, t := range tags {
				g.VLAN.Tags = append(g.VLAN.Tags, libvirtxml.NetworkVLANTag{ID: uint(t)})
			}
		}
		groups = append(groups, g)
	}
	n.PortGroups = groups
}

// describeIPs keeps what others added to an address. Reservations would go with their address, so that is refused.
func describeIPs(n *libvirtxml.Network, want []spec.NetworkIP) error {
	kept := map[string]libvirtxml.NetworkIP{}
	for _, ip := range n.IPs {
		kept[addressOf(ip)] = ip
	}
	var ips []libvirtxml.NetworkIP
	for _, w := range want {
		ip, ok := kept[w.Address]
		delete(kept, w.Address)
		if !ok {
			p, err := netip.ParsePrefix(w.Address)
			if err != nil {
				return refuse(providers.Invalid, "%s is no address with a prefix", w.Address)
			}
			ip = libvirtxml.NetworkIP{Address: p.Addr().String(), Prefix: uint(p.Bits())}
			if p.Addr().Is6() {
				ip.Family = "ipv6"
			}
		}
		dhcp := libvirtxml.NetworkDHCP{}
		if ip.DHCP != nil {
			dhcp = *ip.DHCP
		}
		var ranges []libvirtxml.NetworkDHCPRange
		for _, r := range w.DHCPRanges {
			had := slices.IndexFunc(dhcp.Ranges, func(h libvirtxml.NetworkDHCPRange) bool { return h.Start == r.Start && h.End == r.End })
			if had >= 0 {
				ranges = append(ranges, dhcp.Ranges[had])
			} else {
				ranges = append(ranges, libvirtxml.NetworkDHCPRange{Start: r.Start, End: r.End})
			}
		}
		dhcp.Ranges, ip.DHCP = ranges, nil
		if len(dhcp.Ranges)+len(dhcp.Hosts)+len(dhcp.Bootp) > 0 {
			ip.DHCP = &dhcp
		}
		ips = append(ips, ip)
	}
	for address, ip := range kept {
		if ip.DHCP != nil && len(ip.DHCP.Hosts) > 0 {
			return refuse(providers.Invalid, "the DHCP reservations of address %s would be lost with it", address)
		}
	}
	n.IPs = ips
	return nil
}

func (networks) create(ch *change, want schema.Object) error {
	var s spec.Network
	if err := read(want, &s); err != nil {
		return err
	}
	n := libvirtxml.Network{Name: ch.call.ID, UUID: or(s.UUID, ch.host.uuidOf(ch.call.Ref))}
	if err := describe(&n, &s); err != nil {
		return err
	}
	xml, err := n.Marshal()
	if err != nil {
		return refuse(providers.Invalid, "it cannot be written as XML: %w", err)
	}
	return ch.establish(target{object: networkObject, name: ch.call.ID, xml: xml, active: or(s.Active, true), autostart: or(s.Autostart, true)})
}

func (networks) update(ch *change, have providers.Thing, want schema.Object) error {
	var s, h spec.Network
	if err := read(want, &s); err != nil {
		return err
	}
	if err := read(have.Spec, &h); err != nil {
		return err
	}
	if s.UUID != nil && or(h.UUID, "") != *s.UUID {
		return refuse(providers.Invalid, "uuid cannot be changed in place")
	}
	d, err := ch.found(networkObject, have.ID)
	if err != nil {
		return err
	}
	n, err := parseNetwork(d.stored)
	if err != nil {
		return err
	}
	before := described(n).Object()
	if err := describe(n, &s); err != nil {
		return err
	}
	after := described(n).Object()
	t := target{object: networkObject, name: have.ID, active: or(s.Active, true), autostart: or(s.Autostart, true)}
	if d.transient || !after.Equal(before) {
		if t.xml, err = n.Marshal(); err != nil {
			return refuse(providers.Invalid, "it cannot be written as XML: %w", err)
		}
		if err := losesNothing(d.stored, t.xml, new(libvirtxml.Network), contents); err != nil {
			return err
		}
	}
	if d.running != "" {
		r, err := parseNetwork(d.running)
		if err != nil {
			return err
		}
		t.restart = or(s.InEffect, true) && !described(r).Object().Equal(after)
		if (t.restart || !t.active) && modeOf(r) != "bridge" {
			if err := ch.unused(d, true); err != nil {
				return err
			}
		}
		if t.restart || !t.active {
			if err := stoppable(d, cmp.Or(t.xml, d.stored)); err != nil {
				return err
			}
		}
	}
	return ch.adjust(t, d)
}

// stoppable fails when a network runs with settings of others that are not stored. What is described may differ: that is what a
// restart is for.
func stoppable(d definition, stored string) error {
	if d.running == "" {
		return nil
	}
	lost, err := lostBy(d.running, stored, contents)
	if err == nil && len(lost) > 0 {
		err = refuse(providers.Invalid, "network %s runs with settings that are not stored and would be lost when it stops: %s", d.name, strings.Join(lost, ", "))
	}
	return err
}

// unused fails when domains have interfaces in a network; running only counts those that run.
func (ch *change) unused(network definition, running bool) error {
	by, err := usedBy(ch.ctx, &ch.host.machines, ch.machines, func(all *users) (string, error) { return all.connected(network, running) })
	if by != "" {
		err = refuse(providers.Invalid, "domain %s has an interface in network %s, which would lose its connection: remove that interface first", by, network.name)
	}
	return err
}

// remove refuses to delete anything that is not in the spec of the network, so that a delete can be undone.
func (networks) remove(ch *change, have providers.Thing) error {
	d, err := ch.found(networkObject, have.ID)
	if err != nil {
		return err
	}
	if err := ch.unused(d, false); err != nil {
		return err
	}
	extras, err := extrasOf(d.stored)
	switch {
	case err != nil:
		return err
	case len(extras) > 0:
		return refuse(providers.Invalid, "settings of network %s that are not in its spec would be lost: %s", have.ID, strings.Join(extras, ", "))
	}
	if err := stoppable(d, d.stored); err != nil {
		return err
	}
	return ch.dissolve(networkObject, d)
}

// extrasOf returns what is in the definition of a network besides its spec and what libvirt fills in.
func extrasOf(definition string) ([]string, error) {
	_, extras, err := contents(definition)
	return places(extras), err
}

// contents returns all values of the definition of a network, and those of them that are neither in its spec nor filled in by libvirt.
func contents(definition string) (all, extras map[string]int, err error) {
	n, err := parseNetwork(definition)
	if err != nil {
		return nil, nil, err
	}
	bare := libvirtxml.Network{Name: n.Name, UUID: n.UUID}
	if err := describe(&bare, described(n)); err != nil {
		return nil, nil, err
	}
	if n.Bridge != nil && modeOf(n) != "bridge" {
		bare.Bridge = &libvirtxml.NetworkBridge{Name: n.Bridge.Name, STP: "on", Delay: "0"}
	}
	if n.Forward != nil && bare.Forward != nil {
		if n.Forward.NAT != nil {
			bare.Forward.NAT = &libvirtxml.NetworkForwardNAT{Ports: []libvirtxml.NetworkForwardNATPort{{Start: 1024, End: 65535}}}
		}
		if n.Forward.Dev != "" {
			bare.Forward.Interfaces = []libvirtxml.NetworkForwardInterface{{Dev: n.Forward.Dev}}
		}
	}
	text, err := n.Marshal()
	if err != nil {
		return nil, nil, err
	}
	kept, err := bare.Marshal()
	if err != nil {
		return nil, nil, err
	}
	if all, err = values(text); err != nil {
		return nil, nil, err
	}
	described, err := values(kept)
	if err != nil {
		return nil, nil, err
	}
	extras = without(all, described)
	strange, err := strangeOf(definition, new(libvirtxml.Network))
	for at, n := range strange {
		all[at] += n
		extras[at] += n
	}
	return all, extras, err
}
