package libvirt

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// foreignNetwork has settings of others in everything that a spec describes.
const foreignNetwork = `<network><name>net</name><uuid>0a1b2c3d-0000-4000-8000-000000000001</uuid>
<forward mode='nat'><nat><address start='192.0.2.1' end='192.0.2.9'/><port start='2000' end='3000'/></nat></forward>
<bridge name='virbr7' stp='off' delay='0' zone='lab'/><domain name='a.example' localOnly='yes'/>
<dns><txt name='a' value='b'/></dns>
<ip address='10.1.0.1' netmask='255.255.255.0'><tftp root='/srv/tftp'/><dhcp><range start='10.1.0.9' end='10.1.0.99'><lease expiry='1' unit='hours'/></range><bootp file='pxe'/></dhcp></ip>
<portgroup name='web'><vlan trunk='yes'><tag id='5' nativeMode='tagged'/></vlan><virtualport type='openvswitch'/></portgroup>
</network>`

// What others set within what a spec describes is not dropped by a change of that: the undo could not bring it back.
func TestUpdateKeepsExtras(t *testing.T) {
	ip := func(ranges ...any) []any {
		return []any{map[string]any{"address": "10.1.0.1/24", "dhcp_ranges": ranges}}
	}
	kept := map[string]any{"start": "10.1.0.9", "end": "10.1.0.99"}
	groups := func(vlans ...any) []any {
		return []any{map[string]any{"name": "web", "default": false, "vlans": vlans}}
	}
	for name, c := range map[string]struct {
		fields schema.Object
		says   string // empty: it is changed
	}{
		"forward mode":     {schema.Object{"forward_mode": "route"}, "network/forward/nat/address, network/forward/nat/address/@end"},
		"no forward mode":  {schema.Object{"forward_mode": "none"}, "network/forward/nat/port/@start"},
		"bridge of others": {schema.Object{"forward_mode": "bridge", "bridge": "br0", "ips": []any{}}, "network/bridge/@zone"},
		"no domain":        {schema.Object{"domain": nil}, "network/domain/@localOnly"},
		"no address":       {schema.Object{"ips": []any{}}, "network/ip/tftp/@root"},
		"another address":  {schema.Object{"ips": []any{map[string]any{"address": "10.2.0.1/24"}}}, "network/ip/dhcp/bootp"},
		"no range":         {schema.Object{"ips": ip()}, "network/ip/dhcp/range/lease"},
		"no group":         {schema.Object{"port_groups": []any{}}, "network/portgroup/virtualport"},
		"another VLAN":     {schema.Object{"port_groups": groups(int64(6))}, "network/portgroup/vlan/tag/@nativeMode"},

		"another domain":  {schema.Object{"domain": "b.example"}, ""},
		"another bridge":  {schema.Object{"bridge": "virbr8"}, ""},
		"another range":   {schema.Object{"ips": ip(kept, map[string]any{"start": "10.1.0.109", "end": "10.1.0.199"})}, ""},
		"a second group":  {schema.Object{"port_groups": append(groups(int64(5)), map[string]any{"name": "db", "default": true, "vlans": []any{int64(7)}})}, ""},
		"an MTU":          {schema.Object{"mtu": int64(1400)}, ""},
		"forward device":  {schema.Object{"forward_dev": "eth0"}, ""},
		"autostart alone": {schema.Object{"autostart": false}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.put(networkObject, "net", foreignNetwork, "")
			err := updated(t, f.open(t), "libvirt.network", "net", c.fields)
			now := f.objects[networkObject]["net"].stored
			lost, failed := lostBy(foreignNetwork, now, contents)
			if failed != nil {
				t.Fatal(failed)
			}
			if len(lost) > 0 {
				t.Errorf("it lost %q", lost)
			}
			if c.says != "" {
				expect(t, err, providers.Invalid, false, c.says)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// A network that has more while it runs than is stored is not stopped, whatever for: that would be lost.
func TestLiveOnly(t *testing.T) {
	stored := reserved("<range start='10.0.0.9' end='10.0.0.99'/>")
	live := strings.Replace(reserved("<range start='10.0.0.9' end='10.0.0.99'/>"+hostB), "<ip ", "<dns><txt name='a' value='b'/></dns><ip ", 1)
	removed := func(t *testing.T, p *providers.Provider) error {
		return served(t, p, "libvirt.network").Kind.Delete(t.Context(), calling("libvirt.network", "net"))
	}
	changed := func(fields schema.Object) func(t *testing.T, p *providers.Provider) error {
		return func(t *testing.T, p *providers.Provider) error {
			return updated(t, p, "libvirt.network", "net", fields)
		}
	}
	for name, c := range map[string]struct {
		running string
		act     func(t *testing.T, p *providers.Provider) error
		refused bool
	}{
		"restart":              {live, changed(schema.Object{"domain": "a.example"}), true},
		"stop":                 {live, changed(schema.Object{"active": false}), true},
		"delete":               {live, removed, true},
		"store alone":          {live, changed(schema.Object{"domain": "a.example", "in_effect": false}), false},
		"restart, same":        {strings.Replace(stored, "<network>", "<network connections='3'>", 1), changed(schema.Object{"domain": "a.example"}), false},
		"restart, other range": {strings.Replace(stored, "10.0.0.99", "10.0.0.88", 1), changed(schema.Object{"in_effect": true}), false},
		"delete, same":         {strings.Replace(stored, "<network>", "<network connections='3'>", 1), removed, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.put(networkObject, "net", stored, c.running)
			before := f.objects[networkObject]["net"]
			err := c.act(t, f.open(t))
			switch now := f.objects[networkObject]["net"]; {
			case !c.refused && err != nil:
				t.Error(err)
			case c.refused:
				expect(t, err, providers.Invalid, false, "network/dns, network/dns/txt, network/dns/txt/@name, network/dns/txt/@value, network/ip/dhcp/host")
				if now != before {
					t.Errorf("the network is now %v", now)
				}
			}
		})
	}
}

// TestExcludes: changes of one network exclude each other, and so do creates for which libvirt chooses a bridge. Others are made at the same
// time.
func TestExcludes(t *testing.T) {
	type made struct {
		verb, kind, id, bridge string
	}
	for _, c := range []struct {
		a, b made
		both bool
	}{
		{made{"create", "network", "a", "br-a"}, made{"create", "network", "b", "br-b"}, true},
		{made{"create", "network", "a", ""}, made{"create", "network", "b", "br-b"}, true},
		{made{"create", "network", "a", ""}, made{"create", "network", "b", ""}, false},
		{made{"create", "network", "a", ""}, made{"create", "network", "b", "virbr7"}, false},
		{made{"create", "network", "a", ""}, made{"create", "network", "b", "virbr-b"}, true},
		{made{"create", "network", "a", ""}, made{"delete", "network", "b", ""}, true},
		{made{"delete", "network", "a", ""}, made{"delete", "network", "b", ""}, true},
		{made{"delete", "network", "a", ""}, made{"delete", "network", "a", ""}, false},
		{made{"delete", "network", "a", ""}, made{"create", "dhcp_host", "a/x", ""}, false},
		{made{"create", "dhcp_host", "a/y", ""}, made{"create", "dhcp_host", "a/x", ""}, false},
		{made{"create", "dhcp_host", "b/y", ""}, made{"create", "dhcp_host", "a/x", ""}, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			p := f.open(t)
			var inside atomic.Int32
			hold := make(chan struct{})
			f.observing = func(context.Context) { inside.Add(1); <-hold }
			var all sync.WaitGroup
			for _, m := range []made{c.a, c.b} {
				k, call := served(t, p, "libvirt."+m.kind).Kind, calling("libvirt."+m.kind, m.id)
				all.Go(func() {
					if call.Want = (schema.Object{}); m.bridge != "" {
						call.Want["bridge"] = m.bridge
					}
					if m.verb == "delete" {
						call.Have = schema.Object{}
						_ = k.Delete(t.Context(), call)
						return
					}
					_ = k.Create(t.Context(), call)
				})
			}
			synctest.Wait()
			if both := inside.Load() == 2; both != c.both {
				t.Errorf("%v and %v are made at the same time: %t, want %t", c.a, c.b, both, c.both)
			}
			close(hold)
			all.Wait()
		})
	}
}
