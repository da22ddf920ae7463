package libvirt

import (
	"context"
	"encoding/xml"
	"net/netip"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/libvirt/spec"
	"converge.dev/converge/schema"
)

// dhcpHosts is the kind libvirt.dhcp_host.
type dhcpHosts struct{}

// traits: libvirt refuses a second reservation of a network for a MAC address or for an address.
func (dhcpHosts) traits(common providers.Traits) providers.Traits {
	common.ID, common.Serial = "{network}/{name}", true
	common.SetLast, common.SelfChanging = []string{"in_effect"}, []string{"in_effect"} // whoever restarts the network
	common.Exclusive = []providers.Exclusive{{Field: "mac", Within: "network"}, {Field: "ip", Within: "network"}}
	return common
}

func (dhcpHosts) excludes(c providers.Call) []string {
	network, _, _ := strings.Cut(c.ID, "/")
	return []string{network}
}

func (dhcpHosts) told() (object, func(string) []string, bool) {
	return networkObject, func(string) []string { return nil }, true
}

// A reservation is a DHCP host of a network, as it is stored, as it runs, or both.
type reservation struct {
	stored, running *libvirtxml.NetworkDHCPHost
}

// of returns the reservation as it is stored, or as it runs where it is not stored.
func (r reservation) of() *libvirtxml.NetworkDHCPHost {
	if r.stored != nil {
		return r.stored
	}
	return r.running
}

// reservations returns the reservations of a network by what identifies them: their names, or where they have none, or that of
// another, their MAC addresses or addresses.
func reservations(d definition) (map[string]reservation, error) {
	found := map[string]reservation{}
	for _, definition := range []struct {
		xml string
		set func(r *reservation, h *libvirtxml.NetworkDHCPHost)
	}{
		{d.stored, func(r *reservation, h *libvirtxml.NetworkDHCPHost) { r.stored = h }},
		{d.running, func(r *reservation, h *libvirtxml.NetworkDHCPHost) { r.running = h }},
	} {
		if definition.xml == "" {
			continue
		}
		n, err := parseNetwork(definition.xml)
		if err != nil {
			return nil, err
		}
		all := hostsOf(n)
		for i, h := range all {
			key := h.Name
			if key == "" || slices.ContainsFunc(all[:i], func(o libvirtxml.NetworkDHCPHost) bool { return o.Name == key }) {
				key = h.MAC + h.ID
			}
			if key == "" {
				key = h.IP
			}
			r := found[key]
			definition.set(&r, &all[i])
			found[key] = r
		}
	}
	if d.transient {
		for key, r := range found {
			found[key] = reservation{running: r.running}
		}
	}
	return found, nil
}

// hostsOf returns the reservations of a definition.
func hostsOf(n *libvirtxml.Network) []libvirtxml.NetworkDHCPHost {
	var all []libvirtxml.NetworkDHCPHost
	for _, ip := range n.IPs {
		if ip.DHCP != nil {
			all = append(all, ip.DHCP.Hosts...)
		}
	}
	return all
}

func (dhcpHosts) list(ctx context.Context, c conn, ids []string) ([]providers.Thing, error) {
	var names []string // of networks; nil: all
	for _, id := range ids {
		if network, _, ok := strings.Cut(id, "/"); ok && !slices.Contains(names, network) {
			names = append(names, network)
		}
	}
	if ids != nil && names == nil {
		return nil, nil
	}
	ds, err := c.read(ctx, networkObject, names)
	if err != nil {
		return nil, err
	}
	var found []providers.Thing
	for _, d := range ds {
		rs, err := reservations(d)
		if err != nil {
			return nil, err
		}
		for key, r := range rs {
			id := d.name + "/" + key
			if ids != nil && !slices.Contains(ids, id) {
				continue
			}
			h := r.of()
			same := r.stored != nil && (d.running == "" || r.running != nil && sameHost(r.stored, r.running))
			s := spec.DHCPHost{InEffect: &same, IP: h.IP, MAC: strings.ToLower(h.MAC), Network: d.name}
			found = append(found, providers.Thing{ID: id, Name: key, Spec: s.Object(), Phase: providers.Ready, Passing: passing(d)})
		}
	}
	return found, nil
}

// assigns reports whether a subnet has DHCP and contains an address.
func assigns(ip libvirtxml.NetworkIP, address string) bool {
	subnet, err := netip.ParsePrefix(addressOf(ip))
	if err != nil || ip.DHCP == nil {
		return false
	}
	addr, err := netip.ParseAddr(address)
	return err == nil && subnet.Contains(addr)
}

func sameHost(a, b *libvirtxml.NetworkDHCPHost) bool {
	return strings.EqualFold(a.MAC, b.MAC) && a.IP == b.IP && a.Name == b.Name
}

// taken fails when a definition has another reservation than is with the MAC address, the address or the name of h.
func taken(definition string, is, h *libvirtxml.NetworkDHCPHost) error {
	n, err := parseNetwork(definition)
	if err != nil {
		return err
	}
	all := hostsOf(n)
	if is != nil {
		if i := slices.IndexFunc(all, func(o libvirtxml.NetworkDHCPHost) bool { return o.ID == is.ID && sameHost(&o, is) }); i >= 0 {
			all = slices.Delete(all, i, i+1)
		}
	}
	for _, o := range all {
		if strings.EqualFold(o.MAC, h.MAC) || sameAddress(o.IP, h.IP) || o.Name == h.Name {
			return refuse(providers.Exists, "the reservation %s of network %s has its MAC address, its address or its name", strings.TrimSpace(o.Name+" "+o.MAC+" "+o.IP), n.Name)
		}
	}
	return nil
}

func sameAddress(a, b string) bool {
	x, err := netip.ParseAddr(a)
	y, err2 := netip.ParseAddr(b)
	return err == nil && err2 == nil && x == y
}

// wanted reads a spec, and returns the network and the reservation that it describes.
func (k dhcpHosts) wanted(ch *change, want schema.Object) (definition, *libvirtxml.NetworkDHCPHost, error) {
	var s spec.DHCPHost
	if err := read(want, &s); err != nil {
		return definition{}, nil, err
	}
	name, ok := strings.CutPrefix(ch.call.ID, s.Network+"/")
	if !ok {
		return definition{}, nil, refuse(providers.Invalid, "network cannot be changed in place")
	}
	ds, err := ch.read(ch.ctx, networkObject, []string{s.Network})
	switch {
	case err != nil:
		return definition{}, nil, err
	case len(ds) == 0:
		return definition{}, nil, refuse(providers.Absent, "network %s does not exist", s.Network)
	case ds[0].transient:
		return definition{}, nil, refuse(providers.Invalid, "network %s is not stored: it ends with its run, and would take the reservation with it", s.Network)
	}
	n, err := parseNetwork(ds[0].stored)
	if err != nil {
		return definition{}, nil, err
	}
	if !slices.ContainsFunc(n.IPs, func(ip libvirtxml.NetworkIP) bool { return assigns(ip, s.IP) }) { // libvirt would put it anywhere
		return definition{}, nil, refuse(providers.Invalid, "network %s has no subnet with DHCP that contains %s", s.Network, s.IP)
	}
	return ds[0], &libvirtxml.NetworkDHCPHost{Name: name, MAC: s.MAC, IP: s.IP}, nil
}

func (k dhcpHosts) create(ch *change, want schema.Object) error {
	d, h, err := k.wanted(ch, want)
	if err != nil {
		return err
	}
	return ch.whole(networkObject, d.name, []definition{d}, func() error { return ch.put(d, addHost, h, true, d.running != "") })
}

// put changes a reservation. libvirt checks it for what is stored and for what runs before it changes either.
func (ch *change) put(d definition, how hostUpdate, h *libvirtxml.NetworkDHCPHost, stored, running bool) error {
	text, err := xml.Marshal(h)
	if err != nil {
		return refuse(providers.Invalid, "it cannot be written as XML: %w", err)
	}
	return ch.updateHost(ch.ctx, d.name, how, string(text), stored, running)
}

// update changes the reservation where it is not as wanted, so that it exists all the time. libvirt modifies the first one that has the
// MAC address or the name, without looking for others that have them too. So what another one has is refused here, and one without
// a name of its own gets one before it gets another MAC address.
func (k dhcpHosts) update(ch *change, have providers.Thing, want schema.Object) error {
	d, h, err := k.wanted(ch, want)
	if err != nil {
		return err
	}
	rs, err := reservations(d)
	if err != nil {
		return err
	}
	r := rs[have.Name]
	if err := taken(d.stored, r.stored, h); err != nil {
		return err
	}
	if d.running != "" {
		if err := taken(d.running, r.running, h); err != nil {
			return err
		}
	}
	for _, side := range []struct {
		is     *libvirtxml.NetworkDHCPHost
		stored bool
	}{{r.stored, true}, {r.running, false}} {
		change := func(how hostUpdate, h *libvirtxml.NetworkDHCPHost) error {
			now, err := ch.read(ch.ctx, networkObject, []string{d.name}) // another side may be changed by now
			if err != nil {
				return err
			}
			return ch.whole(networkObject, d.name, now, func() error { return ch.put(d, how, h, side.stored, !side.stored) })
		}
		switch {
		case !side.stored && d.running == "":
		case side.is == nil:
			err = change(addHost, h)
		case sameHost(side.is, h):
		case strings.EqualFold(side.is.MAC, h.MAC), side.is.Name == h.Name:
			err = change(modifyHost, h)
		case side.is.MAC != "": // and it has no name, or that of another
			if err = change(modifyHost, &libvirtxml.NetworkDHCPHost{MAC: side.is.MAC, Name: h.Name, IP: side.is.IP}); err == nil {
				err = change(modifyHost, h)
			}
		default:
			return refuse(providers.Invalid, "reservation %s of network %s has no MAC address by which libvirt could change it: delete it first", have.Name, d.name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (dhcpHosts) remove(ch *change, have providers.Thing) error {
	var s spec.DHCPHost
	if err := read(have.Spec, &s); err != nil {
		return err
	}
	ds, err := ch.read(ch.ctx, networkObject, []string{s.Network})
	if err != nil || len(ds) == 0 {
		return err
	}
	rs, err := reservations(ds[0])
	if err != nil {
		return err
	}
	r := rs[have.Name]
	for _, side := range []struct {
		is     *libvirtxml.NetworkDHCPHost
		stored bool
	}{{r.stored, true}, {r.running, false}} {
		if side.is == nil {
			continue
		}
		if err := ch.do(func() error { return ch.put(ds[0], deleteHost, side.is, side.stored, !side.stored) }); err != nil {
			return err
		}
	}
	return nil
}
