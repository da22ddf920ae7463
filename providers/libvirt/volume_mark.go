package libvirt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/libvirt/spec"
	"converge.dev/converge/schema"
)

// A volume with contents takes several calls, or one that takes long, and a libvirtd that is killed during that leaves a file that it lists
// afterwards like any other, with its full size. libvirt has no place for a note on a volume, and cannot rename one. So a second volume, the
// mark, is made before anything else, then written, and deleted at the end. Until it is written nothing else was made: whatever has the name
// then is another client's. From then on the volume that it names is incomplete, whatever is there of it. An update makes such a volume anew,
// and a delete takes away both.

// markEnding is what the names of marks end in, after the name of the volume.
const markEnding = ".converge-incomplete"

// markBytes is the size of a mark.
const markBytes = 512

// A mark is what is written into one.
type mark struct {
	Capacity int64  `json:"capacity"` // that the volume is to have
	Format   string `json:"format"`
}

// What is said of volumes with a mark.
const (
	incomplete = "copying or uploading its contents goes on, or was cut off"
	abandoned  = "a create began beside it and was cut off; what that has left is deleted with it"
)

// origins are the fields that say what a new volume is filled with. libvirt does not report them.
var origins = []string{"clone", "image", "image_sha256"}

// isComplete reports whether a volume that was listed has all of its contents.
func isComplete(spec schema.Object) bool { return spec["complete"] != false }

// withMarks adds to the ids of volumes those of their marks, each after its volume: one that is found without its mark is complete.
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

// marked replaces marks, and the volumes that they name, by incomplete volumes. It returns those with the given ids, all when ids is nil.
func marked(ctx context.Context, c conn, found []providers.Thing, ids []string) ([]providers.Thing, error) {
	said := map[string]*mark{} // by the id of the volume
	var gone []string
	for _, th := range found {
		id, ok := markOf(&th)
		if !ok {
			continue
		}
		m, err := readMark(ctx, c, th.ID)
		if err != nil {
			return nil, err
		}
		if said[id] = m; m == nil {
			gone = append(gone, id)
		}
	}
	var all []providers.Thing
	for _, th := range found {
		if _, is := markOf(&th); is {
			continue
		}
		switch m, has := said[th.ID]; {
		case !has:
		case m == nil || m.Format != "": // what was read may be older than the mark, or is a part
			continue
		default:
			th.Detail = abandoned
			delete(said, th.ID)
		}
		all = append(all, th)
	}
	for id, m := range said {
		if m != nil {
			all = append(all, m.volume(id))
		}
	}
	if len(gone) > 0 { // meanwhile
		again, err := (volumes{}).list(ctx, c, gone)
		if err != nil {
			return nil, err
		}
		all = append(all, again...)
	}
	return slices.DeleteFunc(all, func(th providers.Thing) bool { return ids != nil && !slices.Contains(ids, th.ID) }), nil
}

// markOf returns the id of the volume that a volume marks, if it is a mark.
func markOf(th *providers.Thing) (id string, is bool) {
	id, ok := strings.CutSuffix(th.ID, markEnding)
	return id, ok && !strings.HasSuffix(id, "/") && th.Spec["capacity"] == int64(markBytes)
}

// volume returns the incomplete volume that a mark stands for.
func (m *mark) volume(id string) providers.Thing {
	pool, name, _ := strings.Cut(id, "/")
	th := providers.Thing{
		ID: id, Name: name, Spec: schema.Object{"pool": pool, "complete": false}, Unfilled: origins, Phase: providers.Ready, Detail: incomplete,
	}
	if m.Format == "" {
		th.Unfilled = slices.Concat(origins, []string{"capacity", "format"})
		return th
	}
	th.Spec["capacity"], th.Spec["format"] = m.Capacity, m.Format
	return th
}

// readMark reads what is in a mark, which is zero when nothing was written into it; nil when the mark is gone.
func readMark(ctx context.Context, c conn, id string) (*mark, error) {
	pool, name, _ := strings.Cut(id, "/")
	text, err := c.download(ctx, pool, name, markBytes)
	if errors.As(err, new(*answer)) {
		if there, err := c.volumes(ctx, pool, []string{name}); err != nil || len(there) == 0 {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	m := &mark{}
	_ = json.Unmarshal(bytes.TrimRight(text, "\x00"), m) // a part of one is nothing
	if m.Capacity <= 0 || m.Format == "" {
		return &mark{}, nil
	}
	return m, nil
}

// mark marks a volume before it is made.
func (ch *change) mark(d *draft) error {
	m := libvirtxml.StorageVolume{
		Type: "file", Name: d.name + markEnding,
		Allocation: &libvirtxml.StorageVolumeSize{Unit: "bytes"},
		Capacity:   &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: markBytes},
		Target:     &libvirtxml.StorageVolumeTarget{Format: &libvirtxml.StorageVolumeTargetFormat{Type: "raw"}},
	}
	xml, err := m.Marshal()
	if err != nil {
		return refuse(providers.Invalid, "it cannot be written as XML: %w", err)
	}
	return ch.do(func() error { return ch.createVolume(ch.ctx, d.pool, xml) })
}

// note writes into a mark what its volume is to be.
func (ch *change) note(d *draft) error {
	text, err := json.Marshal(mark{Capacity: d.spec.Capacity, Format: formatOf(&d.spec)})
	if err != nil {
		return err
	}
	return ch.write(d.pool, d.name+markEnding, 0, append(text, make([]byte, markBytes-len(text))...))
}

// unmark deletes the mark of a volume.
func (ch *change) unmark(pool, name string) error {
	return ch.do(func() error { return ch.deleteVolume(ch.ctx, pool, name+markEnding) })
}

func formatOf(s *spec.Volume) string { return or(s.Format, "qcow2") }
