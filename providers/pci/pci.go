// Package pci is the provider of the PCI functions of a node, through the kernel's sysfs: what they are, which driver one is bound to,
// which virtual functions it has, and what a network card enforces for those. What a function is used for is found out from the proc file
// system beside it.
package pci

import (
	"context"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/sysfs"
)

// Config is the root of sysfs; see [sysfs.Config].
type Config struct{ sysfs.Config }

// Open serves the kinds of a node.
func (c Config) Open(_ context.Context, at providers.Opening) (*providers.Provider, error) {
	k, closing, err := c.Kernel(at)
	if err != nil {
		return nil, err
	}
	return New(at.Scope, k, closing), nil
}

// New serves the kinds of a node with a kernel; closing may be nil.
func New(node string, k sysfs.Kernel, closing func() error) *providers.Provider {
	bound := sysfs.Traits()
	bound.ReadyWithin = sysfs.Settle // for the rest of an IOMMU group
	// The override is written before the function is bound. While one of the kernel's own drivers is tried, it is removed.
	bound.SetLast, bound.Vanishes = []string{"driver"}, true
	bound.UndoCreate, bound.UndoUpdate, bound.UndoDelete = providers.Restart, providers.Restart, providers.Restart
	virtual := sysfs.Traits()
	// The one is reset before the functions are removed; the other is told one by one, and before the functions get their drivers.
	virtual.SetLast = []string{"drivers_autoprobe", "vfs"}
	virtual.SelfChanging = []string{"vfs"} // drivers of virtual functions, such as those in machines, choose addresses
	virtual.UndoCreate, virtual.UndoUpdate, virtual.UndoDelete = providers.Restart, providers.Restart, providers.Restart
	return sysfs.Provider("pci", node, k, closing,
		sysfs.Kind{Name: "pci.function", Traits: bound, Noun: functions{}},
		sysfs.Kind{Name: "pci.sriov", Traits: virtual, Noun: sriov{}},
		sysfs.Kind{Name: "pci.device", Traits: sysfs.FactTraits(), Noun: sysfs.Facts(listDevices)},
	)
}

// devices are all PCI functions, by their addresses.
const devices = "bus/pci/devices/"
