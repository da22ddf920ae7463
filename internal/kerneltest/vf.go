package kerneltest

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"converge.dev/converge/providers/sysfs"
)

// vfs are the network cards as the kernel is told of their virtual functions by netlink. Their driver behaves as igb does.
type vfs struct{ *Kernel }

// card returns the physical function that an interface is of.
func (k *Kernel) card(iface string) (Function, syscall.Errno) {
	if _, err := os.Stat(filepath.Join(k.sys, iface)); err != nil {
		return Function{}, syscall.ENODEV
	}
	return k.functions[path.Base(path.Dir(path.Dir(iface)))], 0
}

// List implements [sysfs.VFs].
func (v vfs) List(iface string) ([]sysfs.VF, error) {
	k := v.Kernel
	k.mu.Lock()
	defer k.mu.Unlock()
	f, err := k.card(iface)
	if err != 0 {
		return nil, err
	}
	return slices.Clone(k.virtuals[f.Address]), nil
}

// Set implements [sysfs.VFs].
func (v vfs) Set(iface string, number int, to sysfs.Setting) error {
	k := v.Kernel
	k.do("vf")
	k.mu.Lock()
	defer k.mu.Unlock()
	f, err := k.card(iface)
	if err != 0 {
		return err
	}
	has := k.virtuals[f.Address]
	i := slices.IndexFunc(has, func(v sysfs.VF) bool { return v.Number == number })
	if i < 0 {
		return syscall.EINVAL
	}
	if err, special := f.Answers[field(to)]; special {
		if err != 0 {
			return err
		}
		return nil // and nothing happens
	}
	switch s := to.(type) {
	case sysfs.MAC:
		if s[0]&1 != 0 { // of a group
			return syscall.EINVAL
		}
		has[i].MAC = s
	case sysfs.VLAN:
		switch {
		case s.ID > 4095 || s.QoS > 7:
			return syscall.EINVAL
		case s.Protocol != sysfs.Dot1Q:
			return syscall.EPROTONOSUPPORT
		}
		has[i].VLAN = s
	case sysfs.Rate:
		if s.Min != 0 || s.Max > 1000 || !f.Link || k.down[f.Address] > 0 {
			return syscall.EINVAL
		}
		has[i].Rate = s
	case sysfs.LinkState:
		return syscall.EOPNOTSUPP
	case sysfs.SpoofCheck:
		has[i].Spoof = &s
	case sysfs.Trust:
		has[i].Trust = &s
	}
	return nil
}

// field is what documents call a setting; see [Function].
func field(s sysfs.Setting) string {
	switch s.(type) {
	case sysfs.MAC:
		return "mac"
	case sysfs.VLAN:
		return "vlan"
	case sysfs.Rate:
		return "rate"
	case sysfs.LinkState:
		return "link_state"
	case sysfs.SpoofCheck:
		return "spoof_check"
	}
	return "trust"
}

// tell makes the driver of a card know n virtual functions, of which it then does not know what it was told before, and resets it.
func (k *Kernel) tell(f Function, n int) {
	delete(k.virtuals, f.Address)
	if len(f.Interfaces) == 0 || f.Interfaces[0] == "" {
		return
	}
	k.down[f.Address] = 2
	for i := range n {
		v := sysfs.VF{Number: i, VLAN: sysfs.VLAN{Protocol: sysfs.Dot1Q}}
		if f.Answers["spoof_check"] != syscall.EOPNOTSUPP {
			v.Spoof = new(sysfs.SpoofCheck(true))
		}
		if f.Answers["trust"] != syscall.EOPNOTSUPP {
			v.Trust = new(sysfs.Trust)
		}
		k.virtuals[f.Address] = append(k.virtuals[f.Address], v)
	}
}

// address gives the interface of a virtual function the address that its card has for it, or one that its driver chooses, and tells the
// card.
func (k *Kernel) address(f Function) (mac, chosen string) {
	to, err := os.Readlink(filepath.Join(k.sys, k.device(f.Address), "physfn"))
	a, chosen := sysfs.MAC{0x0e, f.Address[5], f.Address[6], f.Address[8], f.Address[9], f.Address[11]}, "0"
	for i, v := range k.virtuals[path.Base(to)] {
		link, lerr := os.Readlink(filepath.Join(k.sys, k.device(path.Base(to)), fmt.Sprint("virtfn", v.Number)))
		if err != nil || lerr != nil || path.Base(link) != f.Address {
			continue
		}
		if v.MAC != (sysfs.MAC{}) {
			a = v.MAC
		} else {
			k.virtuals[path.Base(to)][i].MAC, chosen = a, "1"
		}
	}
	return net.HardwareAddr(a[:]).String(), chosen
}

// carrier reads whether an interface has a link, which comes back a moment after its card was reset.
func (k *Kernel) carrier(at string) (string, error) {
	f, err := k.card(path.Dir(at))
	switch {
	case err != 0:
		return "", &fs.PathError{Op: "open", Path: at, Err: syscall.ENOENT}
	case !f.Link: // down
		return "", &fs.PathError{Op: "read", Path: at, Err: syscall.EINVAL}
	case k.down[f.Address] > 0:
		k.down[f.Address]--
		return "0", nil
	}
	return "1", nil
}

// cards returns what the cards were told, as text.
func (k *Kernel) cards() string {
	var b strings.Builder
	for address, has := range k.virtuals {
		for _, v := range has {
			fmt.Fprintf(&b, "%s vf %d: %x %v %v %v", address, v.Number, v.MAC, v.VLAN, v.Rate, v.Link)
			if v.Spoof != nil {
				fmt.Fprint(&b, " spoof_check ", *v.Spoof)
			}
			if v.Trust != nil {
				fmt.Fprint(&b, " trust ", *v.Trust)
			}
			b.WriteByte('\n')
		}
	}
	lines := strings.SplitAfter(b.String(), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "")
}
