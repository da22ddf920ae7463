package pci

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/pci/spec"
	"converge.dev/converge/providers/sysfs"
	"converge.dev/converge/schema"
)

// functions is the kind pci.function: functions with a driver override.
type functions struct{}

// List implements [sysfs.Noun].
func (functions) List(k sysfs.Kernel) ([]providers.Thing, error) {
	addresses, err := k.List(devices)
	if err != nil {
		return nil, err
	}
	var things []providers.Thing
	for _, a := range addresses {
		override, err := overrideOf(k, a)
		if sysfs.Gone(err) || err == nil && override == "" {
			continue
		}
		if err != nil {
			return nil, err
		}
		th, err := function(k, a, override)
		if sysfs.Gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		things = append(things, th)
	}
	return things, nil
}

// function reads a function that has an override.
func function(k sysfs.Kernel, address, override string) (th providers.Thing, err error) {
	dev := devices + address
	s := spec.Function{}
	if s.Driver, err = k.Link(dev + "/driver"); err != nil {
		return th, err
	}
	of, err := k.Link(dev + "/physfn")
	if err != nil {
		return th, err
	}
	if of != "" {
		s.PhysicalFunction = &of
	}
	th = providers.Thing{ID: address, Name: address, Version: override, Spec: s.Object(), Phase: providers.Ready}
	if s.Driver == "" {
		delete(th.Spec, "driver")
	}
	group, err := k.Link(dev + "/iommu_group")
	if err != nil {
		return th, err
	}
	th.Status = facts(k, dev, group).Object()
	if vfio(s.Driver) && group != "" {
		held, err := heldIn(k, group)
		if err != nil {
			return th, err
		}
		if len(held) > 0 {
			th.Phase = providers.Pending
			th.Detail = fmt.Sprintf("IOMMU group %s cannot be assigned as long as %s: bind every function of the group to %s", group, strings.Join(held, " and "), s.Driver)
		}
	}
	return th, nil
}

// facts reads what a function is. What the kernel does not show is left out.
func facts(k sysfs.Kernel, dev, group string) *spec.FunctionStatus {
	return &spec.FunctionStatus{
		ID: told(ids(k, dev, "vendor", "device")), Class: told(code(k.Attribute(dev + "/class"))), IOMMUGroup: told(group), NUMANode: numaNode(k, dev),
	}
}

// told returns a text that is not empty.
func told(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// ids returns a pair of ids, as in 8086:10d3; empty when one of them is not shown.
func ids(k sysfs.Kernel, dev, vendor, device string) string {
	v, d := code(k.Attribute(dev+"/"+vendor)), code(k.Attribute(dev+"/"+device))
	if v == "" || d == "" {
		return ""
	}
	return v + ":" + d
}

// code returns a number as lspci shows it.
func code(hex string) string { return strings.TrimPrefix(hex, "0x") }

func numaNode(k sysfs.Kernel, dev string) *int64 {
	if n, err := k.Number(dev + "/numa_node"); err == nil && n >= 0 {
		return &n
	}
	return nil
}

// Create implements [sysfs.Noun].
func (functions) Create(c *sysfs.Change, address string, want schema.Object) error {
	var s spec.Function
	if err := s.Read(want); err != nil {
		return sysfs.Refuse(providers.Invalid, "invalid spec: %w", err)
	}
	if _, err := overrideOf(c.Kernel, address); sysfs.Gone(err) {
		return sysfs.Refuse(providers.Absent, "node %s has no PCI function %s", c.Node, address)
	} else if err != nil {
		return err
	}
	of, err := c.Link(devices + address + "/physfn")
	if err != nil {
		return err
	}
	if s.PhysicalFunction != nil && *s.PhysicalFunction != of {
		return sysfs.Refuse(providers.Invalid, "%s is not a virtual function of %s", address, *s.PhysicalFunction)
	}
	return bind(c, address, s.Driver, "")
}

// Update implements [sysfs.Noun].
func (functions) Update(c *sysfs.Change, have providers.Thing, want schema.Object) error {
	driver, _ := want["driver"].(string) // absent in the undo of a change that found the function without a driver
	override, err := overrideOf(c.Kernel, have.ID)
	if err != nil {
		return err
	}
	if driver == "" {
		bound, err := c.Link(devices + have.ID + "/driver")
		if err == nil {
			err = removable(c.Kernel, have.ID, bound)
		}
		if err != nil {
			return err
		}
		return unbind(c, have.ID, bound)
	}
	return bind(c, have.ID, driver, override)
}

// Delete implements [sysfs.Noun]. A function that the kernel has given to its own driver stays with it.
func (functions) Delete(c *sysfs.Change, have providers.Thing) error {
	driver, _ := have.Spec["driver"].(string)
	override, err := overrideOf(c.Kernel, have.ID)
	if err != nil {
		return err
	}
	stays := driver != "" && !assigns(driver)
	if !stays {
		if err := removable(c.Kernel, have.ID, driver); err != nil {
			return err
		}
		// With its override it is still there, should this process end now.
		if err := unbind(c, have.ID, driver); err != nil {
			return err
		}
	}
	if err := release(c, have.ID, driver, stays); err != nil {
		if back := putBack(c, have.ID, override, driver); back != nil {
			return errors.Join(err, back)
		}
		c.Undone()
		return err
	}
	return nil
}

// release leaves a function to the kernel, which takes its own driver for it unless it stays with that. Without its override it is no longer
// observed, so whatever fails has to be put back. The kernel does not tell whether one of its drivers should have taken the function.
func release(c *sysfs.Change, address, driver string, stays bool) error {
	if !stays && driver != "" {
		switch now, err := c.Link(devices + address + "/driver"); {
		case err != nil:
			return err
		case now == driver:
			return refuseIgnored("is still bound to "+driver, address, c.Node)
		}
	}
	if err := c.Write(devices+address+"/driver_override", "\n"); err != nil {
		return err
	}
	switch now, err := overrideOf(c.Kernel, address); {
	case err != nil:
		return err
	case now != "":
		return refuseIgnored("still has the driver override "+now, address, c.Node)
	case stays:
		return nil
	}
	return c.Write("bus/pci/drivers_probe", address)
}

// refuseIgnored refuses what the kernel has only said that it does.
func refuseIgnored(still, address, node string) error {
	return sysfs.Refuse(providers.Invalid, "the kernel accepted the request, but %s %s: see the kernel log of node %s", address, still, node)
}

// bind binds a function to a driver by an override, in place of the given one.
func bind(c *sysfs.Change, address, driver, override string) error {
	dev := devices + address
	bound, err := c.Link(dev + "/driver")
	if err != nil {
		return err
	}
	if bound != driver {
		if err := bindable(c.Kernel, c.Node, address, driver); err != nil {
			return err
		}
		if err := removable(c.Kernel, address, bound); err != nil {
			return err
		}
	}
	if err := c.Write(dev+"/driver_override", driver); err != nil {
		return err
	}
	if bound == driver {
		return nil
	}
	if err = unbind(c, address, bound); err == nil {
		err = attach(c, address, driver)
	}
	now, rerr := c.Link(dev + "/driver")
	if err == nil && rerr == nil && now == driver {
		return nil
	}
	err = errors.Join(err, rerr)
	if back := putBack(c, address, override, bound); back != nil {
		return errors.Join(err, back)
	}
	c.Undone()
	switch {
	case errors.Is(err, syscall.ENODEV):
		return sysfs.Refuse(providers.Invalid, "%s does not support %s: none of its ids is that of the function", driver, address)
	case err != nil:
		return err
	}
	return sysfs.Refuse(providers.Invalid, "the kernel accepted the request, but did not bind %s to %s: see the kernel log of node %s. It is bound to %s again",
		address, driver, c.Node, orNone(bound))
}

// attach binds a function without a driver to one. With an override, a driver is handed whatever function it is, and one that drives
// functions itself can bring down the kernel with a wrong one. So it gets the override only after it has accepted the ids.
func attach(c *sysfs.Change, address, driver string) error {
	override := devices + address + "/driver_override"
	if assigns(driver) {
		if err := c.Write(override, driver); err != nil {
			return err
		}
		return c.Write("bus/pci/drivers_probe", address)
	}
	if err := c.Write(override, "\n"); err != nil {
		return err
	}
	if err := c.Write("bus/pci/drivers/"+driver+"/bind", address); err != nil {
		return err
	}
	return c.Write(override, driver)
}

// putBack leads back to an override and a driver that the function had, and fails unless it has seen the driver.
func putBack(c *sysfs.Change, address, override, driver string) error {
	dev := devices + address
	now, err := c.Link(dev + "/driver")
	if err != nil {
		return err
	}
	if now != driver {
		if now != "" {
			err = c.Restore("bus/pci/drivers/"+now+"/unbind", address)
		}
		if err == nil && driver != "" { // it had this driver, which therefore knows it
			err = errors.Join(c.Restore(dev+"/driver_override", driver), c.Restore("bus/pci/drivers_probe", address))
		}
	}
	err = errors.Join(err, c.Restore(dev+"/driver_override", override+"\n"))
	now, rerr := c.Link(dev + "/driver")
	if err = errors.Join(err, rerr); now == driver {
		return err
	}
	return errors.Join(fmt.Errorf("%s was bound to %s before, and is bound to %s now", address, orNone(driver), orNone(now)), err)
}

// unbind takes a function from a driver, if it has one; the kernel refuses it when the function has another one by now.
func unbind(c *sysfs.Change, address, driver string) error {
	if driver == "" {
		return nil
	}
	err := c.Write("bus/pci/drivers/"+driver+"/unbind", address)
	if sysfs.Gone(err) {
		return sysfs.Refuse(providers.Conflict, "%s changed its driver at the same time", address)
	}
	return err
}

// removable fails when taking a function from its driver would break something: what uses it, or its virtual functions, which most
// drivers remove.
func removable(k sysfs.Kernel, address, driver string) error {
	if n, err := numVFs(k, address); err == nil && n > 0 {
		return sysfs.Refuse(providers.Denied, "%s has %d virtual functions, which would be removed: remove them first", address, n)
	}
	return unused(k, address, driver)
}

// bindable returns why a function cannot be bound to a driver, before anything is done about it.
func bindable(k sysfs.Kernel, node, address, driver string) error {
	if !k.Exists("bus/pci/drivers/" + driver) {
		return sysfs.Refuse(providers.Invalid, "the kernel of node %s has no driver %s: load its module first (modprobe %s)", node, driver, driver)
	}
	group, err := k.Link(devices + address + "/iommu_group")
	if err != nil {
		return err
	}
	if of, err := k.Link(devices + address + "/physfn"); err != nil {
		return err
	} else if of != "" && !assigns(driver) && k.Attribute(devices+of+"/sriov_drivers_autoprobe") == "0" {
		return sysfs.Refuse(providers.Invalid, "the kernel binds virtual functions of %s to no such driver as long as its sriov_drivers_autoprobe is 0: set drivers_autoprobe to true", of)
	}
	if vfio(driver) && group == "" && !slices.Contains([]string{"Y", "1"}, k.Attribute("module/vfio/parameters/enable_unsafe_noiommu_mode")) {
		return sysfs.Refuse(providers.Invalid, "%s is in no IOMMU group, so %s cannot take it: switch on the IOMMU of node %s in its firmware and kernel (intel_iommu=on)", address, driver, node)
	}
	return nil
}

// overrideOf returns the driver override of a function; empty when it has none.
func overrideOf(k sysfs.Kernel, address string) (string, error) {
	text, err := k.Sys.Read(devices + address + "/driver_override")
	if text = strings.TrimSpace(text); text == "(null)" {
		text = ""
	}
	return text, err
}

// heldIn returns what keeps an IOMMU group from being assigned: functions with a driver that uses them for the node itself.
func heldIn(k sysfs.Kernel, group string) (held []string, err error) {
	members, err := k.List("kernel/iommu_groups/" + group + "/devices")
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		driver, err := k.Link(devices + m + "/driver")
		if err != nil {
			return nil, err
		}
		bridge := strings.HasPrefix(k.Attribute(devices+m+"/class"), "0x0604")
		if driver != "" && !vfio(driver) && driver != "pci-stub" && !bridge {
			held = append(held, m+" is bound to "+driver)
		}
	}
	return held, nil
}

// vfio reports whether a driver hands functions to user space under the protection of the IOMMU: vfio-pci and its variants.
func vfio(driver string) bool { return strings.Contains(driver, "vfio") }

// assigns reports whether a driver does nothing with a function itself: it takes only those that it is told to.
func assigns(driver string) bool {
	return vfio(driver) || slices.Contains([]string{"pci-stub", "uio_pci_generic", "igb_uio", "pciback"}, driver)
}

func orNone(driver string) string {
	if driver == "" {
		return "no driver"
	}
	return driver
}
