package libvirt

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
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
	bridges  []string // to which it is attached by their names
}

// users are those of all domains, for who shares a reading of them.
type users struct {
	all []user

	mu     sync.Mutex
	ids    map[string]string   // of the volumes at paths, which are asked for once
	chains map[string][]string // the files that images are based on, by their paths, which are read once
}

// chain returns the files that the image at a path is based on, as far as this program can read them: of a domain that does not run, libvirt
// shows only the topmost.
func (u *users) chain(path string) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if files, ok := u.chains[path]; ok {
		return files
	}
	files := backingFiles(path)
	u.chains[path] = files
	return files
}

// volumeAt returns the id of the volume at a path; empty when no pool has it.
func (u *users) volumeAt(ch *change, path string) (string, error) {
	u.mu.Lock()
	id, ok := u.ids[path]
	u.mu.Unlock()
	if ok {
		return id, nil
	}
	pool, name, err := ch.conn.volumeAt(ch.ctx, path)
	if err != nil {
		return "", err
	}
	if pool != "" {
		id = pool + "/" + name
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ids[path] = id
	return id, nil
}

// stillFree is how long what nothing used counts as free: of many that are deleted one after the other, each would have everything read
// again. As much time passes between a look and a deletion when libvirt is busy.
const stillFree = 500 * time.Millisecond

// usedBy says by what something is used among all that may use it; by is empty when nothing does.
func usedBy[T any](ctx context.Context, j *joint[T], all func() (T, error), among func(all T) (by string, err error)) (by string, err error) {
	if known, ok := j.recent(stillFree); ok {
		if by, err := among(known); by == "" || err != nil {
			return by, err
		} // it may be free by now
	}
	now, err := j.read(ctx, all)
	if err != nil {
		return "", err
	}
	return among(now)
}

// user says what uses an image; it is empty when nothing does.
func (ch *change) user(i image) (by string, err error) {
	all := func() ([]providers.Thing, error) { return volumes{}.list(ch.ctx, ch, nil) }
	by, err = usedBy(ch.ctx, &ch.host.volumes, all, func(all []providers.Thing) (string, error) {
		if id := ch.basedOn(i, all); id != "" {
			return "is the backing volume of " + id, nil
		}
		return "", nil
	})
	if by != "" || err != nil {
		return by, err
	}
	return usedBy(ch.ctx, &ch.host.machines, ch.machines, func(all *users) (string, error) {
		uses, err := ch.usesBy(all, i)
		if err != nil || len(uses) == 0 {
			return "", err
		}
		return "is " + uses[0].String(), nil
	})
}

// machines reads what all domains need.
func (ch *change) machines() (*users, error) {
	ds, err := ch.domains(ch.ctx)
	if err != nil {
		return nil, err
	}
	found := &users{ids: map[string]string{}, chains: map[string][]string{}}
	for _, d := range ds {
		for _, xml := range []string{d.running, d.stored} {
			if xml == "" {
				continue
			}
			var domain libvirtxml.Domain
			if err := domain.Unmarshal(xml); err != nil {
				return nil, fmt.Errorf("the definition of domain %s: %w", d.name, err)
			}
			found.all = append(found.all, user{d.name, xml == d.running, needs(&domain), networksOf(&domain), bridgesOf(&domain)})
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

// bridgesOf returns the bridges to which a domain attaches interfaces by their names.
func bridgesOf(d *libvirtxml.Domain) (names []string) {
	if d.Devices == nil {
		return nil
	}
	for _, i := range d.Devices.Interfaces {
		if i.Source != nil && i.Source.Bridge != nil {
			names = append(names, i.Source.Bridge.Bridge)
		}
	}
	return names
}

// connected returns a domain that has an interface in a network, by its name or on a bridge that libvirt has made for it; empty when there is
// none. Running only counts those that run.
func (u *users) connected(network definition, running bool) (domain string, err error) {
	n, err := parseNetwork(cmp.Or(network.running, network.stored))
	if err != nil {
		return "", err
	}
	bridge := ""
	if n.Bridge != nil && modeOf(n) != "bridge" {
		bridge = n.Bridge.Name
	}
	for _, d := range u.all {
		if (d.runs || !running) && (slices.Contains(d.networks, network.name) || bridge != "" && d.runs && slices.Contains(d.bridges, bridge)) {
			return d.name, nil
		}
	}
	return "", nil
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
	return ch.usesBy(domains, i)
}

// usesBy returns what domains need an image for.
func (ch *change) usesBy(domains *users, i image) (found []use, err error) {
	file := ch.stat(i.path)
	for _, d := range domains.all {
		for _, n := range d.needs {
			switch is, err := ch.isImage(n.source, domains, i, file); {
			case err != nil:
				return nil, err
			case is:
				found = append(found, use{d.name, n.as, n.device, d.runs})
			case ch.isBelow(n.source, domains, i, file):
				found = append(found, use{d.name, "in the backing chain of " + n.as, "", d.runs})
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
					found = append(found, need{as, "", b.Source})
				}
			}
			found = append(found, need{"disk " + device, device, disk.Source})
			below("in the backing chain of disk "+device, disk.BackingStore)
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

func (i image) id() string { return i.pool + "/" + i.volume }

// isImage reports whether a source is an image, whose file is given if it can be seen. libvirt does not follow symbolic links; on its own node
// this program can.
func (ch *change) isImage(s *libvirtxml.DomainDiskSource, among *users, i image, file os.FileInfo) (bool, error) {
	switch {
	case s == nil:
		return false, nil
	case s.Volume != nil:
		return s.Volume.Pool+"/"+s.Volume.Volume == i.id(), nil
	case s.File == nil || s.File.File == "":
		return false, nil
	case s.File.File == i.path || os.SameFile(file, ch.stat(s.File.File)):
		return true, nil
	}
	id, err := among.volumeAt(ch, s.File.File)
	return id == i.id(), err
}

// isBelow reports whether a source is based on an image, whose file is given if it can be seen.
func (ch *change) isBelow(s *libvirtxml.DomainDiskSource, among *users, i image, file os.FileInfo) bool {
	return ch.host.here() && s != nil && s.File != nil && slices.ContainsFunc(among.chain(s.File.File), func(path string) bool {
		return path == i.path || os.SameFile(file, ch.stat(path))
	})
}
