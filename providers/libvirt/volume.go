package libvirt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/internal/retry"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/libvirt/spec"
	"converge.dev/converge/schema"
)

// granule is the unit in which libvirt gives the size of a qcow2 volume to qemu-img: it rounds up to it.
const granule = 1024

// volumes is the kind libvirt.volume.
type volumes struct{}

// traits: a volume cannot shrink, because a guest may have written to what would go, and what was in a deleted one is lost. A copy may
// take long, also one whose answer was lost, and is not deleted meanwhile.
func (volumes) traits(common providers.Traits) providers.Traits {
	common.ID = "{pool}/{name}"
	common.Serial = true // a few at a time, because copies take all that the disks can do
	common.SetLast, common.ReadyWithin, common.GoneWithin = []string{"complete"}, longestFill, longestFill
	common.UndoUpdate, common.UndoDelete = providers.NoUndo, providers.NoUndo
	return common
}

func (volumes) told() (o object, ids func(string) []string, ok bool) { return 0, nil, false }

func (volumes) list(ctx context.Context, c conn, ids []string) ([]providers.Thing, error) {
	names := backings{c: c, ids: map[string]string{}}
	var found []providers.Thing
	if err := eachVolume(ctx, c, withMarks(ids), func(pool string, v *libvirtxml.StorageVolume) error {
		th, err := names.thing(ctx, pool, v)
		if err == nil && th != nil {
			found = append(found, *th)
		}
		return err
	}); err != nil {
		return nil, err
	}
	return marked(found, ids), nil
}

// eachVolume visits the volumes with the given ids, all when ids is nil. libvirt does not know what is in a pool that is stopped, and what
// is unknown must not look absent, so then it fails.
func eachVolume(ctx context.Context, c conn, ids []string, visit func(pool string, v *libvirtxml.StorageVolume) error) error {
	wanted, err := wantedOf(ctx, c, ids)
	if err != nil {
		return err
	}
	for _, pool := range slices.Sorted(maps.Keys(wanted)) {
		xmls, err := inPool(ctx, c, pool, wanted[pool])
		if err != nil {
			return err
		}
		for _, xml := range xmls {
			var v libvirtxml.StorageVolume
			if err := v.Unmarshal(xml); err != nil {
				return fmt.Errorf("the definition of a volume of pool %s: %w", pool, err)
			}
			if err := visit(pool, &v); err != nil {
				return err
			}
		}
	}
	return nil
}

// wantedOf returns the names in ids by their pools, of those that are directories; without ids every such pool, with nil for all names.
func wantedOf(ctx context.Context, c conn, ids []string) (wanted map[string][]string, err error) {
	wanted = map[string][]string{}
	var pools []string // nil: all
	for _, id := range ids {
		if pool, name, ok := strings.Cut(id, "/"); ok {
			wanted[pool] = append(wanted[pool], name)
		}
	}
	if ids != nil {
		pools = slices.AppendSeq([]string{}, maps.Keys(wanted))
	}
	there, err := c.directories(ctx, pools)
	found := map[string][]string{}
	for _, pool := range there {
		found[pool] = wanted[pool]
	}
	return found, err
}

// moment is how long what is being created or deleted may look broken: about two seconds.
var moment = retry.Policy{First: 100 * time.Millisecond, Cap: 400 * time.Millisecond, Tries: 7}

// inPool returns the definitions of volumes of a pool. One that is being created or deleted is stopped for a moment, for which no look at
// the volumes of others should fail.
func inPool(ctx context.Context, c conn, pool string, names []string) (xmls []string, err error) {
	if xmls, err = c.volumes(ctx, pool, names); !errors.As(err, new(*answer)) {
		return xmls, err
	}
	ran := false
	err = moment.Do(ctx, func() (over bool, _ error) {
		ds, failed := c.read(ctx, poolObject, []string{pool})
		switch {
		case failed != nil:
			return true, failed
		case len(ds) == 0: // it is deleted, and was empty
			return true, nil
		case ds[0].running == "":
			ran = false
			return false, refuse(providers.Invalid, "pool %s is stopped, so its volumes are unknown", pool)
		case ran: // it is not the pool
			return true, err
		}
		ran = true
		xmls, err = c.volumes(ctx, pool, names)
		return !errors.As(err, new(*answer)), err
	})
	return xmls, err
}

// backings translates volumes, and the paths of their backing volumes to ids.
type backings struct {
	c   conn
	ids map[string]string // by path
}

// thing returns a volume; nil for what is no image file, such as a directory, and for a seed.
func (b backings) thing(ctx context.Context, pool string, v *libvirtxml.StorageVolume) (*providers.Thing, error) {
	if v.Type != "" && v.Type != "file" || v.Capacity == nil || isSeed(v.Name, v.Capacity.Value) {
		return nil, nil
	}
	capacity := v.Capacity.Value
	if unit := or(&v.Capacity.Unit, ""); unit != "" && unit != "bytes" || capacity > math.MaxInt64 {
		return nil, fmt.Errorf("volume %s of pool %s has a size of %d %s", v.Name, pool, capacity, unit)
	}
	whole := true
	s := spec.Volume{Capacity: int64(capacity), Pool: pool, Complete: &whole}
	status := spec.VolumeStatus{}
	if v.Target != nil {
		status.Path = optional(v.Target.Path)
		if v.Target.Format != nil {
			s.Format = optional(rawISO(v.Target.Format.Type))
		}
	}
	if v.BackingStore != nil && v.BackingStore.Path != "" {
		id, err := b.id(ctx, v.BackingStore.Path)
		if err != nil {
			return nil, err
		}
		s.Backing = &id
	}
	return &providers.Thing{
		ID: pool + "/" + v.Name, Name: v.Name, Spec: s.Object(), Unfilled: origins, Status: status.Object(), Phase: providers.Ready,
	}, nil
}

// id returns the id of the volume with a path; the path itself when no pool has it.
func (b backings) id(ctx context.Context, path string) (string, error) {
	if id, ok := b.ids[path]; ok {
		return id, nil
	}
	pool, name, err := b.c.volumeAt(ctx, path)
	if err != nil {
		return "", err
	}
	id := path
	if pool != "" {
		id = pool + "/" + name
	}
	b.ids[path] = id
	return id, nil
}

func (volumes) create(ch *change, want schema.Object) error {
	d, err := ch.draft(ch.call.ID, want)
	if err != nil {
		return err
	}
	defer d.close()
	if !d.filled() {
		return ch.do(func() error { return ch.createVolume(ch.ctx, d.pool, d.xml) })
	}
	return ch.makeMarked(d)
}

// A draft is what it takes to make a volume.
type draft struct {
	pool, name string
	spec       spec.Volume
	xml        string
	clone      *image     // nil: none
	image      *imageFile // nil: none
}

// draft prepares to make a volume, and refuses what cannot be.
func (ch *change) draft(id string, want schema.Object) (*draft, error) {
	var s spec.Volume
	if err := read(want, &s); err != nil {
		return nil, err
	}
	name, ok := strings.CutPrefix(id, s.Pool+"/")
	format := formatOf(&s)
	switch {
	case !ok:
		return nil, refuse(providers.Invalid, "volume %s is not in pool %s", id, s.Pool)
	case s.Capacity < 0:
		return nil, refuse(providers.Invalid, "capacity is negative")
	case strings.HasSuffix(name, seedEnding):
		return nil, refuse(providers.Invalid, "a volume whose name ends in %s is a seed, of the kind libvirt.cloudinit", seedEnding)
	case isMark(name):
		return nil, refuse(providers.Invalid, "a volume whose name ends in %s or %s marks another as incomplete", announcedEnding, begunEnding)
	case format == "qcow2" && s.Capacity%granule != 0:
		return nil, refuse(providers.Invalid, "the capacity of a qcow2 volume is a multiple of %d bytes, and %d is not", granule, s.Capacity)
	case format != "qcow2" && s.Backing != nil:
		return nil, refuse(providers.Invalid, "a %s volume cannot have a backing volume", format)
	case s.Backing != nil && s.Clone != nil, s.Clone != nil && s.Image != nil, s.Image != nil && s.Backing != nil:
		return nil, refuse(providers.Invalid, "a volume has only one of backing, clone and image")
	case s.ImageSha256 != nil && s.Image == nil:
		return nil, refuse(providers.Invalid, "image_sha256 is stated without image")
	case s.Complete != nil && !*s.Complete:
		return nil, refuse(providers.Invalid, "a volume cannot be asked to be incomplete")
	}
	v := newFile(name, s.Capacity, format)
	if s.Backing != nil {
		backing, err := ch.image(*s.Backing)
		if err != nil {
			return nil, err
		}
		v.BackingStore = &libvirtxml.StorageVolumeBackingStore{Path: backing.Target.Path, Format: backing.Target.Format}
	}
	d := &draft{pool: s.Pool, name: name, spec: s}
	var err error
	if s.Clone != nil {
		if d.clone, err = ch.source(*s.Clone, s.Capacity); err != nil {
			return nil, err
		}
	}
	if d.xml, err = textOf(v); err != nil {
		return nil, err
	}
	if s.Image != nil {
		if d.image, err = ch.openImage(*s.Image, or(s.ImageSha256, ""), format, s.Capacity); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// newFile describes a volume that is to be made: an image file without contents.
func newFile(name string, bytes int64, format string) *libvirtxml.StorageVolume {
	return &libvirtxml.StorageVolume{
		Type: "file", Name: name,
		Allocation: &libvirtxml.StorageVolumeSize{Unit: "bytes"}, // without it, libvirt would fill the whole file before it returns
		Capacity:   &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: uint64(bytes)},
		Target:     &libvirtxml.StorageVolumeTarget{Format: &libvirtxml.StorageVolumeTargetFormat{Type: format}},
	}
}

// textOf returns a volume as libvirt takes it.
func textOf(v *libvirtxml.StorageVolume) (string, error) {
	xml, err := v.Marshal()
	if err != nil {
		return "", refuse(providers.Invalid, "it cannot be written as XML: %w", err)
	}
	return xml, nil
}

// rawISO returns a format: iso is what libvirt calls raw images when it notices that they have a file system for CDs.
func rawISO(format string) string {
	if format == "iso" {
		return "raw"
	}
	return format
}

func formatOf(s *spec.Volume) string { return or(s.Format, "qcow2") }

// image returns the volume with an id, which must be a complete image file.
func (ch *change) image(id string) (*libvirtxml.StorageVolume, error) {
	v, err := ch.definitionOf(id)
	if err != nil {
		return nil, err
	}
	if v.Target == nil || v.Target.Path == "" || v.Target.Format == nil {
		return nil, refuse(providers.Invalid, "volume %s is not an image file", id)
	}
	v.Target.Format.Type = rawISO(v.Target.Format.Type)
	pool, name, _ := strings.Cut(id, "/")
	switch marks, err := ch.volumes(ch.ctx, pool, []string{name + begunEnding}); {
	case err != nil:
		return nil, err
	case len(marks) > 0:
		return nil, refuseIncomplete(id)
	}
	return v, nil
}

// definitionOf returns the volume with an id.
func (ch *change) definitionOf(id string) (*libvirtxml.StorageVolume, error) {
	v, err := ch.lookup(id)
	if err == nil && v == nil {
		err = refuse(providers.Absent, "volume %s does not exist", id)
	}
	return v, err
}

// lookup returns the volume with an id; nil when there is none.
func (ch *change) lookup(id string) (*libvirtxml.StorageVolume, error) {
	pool, name, _ := strings.Cut(id, "/")
	xmls, err := ch.volumes(ch.ctx, pool, []string{name})
	if err != nil || len(xmls) == 0 {
		return nil, err
	}
	v := &libvirtxml.StorageVolume{}
	return v, v.Unmarshal(xmls[0])
}

// update grows the volume. QEMU has the image of a running domain locked, and is asked to grow it itself, which the guest sees.
func (volumes) update(ch *change, have providers.Thing, want schema.Object) error {
	var s, h spec.Volume
	if !isComplete(have.Spec) {
		return ch.makeAgain(have, want)
	}
	if err := read(want, &s); err != nil {
		return err
	}
	if err := read(have.Spec, &h); err != nil {
		return err
	}
	format := or(h.Format, "")
	switch {
	case s.Pool != h.Pool:
		return refuse(providers.Invalid, "pool cannot be changed in place")
	case s.Format != nil && *s.Format != format:
		return refuse(providers.Invalid, "format cannot be changed in place")
	case or(s.Backing, "") != or(h.Backing, ""):
		return refuse(providers.Invalid, "backing cannot be changed in place")
	case s.Capacity == h.Capacity:
		return nil
	case isSeed(have.ID, uint64(s.Capacity)):
		return refuse(providers.Invalid, "with %d bytes, volume %s would be a seed, of the kind libvirt.cloudinit", s.Capacity, have.ID)
	case s.Capacity < h.Capacity:
		return refuse(providers.Invalid, "a volume cannot shrink: %d bytes are fewer than the %d that a guest may have written to", s.Capacity, h.Capacity)
	case format == "qcow2" && s.Capacity%granule != 0:
		return refuse(providers.Invalid, "the capacity of a qcow2 volume is a multiple of %d bytes, and %d is not", granule, s.Capacity)
	}
	v, err := ch.image(have.ID)
	if err != nil {
		return err
	}
	uses, err := ch.uses(image{h.Pool, v.Name, v.Target.Path})
	if err != nil {
		return err
	}
	bytes := uint64(s.Capacity)
	uses = slices.DeleteFunc(uses, func(u use) bool { return !u.runs })
	for _, u := range uses {
		if u.device == "" { // QEMU would not notice, or write over it
			return refuse(providers.Invalid, "volume %s is %s, which is running", have.ID, u)
		}
	}
	if len(uses) > 0 {
		return ch.do(func() error { return ch.resizeDisk(ch.ctx, uses[0].domain, uses[0].device, bytes) })
	}
	return ch.do(func() error { return ch.resizeVolume(ch.ctx, h.Pool, v.Name, bytes) })
}

// remove refuses what libvirt would do without a question: to delete what a domain needs, or an image that others are based on.
func (volumes) remove(ch *change, have providers.Thing) error {
	pool, name, _ := strings.Cut(have.ID, "/")
	if !isComplete(have.Spec) {
		if err := ch.withdraw(have); err != nil {
			return err
		}
		return ch.unmark(pool, name)
	}
	path, _ := have.Status["path"].(string)
	if path == "" {
		return refuse(providers.Invalid, "volume %s is not an image file", have.ID)
	}
	switch by, err := ch.user(image{pool, name, path}); {
	case err != nil:
		return err
	case by != "":
		return refuseUsed("volume %s %s", have.ID, by)
	}
	err := ch.do(func() error { return ch.deleteVolume(ch.ctx, pool, name) })
	if err != nil || have.Detail != beside {
		return err
	}
	return ch.unmark(pool, name)
}
