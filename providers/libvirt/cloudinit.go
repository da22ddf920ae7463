package libvirt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/internal/cidata"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/libvirt/spec"
	"converge.dev/converge/schema"
)

// seedEnding is what the names of the volumes end in that are seeds. Together with the size it tells them from other volumes, so that no
// volume has to be read for that.
const seedEnding = ".cidata.iso"

// isSeed reports whether a volume is one of the kind libvirt.cloudinit, whatever is in it.
func isSeed(name string, bytes uint64) bool {
	return strings.HasSuffix(name, seedEnding) && bytes == cidata.Size
}

// seeds is the kind libvirt.cloudinit.
//
// libvirt writes into a volume while others may read it, and a write that is cut off leaves a part of the old contents and a part of the
// new ones. So a byte that is 0 in every image says, from the first write to the last, that this is not a seed; and the descriptor, without
// which there is no file system for a guest, is taken away before anything else and written after it.
type seeds struct{}

func (seeds) traits(common providers.Traits) providers.Traits {
	common.ID = "{pool}/{name}" + seedEnding
	return common
}

func (seeds) told() (o object, ids func(string) []string, ok bool) { return 0, nil, false }

func (seeds) list(ctx context.Context, c conn, ids []string) ([]providers.Thing, error) {
	var found []providers.Thing
	err := eachVolume(ctx, c, ids, func(pool string, v *libvirtxml.StorageVolume) error {
		if v.Capacity == nil || !isSeed(v.Name, v.Capacity.Value) {
			return nil
		}
		image, err := listed(ctx, c, pool, v.Name)
		if err != nil || image == nil {
			return err
		}
		th := providers.Thing{ID: pool + "/" + v.Name, Name: strings.TrimSuffix(v.Name, seedEnding), Phase: providers.Ready}
		status := spec.CloudinitStatus{}
		if v.Target != nil {
			status.Path = optional(v.Target.Path)
		}
		th.Status = status.Object()
		s, is := contentsOf(image)
		switch is {
		case unmade:
			return nil
		case whole:
			s.Pool = pool
			th.Spec = s.Object()
		default: // the fields that are unknown are absent, as those of a change that is not yet done
			th.Phase, th.Detail, th.Spec = providers.Failed, string(is), schema.Object{"pool": pool}
		}
		th.Version = versionOf(th.Spec, v)
		found = append(found, th)
		return nil
	})
	return found, err
}

// listed returns what is in a volume that was just listed; nothing when it does not exist any more. libvirt lists a volume before it has
// allocated it, and still after it has deleted the file, and refuses to read it then. That lasts a moment, for which no look at the others
// should fail.
func listed(ctx context.Context, c conn, pool, name string) (image []byte, err error) {
	err = moment.Do(ctx, func() (over bool, err error) {
		image, err = beginning(ctx, c, pool, name, cidata.Size)
		a := (*answer)(nil)
		if errors.As(err, &a) && a.class == providers.Absent {
			image = nil
			return true, nil
		}
		return a == nil, err
	})
	return image, err
}

// versionOf returns a version that tells nothing of the user data: the time of the last write stands for it.
func versionOf(s schema.Object, v *libvirtxml.StorageVolume) string {
	open := s.Clone()
	delete(open, "user_data")
	if v.Target != nil && v.Target.Timestamps != nil {
		open["written"] = v.Target.Timestamps.Mtime
	}
	return open.Digest()[:16]
}

// A filling is what is in a volume.
type filling string

const (
	unmade   filling = "" // nothing, or what was written until a create was cut off
	whole    filling = "a seed"
	replaced filling = "its contents are being replaced, or that was cut off"
	strange  filling = "its contents are not a seed as converge writes it"
)

// writingAt is where a volume has the byte that says that it is being written, and why. All before it is 0.
const writingAt = cidata.Descriptor - 1

// The values of that byte.
const (
	making    = 'm'
	replacing = 'r'
)

// contentsOf returns the spec of an image, without its pool, when that is whole.
func contentsOf(image []byte) (*spec.Cloudinit, filling) {
	none := make([]byte, cidata.Size)
	if bytes.Equal(image, none) {
		return nil, unmade
	}
	if len(image) == cidata.Size && bytes.Equal(image[:writingAt], none[:writingAt]) {
		switch image[writingAt] {
		case making:
			return nil, unmade
		case replacing:
			return nil, replaced
		}
	}
	seed, err := cidata.Read(image)
	if err != nil {
		return nil, strange
	}
	var meta metaData
	if json.Unmarshal([]byte(seed.MetaData), &meta) != nil || meta.text() != seed.MetaData {
		return nil, strange
	}
	return &spec.Cloudinit{
		InstanceID: meta.InstanceID, Hostname: optional(meta.Hostname), UserData: &seed.UserData,
		NetworkConfig: optional(seed.NetworkConfig), VendorData: optional(seed.VendorData),
	}, whole
}

// metaData is the file meta-data, as JSON, which is also YAML.
type metaData struct {
	InstanceID string `json:"instance-id"`
	Hostname   string `json:"local-hostname,omitempty"`
}

func (m metaData) text() string {
	b, _ := json.Marshal(m) // never fails
	return string(b) + "\n"
}

// imageOf returns the image that a spec describes.
func imageOf(s *spec.Cloudinit) ([]byte, error) {
	image, err := cidata.Seed{
		MetaData: metaData{s.InstanceID, or(s.Hostname, "")}.text(), UserData: or(s.UserData, ""),
		NetworkConfig: or(s.NetworkConfig, ""), VendorData: or(s.VendorData, ""),
	}.Image()
	if err != nil {
		return nil, &fault{class: providers.Invalid, code: "TooLong", err: err}
	}
	return image, nil
}

// create also completes what an earlier create has begun.
func (seeds) create(ch *change, want schema.Object) error {
	var s spec.Cloudinit
	if err := read(want, &s); err != nil {
		return err
	}
	name, ok := strings.CutPrefix(ch.call.ID, s.Pool+"/")
	if !ok || !strings.HasSuffix(name, seedEnding) {
		return refuse(providers.Invalid, "seed %s is not in pool %s", ch.call.ID, s.Pool)
	}
	image, err := imageOf(&s)
	if err != nil {
		return err
	}
	xml, err := textOf(newFile(name, cidata.Size, "raw"))
	if err != nil {
		return err
	}
	before := make([]byte, cidata.Size)
	switch have, err := ch.volumes(ch.ctx, s.Pool, []string{name}); {
	case err != nil:
		return err
	case len(have) == 0:
		if err := ch.do(func() error { return ch.createVolume(ch.ctx, s.Pool, xml) }); err != nil {
			return err
		}
	default:
		var v libvirtxml.StorageVolume
		if err := v.Unmarshal(have[0]); err != nil {
			return err
		}
		if v.Capacity == nil || !isSeed(v.Name, v.Capacity.Value) {
			return refuse(providers.Exists, "there is a volume %s, which is not a seed", ch.call.ID)
		}
		if before, err = beginning(ch.ctx, ch, s.Pool, name, cidata.Size); err != nil {
			return err
		}
	}
	err = ch.fill(s.Pool, name, before, image, making)
	return ch.unfilled(err, func() error {
		return ch.do(func() error { return ch.deleteVolume(ch.ctx, s.Pool, name) })
	})
}

// update replaces the contents.
func (seeds) update(ch *change, have providers.Thing, want schema.Object) error {
	var s spec.Cloudinit
	if err := read(want, &s); err != nil {
		return err
	}
	pool, name, _ := strings.Cut(have.ID, "/")
	if s.Pool != pool {
		return refuse(providers.Invalid, "pool cannot be changed in place")
	}
	image, err := imageOf(&s)
	if err != nil {
		return err
	}
	old, err := beginning(ch.ctx, ch, pool, name, cidata.Size)
	if err != nil {
		return err
	}
	_, is := contentsOf(old)
	switch {
	case is == strange:
		return notOurs("seed %s is not overwritten: %s", have.ID, is)
	case bytes.Equal(old, image):
		return nil
	}
	err = ch.fill(pool, name, old, image, replacing)
	return ch.unfilled(err, func() error {
		if is != whole {
			return errors.New("what it had before is unknown")
		}
		return ch.fill(pool, name, image, old, replacing)
	})
}

// remove deletes a volume like any other, unless it has something that converge did not write.
func (seeds) remove(ch *change, have providers.Thing) error {
	if have.Detail == string(strange) {
		return notOurs("seed %s is not deleted: %s", have.ID, strange)
	}
	return volumes{}.remove(ch, have)
}

// notOurs refuses to change what converge has not written.
func notOurs(format string, args ...any) error {
	return &fault{class: providers.Invalid, code: "NotASeed", err: fmt.Errorf(format, args...)}
}

// fill writes an image into a volume, and marks it as being written until all of it was read back. Libvirt may write a part and report
// success; each byte is then as before or as written.
func (ch *change) fill(pool, name string, before, image []byte, mark byte) error {
	marked := bytes.Clone(image)
	marked[writingAt] = mark
	hollow := bytes.Clone(marked)
	clear(hollow[cidata.Descriptor:cidata.DescriptorEnd])
	if err := ch.write(pool, name, 0, hollow); err != nil {
		return err
	}
	if err := ch.write(pool, name, cidata.Descriptor, image[cidata.Descriptor:cidata.DescriptorEnd]); err != nil {
		return err
	}
	switch there, err := beginning(ch.ctx, ch, pool, name, cidata.Size); {
	case err != nil:
		return err
	case !between(there, before, hollow, marked):
		return &fault{class: providers.Conflict, code: overwritten, err: fmt.Errorf("another client has written into volume %s/%s at the same time", pool, name)}
	case !bytes.Equal(there, marked):
		return refuse(providers.Conflict, "volume %s/%s has other contents than were just written to it", pool, name)
	}
	return ch.write(pool, name, writingAt, image[writingAt:cidata.Descriptor])
}

// overwritten is the code of a fault for which nothing is undone: the contents are those of another client.
const overwritten = "Overwritten"

// between reports whether each byte is as in one of some images; one that is shorter ends in zeros.
func between(is []byte, images ...[]byte) bool {
	for i, c := range is {
		if !slices.ContainsFunc(images, func(image []byte) bool { return i < len(image) && image[i] == c || i >= len(image) && c == 0 }) {
			return false
		}
	}
	return true
}

// write writes into a volume. When libvirt refuses that, it may have written a part.
func (ch *change) write(pool, name string, offset uint64, b []byte) error {
	err := ch.do(func() error { return ch.upload(ch.ctx, pool, name, offset, uint64(len(b)), bytes.NewReader(b)) })
	if errors.As(err, new(*answer)) {
		ch.kept()
	}
	return err
}

// unfilled undoes what was done when an image could not be written for a reason.
func (ch *change) unfilled(reason error, undo func() error) error {
	f := (*fault)(nil)
	if !errors.As(reason, new(*answer)) && (!errors.As(reason, &f) || f.code == overwritten) {
		return reason // it is done, libvirt has not answered, or it is not ours to undo
	}
	if err := undo(); err != nil {
		return fmt.Errorf("%w; it was not possible to undo what was done before: %w", reason, err)
	}
	ch.undone()
	if a := (*answer)(nil); errors.As(reason, &a) && a.class == providers.Unknown {
		a.class = providers.Invalid
	}
	return reason
}
