package libvirt

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"math"
	"os"
	"strings"
	"syscall"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// longestFill is how long it may take to fill a volume.
const longestFill = time.Hour

// id returns the id of the volume.
func (d *draft) id() string { return d.pool + "/" + d.name }

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
	case !isComplete(things[0].Spec):
		return nil, refuseIncomplete(id)
	}
	th := things[0]
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
	if err := ch.still(i); err != nil {
		return nil, err
	}
	// Now that no guest writes to it.
	head, err := beginning(ch.ctx, ch, pool, name, headBytes)
	if err != nil {
		return nil, err
	}
	if _, err := sizeOf(head, size, format); err != nil { // libvirt may not have looked at it since
		return nil, refuse(providers.Invalid, "volume %s is not copied: %w", id, err)
	}
	return i, nil
}

func refuseIncomplete(id string) error {
	return refuse(providers.Busy, "volume %s is incomplete: %s", id, begun)
}

// still checks that no guest writes to a volume: a part of that would be in a part of a copy.
func (ch *change) still(i *image) error {
	uses, err := ch.uses(*i)
	if err != nil {
		return err
	}
	for _, u := range uses {
		if u.runs && u.device != "" {
			return refuseUsed("volume %s/%s is %s, which is running, so it cannot be copied", i.pool, i.volume, u)
		}
	}
	return nil
}

// makeMarked makes a volume with contents. When libvirt refuses a part, nothing is left.
func (ch *change) makeMarked(d *draft) error {
	if err := ch.announce(d); err != nil {
		return err
	}
	made := false
	err := ch.absent(d)
	if err == nil {
		err = ch.begin(d)
	}
	if err == nil {
		made, err = ch.finish(d)
	}
	if err == nil {
		return ch.unmark(d.pool, d.name)
	}
	return ch.unfilled(err, func() error {
		if made {
			if err := ch.discard(d.id(), math.MaxInt64); err != nil {
				return err
			}
		}
		return ch.unmark(d.pool, d.name)
	})
}

// absent refuses to make a volume where another client has made one since there was none.
func (ch *change) absent(d *draft) error {
	v, err := ch.lookup(d.id())
	if err == nil && v != nil {
		err = refuse(providers.Exists, "volume %s exists already", d.id())
	}
	return err
}

// makeAgain makes an incomplete volume anew. When libvirt refuses a part, it is still incomplete.
func (ch *change) makeAgain(have providers.Thing, want schema.Object) error {
	d, err := ch.draft(have.ID, want)
	if err != nil {
		return err
	}
	defer d.close()
	if !d.filled() {
		return refuse(providers.Invalid, "volume %s is incomplete, and neither clone nor image says with what it is to be filled", have.ID)
	}
	if err := ch.withdraw(have); err != nil {
		return err
	}
	if have.Detail != begun {
		if err := ch.begin(d); err != nil {
			return err
		}
	}
	if _, err = ch.finish(d); err != nil {
		return err
	}
	return ch.unmark(d.pool, d.name)
}

// withdraw deletes what was made of an incomplete volume. Its marks stay.
func (ch *change) withdraw(have providers.Thing) error {
	if have.Detail != begun {
		return nil
	}
	capacity, ok := have.Spec["capacity"].(int64)
	if !ok {
		capacity = math.MaxInt64
	}
	return ch.discard(have.ID, capacity)
}

// finish makes a volume that has its marks. It reports whether there is then something of it: what libvirt refuses to create, it deletes
// itself, and it may also be another client's.
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
		err = ch.uploadImage(d)
	} else {
		err = ch.still(d.clone)
	}
	if err != nil {
		return true, err
	}
	if err := ch.grow(d); err != nil {
		return true, err
	}
	return true, ch.sync(d)
}

// uploadImage writes an image into a volume. What it writes is checked again, because the file may have changed since; and what was written
// is read, because libvirt confirms the end of an upload also when the disk was full.
func (ch *change) uploadImage(d *draft) error {
	r := d.image.contents(ch.ctx)
	err := ch.do(func() error { return ch.upload(ch.ctx, d.pool, d.name, 0, uint64(d.image.bytes), r) })
	switch {
	case ch.ctx.Err() != nil:
		return &lost{err: context.Cause(ch.ctx)}
	case r.err != nil:
		return refuse(providers.Invalid, "image %s: %w", d.image.path, r.err)
	case err != nil:
		return err
	}
	if err := r.verify(); err != nil {
		return err
	}
	there := sha256.New()
	if err := ch.download(ch.ctx, d.pool, d.name, uint64(d.image.bytes), there); err != nil {
		return err
	}
	if !bytes.Equal(there.Sum(nil), r.hash.Sum(nil)) {
		return refuse(providers.Invalid, "volume %s has other contents than were uploaded; is there room in its pool?", d.id())
	}
	return nil
}

// sync waits until what was written into a volume is on the disk: its marks go next. On another node that is left to libvirt, which does not
// wait for what it has uploaded.
func (ch *change) sync(d *draft) error {
	if !ch.host.here() {
		return nil
	}
	v, err := ch.definitionOf(d.id())
	if err != nil || v.Target == nil {
		return err
	}
	f, err := os.OpenFile(v.Target.Path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil { // libvirtd may have another view of the files of the node, or other rights
		return nil
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return refuse(providers.Invalid, "volume %s cannot be written to the disk: %w", d.id(), err)
	}
	return nil
}

// grow gives a volume that was just filled its capacity.
func (ch *change) grow(d *draft) error {
	if d.image != nil { // libvirt may not yet have noticed what was uploaded
		if formatOf(&d.spec) == "raw" || d.image.size == d.spec.Capacity {
			return nil
		}
		return ch.do(func() error { return ch.resizeVolume(ch.ctx, d.pool, d.name, uint64(d.spec.Capacity)) })
	}
	v, err := ch.definitionOf(d.id())
	if err != nil {
		return err
	}
	want, is := uint64(d.spec.Capacity), uint64(0)
	if v.Capacity != nil {
		is = v.Capacity.Value
	}
	switch {
	case is > want: // the source has grown meanwhile
		return refuse(providers.Conflict, "volume %s has %d bytes, more than the wanted %d", d.id(), is, want)
	case is == want:
		return nil
	}
	return ch.do(func() error { return ch.resizeVolume(ch.ctx, d.pool, d.name, want) })
}

// discard deletes what there is of an incomplete volume, unless it is in use, or cannot be of converge: it is larger than the volume is to
// be, or based on another one. libvirt refuses that only while a copy to it is in progress, of a call whose answer was lost.
func (ch *change) discard(id string, capacity int64) error {
	v, err := ch.lookup(id)
	if err != nil || v == nil {
		return err
	}
	pool, name, _ := strings.Cut(id, "/")
	i := image{pool: pool, volume: name}
	if v.Target != nil {
		i.path = v.Target.Path
	}
	if v.Capacity != nil && v.Capacity.Value > uint64(capacity) || v.BackingStore != nil && v.BackingStore.Path != "" {
		return refuse(providers.Conflict, "volume %s is not what converge was creating, so it is not deleted: another client has made it, or "+
			"what it is copied from has grown. To go on, delete it (virsh vol-delete %s %s)", id, name, pool)
	}
	switch by, err := ch.user(i); {
	case err != nil:
		return err
	case by != "":
		return refuseUsed("volume %s is incomplete, and %s", id, by)
	}
	err = ch.do(func() error { return ch.deleteVolume(ch.ctx, pool, name) })
	if a := (*answer)(nil); errors.As(err, &a) && a.class == providers.Invalid {
		a.class = providers.Busy
	}
	return err
}
