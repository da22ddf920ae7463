package libvirt

import (
	"fmt"
	"os"
	"strings"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/providers"
)

// users are all that may use an image.
type users struct {
	volumes []providers.Thing
	domains []user
}

// A user is a domain with what it needs, as it is stored or as it runs.
type user struct {
	name  string
	runs  bool
	needs []need
}

// allUsers reads all that may use an image: that much for each, so those who ask at the same time share it.
func (ch *change) allUsers() (u users, err error) {
	if u.volumes, err = (volumes{}).list(ch.ctx, ch, nil); err != nil {
		return u, err
	}
	u.domains, err = ch.machines()
	return u, err
}

// user says what uses an image, of all that may; it is empty when nothing does.
func (ch *change) user(i image) (by string, err error) {
	there, err := ch.host.users.read(ch.ctx, ch.allUsers)
	if err != nil {
		return "", err
	}
	switch id, err := ch.basedOn(i, there.volumes); {
	case err != nil:
		return "", err
	case id != "":
		return "is the backing volume of " + id, nil
	}
	uses, err := ch.usesBy(there.domains, i)
	if err != nil || len(uses) == 0 {
		return "", err
	}
	return "is " + uses[0].String(), nil
}

// machines reads what all domains need.
func (ch *change) machines() ([]user, error) {
	ds, err := ch.domains(ch.ctx)
	if err != nil {
		return nil, err
	}
	var found []user
	for _, d := range ds {
		for _, xml := range []string{d.running, d.stored} {
			if xml == "" {
				continue
			}
			var domain libvirtxml.Domain
			if err := domain.Unmarshal(xml); err != nil {
				return nil, fmt.Errorf("the definition of domain %s: %w", d.name, err)
			}
			found = append(found, user{d.name, xml == d.running, needs(&domain)})
		}
	}
	return found, nil
}

// basedOn returns the id of a volume that is based on an image; empty when there is none.
func (ch *change) basedOn(i image, all []providers.Thing) (id string, err error) {
	for _, th := range all {
		backing, _ := th.Spec["backing"].(string)
		is := backing == i.pool+"/"+i.volume
		if strings.HasPrefix(backing, "/") { // no pool has it by this path
			if is, err = ch.leads(backing, i); err != nil {
				return "", err
			}
		}
		if is {
			return th.ID, nil
		}
	}
	return "", nil
}

// A use is what a domain needs an image for.
type use struct {
	domain string
	as     string // such as "disk vda"
	device string // the disk whose top image it is, which a running domain writes; otherwise empty
	runs   bool   // the domain is running with it
}

func (u use) String() string { return u.as + " of domain " + u.domain }

// uses reads what domains need an image for.
func (ch *change) uses(i image) ([]use, error) {
	domains, err := ch.machines()
	if err != nil {
		return nil, err
	}
	return ch.usesBy(domains, i)
}

// usesBy returns what domains need an image for.
func (ch *change) usesBy(domains []user, i image) (found []use, err error) {
	for _, d := range domains {
		for _, n := range d.needs {
			switch is, err := ch.isImage(n.source, i); {
			case err != nil:
				return nil, err
			case is:
				found = append(found, use{d.name, n.as, n.device, d.runs})
			}
		}
	}
	return found, nil
}

// A need is something that a domain opens.
type need struct {
	as, device string // as those of a use
	source     *libvirtxml.DomainDiskSource
}

// needs returns what a domain opens and may be an image: its disks, what those are based on or copied to, and what it boots.
func needs(d *libvirtxml.Domain) []need {
	var found []need
	if d.Devices != nil {
		for _, disk := range d.Devices.Disks {
			device := ""
			if disk.Target != nil {
				device = disk.Target.Dev
			}
			below := func(as string, b *libvirtxml.DomainDiskBackingStore) {
				for ; b != nil; b = b.BackingStore {
					found = append(found, need{as, "", b.Source})
				}
			}
			found = append(found, need{"disk " + device, device, disk.Source})
			below("what is below disk "+device, disk.BackingStore)
			if m := disk.Mirror; m != nil {
				as := "the copy of disk " + device
				found = append(found, need{as, "", m.Source})
				below(as, m.BackingStore)
			}
		}
	}
	if d.OS == nil {
		return found
	}
	file := func(as, path string) {
		found = append(found, need{as, "", &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: strings.TrimSpace(path)}}})
	}
	file("the kernel", d.OS.Kernel)
	file("the initrd", d.OS.Initrd)
	if d.OS.Loader != nil {
		file("the loader", d.OS.Loader.Path)
	}
	if n := d.OS.NVRam; n != nil {
		file("the nvram", n.NVRam)
		file("the nvram", n.Template)
		found = append(found, need{"the nvram", "", n.Source})
	}
	return found
}

// An image is a volume with its path.
type image struct{ pool, volume, path string }

func (ch *change) isImage(s *libvirtxml.DomainDiskSource, i image) (bool, error) {
	switch {
	case s == nil:
		return false, nil
	case s.Volume != nil:
		return s.Volume.Pool == i.pool && s.Volume.Volume == i.volume, nil
	case s.File != nil:
		return ch.leads(s.File.File, i)
	}
	return false, nil
}

// leads reports whether a path leads to an image. libvirt does not follow symbolic links; on its own node this program can.
func (ch *change) leads(path string, i image) (bool, error) {
	if path == "" || path == i.path {
		return path != "", nil
	}
	if ch.host.here() {
		a, err := os.Stat(path)
		b, err2 := os.Stat(i.path)
		if err == nil && err2 == nil && os.SameFile(a, b) {
			return true, nil
		}
	}
	pool, name, err := ch.volumeAt(ch.ctx, path)
	return pool == i.pool && name == i.volume, err
}
