package libvirt

import (
	"strings"
	"testing"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// An error without a reason blames the values only when nothing has happened.
func TestRefusedWithEffect(t *testing.T) {
	for _, effect := range []bool{false, true} {
		want, over := providers.Invalid, false
		if effect {
			want, over = providers.Unknown, true
		}
		for name, act := range map[string]func(p *providers.Provider) error{
			"define": func(p *providers.Provider) error {
				c := calling("libvirt.pool", "new")
				c.Want = schema.Object{"path": "/srv/new"}
				return served(t, p, "libvirt.pool").Kind.Create(t.Context(), c)
			},
			"define again": func(p *providers.Provider) error {
				return updated(t, p, "libvirt.network", "net", schema.Object{"domain": "a.example", "in_effect": false})
			},
			"reserve": func(p *providers.Provider) error {
				c := calling("libvirt.dhcp_host", "net/c")
				c.Want = schema.Object{"network": "net", "mac": "52:54:00:00:00:0c", "ip": "10.0.0.12"}
				return served(t, p, "libvirt.dhcp_host").Kind.Create(t.Context(), c)
			},
			"reserve another address": func(p *providers.Provider) error {
				return updated(t, p, "libvirt.dhcp_host", "net/b", schema.Object{"ip": "10.0.0.12"})
			},
		} {
			f := newFake()
			f.put(networkObject, "net", reserved(hostB), reserved(hostB))
			f.effect, f.fail = effect, func(string) error { return refusal("no memory") }
			t.Log(name, effect)
			expect(t, act(f.open(t)), want, over, "no memory")
		}
	}
}

// A change that was taken back counts as none only when everything is as it was.
func TestTakenBack(t *testing.T) {
	ranged := reserved("<range start='10.0.0.9' end='10.0.0.99'/>")
	renamed := func(domain string) string {
		return strings.Replace(ranged, "<ip ", "<domain name='"+domain+"'/><ip ", 1)
	}
	for name, c := range map[string]struct {
		stored, running string
		fail            string // the call that fails when it is made first
		effect          bool   // it has its effect all the same
		class           providers.Class
	}{
		"all is back":              {ranged, ranged, "start net", false, providers.Invalid},
		"what ran is lost":         {ranged, renamed("theirs.example"), "start net", false, providers.Unknown},
		"it failed with an effect": {ranged, ranged, "stop net", true, providers.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.put(networkObject, "net", c.stored, c.running)
			f.effect = c.effect
			f.fail = func(call string) error {
				if call == c.fail {
					c.fail = ""
					return refusal("for no reason")
				}
				return nil
			}
			expect(t, updated(t, f.open(t), "libvirt.network", "net", schema.Object{"domain": "a.example", "in_effect": true}), c.class, c.class == providers.Unknown, "for no reason")
			if now := f.objects[networkObject]["net"]; !sameValues(now.stored, c.stored) || !sameValues(now.running, c.stored) {
				t.Errorf("the network is now %v", now)
			}
		})
	}
}

// A definition of others that cannot be read is no reason to wonder what a change has done: nothing was sent.
func TestUnreadable(t *testing.T) {
	f := newFake()
	f.put(networkObject, "net", reserved(""), "")
	f.put(networkObject, "odd", "<network><name>odd</name><mtu size='many'/></network>", "")
	p := f.open(t)
	k := served(t, p, "libvirt.network").Kind
	_, err := providers.Collect(k.List(t.Context()))
	expect(t, err, providers.Transient, false, "the definition of odd")
	expect(t, k.Delete(t.Context(), calling("libvirt.network", "odd")), providers.Invalid, false, "the definition of odd")
	f.guests = []definition{{name: "vm", stored: "<domain"}}
	expect(t, k.Delete(t.Context(), calling("libvirt.network", "net")), providers.Invalid, false, "the definition of domain vm")
}
