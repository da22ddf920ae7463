package pci

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/pci/spec"
	"converge.dev/converge/providers/sysfs"
	"converge.dev/converge/schema"
)

// sriov is the kind pci.sriov: functions with virtual functions.
type sriov struct{}

// List implements [sysfs.Noun].
func (sriov) List(k sysfs.Kernel) ([]providers.Thing, error) {
	addresses, err := k.List(devices)
	if err != nil {
		return nil, err
	}
	var things []providers.Thing
	for _, a := range addresses {
		n, err := numVFs(k, a)
		if sysfs.Gone(err) || err == nil && n == 0 {
			continue
		}
		if err != nil {
			return nil, err
		}
		s, st := spec.SRIOV{NumVFs: n}, spec.SRIOVStatus{}
		if auto := k.Attribute(devices + a + "/sriov_drivers_autoprobe"); auto != "" {
			on := auto != "0"
			s.DriversAutoprobe = &on
		}
		if total, err := strconv.ParseInt(k.Attribute(devices+a+"/sriov_totalvfs"), 10, 64); err == nil {
			st.TotalVFs = &total
		}
		if s.VFs, err = observedVFs(k, a); err != nil {
			return nil, err
		}
		if st.VirtualFunctions, err = virtualFunctions(k, a); err != nil {
			return nil, err
		}
		things = append(things, providers.Thing{ID: a, Name: a, Spec: s.Object(), Status: st.Object(), Phase: providers.Ready})
	}
	return things, nil
}

// Create implements [sysfs.Noun].
func (sriov) Create(c *sysfs.Change, address string, want schema.Object) error {
	var s spec.SRIOV
	if err := s.Read(want); err != nil {
		return sysfs.Refuse(providers.Invalid, "invalid spec: %w", err)
	}
	dev := devices + address
	if !c.Exists(dev) {
		return sysfs.Refuse(providers.Absent, "node %s has no PCI function %s", c.Node, address)
	}
	total, err := strconv.ParseInt(c.Attribute(dev+"/sriov_totalvfs"), 10, 64)
	switch {
	case err != nil || total == 0:
		return sysfs.Refuse(providers.Invalid, "%s does not support SR-IOV, or its firmware has it switched off", address)
	case s.NumVFs > total:
		return sysfs.Refuse(providers.Invalid, "%s supports %d virtual functions, not %d", address, total, s.NumVFs)
	}
	if err := driven(c, address); err != nil {
		return err
	}
	nic, err := newCard(c, address, s)
	if err != nil {
		return err
	}
	was := c.Attribute(dev + "/sriov_drivers_autoprobe")
	made, err := create(c, address, s, nic)
	if err == nil {
		return nil
	}
	var rerr error
	if made { // they are ours; after a refusal they would be those of another client
		rerr = c.Restore(dev+"/sriov_numvfs", "0")
	}
	if rerr == nil && was != "" && was != c.Attribute(dev+"/sriov_drivers_autoprobe") {
		rerr = c.Restore(dev+"/sriov_drivers_autoprobe", was)
	}
	if rerr == nil {
		c.Undone()
	}
	return errors.Join(err, rerr)
}

// create makes the virtual functions. Those that the card is told something of get their drivers only after that: a driver reads the
// MAC address when it starts, and never again. After an error it reports whether there may be some now.
func create(c *sysfs.Change, address string, s spec.SRIOV, nic *card) (made bool, err error) {
	dev, first, later := devices+address, s.DriversAutoprobe, false
	if len(s.VFs) > 0 && or(s.DriversAutoprobe, true) && c.Attribute(dev+"/sriov_drivers_autoprobe") != "" {
		first, later = new(bool), true
	}
	if err := autoprobe(c, dev, first); err != nil {
		return false, err
	}
	if err := c.Write(dev+"/sriov_numvfs", strconv.FormatInt(s.NumVFs, 10)); errors.Is(err, fs.ErrNotExist) {
		return false, sysfs.Refuse(providers.Invalid, "the driver of %s does not create virtual functions", address)
	} else if err != nil {
		return false, err
	}
	switch now, err := numVFs(c.Kernel, address); {
	case err != nil:
		return true, err
	case now != s.NumVFs:
		return true, sysfs.Refuse(providers.Invalid, "the kernel created %d virtual functions of %s, not %d: see the kernel log of node %s", now, address, s.NumVFs, c.Node)
	}
	if len(s.VFs) > 0 {
		if err := nic.apply(s.VFs); err != nil {
			return true, err
		}
	}
	if !later {
		return true, nil
	}
	if err := autoprobe(c, dev, s.DriversAutoprobe); err != nil {
		return true, err
	}
	return true, probe(c, address)
}

// Update implements [sysfs.Noun]. The number of virtual functions never changes.
func (sriov) Update(c *sysfs.Change, have providers.Thing, want schema.Object) error {
	var s spec.SRIOV
	if err := s.Read(want); err != nil {
		return sysfs.Refuse(providers.Invalid, "invalid spec: %w", err)
	}
	if n := have.Spec["num_vfs"]; n != s.NumVFs {
		return sysfs.Refuse(providers.Invalid, "num_vfs cannot be changed in place")
	}
	nic, err := newCard(c, have.ID, s)
	if err != nil {
		return err
	}
	if nic != nil {
		err = nic.apply(s.VFs)
	}
	dev := devices + have.ID
	was := c.Attribute(dev + "/sriov_drivers_autoprobe")
	if err == nil {
		err = autoprobe(c, dev, s.DriversAutoprobe)
	}
	if err == nil && nic != nil && was == "0" && c.Attribute(dev+"/sriov_drivers_autoprobe") == "1" { // as a create would
		return probe(c, have.ID)
	}
	if err == nil || nic == nil {
		return err
	}
	rerr := nic.back()
	if rerr == nil {
		c.Undone()
	}
	return errors.Join(err, rerr)
}

// Delete implements [sysfs.Noun].
func (sriov) Delete(c *sysfs.Change, have providers.Thing) error {
	vfs, err := virtualFunctions(c.Kernel, have.ID)
	if err != nil {
		return err
	}
	for _, vf := range vfs {
		driver, err := c.Link(devices + vf + "/driver")
		if err != nil {
			return err
		}
		if err := unused(c.Kernel, vf, driver); err != nil {
			return err
		}
	}
	if err := driven(c, have.ID); err != nil {
		return err
	}
	dev := devices + have.ID
	was := c.Attribute(dev + "/sriov_drivers_autoprobe")
	if err := autoprobe(c, dev, nil); err != nil { // first: without virtual functions it would no longer be observed
		return err
	}
	err = c.Write(dev+"/sriov_numvfs", "0")
	now, rerr := numVFs(c.Kernel, have.ID)
	switch {
	case rerr != nil:
		return errors.Join(err, rerr)
	case now == 0: // whatever the kernel has answered
		return nil
	case err == nil:
		err = refuseIgnored(fmt.Sprintf("still has %d virtual functions", now), have.ID, c.Node)
	}
	if was != "" && was != c.Attribute(dev+"/sriov_drivers_autoprobe") {
		rerr = c.Restore(dev+"/sriov_drivers_autoprobe", was)
	}
	if rerr == nil {
		c.Undone()
	}
	return errors.Join(err, rerr)
}

// driven fails when a function has no driver: it is the driver that creates and removes virtual functions.
func driven(c *sysfs.Change, address string) error {
	driver, err := c.Link(devices + address + "/driver")
	if err == nil && driver == "" {
		return sysfs.Refuse(providers.Invalid, "%s is bound to no driver, which would create and remove its virtual functions", address)
	}
	return err
}

// autoprobe sets whether new virtual functions get a driver, which is so by default.
func autoprobe(c *sysfs.Change, dev string, want *bool) error {
	value := "1"
	if want != nil && !*want {
		value = "0"
	}
	switch c.Attribute(dev + "/sriov_drivers_autoprobe") {
	case value:
		return nil
	case "":
		if want == nil { // an old kernel, which always does
			return nil
		}
	}
	if err := c.Write(dev+"/sriov_drivers_autoprobe", value); err != nil {
		return err
	}
	if c.Attribute(dev+"/sriov_drivers_autoprobe") == value {
		return nil
	}
	return refuseIgnored("does not have sriov_drivers_autoprobe "+value, strings.TrimPrefix(dev, devices), c.Node)
}

func numVFs(k sysfs.Kernel, address string) (int64, error) {
	return k.Number(devices + address + "/sriov_numvfs")
}

// virtualFunctions returns the addresses of the virtual functions of a function.
func virtualFunctions(k sysfs.Kernel, address string) (vfs []string, err error) {
	names, err := k.List(devices + address)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if strings.HasPrefix(n, "virtfn") {
			vf, err := k.Link(devices + address + "/" + n)
			if err != nil {
				return nil, err
			}
			if vf != "" {
				vfs = append(vfs, vf)
			}
		}
	}
	slices.Sort(vfs)
	return vfs, nil
}
