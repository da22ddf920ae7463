package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"converge.dev/converge/internal/guest"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// cards has a network card with virtual functions.
var cards = guest.Machine{Name: "cards", IOMMU: true, Devices: []guest.Device{guest.IGB("nic"), guest.E1000e("spare")}}

func TestCards(t *testing.T) { guest.Run(t, cards, "^TestCard", ".") }

// card returns the address of the card, and its interface, which is up.
func card(t *testing.T) (pf string, link netlink.Link) {
	t.Helper()
	pf = guest.In(t, cards.Name).Address("nic")
	names, err := os.ReadDir("/sys/bus/pci/devices/" + pf + "/net")
	must(t, err)
	link, err = netlink.LinkByName(names[0].Name())
	must(t, err)
	must(t, netlink.LinkSetUp(link))
	return pf, link
}

// vfs returns a spec of two virtual functions with their attributes.
func vfs(autoprobe bool, first, second map[string]any) schema.Object {
	return schema.Object{"num_vfs": int64(2), "drivers_autoprobe": autoprobe, "vfs": map[string]any{"0": first, "1": second}}
}

var first, second = map[string]any{
	"mac": "02:00:00:00:00:01", "vlan": int64(100), "qos": int64(3), "vlan_protocol": "802.1Q", "spoof_check": false, "trust": true, "link_state": "auto", "max_tx_rate": int64(500),
}, map[string]any{"mac": "02:00:00:00:00:02"}

func TestCardLaws(t *testing.T) {
	pf, _ := card(t)
	schemas, err := kinds.New()
	must(t, err)
	providertest.Run(t, providertest.Suite{
		Kinds: schemas.Kinds(), Direct: true, Open: func(t *testing.T) providertest.World { return world(t, devices) },
		// Creating virtual functions takes the card seconds, so this law stands for the others. These are checked on the fake, which is
		// modelled on the card.
		Only: "an update is observed",
		Cases: []providertest.Case{
			{
				Kind: "pci.sriov", Name: pf, Single: true, Want: vfs(false, first, second),
				Update: vfs(true, map[string]any{"mac": "02:00:00:00:00:03", "spoof_check": true}, map[string]any{"mac": "02:00:00:00:00:02", "vlan": int64(7), "trust": true}),
			},
			{Kind: "pci.function", Name: guest.In(t, cards.Name).Address("spare"), Want: assigned, Update: schema.Object{"driver": "e1000e"}},
			{Kind: "pci.device", Name: pf, Want: schema.Object{}},
		},
	})
}

// as returns a virtual function as another program sees it, through the library that many of them use.
func as(t *testing.T, link netlink.Link, number int) netlink.VfInfo {
	t.Helper()
	now, err := netlink.LinkByIndex(link.Attrs().Index)
	must(t, err)
	vfs := now.Attrs().Vfs
	if number >= len(vfs) {
		t.Fatalf("%s has %d virtual functions", now.Attrs().Name, len(vfs))
	}
	return vfs[number]
}

// What the card was told is what others read, and what the drivers of the virtual functions get: the address at their start.
func TestCardAttributes(t *testing.T) {
	pf, link := card(t)
	w := world(t, devices)
	kind := served(t, w, "pci.sriov")
	before := dump(t)
	must(t, kind.Create(t.Context(), call("pci.sriov", pf, vfs(true, first, second))))
	if v := as(t, link, 0); v.Mac.String() != "02:00:00:00:00:01" || v.Vlan != 100 || v.Qos != 3 || v.VlanProto != 0x8100 || v.Spoofchk || v.Trust != 1 || v.MaxTxRate != 500 {
		t.Errorf("the first function is %+v", v)
	}
	if v := as(t, link, 1); v.Mac.String() != "02:00:00:00:00:02" || v.Vlan != 0 || !v.Spoofchk || v.Trust != 0 || v.MaxTxRate != 0 {
		t.Errorf("the second function is %+v", v)
	}
	for i, want := range []string{"02:00:00:00:00:01", "02:00:00:00:00:02"} {
		files, err := filepath.Glob(filepath.Join("/sys/bus/pci/devices", pf, "virtfn"+string(rune('0'+i)), "net/*/address"))
		must(t, err)
		if len(files) != 1 {
			t.Fatalf("virtual function %d has the interfaces %q", i, files)
		}
		text, err := os.ReadFile(files[0])
		must(t, err)
		if got := strings.TrimSpace(string(text)); got != want {
			t.Errorf("igbvf has the address %s for virtual function %d, want %s", got, i, want)
		}
	}
	// Others tell the card something; it is observed, and what is not declared of it stays.
	must(t, netlink.LinkSetVfVlan(link, 1, 9))
	things, err := providers.Collect(kind.List(t.Context()))
	must(t, err)
	seen, _ := things[0].Spec["vfs"].(map[string]any)
	if vf, _ := seen["1"].(map[string]any); vf["vlan"] != int64(9) || vf["mac"] != second["mac"] {
		t.Errorf("the virtual functions are observed as %v", seen)
	}
	must(t, kind.Update(t.Context(), call("pci.sriov", pf, schema.Object{"num_vfs": int64(2), "drivers_autoprobe": true})))
	for i := range 2 {
		if v := as(t, link, i); v.Mac.String() != "00:00:00:00:00:00" || v.Vlan != 0 || v.Qos != 0 || v.Trust != 0 || v.MaxTxRate != 0 || v.Spoofchk != (i == 1) {
			t.Errorf("without attributes, virtual function %d is %+v", i, v)
		}
	}
	must(t, kind.Delete(t.Context(), call("pci.sriov", pf, nil)))
	if after := dump(t); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// A driver that gets no address for its function chooses one. It is kept: the function would get nothing any more without it.
func TestCardChosenAddress(t *testing.T) {
	pf, link := card(t)
	kind := served(t, world(t, devices), "pci.sriov")
	want := vfs(true, map[string]any{"max_tx_rate": int64(100)}, map[string]any{}) // by the time it has a limit, the card answers the driver
	must(t, kind.Create(t.Context(), call("pci.sriov", pf, want)))
	chosen := as(t, link, 1).Mac.String()
	must(t, kind.Update(t.Context(), call("pci.sriov", pf, want)))
	if now := as(t, link, 1).Mac.String(); now != chosen || now == "00:00:00:00:00:00" {
		t.Errorf("the address was %s, and is %s", chosen, now)
	}
}

// What igb does not do is refused, and then nothing of the rest is done, by create and update.
func TestCardRefuses(t *testing.T) {
	pf, link := card(t)
	kind := served(t, world(t, devices), "pci.sriov")
	refusals := map[string]map[string]any{
		"driver igb of " + pf + " does not support link_state":         {"mac": "02:00:00:00:00:05", "link_state": "disable"},
		"does not support vlan 5 with qos 0 and vlan_protocol 802.1ad": {"mac": "02:00:00:00:00:05", "vlan": int64(5), "vlan_protocol": "802.1ad"},
		"refuses min_tx_rate 50 and max_tx_rate 100":                   {"mac": "02:00:00:00:00:05", "min_tx_rate": int64(50), "max_tx_rate": int64(100)},
	}
	try := func(do func(want schema.Object) error) {
		t.Helper()
		for says, vf := range refusals {
			refused(t, providers.Invalid, says, func() error { return do(vfs(true, vf, second)) })
		}
	}
	try(func(want schema.Object) error { return kind.Create(t.Context(), call("pci.sriov", pf, want)) })
	must(t, kind.Create(t.Context(), call("pci.sriov", pf, vfs(false, first, second))))
	try(func(want schema.Object) error { return kind.Update(t.Context(), call("pci.sriov", pf, want)) })
	if v := as(t, link, 0); v.Mac.String() != "02:00:00:00:00:01" || v.Vlan != 100 {
		t.Errorf("after refused updates, the first function is %+v", v)
	}
	must(t, kind.Delete(t.Context(), call("pci.sriov", pf, nil)))

	must(t, netlink.LinkSetDown(link))
	refused(t, providers.Invalid, "Its link is down", func() error { return kind.Create(t.Context(), call("pci.sriov", pf, vfs(false, first, second))) })
	must(t, netlink.LinkSetUp(link))
}
