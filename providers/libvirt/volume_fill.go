package libvirt

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// longestFill is how long it may take to fill a volume.
const longestFill = time.Hour

// fills is how many volumes are filled at the same time. It leaves half of the places of the connection to others.
const fills = maxCalls / 2

// excludes lets no more than that be filled.
func (volumes) excludes(c providers.Call) []string {
	if c.Want["clone"] == nil && c.Want["image"] == nil || c.Have != nil && isComplete(c.Have) {
		return nil
	}
	turn := fnv.New32a()
	turn.Write([]byte(c.ID))
	return []string{fmt.Sprintf("fill/%d", turn.Sum32()%fills)}
}

// filled reports whether a volume is made with contents.
func (d *draft) filled() bool { return d.clone != nil || d.image != nil }

// close closes the image of a draft.
func (d *draft) close() {
	if d.image != nil {
		d.image.file.Close()
	}
}

// origin returns a volume that another one is made from, which must be complete.
func (ch *change) origin(id string) (*providers.Thing, error) {
	things, err := (volumes{}).list(ch.ctx, ch, []string{id})
	switch {
	case err != nil:
		return nil, err
	case len(things) == 0:
		return nil, refuse(providers.Absent, "volume %s does not exist", id)
	case !isComplete(things[0].Spec):
		return nil, refuse(providers.Busy, "volume %s is incomplete: %s", id, incomplete)
	case things[0].Status["path"] == nil || things[0].Spec["format"] == nil:
		return nil, refuse(providers.Invalid, "volume %s is not an image file", id)
	}
	return &things[0], nil
}

// source returns the volume that is to be copied into one of some capacity.
func (ch *change) source(id string, capacity int64) (*image, error) {
	th, err := ch.origin(id)
	if err != nil {
		return nil, err
	}
	format, _ := th.Spec["format"].(string)
	size, _ := th.Spec["capacity"].(int64)
	path, _ := th.Status["path"].(string)
	switch {
	case format != "qcow2" && format != "raw":
		return nil, refuse(providers.Invalid, "volume %s has the format %q, and only qcow2 and raw are copied", id, format)
	case size > capacity:
		return nil, refuse(providers.Invalid, "a capacity of %d bytes is too small for a copy of volume %s, which has %d", capacity, id, size)
	case th.Spec["backing"] != nil:
		return nil, refuse(providers.Invalid, "volume %s is based on %s. A guest can write such a header into its raw disk, and would get to see any file "+
			"that it names there, so only volumes without a backing volume are copied", id, th.Spec["backing"])
	}
	pool, name, _ := strings.Cut(id, "/")
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
	// Now that no guest writes to it.
	head, err := ch.download(ch.ctx, pool, name, headBytes)
	if err != nil {
		return nil, err
	}
	if _, err := sizeOf(head, size, format); err != nil { // libvirt may not have looked at it since
		return nil, refuse(providers.Invalid, "volume %s is not copied: %w", id, err)
	}
	return i, nil
}

// makeMarked makes a volume with contents. When libvirt refuses a part, nothing is left.
func (ch *change) makeMarked(d *draft) error {
	if err := ch.mark(d); err != nil {
		return err
	}
	made, err := false, ch.note(d)
	if err == nil {
		made, err = ch.finish(d)
	}
	return ch.unfilled(err, func() error {
		if made {
			if err := ch.discard(d.pool, d.name, d.spec.Capacity); err != nil {
				return err
			}
		}
		return ch.unmark(d.pool, d.name)
	})
}

// makeAgain makes an incomplete volume anew. When libvirt refuses a part, it is still incomplete.
func (ch *change) makeAgain(have providers.Thing, want schema.Object) error {
	d, err := ch.draft(have.ID, want)
	if err != nil {
		return err
	}
	defer d.close()
	if !d.filled() {
		return refuse(providers.Invalid, "neither clone nor image says what volume %s is to be filled with", have.ID)
	}
	if err := ch.withdraw(have); err != nil {
		return err
	}
	if err := ch.note(d); err != nil {
		return err
	}
	_, err = ch.finish(d)
	if a := (*answer)(nil); errors.As(err, &a) && a.class == providers.Exists { // it is another client's, whom the mark does not concern
		if err := ch.unmark(d.pool, d.name); err != nil {
			return err
		}
	}
	return err
}

// withdraw deletes what was made of an incomplete volume. Its mark stays.
func (ch *change) withdraw(have providers.Thing) error {
	capacity, noted := have.Spec["capacity"].(int64)
	if !noted { // nothing was made
		return nil
	}
	pool, name, _ := strings.Cut(have.ID, "/")
	return ch.discard(pool, name, capacity)
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
		if formatOf(&d.spec) == "raw" || d.image.size == d.spec.Capacity {
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

// discard deletes what there is of an incomplete volume, which has no more than a capacity, unless it is in use. libvirt refuses that only
// while a copy to it is in progress, of a call whose answer was lost.
func (ch *change) discard(pool, name string, capacity int64) error {
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
	if v.Capacity != nil && v.Capacity.Value > uint64(capacity) {
		return refuse(providers.Conflict, "volume %s/%s has %d bytes, more than the %d of the incomplete one, so another client has made it; if it has not, "+
			"delete it (virsh vol-delete %s %s)", pool, name, v.Capacity.Value, capacity, name, pool)
	}
	switch by, err := ch.user(i); {
	case err != nil:
		return err
	case by != "":
		return refuseUsed("volume %s/%s is incomplete, and %s", pool, name, by)
	}
	err = ch.do(func() error { return ch.deleteVolume(ch.ctx, pool, name) })
	if a := (*answer)(nil); errors.As(err, &a) && a.class == providers.Invalid {
		a.class = providers.Busy
	}
	return err
}
