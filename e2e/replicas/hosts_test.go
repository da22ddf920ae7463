package replicas

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"converge.dev/converge/internal/libvirttest"
	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/internal/torture"
	sites "converge.dev/converge/site"
	"converge.dev/converge/state"
)

// A host is a node with real daemons, each in namespaces of its own.
type host struct {
	*ovstest.Switch
	virt *libvirttest.Host
}

// However the keeper fails in the middle of a run, the nodes come to what the document says, as other clients of their daemons see it, and no
// step is done twice.
func TestTortureHosts(t *testing.T) {
	full(t)
	t.Parallel()
	var names []string
	for _, f := range failures {
		names = append(names, f.name)
	}
	reached := torture.Cover(t, "failures of the keeper", names)
	var hosts []host
	s := newSiteOf(t, 3, func() string {
		h := host{ovstest.Start(t), libvirttest.Start(t)}
		hosts = append(hosts, h)
		return fmt.Sprintf("ovs: %q\nlibvirt: %q\n", h.Endpoint, h.virt.URI())
	})
	const width = 4
	revise := func() {
		nodes := map[string]any{}
		for _, n := range s.nodes {
			tagged, networks := map[string]any{}, map[string]any{}
			for _, p := range ports(width) {
				tagged[p] = map[string]any{"bridge": "br0", "tag": 101 + s.serial, "interface": map[string]any{"type": "internal"}}
				networks[p] = map[string]any{"bridge": "vir-" + p, "autostart": s.serial%2 == 0}
			}
			nodes[n.name] = map[string]any{
				"ovs":     map[string]any{"bridge": map[string]any{"br0": map[string]any{"datapath_type": ovstest.Datapath}}, "port": tagged},
				"libvirt": map[string]any{"network": networks},
			}
		}
		text, err := json.Marshal(map[string]any{"apiVersion": "converge.dev/v1", "site": map[string]any{"name": s.name, "id": siteID}, "nodes": nodes})
		s.must(err)
		s.put(string(text))
	}
	check := func(what string) {
		t.Helper()
		s.stands(sites.InSync)
		s.settled()
		runs, _ := s.journals()
		if len(runs) != int(s.serial) || runs[0].Status != state.RunApplied {
			t.Errorf("%s: there are %d runs for %d documents, and the last one is %s", what, len(runs), s.serial, runs[0].Status)
		}
		auto := "no"
		if s.serial%2 == 1 {
			auto = "yes"
		}
		for i, h := range hosts {
			for _, p := range ports(width) {
				if tag := strings.TrimSpace(h.Vsctl(t, "get", "port", p, "tag")); tag != fmt.Sprint(100+s.serial) {
					t.Errorf("%s: the tag of %s on %s is %s, want %d", what, p, s.nodes[i].name, tag, 100+s.serial)
				}
				if info := h.virt.Virsh(t, "net-info", p); !strings.Contains(strings.Join(strings.Fields(info), " "), "Autostart: "+auto) {
					t.Errorf("%s: network %s on %s, want autostart %s:\n%s", what, p, s.nodes[i].name, auto, info)
				}
			}
		}
		reached.Reach(what)
	}
	revise()
	s.stands(sites.InSync)
	for round := range torture.Scale(0, 1, 10) {
		for i, f := range failures {
			old := s.hand(fmt.Sprintf("call.update.before:%d=stop", 2+5*i+round))
			revise()
			old.now.stopped()
			f.fail(s, old)
			check(f.name)
			if f.heal != nil {
				f.heal(s, old)
				old.now.await(0, "this site agent no longer keeps the site", 1)
			}
		}
	}
	torture.Report(t, "S", "the keeper of three nodes with a real switch and a real libvirt each failed in the middle of a run: %s; each run ended applied, each step was done once", reached)
}
