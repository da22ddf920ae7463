package sysfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// VFs are the virtual functions of network cards, as the driver of the physical function has them: what the command ip link set IFACE
// vf N does. A network interface is given by its folder below /sys.
type VFs interface {
	// List returns the virtual functions of an interface. Errors wrap the kernel's errno.
	List(iface string) ([]VF, error)
	// Set changes one setting of a virtual function with one request, and returns the kernel's answer.
	Set(iface string, number int, to Setting) error
}

// A VF is a virtual function as its interface shows it. What the driver does not tell is nil.
type VF struct {
	Number int
	MAC    MAC
	VLAN   VLAN
	Rate   Rate
	Link   LinkState
	Spoof  *SpoofCheck
	Trust  *Trust
}

// A Setting is what one request sets: a [MAC], [VLAN], [Rate], [LinkState], [SpoofCheck] or [Trust].
type Setting interface{ setting() }

// The settings of a virtual function.
type (
	// MAC is the address that the card gives to the function. While it is zero, the driver of the function chooses one.
	MAC [6]byte
	// VLAN is what the card puts into frames of the function, and takes out again. The id 0 means none.
	VLAN struct {
		ID, QoS  int64
		Protocol uint16 // its EtherType
	}
	// Rate has the limits of what the function sends, in Mbit/s. 0 means none.
	Rate struct{ Min, Max int64 }
	// LinkState is the state of the function's link: that of the card's own, or always up or down.
	LinkState uint32
	// SpoofCheck is whether frames with another source address than the function's are dropped.
	SpoofCheck bool
	// Trust is whether the function may do what concerns others, such as receive all frames.
	Trust bool
)

func (MAC) setting()        {}
func (VLAN) setting()       {}
func (Rate) setting()       {}
func (LinkState) setting()  {}
func (SpoofCheck) setting() {}
func (Trust) setting()      {}

// The states of a link.
const (
	LinkAuto LinkState = iota
	LinkEnable
	LinkDisable
)

// The protocols of a VLAN.
const (
	Dot1Q  = unix.ETH_P_8021Q
	Dot1AD = unix.ETH_P_8021AD
)

// Has reports whether a virtual function has a setting.
func (v VF) Has(s Setting) bool {
	switch s := s.(type) {
	case MAC:
		return v.MAC == s
	case VLAN:
		return v.VLAN == s
	case Rate:
		return v.Rate == s
	case LinkState:
		return v.Link == s
	case SpoofCheck:
		return v.Spoof != nil && *v.Spoof == s
	case Trust:
		return v.Trust != nil && *v.Trust == s
	}
	return false
}

// links are the network interfaces of the running kernel.
type links struct{ sys Tree }

// index returns the number of an interface.
func (l links) index(iface string) (int32, error) {
	text, err := l.sys.Read(iface + "/ifindex")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(plain(text), 10, 32)
	return int32(n), err
}

// look asks for all that the kernel tells of an interface. Its number is that of the network namespace of /sys, which need not be that
// of this process: there, another interface may have it.
func (l links) look(iface string) (link netlink.LinkAttrs, vfs []byte, err error) {
	index, err := l.index(iface)
	if err != nil {
		return link, nil, err
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	about := nl.NewIfInfomsg(unix.AF_UNSPEC)
	about.Index = index
	req.AddData(about)
	const withoutStatistics = 1 << 3 // RTEXT_FILTER_SKIP_STATS: with them, the answer has room for fewer functions
	req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(nl.RTEXT_FILTER_VF|withoutStatistics)))
	answers, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return link, nil, err
	}
	if len(answers) != 1 {
		return link, nil, fmt.Errorf("the kernel sent %d answers", len(answers))
	}
	attributes, err := nl.ParseRouteAttr(answers[0][unix.SizeofIfInfomsg:])
	if err != nil {
		return link, nil, err
	}
	link.Index = int(index)
	for _, a := range attributes {
		switch a.Attr.Type &^ unix.NLA_F_NESTED {
		case unix.IFLA_IFNAME:
			link.Name = string(bytes.TrimRight(a.Value, "\x00"))
		case unix.IFLA_VFINFO_LIST:
			vfs = a.Value
		}
	}
	if want := path.Base(iface); link.Name != want {
		return link, nil, fmt.Errorf("%s is in another network namespace than this process, where interface %d is %s: %w", want, index, link.Name, syscall.EPERM)
	}
	return link, vfs, nil
}

// List implements [VFs].
func (l links) List(iface string) ([]VF, error) {
	_, list, err := l.look(iface)
	if err != nil {
		return nil, err
	}
	infos, err := nl.ParseRouteAttr(list)
	if err != nil {
		return nil, err
	}
	var vfs []VF
	for _, info := range infos {
		attributes, err := nl.ParseRouteAttr(info.Value)
		if err != nil {
			return nil, err
		}
		v := VF{Number: -1, VLAN: VLAN{Protocol: Dot1Q}} // before Linux 4.9 there was no other
		for _, a := range attributes {
			v.read(int(a.Attr.Type&^unix.NLA_F_NESTED), a.Value)
		}
		if v.Number >= 0 {
			vfs = append(vfs, v)
		}
	}
	return vfs, nil
}

// read takes one attribute from the kernel's answer: the number of the function, and then what it is about. The library reads them
// too, but does not tell what is not supported, all bits of which are set, from what is on.
func (v *VF) read(attribute int, value []byte) {
	if attribute == nl.IFLA_VF_VLAN_LIST {
		vlans, err := nl.DeserializeVfVlanList(value)
		if err == nil {
			v.VLAN.Protocol = vlans[0].VlanProto
		}
		return
	}
	words := make([]uint32, len(value)/4)
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(value[4*i:])
	}
	if len(words) < 2 {
		return
	}
	const unsupported = ^uint32(0)
	on := words[1] != 0
	switch attribute {
	case nl.IFLA_VF_MAC:
		v.Number = int(words[0])
		copy(v.MAC[:], value[4:])
	case nl.IFLA_VF_VLAN:
		if len(words) > 2 {
			v.VLAN.ID, v.VLAN.QoS = int64(words[1]), int64(words[2])
		}
	case nl.IFLA_VF_RATE:
		if len(words) > 2 {
			v.Rate = Rate{Min: int64(words[1]), Max: int64(words[2])}
		}
	case nl.IFLA_VF_LINK_STATE:
		v.Link = LinkState(words[1])
	case nl.IFLA_VF_SPOOFCHK:
		if words[1] != unsupported {
			v.Spoof = (*SpoofCheck)(&on)
		}
	case nl.IFLA_VF_TRUST:
		if words[1] != unsupported {
			v.Trust = (*Trust)(&on)
		}
	}
}

// Set implements [VFs].
func (l links) Set(iface string, number int, to Setting) error {
	attrs, _, err := l.look(iface)
	if err != nil {
		return err
	}
	link := &netlink.Device{LinkAttrs: attrs}
	switch s := to.(type) {
	case MAC:
		return netlink.LinkSetVfHardwareAddr(link, number, net.HardwareAddr(slices.Clone(s[:])))
	case VLAN:
		return netlink.LinkSetVfVlanQosProto(link, number, int(s.ID), int(s.QoS), int(s.Protocol))
	case Rate:
		return netlink.LinkSetVfRate(link, number, int(s.Min), int(s.Max))
	case LinkState:
		return netlink.LinkSetVfState(link, number, uint32(s))
	case SpoofCheck:
		return netlink.LinkSetVfSpoofchk(link, number, bool(s))
	case Trust:
		return netlink.LinkSetVfTrust(link, number, bool(s))
	}
	return errors.ErrUnsupported
}
