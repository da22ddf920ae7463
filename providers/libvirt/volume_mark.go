package libvirt

import (
	"errors"
	"slices"
	"strings"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A volume with contents takes several calls, or one that takes long, and a libvirtd that is killed during that leaves a file that it lists
// afterwards like any other, with its full size. libvirt has no place for a note on a volume, and cannot rename one. So two more volumes, its
// marks, are made before it, and deleted after that, in the reverse order. The first has the capacity that the volume is to have; what has
// the volume's name beside it alone is another client's. From the second on the volume is incomplete, whatever is there of it. An update makes
// such a volume anew, and a delete takes away all three.
//
// The marks are empty files, because libvirt confirms what it writes into a volume before that is on the disk, and refuses to delete one that
// somebody reads.

// What the names of marks end in, after the name of the volume.
const (
	announcedEnding = ".converge-incomplete"
	begunEnding     = ".converge-begun"
)

// markBytes is the size of a second mark.
const markBytes = 512

// What is said of volumes with marks.
const (
	announced = "it is about to be filled, or that was cut off before it began"
	begun     = "copying or uploading its contents goes on, or was cut off"
	beside    = "converge was about to create a volume of this name; what it has left of that is deleted with this one"
)

// origins are the fields that say what a new volume is filled with. libvirt does not report them.
var origins = []string{"clone", "image", "image_sha256"}

// isComplete reports whether a volume that was listed has all of its contents.
func isComplete(spec schema.Object) bool { return spec["complete"] != false }

// markOf returns the name of the volume that one with some name is a mark of, and which mark it is; empty when it is none.
func markOf(name string) (of, ending string) {
	for _, ending := range []string{announcedEnding, begunEnding} {
		if of, is := strings.CutSuffix(name, ending); is && of != "" {
			return of, ending
		}
	}
	return "", ""
}

// isMark reports whether a volume with a name is a mark.
func isMark(name string) bool { of, _ := markOf(name); return of != "" }

// withMarks adds to the ids of volumes those of their marks, each after its volume: one that is found without them is complete. It may have
// been smaller when it was found, which is no matter: what is planned from that is refused, because it has changed.
func withMarks(ids []string) []string {
	if ids == nil {
		return nil
	}
	all := make([]string, 0, 3*len(ids))
	for _, id := range ids {
		all = append(all, id, id+begunEnding, id+announcedEnding)
	}
	return all
}

// marked replaces marks, and the volumes that they name, by incomplete volumes. It returns those with the given ids, all when ids is nil.
func marked(found []providers.Thing, ids []string) (all []providers.Thing) {
	marks := map[string]*providers.Thing{} // by the id of the volume: as it is observed
	of := func(id string) *providers.Thing {
		if marks[id] == nil {
			pool, name, _ := strings.Cut(id, "/")
			marks[id] = &providers.Thing{
				ID: id, Name: name, Spec: schema.Object{"pool": pool, "complete": false}, Unfilled: slices.Concat(origins, []string{"capacity", "format"}),
				Phase: providers.Ready, Detail: announced,
			}
		}
		return marks[id]
	}
	for _, th := range found {
		name, ending := markOf(th.Name)
		if name == "" {
			continue
		}
		m := of(strings.TrimSuffix(th.ID, ending))
		switch bytes := th.Spec["capacity"]; {
		case ending == begunEnding:
			m.Detail = begun
		case bytes != int64(0): // that of a file of which libvirt was killed in the middle
			m.Spec["capacity"], m.Unfilled = bytes, slices.Concat(origins, []string{"format"})
		}
	}
	for _, th := range found {
		if isMark(th.Name) {
			continue
		}
		switch m := marks[th.ID]; {
		case m == nil:
		case m.Detail == begun:
			continue
		default:
			th.Detail = beside
			delete(marks, th.ID)
		}
		all = append(all, th)
	}
	for _, m := range marks {
		all = append(all, *m)
	}
	return slices.DeleteFunc(all, func(th providers.Thing) bool { return ids != nil && !slices.Contains(ids, th.ID) })
}

// announce makes the first mark of a volume.
func (ch *change) announce(d *draft) error {
	return ch.makeMark(d.pool, d.name+announcedEnding, d.spec.Capacity)
}

// begin makes the second mark of a volume.
func (ch *change) begin(d *draft) error { return ch.makeMark(d.pool, d.name+begunEnding, markBytes) }

func (ch *change) makeMark(pool, name string, bytes int64) error {
	xml, err := textOf(newFile(name, bytes, "raw"))
	if err != nil {
		return err
	}
	return ch.do(func() error { return ch.createVolume(ch.ctx, pool, xml) })
}

// unmark deletes the marks of a volume.
func (ch *change) unmark(pool, name string) error {
	for _, ending := range []string{begunEnding, announcedEnding} {
		err := ch.do(func() error { return ch.deleteVolume(ch.ctx, pool, name+ending) })
		a := (*answer)(nil)
		switch {
		case errors.As(err, &a) && a.class == providers.Absent:
			continue
		case errors.As(err, &a) && a.class == providers.Invalid:
			a.class = providers.Busy
		}
		if err != nil {
			return err
		}
	}
	return nil
}
