package libvirt

import (
	"errors"
	"slices"
	"strings"
	"time"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A volume with contents takes several calls, or one that takes long, and a libvirtd that is killed during that leaves a file that it lists
// afterwards like any other, with its full size. libvirt has no place for a note on a volume, and cannot rename one. So a second volume, the
// mark, is made before anything else and deleted at the end: while there is one, the volume that it names is unfinished, whatever is there
// of it. An update makes such a volume anew, and a delete takes away both.

// markEnding is what the names of marks end in, after the name of the volume.
const markEnding = ".converge-unfinished"

// markBytes is the size of a mark.
const markBytes = 512

// unfinished is the detail of a volume that has a mark.
const unfinished = "it is being filled, or that was cut off, so it is not whole"

// longestFill is how long it may take to fill a volume.
const longestFill = time.Hour

// origins are the fields that say what a new volume is filled with. libvirt does not report them.
var origins = []string{"clone", "image", "image_sha256"}

// untold are the fields that are unknown of an unfinished volume and cannot be changed.
var untold = slices.Concat(origins, []string{"backing", "format"})

// withMarks adds to the ids of volumes those of their marks, each after its volume: a volume that is found has its mark already, so that it
// is whole if that is then not found.
func withMarks(ids []string) []string {
	if ids == nil {
		return nil
	}
	both := make([]string, 0, 2*len(ids))
	for _, id := range ids {
		both = append(both, id, id+markEnding)
	}
	return both
}

// marked replaces marks and the volumes that they name by unfinished volumes. It returns those with the given ids, all when ids is nil.
func marked(found []providers.Thing, ids []string) []providers.Thing {
	marks := map[string]bool{} // by id of the volume
	for _, th := range found {
		if id, ok := strings.CutSuffix(th.ID, markEnding); ok && !marks[id] {
			marks[id] = true
			pool, name, _ := strings.Cut(id, "/")
			found = append(found, providers.Thing{
				ID: id, Name: name, Spec: schema.Object{"pool": pool}, Unfilled: untold, Phase: providers.Ready, Detail: unfinished,
			})
		}
	}
	return slices.DeleteFunc(found, func(th providers.Thing) bool {
		return strings.HasSuffix(th.ID, markEnding) || marks[th.ID] && th.Detail != unfinished || ids != nil && !slices.Contains(ids, th.ID)
	})
}

// filled reports whether a volume is made with contents.
func (d *draft) filled() bool { return d.clone != nil || d.image != nil }

// close closes the image of a draft.
func (d *draft) close() {
	if d.image != nil {
		d.image.file.Close()
	}
}

// source returns the volume that is to be copied into one of some capacity.
func (ch *change) source(id string, capacity int64) (*image, error) {
	things, err := (volumes{}).list(ch.ctx, ch, []string{id})
	switch {
	case err != nil:
		return nil, err
	case len(things) == 0:
		return nil, refuse(providers.Absent, "volume %s does not exist", id)
	case things[0].Detail == unfinished:
		return nil, refuse(providers.Busy, "volume %s is unfinished", id)
	}
	format, _ := things[0].Spec["format"].(string)
	bytes, _ := things[0].Spec["capacity"].(int64)
	path, _ := things[0].Status["path"].(string)
	switch {
	case format != "qcow2" && format != "raw":
		return nil, refuse(providers.Invalid, "volume %s has the format %q, and only qcow2 and raw are copied", id, format)
	case bytes > capacity:
		return nil, refuse(providers.Invalid, "a capacity of %d bytes is too small for a copy of volume %s, which has %d", capacity, id, bytes)
	}
	pool, name, _ := strings.Cut(id, "/")
	if err := ch.selfContained(pool, name, format, things[0].Spec); err != nil {
		return nil, err
	}
	i := &image{pool, name, path}
	uses, err := ch.uses(*i)
	if err != nil {
		return nil, err
	}
	for _, u := range uses {
		if u.runs && u.device != "" { // what the guest writes during that would be in a part of the copy
			return nil, refuseUsed("volume %s is %s, which is running, so it cannot be copied", id, u)
		}
	}
	return i, nil
}

// selfContained refuses to copy an image that leads to files outside of the pools. A guest can write a header of qcow2 into its raw disk, of which
// libvirt then says that it has that format, and would copy any file of the node that is named there.
func (ch *change) selfContained(pool, name, format string, s schema.Object) error {
	if format != "qcow2" {
		return nil
	}
	if backing, _ := s["backing"].(string); strings.HasPrefix(backing, "/") {
		return refuse(providers.Invalid, "volume %s/%s is based on %s, which is in no pool, so it is not copied", pool, name, backing)
	}
	head, err := ch.download(ch.ctx, pool, name, qcow2Header3)
	if err != nil {
		return err
	}
	if _, err := readQcow2(head); err != nil {
		return refuse(providers.Invalid, "volume %s/%s is not copied: %w", pool, name, err)
	}
	return nil
}

// makeMarked makes a volume with contents. When libvirt refuses a part, nothing is left.
func (ch *change) makeMarked(d *draft) error {
	mark := libvirtxml.StorageVolume{
		Type: "file", Name: d.name + markEnding,
		Allocation: &libvirtxml.StorageVolumeSize{Unit: "bytes"},
		Capacity:   &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: markBytes},
		Target:     &libvirtxml.StorageVolumeTarget{Format: &libvirtxml.StorageVolumeTargetFormat{Type: "raw"}},
	}
	xml, err := mark.Marshal()
	if err != nil {
		return refuse(providers.Invalid, "it cannot be written as XML: %w", err)
	}
	if err := ch.do(func() error { return ch.createVolume(ch.ctx, d.pool, xml) }); err != nil {
		return err
	}
	made, err := ch.finish(d)
	return ch.unfilled(err, func() error {
		if made {
			if err := ch.discard(d.pool, d.name); err != nil {
				return err
			}
		}
		return ch.unmark(d.pool, d.name)
	})
}

// makeAgain makes an unfinished volume anew. When libvirt refuses a part, it is still unfinished.
func (ch *change) makeAgain(id string, want schema.Object) error {
	d, err := ch.draft(id, want)
	if err != nil {
		return err
	}
	defer d.close()
	if err := ch.discard(d.pool, d.name); err != nil {
		return err
	}
	_, err = ch.finish(d)
	return err
}

// finish makes a volume that has a mark, and takes that away once the volume is whole. It reports whether there is then something of it: what
// libvirt refuses to create, it deletes itself, and it may also be somebody else's.
func (ch *change) finish(d *draft) (made bool, err error) {
	if d.clone == nil {
		err = ch.do(func() error { return ch.createVolume(ch.ctx, d.pool, d.xml) })
	} else {
		err = ch.do(func() error { return ch.copyVolume(ch.ctx, d.pool, d.xml, d.clone.pool, d.clone.volume) })
	}
	if err != nil {
		return false, err
	}
	if d.image != nil {
		if err := ch.uploadImage(d); err != nil {
			return true, err
		}
	}
	if err := ch.grow(d); err != nil {
		return true, err
	}
	return true, ch.unmark(d.pool, d.name)
}

// uploadImage writes an image into a volume. What it writes is checked again, because the file may have changed since.
func (ch *change) uploadImage(d *draft) error {
	r := d.image.contents(ch.ctx)
	err := ch.do(func() error { return ch.upload(ch.ctx, d.pool, d.name, 0, uint64(d.image.bytes), r) })
	switch {
	case r.err != nil:
		return refuse(providers.Invalid, "image %s: %w", d.image.path, r.err)
	case err != nil:
		return err
	}
	return r.verify()
}

// grow gives a volume that was just filled its capacity.
func (ch *change) grow(d *draft) error {
	if d.image != nil { // libvirt may not yet have noticed what was uploaded
		if or(d.spec.Format, "qcow2") == "raw" || d.image.size == d.spec.Capacity {
			return nil
		}
		return ch.do(func() error { return ch.resizeVolume(ch.ctx, d.pool, d.name, uint64(d.spec.Capacity)) })
	}
	v, err := ch.image(d.pool + "/" + d.name)
	if err != nil {
		return err
	}
	want, is := uint64(d.spec.Capacity), uint64(0)
	if v.Capacity != nil {
		is = v.Capacity.Value
	}
	switch {
	case is > want: // the source has grown meanwhile
		return refuse(providers.Conflict, "volume %s/%s has %d bytes, more than the wanted %d", d.pool, d.name, is, want)
	case is == want:
		return nil
	}
	return ch.do(func() error { return ch.resizeVolume(ch.ctx, d.pool, d.name, want) })
}

// discard deletes what there is of an unfinished volume, unless a domain uses it. libvirt refuses that only while a copy to it is in
// progress, of a call whose answer was lost.
func (ch *change) discard(pool, name string) error {
	xmls, err := ch.volumes(ch.ctx, pool, []string{name})
	if err != nil || len(xmls) == 0 {
		return err
	}
	var v libvirtxml.StorageVolume
	if err := v.Unmarshal(xmls[0]); err != nil {
		return err
	}
	i := image{pool: pool, volume: name}
	if v.Target != nil {
		i.path = v.Target.Path
	}
	uses, err := ch.uses(i)
	if err != nil {
		return err
	}
	if len(uses) > 0 {
		return refuseUsed("volume %s/%s is unfinished and %s", pool, name, uses[0])
	}
	err = ch.do(func() error { return ch.deleteVolume(ch.ctx, pool, name) })
	if a := (*answer)(nil); errors.As(err, &a) && a.class == providers.Invalid {
		a.class = providers.Busy
	}
	return err
}

// unmark deletes the mark of a volume.
func (ch *change) unmark(pool, name string) error {
	return ch.do(func() error { return ch.deleteVolume(ch.ctx, pool, name+markEnding) })
}
