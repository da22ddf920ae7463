package libvirt

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/providers"
)

// A user is a domain with what it needs, as it is stored or as it runs.
type user struct {
	name     string
	runs     bool
	needs    []need
	networks []string
}

// What nothing used counts as free for a while: of many that are deleted one after the other, each would have everything read again. As much
// time passes between a look and a deletion when libvirt is busy, and readings take a tenth of the time at most.
const (
	stillFree   = 250 * time.Millisecond
	freeAtMost  = 2 * time.Second
	freePerRead = 10 // times as long as the reading took
)

// usedBy says by what something is used among all that may use it; by is empty when nothing does.
func usedBy[T any](ctx context.Context, j *joint[T], all func() (T, error), among func(all T) (by string)) (by string, err error) {
	if known, ok := j.recent(func(took time.Duration) time.Duration { return min(max(stillFree, freePerRead*took), freeAtMost) }); ok {
		if among(known) == "" {
			return "", nil
		} // it may be free by now
	}
	now, err := j.read(ctx, all)
	if err != nil {
		return "", err
	}
	return among(now), nil
}

// user says what uses an image; it is empty when nothing does.
func (ch *change) user(i image) (by string, err error) {
	all := func() ([]providers.Thing, error) { return volumes{}.list(ch.ctx, ch, nil) }
	by, err = usedBy(ch.ctx, &ch.host.volumes, all, func(all []providers.Thing) string {
		if id := ch.basedOn(i, all); id != "" {
			return "is the backing volume of " + id
		}
		return ""
	})
	if by != "" || err != nil {
		return by, err
	}
	return usedBy(ch.ctx, &ch.host.machines, ch.machines, func(all []user) string {
		if uses := ch.usesBy(all, i); len(uses) > 0 {
			return "is " + uses[0].String()
		}
		return ""
	})
}

// machines reads what all domains need.
func (ch *change) machines() ([]user, error) {
	ds, err := ch.domains(ch.ctx)
	if err != nil {
		return nil, err
	}
	paths := backings{c: ch, ids: map[string]string{}}
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
			u := user{d.name, xml == d.running, needs(&domain), networksOf(&domain)}
			for i := range u.needs {
				if err := u.needs[i].resolve(ch, paths); err != nil {
					return nil, err
				}
			}
			found = append(found, u)
		}
	}
	return found, nil
}

// networksOf returns the networks in which a domain has interfaces.
func networksOf(d *libvirtxml.Domain) (names []string) {
	if d.Devices == nil {
		return nil
	}
	for _, i := range d.Devices.Interfaces {
		if i.Source != nil && i.Source.Network != nil {
			names = append(names, i.Source.Network.Network)
		}
	}
	return names
}

// basedOn returns the id of a volume that is based on an image; empty when there is none.
func (ch *change) basedOn(i image, all []providers.Thing) string {
	file := ch.stat(i.path)
	for _, th := range all {
		backing, _ := th.Spec["backing"].(string)
		if backing == i.id() || strings.HasPrefix(backing, "/") && (backing == i.path || os.SameFile(file, ch.stat(backing))) {
			return th.ID
		}
	}
	return ""
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
	return ch.usesBy(domains, i), nil
}

// usesBy returns what domains need an image for.
func (ch *change) usesBy(domains []user, i image) (found []use) {
	file := ch.stat(i.path)
	for _, d := range domains {
		for _, n := range d.needs {
			if n.id == i.id() || n.path != "" && n.path == i.path || os.SameFile(n.file, file) {
				found = append(found, use{d.name, n.as, n.device, d.runs})
			}
		}
	}
	return found
}

// A need is something that a domain opens.
type need struct {
	as, device string // as those of a use
	source     *libvirtxml.DomainDiskSource

	// What the source is, as far as that is known.
	id   string // of the volume
	path string
	file os.FileInfo
}

// resolve finds out what the source is. libvirt does not follow symbolic links; on its own node this program can.
func (n *need) resolve(ch *change, paths backings) (err error) {
	switch s := n.source; {
	case s == nil:
	case s.Volume != nil:
		n.id = s.Volume.Pool + "/" + s.Volume.Volume
	case s.File != nil && s.File.File != "":
		n.path = s.File.File
		n.file = ch.stat(n.path)
		n.id, err = paths.id(ch.ctx, n.path)
	}
	return err
}

// stat looks at a file of the node; nil when it cannot.
func (ch *change) stat(path string) os.FileInfo {
	if !ch.host.here() {
		return nil
	}
	file, _ := os.Stat(path)
	return file
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
					found = append(found, need{as: as, source: b.Source})
				}
			}
			found = append(found, need{as: "disk " + device, device: device, source: disk.Source})
			below("what is below disk "+device, disk.BackingStore)
			if m := disk.Mirror; m != nil {
				as := "the copy of disk " + device
				found = append(found, need{as: as, source: m.Source})
				below(as, m.BackingStore)
			}
		}
	}
	if d.OS == nil {
		return found
	}
	file := func(as, path string) {
		found = append(found, need{as: as, source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: strings.TrimSpace(path)}}})
	}
	file("the kernel", d.OS.Kernel)
	file("the initrd", d.OS.Initrd)
	if d.OS.Loader != nil {
		file("the loader", d.OS.Loader.Path)
	}
	if n := d.OS.NVRam; n != nil {
		file("the nvram", n.NVRam)
		file("the nvram", n.Template)
		found = append(found, need{as: "the nvram", source: n.Source})
	}
	return found
}

// An image is a volume with its path.
type image struct{ pool, volume, path string }

func (i image) id() string { return i.pool + "/" + i.volume }
