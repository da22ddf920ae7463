package libvirt

import (
	"context"
	"slices"
	"strings"
	"time"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/libvirt/spec"
	"converge.dev/converge/schema"
)

// domains is the kind libvirt.domain.
type domains struct{}

// longestStop is how long a call may take that stops a machine: the longest stop_timeout, and a while.
const longestStop = 11 * time.Minute

// traits: what ran when a machine was stopped does not come back. A machine is restarted by a call of its own, once everything else is
// stored, and only for a document that says so: that a machine ran as it was stored before a change is no request to restart it.
func (domains) traits(common providers.Traits) providers.Traits {
	common.Mark = true
	common.Later, common.SelfChanging = []string{"in_effect"}, []string{"in_effect"}
	common.SetLast = []string{"state", "autostart"}
	common.Exclusive = []providers.Exclusive{{Field: "hostdevs.address"}}
	common.UndoUpdate, common.UndoDelete = providers.Restart, providers.Restart
	common.ReadyWithin, common.GoneWithin = longestStop, longestStop
	return common
}

func (domains) told() (object, func(string) []string, bool) {
	return domainObject, func(name string) []string { return []string{name} }, true
}

// A machine is a domain as libvirt has it.
type machine struct {
	definition
	parsed, live *libvirtxml.Domain // as it is stored and as it runs; live is nil while it is stopped
	known        images
	spec, runs   *spec.Domain // what a spec has of these
	note         note
	behind       []string // fields in which it runs differently from what is stored
}

// machineOf reads a definition.
func machineOf(ctx context.Context, names backings, d definition) (*machine, error) {
	m := &machine{definition: d, known: images{ids: map[string]string{}, formats: map[string]string{}}}
	var err error
	if m.parsed, err = parseDomain(d.stored); err != nil {
		return nil, err
	}
	if d.running != "" {
		if m.live, err = parseDomain(d.running); err != nil {
			return nil, err
		}
	}
	for _, parsed := range []*libvirtxml.Domain{m.parsed, m.live} {
		if parsed == nil {
			continue
		}
		for _, disk := range parsed.Devices.Disks {
			if disk.Source != nil && disk.Source.File != nil && disk.Source.File.File != "" {
				if m.known.ids[disk.Source.File.File], err = names.id(ctx, disk.Source.File.File); err != nil {
					return nil, err
				}
			}
		}
	}
	if m.note, _, _, err = noteOf(m.parsed); err != nil {
		return nil, err
	}
	m.spec = describedDomain(m.parsed, m.known)
	if m.live != nil {
		m.runs = describedRunning(m.live, m.spec, m.known)
		m.behind = differing(m.spec, m.runs)
	}
	return m, nil
}

// state is the state that a spec has.
func (m *machine) state() string {
	switch {
	case m.running == "" || m.definition.state == "crashed":
		return "stopped"
	case m.definition.state == "paused":
		return "paused"
	}
	return "running"
}

func (domains) list(ctx context.Context, c conn, ids []string) ([]providers.Thing, error) {
	names := backings{c: c, ids: map[string]string{}}
	return things(ctx, c, domainObject, ids, func(d definition) (*providers.Thing, error) {
		m, err := machineOf(ctx, names, d)
		if err != nil {
			return nil, err
		}
		th := &providers.Thing{ID: d.name, Name: d.name, Mark: providers.ParseMark(m.note.Mark), Phase: providers.Ready}
		same := len(m.behind) == 0 && !d.transient
		switch {
		case d.transient:
			th.Detail = "the machine is not stored, so it ends with its run"
		case !same:
			th.Detail = "the machine runs without what is stored of " + strings.Join(m.behind, ", ") + " until it is started the next time"
		case d.state == "crashed":
			th.Detail = "the machine has crashed"
		}
		s, state := m.spec, m.state()
		timeout := or(m.note.StopTimeout, defaultStop)
		s.State, s.Autostart, s.InEffect, s.StopTimeout, s.UUID = &state, &d.autostart, &same, &timeout, optional(m.parsed.UUID)
		th.Spec = s.Object()
		return th, nil
	})
}

// formats finds the volumes that disks get, which must be complete, and what format they have.
func (ch *change) formats(s *spec.Domain, known images) error {
	var volumes []string
	for _, d := range s.Disks {
		volumes = append(volumes, d.Volume)
	}
	for _, d := range s.Cdroms {
		volumes = append(volumes, mediumOf(&d))
	}
	for _, id := range volumes {
		if id == "" || id[0] == '/' || !strings.Contains(id, "/") {
			continue
		}
		v, err := ch.image(id)
		if err != nil {
			return err
		}
		known.formats[id] = v.Target.Format.Type
	}
	return nil
}

func (domains) create(ch *change, want schema.Object) error {
	var s spec.Domain
	if err := read(want, &s); err != nil {
		return err
	}
	known := images{formats: map[string]string{}}
	if err := ch.formats(&s, known); err != nil {
		return err
	}
	d := libvirtxml.Domain{
		Name: ch.call.ID, UUID: or(s.UUID, ch.host.uuidOf(ch.call.Ref)),
		OS: &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Type: "hvm", Machine: or(s.Machine, "")}},
		Devices: &libvirtxml.DomainDeviceList{
			Serials:  []libvirtxml.DomainSerial{{Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}}}},
			Consoles: []libvirtxml.DomainConsole{{Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}}}},
		},
	}
	efi := or(s.Firmware, "bios") == "efi"
	if efi {
		d.OS.Firmware = "efi"
	}
	if efi || or(s.Machine, "") != "virt" { // without ACPI, a guest is not asked to shut down; virt has it with UEFI only
		d.Features = &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}, APIC: &libvirtxml.DomainFeatureAPIC{}}
	}
	ports := len(s.Disks) + len(s.Interfaces) + len(s.Hostdevs) + sparePorts
	if onSCSI(&s) { // libvirt's own choice is one that few guests have a driver of
		d.Devices.Controllers = append(d.Devices.Controllers, libvirtxml.DomainController{Type: "scsi", Index: new(uint), Model: "virtio-scsi"})
		ports++
	}
	if or(s.Machine, "") == "q35" { // each device has a port, and libvirt by itself makes only those that are used
		d.Devices.Controllers = append(d.Devices.Controllers, libvirtxml.DomainController{Type: "pci", Index: new(uint), Model: "pcie-root"})
		for range ports {
			d.Devices.Controllers = append(d.Devices.Controllers, libvirtxml.DomainController{Type: "pci", Model: "pcie-root-port"})
		}
	}
	if err := describeDomain(&d, &s, known); err != nil {
		return err
	}
	if err := annotateDomain(&d, ch.noted(&s)); err != nil {
		return err
	}
	xml, err := d.Marshal()
	if err != nil {
		return refuse(providers.Invalid, "it cannot be written as XML: %w", err)
	}
	state := or(s.State, "running")
	return ch.establish(target{
		object: domainObject, name: ch.call.ID, xml: xml, active: state != "stopped", paused: state == "paused", autostart: or(s.Autostart, true),
	})
}

// sparePorts is how many ports a new q35 machine has besides those of its devices: one is for the memory balloon, the others are for
// devices that it gets while it runs.
const sparePorts = 5

// noted returns the note that a domain gets. The default is not noted, so that a domain that is given up is as it was.
func (ch *change) noted(s *spec.Domain) note {
	n := note{Mark: ch.call.Mark.String(), StopTimeout: s.StopTimeout}
	if or(n.StopTimeout, defaultStop) == defaultStop {
		n.StopTimeout = nil
	}
	return n
}

// defaultStop is the stop_timeout of a machine that has none noted, in seconds.
const defaultStop = 60

// update stores the new definition, changes what runs as far as that is possible, and then starts and stops.
func (domains) update(ch *change, have providers.Thing, want schema.Object) error {
	var s, h spec.Domain
	if err := read(want, &s); err != nil {
		return err
	}
	if err := read(have.Spec, &h); err != nil {
		return err
	}
	for field, values := range map[string][2]*string{"uuid": {s.UUID, h.UUID}, "machine": {s.Machine, h.Machine}, "firmware": {s.Firmware, h.Firmware}} {
		if values[0] != nil && *values[0] != or(values[1], "") {
			return refuse(providers.Invalid, "%s cannot be changed in place", field)
		}
	}
	m, err := ch.machine(have.ID)
	if err != nil {
		return err
	}
	if err := ch.formats(&s, m.known); err != nil {
		return err
	}
	xml, err := m.with(&s, ch.noted(&s))
	if err != nil {
		return err
	}
	if xml != "" {
		if err := ch.whole(domainObject, m.name, []definition{m.definition}, func() error { return ch.define(ch.ctx, domainObject, xml) }); err != nil {
			return err
		}
	}
	return ch.carryOut(m, &s, or(s.InEffect, false) && !or(h.InEffect, true), xml != "")
}

// machine reads the domain with a name.
func (ch *change) machine(name string) (*machine, error) {
	d, err := ch.found(domainObject, name)
	if err != nil {
		return nil, err
	}
	return machineOf(ch.ctx, backings{c: ch, ids: map[string]string{}}, d)
}

// with returns the definition of a machine as a spec wants it; empty when it is stored so already.
func (m *machine) with(s *spec.Domain, n note) (string, error) {
	d, err := parseDomain(m.stored)
	if err != nil {
		return "", err
	}
	if err := describeDomain(d, s, m.known); err != nil {
		return "", err
	}
	if err := annotateDomain(d, n); err != nil {
		return "", err
	}
	after := describedDomain(d, m.known)
	if !m.transient && m.note.element(true) == n.element(true) && len(differing(m.spec, after)) == 0 {
		return "", nil
	}
	xml, err := d.Marshal()
	if err != nil {
		return "", refuse(providers.Invalid, "it cannot be written as XML: %w", err)
	}
	return xml, losesNothing(m.stored, xml, new(libvirtxml.Domain), m.contents)
}

// contents is contained with the images of the machine.
func (m *machine) contents(definition string) (all, extras map[string]int, err error) {
	return domainContents(definition, m.known)
}

// remove refuses what libvirt would lose with the domain, before it stops the machine.
func (domains) remove(ch *change, have providers.Thing) error {
	if have.Mark.IsZero() && ch.call.UID == "" {
		return refuse(providers.Denied, "domain %s carries no ownership mark: another client removed that, or made another domain of this name, and converge may not delete it", have.ID)
	}
	m, err := ch.machine(have.ID)
	if err != nil {
		return err
	}
	if err := ch.losesNothing(m); err != nil {
		return err
	}
	if m.running != "" {
		if err := ch.powerOff(m, or(m.note.StopTimeout, defaultStop)); err != nil {
			return err
		}
	}
	if m.transient { // it ended with its run
		return nil
	}
	if m.running != "" { // that may have taken minutes
		now, err := ch.found(domainObject, m.name)
		if err != nil {
			return err
		}
		if now.running != "" || !sameValues(now.stored, m.stored) {
			return refuse(providers.Conflict, "another client changed domain %s, or started it again, while it shut down", m.name)
		}
	}
	return ch.do(func() error { return ch.undefine(ch.ctx, domainObject, m.name) })
}

// losesNothing refuses to delete a domain with which more would be lost than its spec says.
func (ch *change) losesNothing(m *machine) error {
	kept, err := ch.keeps(ch.ctx, m.name)
	if err != nil {
		return err
	}
	if len(kept) > 0 {
		return refuse(providers.Invalid, "domain %s has %s, which would be lost; delete that first", m.name, strings.Join(kept, " and "))
	}
	_, extras, err := m.contents(m.stored)
	if err != nil {
		return err
	}
	if v := m.parsed.VCPU; v != nil && v.Current != 0 {
		extras["domain/vcpu/@current"]++
	}
	if lost := places(extras); len(lost) > 0 {
		return refuse(providers.Invalid, "settings of domain %s that are not in its spec would be lost: %s", m.name, strings.Join(slices.Compact(lost), ", "))
	}
	return nil
}

// onSCSI reports whether a disk or a drive is on a SCSI bus, which is that of targets such as sda.
func onSCSI(s *spec.Domain) bool {
	is := func(bus *string, target string) bool {
		if bus == nil {
			return strings.HasPrefix(target, "sd")
		}
		return *bus == "scsi"
	}
	return slices.ContainsFunc(s.Disks, func(d spec.Disk) bool { return is(d.Bus, d.Target) }) ||
		slices.ContainsFunc(s.Cdroms, func(c spec.CDROM) bool { return is(c.Bus, c.Target) })
}
