package pci_test

import (
	"errors"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"converge.dev/converge/internal/kerneltest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/pci"
	"converge.dev/converge/schema"
)

const nic = "0000:03:00.0"

// cards returns a machine with a network card, whose driver may answer otherwise than igb does, and an NVMe disk with virtual functions.
func cards(answers map[string]syscall.Errno) kerneltest.Machine {
	return kerneltest.Machine{Drivers: []string{"vfio-pci"}, Functions: []kerneltest.Function{
		{Address: "0000:01:00.0", Class: "0x010802", Native: "nvme", Group: "1", VFs: 4},
		{Address: nic, Native: "igb", Group: "3", VFs: 4, Link: true, Answers: answers},
	}}
}

// vfs returns a spec of two virtual functions, of which the first has attributes given as NAME VALUE NAME VALUE.
func vfs(autoprobe bool, attributes ...any) schema.Object {
	vf := map[string]any{}
	for i := 0; i < len(attributes); i += 2 {
		vf[attributes[i].(string)] = attributes[i+1]
	}
	return schema.Object{"num_vfs": int64(2), "drivers_autoprobe": autoprobe, "vfs": map[string]any{"0": vf}}
}

// attribute returns an attribute of a virtual function as the provider observes it.
func attribute(t *testing.T, k *kerneltest.Kernel, number int, name string) any {
	t.Helper()
	things := list(t, served(t, k, "pci.sriov"))
	if len(things) != 1 {
		t.Fatalf("there is %+v", things)
	}
	all, _ := things[0].Spec["vfs"].(map[string]any)
	vf, _ := all[strconv.Itoa(number)].(map[string]any)
	return vf[name]
}

// A driver reads the address of its function when it starts: it must be there by then.
func TestAddressBeforeDriver(t *testing.T) {
	k := kerneltest.New(t, cards(nil))
	kind := served(t, k, "pci.sriov")
	const mac = "02:00:00:00:00:01"
	must(t, kind.Create(t.Context(), call("pci.sriov", nic, vfs(true, "mac", mac))))
	for vf, want := range map[string]string{"0000:03:00.1": mac, "0000:03:00.2": "0e:30:33:30:30:32"} { // the other driver has chosen one
		dev := "bus/pci/devices/" + vf
		got, err := k.Read(dev + "/net/en" + strings.NewReplacer(":", "", ".", "").Replace(vf) + "/address")
		if err != nil || got != want {
			t.Errorf("the interface of %s has the address %q, %v; want %s", vf, got, err, want)
		}
	}
	things := list(t, kind)
	if th := things[0]; th.Spec["drivers_autoprobe"] != true || attribute(t, k, 0, "mac") != mac {
		t.Errorf("there is %+v", th)
	}
	must(t, kind.Delete(t.Context(), call("pci.sriov", nic, nil)))

	must(t, kind.Create(t.Context(), call("pci.sriov", nic, vfs(false, "mac", mac))))
	if driver, err := k.Readlink("bus/pci/devices/0000:03:00.1/driver"); err == nil {
		t.Errorf("with drivers_autoprobe false, the virtual function got the driver %s", driver)
	}
	turned := vfs(true, "mac", mac) // what a create that was cut is completed by
	must(t, kind.Update(t.Context(), call("pci.sriov", nic, turned)))
	if _, err := k.Readlink("bus/pci/devices/0000:03:00.1/driver"); err != nil {
		t.Errorf("after drivers_autoprobe was turned on: %v", err)
	}
}

// What a driver does not do is said, and nothing is left of the rest: neither new virtual functions, nor what an update had changed.
func TestAttributesRefused(t *testing.T) {
	const eopnotsupp, einval = syscall.EOPNOTSUPP, syscall.EINVAL
	for _, c := range []struct {
		name    string
		answers map[string]syscall.Errno
		want    []any
		says    string
	}{
		{"not supported", map[string]syscall.Errno{"trust": eopnotsupp}, []any{"trust", true}, "driver igb of 0000:03:00.0 does not support trust"},
		{"nor this", map[string]syscall.Errno{"spoof_check": eopnotsupp}, []any{"spoof_check", false}, "driver igb of 0000:03:00.0 does not support spoof_check"},
		{"nor this by any igb", nil, []any{"link_state", "disable"}, "driver igb of 0000:03:00.0 does not support link_state"},
		{"another protocol", nil, []any{"vlan", int64(5), "vlan_protocol", "802.1ad"}, "does not support vlan 5 with qos 0 and vlan_protocol 802.1ad"},
		{"a rate above that of the card", nil, []any{"max_tx_rate", int64(5000)}, "refuses min_tx_rate 0 and max_tx_rate 5000 for virtual function 0"},
		{"an address", map[string]syscall.Errno{"mac": einval}, []any{"mac", "02:00:00:00:00:01"}, "driver igb of 0000:03:00.0 refuses mac 02:00:00:00:00:01 for virtual function 0"},
		{"without effect", map[string]syscall.Errno{"trust": 0}, []any{"trust", true}, "was told trust true for virtual function 0 and reported success, but it is trust false"},
		{"without effect on the VLAN", map[string]syscall.Errno{"vlan": 0}, []any{"vlan", int64(9)}, "reported success, but it is vlan 0 with qos 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := kerneltest.New(t, cards(c.answers))
			kind := served(t, k, "pci.sriov")
			want := vfs(true, append(c.want, "qos", int64(0))...)
			refused(t, k, providers.Invalid, c.says, func() error { return kind.Create(t.Context(), call("pci.sriov", nic, want)) })

			if c.answers != nil { // an update could not begin
				return
			}
			must(t, kind.Create(t.Context(), call("pci.sriov", nic, vfs(false, "mac", "02:00:00:00:00:01", "vlan", int64(7), "trust", true))))
			change := vfs(true, append(c.want, "mac", "02:00:00:00:00:02")...)
			refused(t, k, providers.Invalid, c.says, func() error { return kind.Update(t.Context(), call("pci.sriov", nic, change)) })
		})
	}
	t.Run("not permitted", func(t *testing.T) {
		k := kerneltest.New(t, cards(map[string]syscall.Errno{"vlan": syscall.EPERM}))
		refused(t, k, providers.Denied, "vlan of virtual function 0 of 0000:03:00.0", func() error {
			return served(t, k, "pci.sriov").Create(t.Context(), call("pci.sriov", nic, vfs(false, "mac", "02:00:00:00:00:01", "vlan", int64(7))))
		})
	})
	t.Run("no network card", func(t *testing.T) {
		k := kerneltest.New(t, cards(nil))
		refused(t, k, providers.Invalid, "0000:01:00.0 has no network interface of its own", func() error {
			return served(t, k, "pci.sriov").Create(t.Context(), call("pci.sriov", "0000:01:00.0", vfs(false, "vlan", int64(7))))
		})
	})
	t.Run("no such function", func(t *testing.T) {
		k := kerneltest.New(t, cards(nil))
		want := schema.Object{"num_vfs": int64(2), "vfs": map[string]any{"2": map[string]any{"vlan": int64(7)}}}
		refused(t, k, providers.Invalid, "of 2 virtual functions of 0000:03:00.0, none has the number 2", func() error {
			return served(t, k, "pci.sriov").Create(t.Context(), call("pci.sriov", nic, want))
		})
	})
}

// When the kernel does not take back what it has done, the outcome is unknown, and the message has both reasons.
func TestAttributesNotTakenBack(t *testing.T) {
	k := kerneltest.New(t, cards(nil))
	kind := served(t, k, "pci.sriov")
	must(t, kind.Create(t.Context(), call("pci.sriov", nic, vfs(false))))
	k.Before("vf", func() { k.Before("vf", func() { k.Hide("en000003000"); k.Unplug(nic) }) })
	err := kind.Update(t.Context(), call("pci.sriov", nic, vfs(false, "mac", "02:00:00:00:00:01", "vlan", int64(7))))
	if providers.ClassOf(err) != providers.Unknown || !errors.Is(err, syscall.ENODEV) {
		t.Errorf("the error is %v, of class %s", err, providers.ClassOf(err))
	}
}

// A driver that resets the card when it makes virtual functions limits no rate before the link is up again. A link that is down is not
// waited for.
func TestRateNeedsLink(t *testing.T) {
	m := cards(nil)
	k := kerneltest.New(t, m)
	must(t, served(t, k, "pci.sriov").Create(t.Context(), call("pci.sriov", nic, vfs(false, "max_tx_rate", int64(100)))))
	if got := attribute(t, k, 0, "max_tx_rate"); got != int64(100) {
		t.Errorf("the limit is %v", got)
	}
	m.Functions[1].Link = false
	k = kerneltest.New(t, m)
	refused(t, k, providers.Invalid, "Its link is down", func() error {
		return served(t, k, "pci.sriov").Create(t.Context(), call("pci.sriov", nic, vfs(false, "max_tx_rate", int64(100))))
	})
}

// What is no longer stated goes back to what it is without converge; whether sources are checked stays, for that differs by driver.
func TestAttributesUnset(t *testing.T) {
	k := kerneltest.New(t, cards(nil))
	kind := served(t, k, "pci.sriov")
	all := vfs(false, "mac", "02:00:00:00:00:01", "vlan", int64(7), "qos", int64(2), "trust", true, "spoof_check", false, "max_tx_rate", int64(100))
	must(t, kind.Create(t.Context(), call("pci.sriov", nic, all)))
	must(t, kind.Update(t.Context(), call("pci.sriov", nic, schema.Object{"num_vfs": int64(2), "drivers_autoprobe": false})))
	for name, want := range map[string]any{
		"mac": nil, "vlan": int64(0), "qos": int64(0), "vlan_protocol": "802.1Q", "trust": false, "spoof_check": false, "link_state": "auto", "min_tx_rate": int64(0), "max_tx_rate": int64(0),
	} {
		if got := attribute(t, k, 0, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

// A function may have interfaces besides its own: those that represent its virtual functions in the switch in the card.
func TestInterfaceOfCard(t *testing.T) {
	m := cards(nil)
	m.Functions[1].Interfaces = []string{"ens1f0np0", "eth0", "eth1"}
	k := kerneltest.New(t, m)
	port := func(name, port string) { k.Attribute("devices/pci0000:00/"+nic+"/net/"+name+"/phys_port_name", port) }
	kind := served(t, k, "pci.sriov")
	port("eth0", "pf0vf0")
	refused(t, k, providers.Invalid, "no network interface of its own that is visible, or several", func() error { // of two, one would be as good as the other
		return kind.Create(t.Context(), call("pci.sriov", nic, vfs(false, "vlan", int64(7))))
	})
	port("ens1f0np0", "p0")
	port("eth1", "pf0vf1")
	must(t, kind.Create(t.Context(), call("pci.sriov", nic, vfs(false, "vlan", int64(7)))))
	if got := attribute(t, k, 0, "vlan"); got != int64(7) {
		t.Errorf("the VLAN is %v", got)
	}
}

// Where nobody can tell what a card enforces, such as in a copy, that is not observed; and nothing is said to a card that is not there.
func TestAttributesOfCopy(t *testing.T) {
	live := kerneltest.New(t, cards(nil))
	must(t, served(t, live, "pci.sriov").Create(t.Context(), call("pci.sriov", nic, vfs(false, "vlan", int64(7)))))
	k := live.Kernel()
	k.VFs = nil
	set, err := providers.NewSet(pci.New("gpu-01", k, nil))
	must(t, err)
	s, _, _ := set.Find("gpu-01", "pci.sriov")
	things := list(t, s.Kind)
	if len(things) != 1 || things[0].Spec["vfs"] != nil {
		t.Errorf("a copy shows %+v", things)
	}
	refused(t, live, providers.Denied, "the sysfs of node gpu-01 is a copy", func() error {
		return s.Kind.Update(t.Context(), call("pci.sriov", nic, vfs(false, "vlan", int64(8))))
	})
}

// A driver that was given no address has chosen one, and goes on to use it: an update that does not mention it leaves it there.
func TestChosenAddress(t *testing.T) {
	k := kerneltest.New(t, cards(nil))
	kind := served(t, k, "pci.sriov")
	want := vfs(true, "vlan", int64(7))
	must(t, kind.Create(t.Context(), call("pci.sriov", nic, want)))
	for _, number := range []int{0, 1} {
		chosen := attribute(t, k, number, "mac")
		must(t, kind.Update(t.Context(), call("pci.sriov", nic, want)))
		if now := attribute(t, k, number, "mac"); now != chosen || now == nil {
			t.Errorf("virtual function %d had the address %v, and has %v", number, chosen, now)
		}
	}
}
