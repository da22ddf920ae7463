package libvirt

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/internal/retry"
	"converge.dev/converge/providers/libvirt/spec"
	"converge.dev/converge/schema"
)

// describedRunning returns what a spec has of the definition with which a machine runs. Where libvirt replaces values of the stored one
// when it starts a machine, they are as stored.
func describedRunning(live *libvirtxml.Domain, stored *spec.Domain, known images) *spec.Domain {
	s := describedDomain(live, known)
	if s.Memory == (stored.Memory+mebi-1)/mebi*mebi {
		s.Memory = stored.Memory // it is rounded up
	}
	if or(stored.CPUMode, "") == "host-model" && s.CPUMode == nil {
		s.CPUMode = stored.CPUMode // it is replaced by the model that it means
	}
	for i := range s.Interfaces {
		in := &s.Interfaces[i]
		at := slices.IndexFunc(stored.Interfaces, func(o spec.DomainInterface) bool { return o.MAC == in.MAC })
		if at < 0 {
			continue
		}
		switch was := stored.Interfaces[at]; {
		case was.Network != "" && in.Network == "": // what the network leads to: its bridge, with the VLAN of the group
			in.Network, in.PortGroup, in.Bridge, in.OVSBridge, in.VLAN = was.Network, was.PortGroup, "", "", was.VLAN
		case in.Network != "" && was.VLAN == 0 && was.Network == in.Network:
			in.VLAN = 0 // that of its group of the network
		}
		if stored.Interfaces[at].Target == nil {
			in.Target = nil
		}
	}
	return s
}

// differing returns the fields in which two specs differ, sorted; lists have no order.
func differing(a, b *spec.Domain) []string {
	x, y := a.Object(), b.Object()
	var fields []string
	for field := range maps.Keys(x) {
		if !schema.Equal(unordered(x[field]), unordered(y[field])) {
			fields = append(fields, field)
		}
	}
	for field := range maps.Keys(y) {
		if _, both := x[field]; !both {
			fields = append(fields, field)
		}
	}
	slices.Sort(fields)
	return fields
}

// unordered returns a list in an order of its own.
func unordered(v any) any {
	list, ok := v.([]any)
	if !ok {
		return v
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b any) int {
		x, y := fmt.Sprint(a), fmt.Sprint(b) // maps are printed in the order of their keys
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
	return list
}

// carryOut makes a machine run as a spec wants it, after its definition was stored where that has changed. Asked says that it may be
// restarted for that. Where libvirt refuses for a reason, everything is taken back.
func (ch *change) carryOut(was *machine, s *spec.Domain, asked, stored bool) error {
	f := &follower{change: ch, was: was}
	reason := f.follow(s, asked)
	if !errors.As(reason, new(*answer)) || was.transient {
		return reason
	}
	err := ch.back(target{object: domainObject, name: was.name}, []definition{was.definition}, reason, func() error { return f.takeBack(stored) })
	if f.off {
		ch.kept()
	}
	return err
}

// A follower makes a machine run as it is stored.
type follower struct {
	*change
	was    *machine
	stored string // its definition once this change has stored it
	done   []step
	off    bool // the guest was asked to shut down, or forced off, which may take effect late
}

// A step is one change of what runs, and what takes it back; that may be impossible.
type step struct {
	what     string
	do, undo func() error
}

// take carries out a step.
func (f *follower) take(s step) error {
	err := f.change.do(s.do)
	switch {
	case err == nil:
		f.done = append(f.done, s)
	case s.what != "":
		return fmt.Errorf("the running machine cannot be changed: %s: %w", s.what, err)
	}
	return err
}

// takeBack undoes what was done, as far as libvirt accepts that. A definition that others have changed since is left to them.
func (f *follower) takeBack(stored bool) error {
	var failed []error
	for _, s := range slices.Backward(f.done) {
		if s.undo == nil {
			continue
		}
		if err := f.change.do(s.undo); errors.As(err, new(*answer)) {
			failed = append(failed, fmt.Errorf("%s: %w", s.what, err))
		} else if err != nil {
			return errors.Join(append(failed, err)...)
		}
	}
	now, err := f.found(domainObject, f.was.name)
	if err != nil {
		return errors.Join(append(failed, err)...)
	}
	if stored && sameValues(now.stored, f.stored) {
		failed = append(failed, f.change.do(func() error { return f.define(f.ctx, domainObject, f.was.stored) }))
	} else if stored {
		failed = append(failed, errors.New("its definition is no longer the one that was stored: another client has changed it"))
	}
	if f.was.running != "" && now.running == "" {
		was := target{object: domainObject, name: f.was.name, active: true, paused: f.was.state() == "paused", autostart: now.autostart}
		failed = append(failed, f.move(was, now))
	}
	return errors.Join(failed...)
}

// follow makes what runs follow what is stored.
func (f *follower) follow(s *spec.Domain, asked bool) error {
	m, err := f.machine(f.was.name) // libvirt has given new devices their addresses
	if err != nil {
		return err
	}
	f.stored = m.stored
	want, is := or(s.State, "running"), m.state()
	restart := asked && len(m.behind) > 0
	switch {
	case m.running != "" && (want == "stopped" || is == "stopped" || restart):
		f.off = true
		if err := f.powerOff(m, or(s.StopTimeout, defaultStop)); err != nil {
			return err
		}
		is = "stopped"
	case m.running != "":
		for _, s := range f.steps(m) {
			if err := f.take(s); err != nil {
				return err
			}
		}
	}
	power := func(how powerChange) func() error {
		return func() error { return f.power(f.ctx, m.name, how) }
	}
	next := map[[2]string]step{
		{"stopped", "running"}: {do: func() error { return f.start(f.ctx, domainObject, m.name) }},
		{"stopped", "paused"}:  {do: power(startPaused)},
		{"running", "paused"}:  {do: power(suspend), undo: power(resume)},
		{"paused", "running"}:  {do: power(resume), undo: power(suspend)},
	}
	if s, ok := next[[2]string{is, want}]; ok {
		if err := f.take(s); err != nil {
			return err
		}
	}
	if on := or(s.Autostart, true); on != m.autostart {
		return f.take(step{do: func() error { return f.autostart(f.ctx, domainObject, m.name, on) }, undo: func() error {
			return f.autostart(f.ctx, domainObject, m.name, !on)
		}})
	}
	return nil
}

// powerOff stops a machine: it asks the guest, and after a number of seconds forces it. A guest that does not run cannot answer.
func (ch *change) powerOff(m *machine, seconds int64) error {
	if seconds > 0 && m.definition.state == "running" {
		err := ch.do(func() error { return ch.power(ch.ctx, m.name, shutDown) })
		if err != nil && !errors.As(err, new(*answer)) {
			return err
		}
		if err == nil {
			off, err := ch.off(m.name, time.Now().Add(time.Duration(seconds)*time.Second))
			if off || err != nil {
				return err
			}
		}
		ch.host.Logger.Warn("the guest has not shut down and is forced off", "domain", m.name, "after", seconds)
	}
	err := ch.do(func() error { return ch.stop(ch.ctx, domainObject, m.name) })
	if errors.As(err, new(*answer)) { // it has gone off by itself in between
		if off, look := ch.off(m.name, time.Time{}); look == nil && off {
			return nil
		}
	}
	return err
}

// watching is how often it is looked whether a machine has stopped.
var watching = retry.Policy{First: 100 * time.Millisecond, Cap: time.Second}

// off reports whether a machine is off, as soon as it is; false once the time is over.
func (ch *change) off(name string, until time.Time) (off bool, err error) {
	err = watching.Do(ch.ctx, func() (over bool, err error) {
		ds, err := ch.read(ch.ctx, domainObject, []string{name})
		off = err == nil && (len(ds) == 0 || ds[0].running == "")
		return off || err != nil || !time.Now().Before(until), err
	})
	return off, err
}

// hot reports whether disks of a bus can be added and removed while a machine runs.
func hot(bus *string) bool { return slices.Contains([]string{"virtio", "scsi"}, or(bus, "")) }

// steps returns what a running machine is changed by at once: first what goes, then what changes, then what comes. That is what this
// change has stored: how the machine ran differently before is for the next restart, or for who made it so.
func (f *follower) steps(m *machine) []step {
	var leave, come []step
	change := f.texts(m)
	was, is, runs := f.was.spec, m.spec, m.runs
	for _, r := range gone(was.Disks, is.Disks, diskTarget) {
		if at(runs.Disks, r, diskTarget) != nil && hot(r.Bus) {
			leave = append(leave, f.device(detachDevice, "remove disk "+r.Target, diskOf(m.live, r.Target), nil))
		}
	}
	for _, s := range gone(is.Disks, was.Disks, diskTarget) {
		if at(runs.Disks, s, diskTarget) == nil && hot(s.Bus) {
			come = append(come, f.device(attachDevice, "add disk "+s.Target, diskOf(m.parsed, s.Target), nil))
		}
	}
	for _, s := range is.Cdroms {
		w, r := at(was.Cdroms, s, driveTarget), at(runs.Cdroms, s, driveTarget)
		if w != nil && mediumOf(w) != mediumOf(&s) && r != nil && mediumOf(r) != mediumOf(&s) {
			old, stored := diskOf(m.live, s.Target), diskOf(m.parsed, s.Target)
			to := *old
			to.Source, to.Driver, to.BackingStore = stored.Source, stored.Driver, nil
			change = append(change, f.device(updateDevice, "change the medium of "+s.Target, &to, old))
		}
	}
	for _, r := range gone(was.Interfaces, is.Interfaces, interfaceMAC) {
		if at(runs.Interfaces, r, interfaceMAC) != nil {
			leave = append(leave, f.device(detachDevice, "remove interface "+r.MAC, interfaceOf(m.live, r.MAC), nil))
		}
	}
	for _, s := range is.Interfaces {
		w, r, stored := at(was.Interfaces, s, interfaceMAC), at(runs.Interfaces, s, interfaceMAC), interfaceOf(m.parsed, s.MAC)
		switch {
		case w == nil && r == nil:
			come = append(come, f.device(attachDevice, "add interface "+s.MAC, stored, nil))
		case w != nil && r != nil && !attachedAlike(*w, s):
			old := interfaceOf(m.live, s.MAC)
			to := *old
			to.Source, to.VLan, to.VirtualPort = stored.Source, stored.VLan, stored.VirtualPort
			change = append(change, f.device(updateDevice, "attach interface "+s.MAC+" elsewhere", &to, old))
		}
	}
	for _, r := range gone(was.Hostdevs, is.Hostdevs, hostdevAddress) {
		if at(runs.Hostdevs, r, hostdevAddress) != nil {
			leave = append(leave, f.device(detachDevice, "remove PCI function "+r.Address, hostdevOf(m.live, r.Address), nil))
		}
	}
	for _, s := range gone(is.Hostdevs, was.Hostdevs, hostdevAddress) {
		if at(runs.Hostdevs, s, hostdevAddress) == nil {
			come = append(come, f.device(attachDevice, "add PCI function "+s.Address, hostdevOf(m.parsed, s.Address), nil))
		}
	}
	return slices.Concat(leave, change, come)
}

// gone returns the elements of a list of which another one has none with the same key.
func gone[T any](list, other []T, key func(*T) string) []T {
	return slices.DeleteFunc(slices.Clone(list), func(e T) bool { return at(other, e, key) != nil })
}

// at returns the element of a list with the key of another one; nil when there is none.
func at[T any](list []T, like T, key func(*T) string) *T {
	i := slices.IndexFunc(list, func(e T) bool { return key(&e) == key(&like) })
	if i < 0 {
		return nil
	}
	return &list[i]
}

func diskTarget(d *spec.Disk) string              { return d.Target }
func driveTarget(d *spec.CDROM) string            { return d.Target }
func interfaceMAC(i *spec.DomainInterface) string { return i.MAC }
func hostdevAddress(h *spec.Hostdev) string       { return h.Address }

// The functions ...Of return the device of a definition that has a key, which it has.

func diskOf(d *libvirtxml.Domain, target string) *libvirtxml.DomainDisk {
	return at(d.Devices.Disks, libvirtxml.DomainDisk{Target: &libvirtxml.DomainDiskTarget{Dev: target}}, func(d *libvirtxml.DomainDisk) string {
		if d.Target == nil {
			return ""
		}
		return d.Target.Dev
	})
}

func interfaceOf(d *libvirtxml.Domain, mac string) *libvirtxml.DomainInterface {
	like := libvirtxml.DomainInterface{MAC: &libvirtxml.DomainInterfaceMAC{Address: mac}}
	return at(d.Devices.Interfaces, like, func(i *libvirtxml.DomainInterface) string { return describedInterface(i).MAC })
}

func hostdevOf(d *libvirtxml.Domain, address string) *libvirtxml.DomainHostdev {
	i := slices.IndexFunc(d.Devices.Hostdevs, func(h libvirtxml.DomainHostdev) bool { return functionOf(&h) == address })
	return &d.Devices.Hostdevs[i]
}

// device returns the step that changes a device; old is what an updated one was.
func (f *follower) device(how deviceChange, what string, device, old document) step {
	call := func(how deviceChange, device document) func() error {
		return func() error {
			xml, err := device.Marshal()
			if err != nil {
				return err
			}
			return f.change.conn.change(f.ctx, f.was.name, how, xml)
		}
	}
	s := step{what: what, do: call(how, device)}
	switch how {
	case attachDevice:
		s.undo = call(detachDevice, device)
	case detachDevice:
		s.undo = call(attachDevice, device)
	default:
		s.undo = call(updateDevice, old)
	}
	return s
}

// texts returns the steps that replace those texts of a running machine that were changed.
func (f *follower) texts(m *machine) []step {
	var steps []step
	replace := func(which annotation, what, before, from, to string) {
		if before != to && from != to {
			call := func(text string) func() error {
				return func() error { return f.annotate(f.ctx, m.name, which, text) }
			}
			steps = append(steps, step{what: what, do: call(to), undo: call(from)})
		}
	}
	replace(titleText, "its title", f.was.parsed.Title, m.live.Title, m.parsed.Title)
	replace(descriptionText, "its description", f.was.parsed.Description, m.live.Description, m.parsed.Description)
	if noted, _, _, err := noteOf(m.live); err == nil {
		replace(noteText, "its note", f.was.note.element(false), noted.element(false), m.note.element(false))
	}
	return steps
}
