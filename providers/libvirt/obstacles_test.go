package libvirt

import (
	"strings"
	"testing"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// TestObstacles: what uses volumes and networks, and what is left in pools, is found before anything is deleted; what goes with them does not
// count.
func TestObstacles(t *testing.T) {
	f, p := newVolumeFake(t)
	for _, id := range []string{"p/base", "p/top", "p/other"} {
		want := schema.Object{"pool": "p", "capacity": int64(4096), "format": "qcow2"}
		if id == "p/top" {
			want["backing"] = "p/base"
		}
		mustDo(t, createVolume(t, p, id, want))
	}
	const lanXML = "<network><name>lan</name><bridge name='virbr7'/></network>"
	f.put(networkObject, "lan", lanXML, lanXML)
	f.put(networkObject, "dmz", strings.NewReplacer("lan", "dmz", "virbr7", "virbr8").Replace(lanXML), "")
	f.guests = []definition{{name: "vm", stored: "<domain><devices><disk type='file'><source file='/srv/p/other'/><target dev='vda'/></disk>" +
		"<interface type='network'><source network='lan'/></interface></devices></domain>"},
		{name: "beside", stored: "<domain/>", running: "<domain><devices><interface type='bridge'><source bridge='virbr8'/></interface></devices></domain>"}}
	f.put(domainObject, "web", strings.Replace(plain, "<vcpu placement='static'", "<vcpu placement='static' current='1'", 1), "")
	base, top, other, pool := volume("p/base"), volume("p/top"), volume("p/other"), providers.Target{Kind: "libvirt.pool", ID: "p"}
	dmz, web := providers.Target{Kind: "libvirt.network", ID: "dmz"}, providers.Target{Kind: "libvirt.domain", ID: "web"}
	lan, vm := providers.Target{Kind: "libvirt.network", ID: "lan"}, providers.Target{Kind: "libvirt.domain", ID: "vm"}
	type targets = []providers.Target
	made := f.calls()
	for name, c := range map[string]struct {
		deletes, changes targets
		want             map[providers.Target]string
	}{
		"a base":                 {deletes: targets{base}, want: map[providers.Target]string{base: "it is the backing volume of p/top"}},
		"a base and its user":    {deletes: targets{base, top}},
		"a base that is let go":  {deletes: targets{base}, changes: targets{top}},
		"a disk":                 {deletes: targets{other, top}, want: map[providers.Target]string{other: "it is disk vda of domain vm"}},
		"a disk and its domain":  {deletes: targets{other, vm}},
		"a disk that is let go":  {deletes: targets{other}, changes: targets{vm}},
		"a pool":                 {deletes: targets{pool, top}, want: map[providers.Target]string{pool: "it still has the volumes base, other"}},
		"a pool with all of it":  {deletes: targets{pool, base, top, other}, changes: targets{vm}},
		"a network":              {deletes: targets{lan}, want: map[providers.Target]string{lan: "domain vm has an interface in it"}},
		"a network and its user": {deletes: targets{lan, vm}},
		"a network's bridge":     {deletes: targets{dmz}, want: map[providers.Target]string{dmz: "domain beside has an interface in it"}},
		"a domain":               {deletes: targets{web}, want: map[providers.Target]string{web: "settings of domain web that are not in its spec would be lost: domain/vcpu/@current"}},
		"what is gone":           {deletes: targets{volume("p/gone"), {Kind: "libvirt.pool", ID: "gone"}}},
	} {
		found, err := p.Obstacles(t.Context(), c.deletes, c.changes)
		is := map[providers.Target]string{}
		for _, o := range found {
			is[o.Target] = o.Why
		}
		if err != nil || len(is) != len(c.want) {
			t.Errorf("%s: %v, %v", name, found, err)
		}
		for on, why := range c.want {
			if is[on] != why {
				t.Errorf("%s: %q of %s, want %q", name, is[on], on.ID, why)
			}
		}
	}
	if len(*made) > 0 {
		t.Errorf("calls were made: %q", *made)
	}
}

func volume(id string) providers.Target { return providers.Target{Kind: "libvirt.volume", ID: id} }
