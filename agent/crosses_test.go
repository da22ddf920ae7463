package agent

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A change of Open vSwitch is left unguarded only when each link of a connection is a plain one that it does not name.
func TestCrosses(t *testing.T) {
	named := func(name string) netlink.LinkAttrs { return netlink.LinkAttrs{Name: name} }
	card, bond := &netlink.Device{LinkAttrs: named("eth0")}, netlink.NewLinkBond(named("bond0"))
	here := netlink.NewLinkAttrs() // its other end is in the same namespace
	other := providers.Call{ID: "vnet7", Want: schema.Object{"bridge": "br-tenants", "tag": int64(7)}}
	for what, c := range map[string]struct {
		hops    []netlink.Link
		call    providers.Call
		crosses bool
	}{
		"a card":                        {[]netlink.Link{card}, other, false},
		"a VLAN of a bond":              {[]netlink.Link{&netlink.Vlan{LinkAttrs: named("bond0.7")}, bond, card}, other, false},
		"a port of Open vSwitch":        {[]netlink.Link{&netlink.GenericLink{LinkAttrs: named("br0"), LinkType: "openvswitch"}}, other, true},
		"a bridge in user space":        {[]netlink.Link{&netlink.Tuntap{LinkAttrs: named("br0")}}, other, true},
		"a card in a bridge of it":      {[]netlink.Link{card, &netlink.Device{LinkAttrs: named("ovs-system")}}, other, true},
		"a tunnel":                      {[]netlink.Link{&netlink.Vxlan{LinkAttrs: named("vx0")}}, other, true},
		"the machine itself":            {[]netlink.Link{&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo", Flags: net.FlagLoopback}}}, other, true},
		"a veth to another namespace":   {[]netlink.Link{&netlink.Veth{LinkAttrs: named("eth0")}}, other, false},
		"a veth that stays":             {[]netlink.Link{&netlink.Veth{LinkAttrs: here}, &netlink.Veth{LinkAttrs: here}}, other, true},
		"a card that becomes a port":    {[]netlink.Link{card}, providers.Call{ID: "eth0"}, true},
		"a card that becomes a member":  {[]netlink.Link{bond, card}, providers.Call{ID: "b", Want: schema.Object{"bond": map[string]any{"interfaces": []any{map[string]any{"name": "eth0"}}}}}, true},
		"a card that becomes a key":     {[]netlink.Link{card}, providers.Call{ID: "b", Want: schema.Object{"interfaces": map[string]any{"eth0": map[string]any{}}}}, true},
		"a card that is no longer used": {[]netlink.Link{card}, providers.Call{ID: "b", Have: schema.Object{"interfaces": []any{"eth0"}}}, true},
	} {
		if got := crosses(c.hops, c.call); got != c.crosses {
			t.Errorf("%s: %t", what, got)
		}
	}
}
