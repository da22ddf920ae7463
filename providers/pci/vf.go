package pci

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/pci/spec"
	"converge.dev/converge/providers/sysfs"
)

// own matches the port names of interfaces that are those of the function itself. Others represent functions of it in a switch in the
// card, such as pf0vf1.
var own = regexp.MustCompile(`^(p\d+)?$`)

// interfaceOf returns the folder of the network interface of a physical function, through which the card is told of its virtual
// functions; none when it has none, or several.
func interfaceOf(k sysfs.Kernel, address string) (iface string, err error) {
	names, err := k.List(devices + address + "/net")
	if err != nil {
		return "", err
	}
	names = slices.DeleteFunc(names, func(n string) bool {
		return !own.MatchString(k.Attribute(devices + address + "/net/" + n + "/phys_port_name"))
	})
	if len(names) != 1 {
		return "", nil
	}
	return devices + address + "/net/" + names[0], nil
}

// observedVFs returns what the network card of a function enforces for its virtual functions; nothing where nobody can tell.
func observedVFs(k sysfs.Kernel, address string) (map[string]spec.VF, error) {
	iface, err := interfaceOf(k, address)
	if err != nil || iface == "" || k.VFs == nil {
		return nil, err
	}
	vfs, err := k.VFs.List(iface)
	switch {
	case sysfs.Gone(err), errors.Is(err, syscall.EPERM): // EPERM: it is that of another network namespace
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("the virtual functions of %s: %w", address, err)
	}
	seen := make(map[string]spec.VF, len(vfs))
	for _, v := range vfs {
		seen[strconv.Itoa(v.Number)] = shown(v)
	}
	return seen, nil
}

// protocols and states are what documents call them.
var (
	protocols = map[uint16]string{sysfs.Dot1Q: "802.1Q", sysfs.Dot1AD: "802.1ad"}
	states    = map[sysfs.LinkState]string{sysfs.LinkAuto: "auto", sysfs.LinkEnable: "enable", sysfs.LinkDisable: "disable"}
)

// shown returns a virtual function as a spec.
func shown(v sysfs.VF) spec.VF {
	s := spec.VF{
		VLAN: &v.VLAN.ID, QoS: &v.VLAN.QoS, MinTxRate: &v.Rate.Min, MaxTxRate: &v.Rate.Max,
		SpoofCheck: (*bool)(v.Spoof), Trust: (*bool)(v.Trust),
	}
	if v.MAC != (sysfs.MAC{}) {
		mac := net.HardwareAddr(v.MAC[:]).String()
		s.MAC = &mac
	}
	if p, ok := protocols[v.VLAN.Protocol]; ok {
		s.VLANProtocol = &p
	}
	if l, ok := states[v.Link]; ok {
		s.LinkState = &l
	}
	return s
}

// settings returns what a virtual function is to have. What is not stated is as it is without converge, if that is known, and if the
// driver has it at all.
func settings(v sysfs.VF, s spec.VF) ([]sysfs.Setting, error) {
	var mac sysfs.MAC
	if s.MAC != nil {
		address, err := net.ParseMAC(*s.MAC)
		if err != nil || len(address) != len(mac) {
			return nil, sysfs.Refuse(providers.Invalid, "%s is no MAC address", *s.MAC)
		}
		copy(mac[:], address)
	}
	vlan := sysfs.VLAN{ID: or(s.VLAN, 0), QoS: or(s.QoS, 0), Protocol: sysfs.Dot1Q}
	for p, name := range protocols {
		if or(s.VLANProtocol, "") == name {
			vlan.Protocol = p
		}
	}
	link := sysfs.LinkAuto
	for l, name := range states {
		if or(s.LinkState, "") == name {
			link = l
		}
	}
	wanted := []sysfs.Setting{mac, vlan, link, sysfs.Rate{Min: or(s.MinTxRate, 0), Max: or(s.MaxTxRate, 0)}}
	if s.SpoofCheck != nil {
		wanted = append(wanted, sysfs.SpoofCheck(*s.SpoofCheck))
	}
	if s.Trust != nil || v.Trust != nil {
		wanted = append(wanted, sysfs.Trust(or(s.Trust, false)))
	}
	return wanted, nil
}

func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// described returns a setting as in a document, and the names of its fields alone.
func described(s sysfs.Setting) (whole, fields string) {
	switch s := s.(type) {
	case sysfs.MAC:
		return "mac " + net.HardwareAddr(s[:]).String(), "mac"
	case sysfs.VLAN:
		return fmt.Sprintf("vlan %d with qos %d and vlan_protocol %s", s.ID, s.QoS, protocols[s.Protocol]), "vlan"
	case sysfs.Rate:
		return fmt.Sprintf("min_tx_rate %d and max_tx_rate %d", s.Min, s.Max), "min_tx_rate and max_tx_rate"
	case sysfs.LinkState:
		return "link_state " + states[s], "link_state"
	case sysfs.SpoofCheck:
		return fmt.Sprintf("spoof_check %t", s), "spoof_check"
	case sysfs.Trust:
		return fmt.Sprintf("trust %t", s), "trust"
	}
	return fmt.Sprint(s), fmt.Sprint(s)
}

// had returns what a virtual function has in place of a setting; nil when the driver does not tell.
func had(v sysfs.VF, s sysfs.Setting) sysfs.Setting {
	switch s.(type) {
	case sysfs.MAC:
		return v.MAC
	case sysfs.VLAN:
		return v.VLAN
	case sysfs.Rate:
		return v.Rate
	case sysfs.LinkState:
		return v.Link
	case sysfs.SpoofCheck:
		if v.Spoof != nil {
			return *v.Spoof
		}
	case sysfs.Trust:
		if v.Trust != nil {
			return *v.Trust
		}
	}
	return nil
}

// A card is the network card of a physical function while a verb tells it of its virtual functions.
type card struct {
	change                 *sysfs.Change
	address, iface, driver string
	undo                   []func() error // leads back, from the last to the first
}

// newCard finds the card of a function, if there is something to tell it.
func newCard(c *sysfs.Change, address string, s spec.SRIOV) (*card, error) {
	for _, number := range slices.Sorted(maps.Keys(s.VFs)) {
		if n, err := strconv.ParseInt(number, 10, 64); err != nil || n >= s.NumVFs {
			return nil, sysfs.Refuse(providers.Invalid, "of %d virtual functions of %s, none has the number %s", s.NumVFs, address, number)
		}
	}
	iface, err := interfaceOf(c.Kernel, address)
	if err != nil {
		return nil, err
	}
	driver, err := c.Link(devices + address + "/driver")
	switch {
	case err != nil:
		return nil, err
	case iface != "" && c.VFs != nil:
		return &card{change: c, address: address, iface: iface, driver: driver}, nil
	case len(s.VFs) == 0:
		return nil, nil
	case iface == "":
		return nil, sysfs.Refuse(providers.Invalid, "%s has no network interface of its own that is visible, or several, so its virtual functions have no vfs: only network cards have them", address)
	}
	return nil, sysfs.Refuse(providers.Denied, "the sysfs of node %s is a copy: no kernel can be told of virtual functions", c.Node)
}

// list returns the virtual functions as they are.
func (d *card) list() ([]sysfs.VF, error) {
	vfs, err := d.change.VFs.List(d.iface)
	if err != nil {
		return nil, fmt.Errorf("the virtual functions of %s: %w", d.address, err)
	}
	return vfs, nil
}

// apply makes all virtual functions as wanted. What it does can be taken back, also after an error.
func (d *card) apply(want map[string]spec.VF) error {
	vfs, err := d.list()
	if err != nil {
		return err
	}
	told := 0
	for _, v := range vfs {
		s, stated := want[strconv.Itoa(v.Number)]
		if stated {
			told++
		}
		wanted, err := settings(v, s)
		if err != nil {
			return err
		}
		if s.MAC == nil && d.chosen(v) {
			wanted = slices.DeleteFunc(wanted, func(to sysfs.Setting) bool { _, mac := to.(sysfs.MAC); return mac })
		}
		for _, to := range wanted {
			if v.Has(to) {
				continue
			}
			if err := d.set(v, to); err != nil {
				return err
			}
		}
	}
	if told < len(want) {
		return sysfs.Refuse(providers.Invalid, "driver %s of %s does not support vfs: it shows %d virtual functions at its network interface", d.driver, d.address, len(vfs))
	}
	return nil
}

// chosen reports whether the driver of a virtual function, here and not in a virtual machine, has chosen its address by itself: it would
// go on to use it, and get nothing any more, if the card were told that there is none.
func (d *card) chosen(v sysfs.VF) bool {
	const random = "1" // NET_ADDR_RANDOM of the kernel
	at := fmt.Sprintf("%s%s/virtfn%d/net", devices, d.address, v.Number)
	return slices.ContainsFunc(d.change.Names(at), func(name string) bool {
		return d.change.Attribute(at+"/"+name+"/addr_assign_type") == random && d.change.Attribute(at+"/"+name+"/address") == net.HardwareAddr(v.MAC[:]).String()
	})
}

// set changes one setting, and reads back what came of it.
func (d *card) set(v sysfs.VF, to sysfs.Setting) error {
	whole, fields := described(to)
	err := d.change.SetVF(d.iface, v.Number, to)
	_, rate := to.(sysfs.Rate)
	if rate && errors.Is(err, syscall.EINVAL) && d.up() {
		d.change.Wait(linkWithin, d.connected)
		d.change.Wait(linkKnown, func() bool {
			err = d.change.SetVF(d.iface, v.Number, to)
			return !errors.Is(err, syscall.EINVAL)
		})
	}
	switch {
	case errors.Is(err, syscall.EOPNOTSUPP):
		return sysfs.Refuse(providers.Invalid, "driver %s of %s does not support %s", d.driver, d.address, fields)
	case errors.Is(err, syscall.EPROTONOSUPPORT):
		return sysfs.Refuse(providers.Invalid, "driver %s of %s does not support %s", d.driver, d.address, whole)
	case errors.Is(err, syscall.EPERM):
		return sysfs.Refuse(providers.Denied, "%s of virtual function %d of %s: %w", fields, v.Number, d.address, err)
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ERANGE):
		why := ""
		if rate && !d.connected() {
			why = ". Its link is down; some drivers limit rates only while it is up"
		}
		return sysfs.Refuse(providers.Invalid, "driver %s of %s refuses %s for virtual function %d: %w%s", d.driver, d.address, whole, v.Number, err, why)
	case err != nil:
		return fmt.Errorf("%s of virtual function %d of %s: %w", whole, v.Number, d.address, err)
	}
	if from := had(v, to); from != nil {
		d.undo = append(d.undo, func() error { return d.change.RestoreVF(d.iface, v.Number, from) })
	}
	vfs, err := d.list()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(vfs, func(o sysfs.VF) bool { return o.Number == v.Number })
	switch {
	case i < 0:
		return sysfs.Refuse(providers.Absent, "virtual function %d of %s is gone", v.Number, d.address)
	case !vfs[i].Has(to):
		is := "not shown"
		if now := had(vfs[i], to); now != nil {
			is, _ = described(now)
		}
		return sysfs.Refuse(providers.Invalid, "driver %s of %s was told %s for virtual function %d and reported success, but it is %s", d.driver, d.address, whole, v.Number, is)
	}
	return nil
}

// linkWithin is how long a link takes at most to come up again after the driver has reset the card, which some do when they create
// virtual functions; linkKnown, how long until what the interface shows of it is what the driver goes by.
const (
	linkWithin = 10 * time.Second
	linkKnown  = time.Second
)

// up reports whether the interface of the card is to have a link.
func (d *card) up() bool {
	flags, err := strconv.ParseUint(d.change.Attribute(d.iface+"/flags"), 0, 64)
	return err == nil && flags&syscall.IFF_UP != 0
}

func (d *card) connected() bool { return d.change.Attribute(d.iface+"/carrier") == "1" }

// back takes back what apply has done.
func (d *card) back() error {
	var failed []error
	for _, undo := range slices.Backward(d.undo) {
		failed = append(failed, undo())
	}
	return errors.Join(failed...)
}

// probe lets the kernel look for drivers of virtual functions that have none. That a driver fails to take one is no more an error than
// when the kernel does so by itself. It is done also when the call has ended meanwhile: nothing would show later that it is missing.
func probe(c *sysfs.Change, address string) error {
	vfs, err := virtualFunctions(c.Kernel, address)
	if err != nil {
		return err
	}
	for _, vf := range vfs {
		driver, err := c.Link(devices + vf + "/driver")
		if err != nil {
			return err
		}
		if driver != "" {
			continue
		}
		var refused syscall.Errno
		if err := c.Restore("bus/pci/drivers_probe", vf); err != nil && !errors.As(err, &refused) {
			return err
		}
	}
	return nil
}
