package libvirt

import (
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
