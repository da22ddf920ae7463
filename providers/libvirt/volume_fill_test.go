package libvirt

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
	"converge.dev/converge/schema/kinds"
)

// cloneCase is a case of the laws.
func cloneCase(pool, source providertest.Made) providertest.Case {
	of, bytes := pool.Name+"/"+source.Name, source.Spec["capacity"].(int64)
	return providertest.Case{
		Kind: "libvirt.volume", Name: "copy.qcow2", Needs: []providertest.Made{pool, source},
		Want:    schema.Object{"pool": pool.Name, "capacity": 2 * bytes, "format": "qcow2", "clone": of},
		Update:  schema.Object{"pool": pool.Name, "capacity": 4 * bytes, "format": "qcow2", "clone": of},
		Invalid: schema.Object{"pool": pool.Name, "capacity": bytes / 2, "format": "qcow2", "clone": of},
	}
}

// anImage is what is in the file disk.raw of the directory of images.
const anImage = "an image"

// imageDir makes a directory of images, below another directory.
func imageDir(t *testing.T, parent string) string {
	t.Helper()
	dir := filepath.Join(parent, "images")
	mustDo(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o700))
	mustDo(t, os.WriteFile(filepath.Join(dir, "disk.raw"), []byte(anImage), 0o600))
	return dir
}

// imageCase is a case of the laws.
func imageCase(pool providertest.Made) providertest.Case {
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(anImage)))
	spec := func(capacity int64, image string) schema.Object {
		return schema.Object{"pool": pool.Name, "capacity": capacity, "format": "raw", "image": image, "image_sha256": sum}
	}
	return providertest.Case{
		Kind: "libvirt.volume", Name: "uploaded.raw", Needs: []providertest.Made{pool},
		Want: spec(4096, "disk.raw"), Update: spec(8192, "disk.raw"), Invalid: spec(4096, "none.raw"),
	}
}

// TestVolumeLaws checks the laws on the fake.
func TestVolumeLaws(t *testing.T) {
	s, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	all, served := lacking(s.Kinds(), "libvirt.cloudinit", "libvirt.dhcp_host", "libvirt.domain", "libvirt.network")
	pool := providertest.Made{Kind: "libvirt.pool", Name: "p", Spec: schema.Object{"path": "/srv/p"}}
	source := providertest.Made{Kind: "libvirt.volume", Name: "base.raw", Spec: schema.Object{"pool": "p", "capacity": int64(4096), "format": "raw"}}
	providertest.Run(t, providertest.Suite{
		Kinds: all,
		Cases: []providertest.Case{cloneCase(pool, source), imageCase(pool), {
			Kind: pool.Kind, Name: "q", Want: pool.Spec, Update: schema.Object{"path": "/srv/p", "autostart": false},
			Other: func(i int) providertest.Made {
				return providertest.Made{Name: fmt.Sprintf("q-%d", i), Spec: schema.Object{"path": fmt.Sprintf("/srv/q-%d", i)}}
			},
		}},
		Open: func(t *testing.T) providertest.World {
			f := newFake()
			f.images = imageDir(t, t.TempDir())
			return providertest.World{Provider: served(f.open(t)), Dump: func() string {
				f.mu.Lock()
				defer f.mu.Unlock()
				return fmt.Sprint(f.files, f.data)
			}}
		},
	})
}

// newVolumeFake has two pools, and in one of them a volume with data.
func newVolumeFake(t *testing.T) (*fake, *providers.Provider) {
	f := newFake()
	f.images = imageDir(t, t.TempDir())
	for _, name := range []string{"p", "q"} {
		xml := "<pool type='dir'><name>" + name + "</name><target><path>/srv/" + name + "</path></target></pool>"
		f.put(poolObject, name, xml, xml)
	}
	p := f.open(t)
	mustDo(t, createVolume(t, p, "q/base", schema.Object{"pool": "q", "capacity": int64(4096), "format": "raw"}))
	copy(f.data["q/base"], "contents")
	return f, p
}

// mark makes the marks of a volume of some capacity.
func (f *fake) mark(t *testing.T, id string, capacity int, endings ...string) {
	t.Helper()
	pool, name, _ := strings.Cut(id, "/")
	for _, ending := range endings {
		bytes := markBytes
		if ending == announcedEnding {
			bytes = capacity
		}
		mustDo(t, f.createVolume(t.Context(), pool, fmt.Sprintf("<volume type='file'><name>%s</name><capacity>%d</capacity><target><format type='raw'/></target></volume>", name+ending, bytes)))
	}
}

func createVolume(t *testing.T, p *providers.Provider, id string, want schema.Object) error {
	t.Helper()
	c := calling("libvirt.volume", id)
	c.Want = want
	return served(t, p, "libvirt.volume").Kind.Create(t.Context(), c)
}

func deleteVolume(t *testing.T, p *providers.Provider, id string) error {
	t.Helper()
	return served(t, p, "libvirt.volume").Kind.Delete(t.Context(), calling("libvirt.volume", id))
}

// lookVolume returns a volume; nil when there is none.
func lookVolume(t *testing.T, p *providers.Provider, id string) *providers.Thing {
	t.Helper()
	var found [2]*providers.Thing
	k := served(t, p, "libvirt.volume").Kind
	got, err := k.Get(t.Context(), []string{id})
	mustDo(t, err)
	if mark, err := k.Get(t.Context(), []string{id + begunEnding, id + announcedEnding}); err != nil || len(mark) > 0 {
		t.Errorf("a look at the mark shows %v (%v)", mark, err)
	}
	listed, err := providers.Collect(k.List(t.Context()))
	mustDo(t, err)
	for n, things := range [][]providers.Thing{got, listed} {
		for i := range things {
			if things[i].ID == id {
				found[n] = &things[i]
			}
			if isMark(things[i].ID) {
				t.Errorf("the mark %s is observed as a volume", things[i].ID)
			}
		}
	}
	if (found[0] == nil) != (found[1] == nil) || found[0] != nil && (found[0].Detail != found[1].Detail || !found[0].Spec.Equal(found[1].Spec)) {
		t.Errorf("it is %v, and in the list %v", found[0], found[1])
	}
	return found[0]
}

// wholeVolume checks that a volume has its contents and nothing is left of how it was made.
func wholeVolume(t *testing.T, f *fake, p *providers.Provider, id string, capacity int64, contents string) {
	t.Helper()
	th := lookVolume(t, p, id)
	if th == nil || th.Detail != "" || th.Spec["capacity"] != capacity || !slices.Equal(th.Unfilled, origins) {
		t.Errorf("the volume is observed as %v", th)
	}
	if is := string(bytes.TrimRight(f.data[id], "\x00")); is != contents || len(f.data[id]) != int(capacity) {
		t.Errorf("the volume has %d bytes: %.50q, want %d: %.50q", len(f.data[id]), is, capacity, contents)
	}
	if f.data[id+begunEnding] != nil || f.data[id+announcedEnding] != nil {
		t.Error("a mark is left")
	}
}

// qcow2Of is an image of a size, with data. Change, which may be nil, changes its header.
func qcow2Of(size int, change func(head []byte)) string {
	head := make([]byte, qcow2Header3)
	copy(head, qcow2Magic)
	binary.BigEndian.PutUint32(head[qcow2Version:], 3)
	binary.BigEndian.PutUint64(head[qcow2Size:], uint64(size))
	if change != nil {
		change(head)
	}
	return string(head) + "data"
}

// TestFillCut ends a create, and what goes on after it, at each of their calls: by an answer, by the loss of the connection, or at the end of
// the process. What is there is never taken for a whole volume unless it is one; it can be completed, and deleted without a rest.
func TestFillCut(t *testing.T) {
	const id = "p/v"
	for _, how := range []string{"clone", "image"} {
		want := schema.Object{"pool": "p", "capacity": int64(8192), "format": "qcow2", "complete": true}
		steps, contents := []string{"create p/v", "resize p/v", "delete p/v" + begunEnding, "delete p/v" + announcedEnding}, "contents"
		if want["clone"] = "q/base"; how == "image" {
			delete(want, "clone")
			want["image"], contents = "disk.qcow2", qcow2Of(4096, nil)
			steps = slices.Insert(steps, 1, "upload p/v")
		}
		for _, verb := range []string{"create", "complete"} {
			calls := slices.Concat([]string{"create p/v" + announcedEnding, "create p/v" + begunEnding}, steps)
			if verb == "complete" {
				calls = slices.Concat([]string{"delete p/v"}, steps)
			}
			for n, at := range calls {
				for _, end := range []string{"refused", "lost before", "lost after"} {
					for _, back := range []bool{false, true} {
						t.Run(fmt.Sprintf("%s, %s, %s, %s, back %t", how, verb, at, end, back), func(t *testing.T) {
							f, p := newVolumeFake(t)
							mustDo(t, os.WriteFile(filepath.Join(f.images, "disk.qcow2"), []byte(qcow2Of(4096, nil)), 0o600))
							strike := func(n int) {
								seen := 0
								f.fail = func(call string) error {
									seen++
									f.effect = false
									switch {
									case seen < n+1:
										return nil
									case seen > n+1 && end != "refused":
										return &lost{unsent: true, err: errors.New("the connection is lost")}
									case seen > n+1:
										return nil
									case call != at:
										t.Errorf("call %d is %q, want %q", n, call, at)
									}
									f.effect = end == "lost after"
									if end == "refused" {
										return refusal("no space left on device")
									}
									return &lost{err: errors.New("the connection is lost")}
								}
							}
							heal := func() { f.fail, f.effect = func(string) error { return nil }, false }
							act := func() error { return createVolume(t, p, id, want) }
							if verb == "complete" {
								f.fail = func(call string) error {
									if call == "resize p/v" {
										return &lost{err: errors.New("the connection is lost")}
									}
									return nil
								}
								if err := act(); err == nil || isComplete(lookVolume(t, p, id).Spec) {
									t.Fatalf("a cut create ended with %v", err)
								}
								act = func() error { return updated(t, p, "libvirt.volume", id, want) }
							}
							strike(n)
							err := act()
							heal()
							if err == nil {
								t.Fatal("it did not fail")
							}
							th := lookVolume(t, p, id)
							left := schema.Object{"pool": "p", "complete": false, "capacity": int64(8192)}
							last, past := at == calls[len(calls)-1], end == "lost after"
							complete := last || at == calls[len(calls)-2] && past
							switch {
							case last && past:
								wholeVolume(t, f, p, id, 8192, contents)
							case complete:
								if th == nil || th.Spec["complete"] != true || th.Detail != beside {
									t.Errorf("after %v it is observed as %v", err, th)
								}
								if last && end == "refused" && providers.ClassOf(err) != providers.Unknown {
									t.Errorf("it ended as %v", err)
								}
								mustDo(t, deleteVolume(t, p, id))
								if len(f.files["p"]) > 0 {
									t.Errorf("after the delete there are %v", f.files["p"])
								}
								return
							case verb == "create" && (end == "refused" && !strings.HasPrefix(at, "delete") || n == 0 && end == "lost before"):
								if th != nil || len(f.files["p"]) > 0 {
									t.Errorf("after %v there is %v, and %v", err, th, f.files["p"])
								}
								if class := providers.ClassOf(err); end == "refused" && n > 0 && class != providers.Invalid {
									t.Errorf("what was taken back ended as %s: %v", class, err)
								}
							case th == nil || !th.Spec.Equal(left) || !slices.Equal(th.Unfilled, slices.Concat(origins, []string{"format"})):
								t.Errorf("after %v it is observed as %v", err, th)
							}
							switch {
							case back:
								mustDo(t, deleteVolume(t, p, id))
								if lookVolume(t, p, id) != nil || len(f.files["p"]) > 0 {
									t.Errorf("after the delete there are %v", f.files["p"])
								}
								return
							case th == nil:
								mustDo(t, createVolume(t, p, id, want))
							default:
								mustDo(t, updated(t, p, "libvirt.volume", id, want))
							}
							wholeVolume(t, f, p, id, 8192, contents)
						})
					}
				}
			}
		}
	}
}

// TestClone makes copies with other formats and capacities.
func TestClone(t *testing.T) {
	f, p := newVolumeFake(t)
	for i, c := range []struct {
		format   string
		capacity int64
	}{{"raw", 4096}, {"raw", 8192}, {"qcow2", 4096}, {"qcow2", 8192}} {
		id := fmt.Sprintf("p/v%d", i)
		mustDo(t, createVolume(t, p, id, schema.Object{"pool": "p", "capacity": c.capacity, "format": c.format, "clone": "q/base"}))
		wholeVolume(t, f, p, id, c.capacity, "contents")
		if is := lookVolume(t, p, id).Spec["format"]; is != c.format {
			t.Errorf("the format is %v", is)
		}
	}
	mustDo(t, deleteVolume(t, p, "q/base")) // nothing depends on it
	wholeVolume(t, f, p, "p/v0", 4096, "contents")
}

// TestCloneRefused: what cannot be copied is refused before anything is made.
func TestCloneRefused(t *testing.T) {
	running := func(how string) func(f *fake) {
		return func(f *fake) {
			text := "<domain><name>vm</name><devices><disk type='volume'><source pool='q' volume='base'/>" + how + "<target dev='vda'/></disk></devices></domain>"
			f.guests = []definition{{name: "vm", stored: text, running: text}}
		}
	}
	for name, c := range map[string]struct {
		want  schema.Object
		setup func(f *fake)
		class providers.Class
		says  string
	}{
		"no source":        {want: schema.Object{"clone": "q/none"}, class: providers.Absent, says: "volume q/none does not exist"},
		"no pool":          {want: schema.Object{"clone": "none/base"}, class: providers.Absent, says: "volume none/base does not exist"},
		"no id":            {want: schema.Object{"clone": "base"}, class: providers.Absent, says: "volume base does not exist"},
		"itself":           {want: schema.Object{"clone": "p/v"}, class: providers.Absent, says: "volume p/v does not exist"},
		"a mark":           {want: schema.Object{"clone": "q/base" + begunEnding}, class: providers.Absent, says: "does not exist"},
		"smaller":          {want: schema.Object{"capacity": int64(2048)}, class: providers.Invalid, says: "too small for a copy of volume q/base, which has 4096"},
		"with a backing":   {want: schema.Object{"backing": "q/base"}, class: providers.Invalid, says: "only one of backing, clone and image"},
		"a disk that runs": {setup: running(""), class: providers.Invalid, says: "volume q/base is disk vda of domain vm, which is running"},
		"incomplete": {setup: func(f *fake) {
			f.mark(t, "q/base", 4096, announcedEnding, begunEnding)
		}, class: providers.Busy, says: "volume q/base is incomplete"},
		"another format": {setup: func(f *fake) {
			f.files["q"]["base"] = strings.Replace(f.files["q"]["base"], `type="raw"`, `type="vmdk"`, 1)
		}, class: providers.Invalid, says: `has the format "vmdk"`},
	} {
		t.Run(name, func(t *testing.T) {
			f, p := newVolumeFake(t)
			if c.setup != nil {
				c.setup(f)
			}
			f.fail = func(call string) error { t.Errorf("it makes the call %q", call); return nil }
			want := schema.Object{"pool": "p", "capacity": int64(4096), "clone": "q/base"}
			maps.Copy(want, c.want)
			expect(t, createVolume(t, p, "p/v", want), c.class, false, c.says)
		})
	}
	_, p := newVolumeFake(t)
	for _, ending := range []string{announcedEnding, begunEnding} {
		expect(t, createVolume(t, p, "p/v"+ending, schema.Object{"pool": "p", "capacity": int64(4096)}), providers.Invalid, false, "marks another as incomplete")
	}
}

// TestIncompleteInUse: what somebody runs of an incomplete volume is not taken away, and one to which libvirt still copies is waited for.
func TestIncompleteInUse(t *testing.T) {
	f, p := newVolumeFake(t)
	want := schema.Object{"pool": "p", "capacity": int64(8192), "format": "raw", "clone": "q/base", "complete": true}
	mustDo(t, createVolume(t, p, "p/v", want))
	f.mark(t, "p/v", 8192, announcedEnding, begunEnding)
	f.guests = []definition{{name: "vm", stored: "<domain><devices><disk type='file'><source file='/srv/p/v'/><target dev='vda'/></disk></devices></domain>"}}
	for range 2 {
		expect(t, deleteVolume(t, p, "p/v"), providers.Invalid, false, "p/v is incomplete, and is disk vda of domain vm")
		expect(t, updated(t, p, "libvirt.volume", "p/v", want), providers.Invalid, false, "p/v is incomplete, and is disk vda of domain vm")
	}
	f.guests = nil
	f.fail = func(string) error {
		return &answer{class: providers.Invalid, err: errorText("volume 'v' is still being allocated.")}
	}
	expect(t, deleteVolume(t, p, "p/v"), providers.Busy, false, "still being allocated")
	expect(t, updated(t, p, "libvirt.volume", "p/v", want), providers.Busy, false, "still being allocated")
	f.fail = func(string) error { return nil }
	mustDo(t, updated(t, p, "libvirt.volume", "p/v", want))
	wholeVolume(t, f, p, "p/v", 8192, "contents")
}

// TestCloneOfAnother: a volume that another client makes at the same time is not deleted with what is taken back.
func TestCloneOfAnother(t *testing.T) {
	f, p := newVolumeFake(t)
	f.fail = func(call string) error {
		if call == "create p/v" {
			f.files["p"]["v"] = "<volume type='file'><name>v</name><capacity>4096</capacity><target><path>/srv/p/v</path><format type='raw'/></target></volume>"
		}
		return nil
	}
	err := createVolume(t, p, "p/v", schema.Object{"pool": "p", "capacity": int64(4096), "clone": "q/base"})
	expect(t, err, providers.Exists, false, "exists already")
	if th := lookVolume(t, p, "p/v"); th == nil || th.Detail != "" {
		t.Errorf("theirs is observed as %v", th)
	}
}

// TestImageRefused: what must not be uploaded is refused before anything is made.
func TestImageRefused(t *testing.T) {
	const wrong = "0000000000000000000000000000000000000000000000000000000000000000"
	header := func(change func(head []byte)) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			mustDo(t, os.WriteFile(filepath.Join(dir, "x"), []byte(qcow2Of(4096, change)), 0o600))
		}
	}
	file := func(text string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) { mustDo(t, os.WriteFile(filepath.Join(dir, "x"), []byte(text), 0o600)) }
	}
	link := func(to string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			mustDo(t, os.WriteFile(filepath.Join(dir, "..", "secret"), []byte("secret"), 0o600))
			mustDo(t, os.Symlink(to, filepath.Join(dir, "x")))
		}
	}
	raw := schema.Object{"format": "raw"}
	for name, c := range map[string]struct {
		setup func(t *testing.T, dir string)
		want  schema.Object
		says  string
	}{
		"no such file":         {says: "no such file"},
		"up":                   {want: schema.Object{"image": "../secret"}, setup: link("disk.raw"), says: "leads out of the directory"},
		"up and down":          {want: schema.Object{"image": "sub/../../images/disk.raw"}, says: "leads out of the directory"},
		"absolute":             {want: schema.Object{"image": "/etc/shadow"}, says: "leads out of the directory"},
		"empty":                {want: schema.Object{"image": ""}, says: "leads out of the directory"},
		"a link up":            {setup: link("../secret"), want: raw, says: "escapes"},
		"an absolute link":     {setup: link("/etc/shadow"), want: raw, says: "escapes"},
		"a directory of links": {setup: link(".."), want: schema.Object{"format": "raw", "image": "x/secret"}, says: "escapes"},
		"a directory":          {want: schema.Object{"format": "raw", "image": "sub"}, says: "sub is not a file"},
		"a pipe": {want: raw, says: "x is not a file", setup: func(t *testing.T, dir string) {
			mustDo(t, syscall.Mkfifo(filepath.Join(dir, "x"), 0o600))
		}},
		"raw for qcow2":     {want: schema.Object{"image": "disk.raw"}, says: "its format is raw, and that of the volume is qcow2"},
		"qcow2 for raw":     {setup: header(nil), want: raw, says: "its format is qcow2, and that of the volume is raw"},
		"vdi for raw":       {setup: file(strings.Repeat("\x00", 64) + "\x7f\x10\xda\xbe"), want: raw, says: "its format is vdi"},
		"a backing file":    {setup: header(func(head []byte) { head[qcow2Backing+7] = 200 }), says: "it has a backing file"},
		"another data file": {setup: header(func(head []byte) { head[qcow2Features+7] = qcow2DataFile }), says: "its data is in another file"},
		"corrupt":           {setup: header(func(head []byte) { head[qcow2Features+7] = qcow2Corrupt }), says: "marked as corrupt"},
		"encrypted":         {setup: header(func(head []byte) { head[qcow2Encrypted+3] = 2 }), says: "it is encrypted"},
		"of the future":     {setup: header(func(head []byte) { head[qcow2Version+3] = 4 }), says: "version 4 of qcow2"},
		"of the past":       {setup: header(func(head []byte) { head[qcow2Version+3] = 1 }), says: "version 1 of qcow2"},
		"negative":          {setup: header(func(head []byte) { head[qcow2Size] = 0x80 }), says: "its size is not possible"},
		"a short header":    {setup: file(qcow2Of(4096, nil)[:qcow2Header3-1]), says: "its header is cut off"},
		"only the magic":    {setup: file(qcow2Magic), says: "its header is cut off"},
		"too large":         {setup: header(func(head []byte) { head[qcow2Size+5] = 1 }), says: "too small for image x, which has 69632"},
		"too large and raw": {setup: file(strings.Repeat("x", 4097)), want: raw, says: "too small for image x, which has 4097"},
		"another digest":    {setup: file("x"), want: schema.Object{"format": "raw", "image_sha256": wrong}, says: "has the SHA-256 2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881, and not 0000"},
		"only a digest":     {want: schema.Object{"image": nil, "image_sha256": wrong}, says: "image_sha256 is stated without image"},
		"with a clone":      {setup: header(nil), want: schema.Object{"clone": "q/base"}, says: "only one of backing, clone and image"},
		"with a backing":    {setup: header(nil), want: schema.Object{"backing": "q/base"}, says: "only one of backing, clone and image"},
	} {
		t.Run(name, func(t *testing.T) {
			f, p := newVolumeFake(t)
			if c.setup != nil {
				c.setup(t, f.images)
			}
			f.fail = func(call string) error { t.Errorf("it makes the call %q", call); return nil }
			want := schema.Object{"pool": "p", "capacity": int64(4096), "image": "x"}
			maps.Copy(want, c.want)
			maps.DeleteFunc(want, func(_ string, v any) bool { return v == nil })
			expect(t, createVolume(t, p, "p/v", want), providers.Invalid, false, c.says)
		})
	}
	f := newSeedFake()
	want := schema.Object{"pool": "p", "capacity": int64(4096), "format": "raw", "image": "disk.raw"}
	expect(t, createVolume(t, f.open(t), "p/v", want), providers.Invalid, false, `set it in converge.yaml: nodes: {n1: {libvirt_images: "images"}}`)
	f.images = filepath.Join(t.TempDir(), "none")
	expect(t, createVolume(t, f.open(t), "p/v", want), providers.Invalid, false, "the directory of images")
}

// TestImage uploads images, also through links that stay in the directory, and with a digest.
func TestImage(t *testing.T) {
	f, p := newVolumeFake(t)
	mustDo(t, os.Symlink("../disk.raw", filepath.Join(f.images, "sub", "link")))
	mustDo(t, os.WriteFile(filepath.Join(f.images, "empty"), nil, 0o600))
	large := strings.Repeat("0123456789abcdef", 3*headBytes/16) + "end"
	mustDo(t, os.WriteFile(filepath.Join(f.images, "large"), []byte(large), 0o600))
	for i, c := range []struct{ image, contents string }{{"disk.raw", anImage}, {"sub/link", anImage}, {"empty", ""}, {"large", large}} {
		id, capacity := fmt.Sprintf("p/v%d", i), int64(1<<20)
		mustDo(t, createVolume(t, p, id, schema.Object{
			"pool": "p", "capacity": capacity, "format": "raw", "image": c.image, "image_sha256": fmt.Sprintf("%x", sha256.Sum256([]byte(c.contents))),
		}))
		wholeVolume(t, f, p, id, capacity, c.contents)
	}
}

// TestImageChanges: a file that changes after it was checked is not left in a volume.
func TestImageChanges(t *testing.T) {
	whole := strings.Repeat("0123456789abcdef", 2*headBytes/16)
	for name, c := range map[string]struct {
		change func(path string) error
		says   string
	}{
		"other data": {func(path string) error {
			return os.WriteFile(path, []byte(whole[:headBytes]+strings.ToUpper(whole[headBytes:])), 0o600)
		}, "has the SHA-256"},
		"it shrinks":  {func(path string) error { return os.Truncate(path, headBytes+10) }, "it became shorter"},
		"it is empty": {func(path string) error { return os.Truncate(path, 0) }, "it became shorter"},
	} {
		t.Run(name, func(t *testing.T) {
			f, p := newVolumeFake(t)
			path := filepath.Join(f.images, "x")
			mustDo(t, os.WriteFile(path, []byte(whole), 0o600))
			f.fail = func(call string) error {
				if call == "create p/v" {
					mustDo(t, c.change(path))
				}
				return nil
			}
			want := schema.Object{"pool": "p", "capacity": int64(1 << 20), "format": "raw", "image": "x", "image_sha256": fmt.Sprintf("%x", sha256.Sum256([]byte(whole)))}
			expect(t, createVolume(t, p, "p/v", want), providers.Invalid, false, c.says)
			if len(f.files["p"]) > 0 {
				t.Errorf("there are %v", f.files["p"])
			}
		})
	}
	// What is uploaded begins with what was checked, whatever is in the file by then.
	f, p := newVolumeFake(t)
	path := filepath.Join(f.images, "x")
	mustDo(t, os.WriteFile(path, []byte(qcow2Of(4096, nil)), 0o600))
	f.fail = func(call string) error {
		if call == "create p/v" {
			mustDo(t, os.WriteFile(path, []byte(qcow2Of(4096, func(head []byte) { head[qcow2Backing+7] = 200 })), 0o600))
		}
		return nil
	}
	mustDo(t, createVolume(t, p, "p/v", schema.Object{"pool": "p", "capacity": int64(4096), "image": "x"}))
	wholeVolume(t, f, p, "p/v", 4096, qcow2Of(4096, nil))
}

// TestImageISO: libvirt shows a raw volume with a file system for CDs as one of the format iso.
func TestImageISO(t *testing.T) {
	f, p := newVolumeFake(t)
	contents := strings.Repeat("\x00", 0x8001) + "CD001"
	mustDo(t, os.WriteFile(filepath.Join(f.images, "cd.iso"), []byte(contents), 0o600))
	mustDo(t, createVolume(t, p, "p/v", schema.Object{"pool": "p", "capacity": int64(1 << 20), "format": "raw", "image": "cd.iso"}))
	f.files["p"]["v"] = strings.Replace(f.files["p"]["v"], `type="raw"`, `type="iso"`, 1)
	wholeVolume(t, f, p, "p/v", 1<<20, contents)
	if is := lookVolume(t, p, "p/v").Spec["format"]; is != "raw" {
		t.Errorf("its format is %v", is)
	}
}

// TestMarkBesideAnothers: what others have made under the name of a volume, while a create that was cut off had not begun with it, is theirs.
func TestMarkBesideAnothers(t *testing.T) {
	f, p := newVolumeFake(t)
	f.mark(t, "q/base", 8192, announcedEnding)
	if th := lookVolume(t, p, "q/base"); th == nil || th.Spec["complete"] != true || th.Spec["capacity"] != int64(4096) || th.Detail != beside {
		t.Fatalf("it is observed as %v", th)
	}
	mustDo(t, deleteVolume(t, p, "q/base"))
	if len(f.files["q"]) > 0 {
		t.Errorf("there are %v", f.files["q"])
	}

	// And what is larger, or based on another volume, was not made by that create.
	f.mark(t, "p/v", 4096, announcedEnding, begunEnding)
	for _, xml := range []string{"<capacity>8192</capacity>", "<capacity>4096</capacity><backingStore><path>/srv/x</path></backingStore>"} {
		f.files["p"]["v"] = "<volume type='file'><name>v</name>" + xml + "<target><path>/srv/p/v</path><format type='qcow2'/></target></volume>"
		expect(t, deleteVolume(t, p, "p/v"), providers.Conflict, false, "is not what converge was creating")
		want := schema.Object{"pool": "p", "capacity": int64(4096), "format": "raw", "image": "disk.raw", "complete": true}
		expect(t, updated(t, p, "libvirt.volume", "p/v", want), providers.Conflict, false, "is not what converge was creating")
	}
}

// TestMarkCutOff: a libvirtd that is killed while it makes the file of a mark leaves an empty one.
func TestMarkCutOff(t *testing.T) {
	f, p := newVolumeFake(t)
	f.mark(t, "p/v", 0, announcedEnding)
	if th := lookVolume(t, p, "p/v"); th == nil || !th.Spec.Equal(schema.Object{"pool": "p", "complete": false}) || !slices.Contains(th.Unfilled, "capacity") {
		t.Fatalf("it is observed as %v", th)
	}
	mustDo(t, deleteVolume(t, p, "p/v"))
	if len(f.files["p"]) > 0 {
		t.Errorf("there are %v", f.files["p"])
	}
}

// TestMarkOfNothing: a volume that is called only what the names of marks end in is a volume like any other.
func TestMarkOfNothing(t *testing.T) {
	f, p := newVolumeFake(t)
	for _, ending := range []string{announcedEnding, begunEnding} {
		f.mark(t, "q/", 4096, ending)
		th, err := served(t, p, "libvirt.volume").Kind.Get(t.Context(), []string{"q/" + ending})
		if err != nil || len(th) != 1 || th[0].Name != ending || th[0].Spec["complete"] != true {
			t.Errorf("it is observed as %v (%v)", th, err)
		}
	}
	listed, err := providers.Collect(served(t, p, "libvirt.volume").Kind.List(t.Context()))
	if err != nil || len(listed) != 3 || slices.ContainsFunc(listed, func(th providers.Thing) bool { return th.Name == "" }) {
		t.Errorf("there are %v (%v)", listed, err)
	}
}

// TestUploadLost: libvirt confirms an upload of which it could not write the end.
func TestUploadLost(t *testing.T) {
	f, p := newVolumeFake(t)
	f.cut = 3
	expect(t, createVolume(t, p, "p/v", schema.Object{"pool": "p", "capacity": int64(4096), "format": "raw", "image": "disk.raw"}), providers.Invalid, false, "other contents than were uploaded")
	if len(f.files["p"]) > 0 {
		t.Errorf("there are %v", f.files["p"])
	}
}

// TestCloneMeanwhile: a copy of a volume that a machine began to write to, or that grew, while it was copied is not kept.
func TestCloneMeanwhile(t *testing.T) {
	for says, change := range map[string]func(f *fake){
		"disk vda of domain vm, which is running": func(f *fake) {
			text := "<domain><name>vm</name><devices><disk type='volume'><source pool='q' volume='base'/><target dev='vda'/></disk></devices></domain>"
			f.guests = []definition{{name: "vm", stored: text, running: text}}
		},
		"has 8192 bytes, more than the wanted 4096": func(f *fake) {
			f.files["q"]["base"] = strings.Replace(f.files["q"]["base"], "4096", "8192", 1)
		},
	} {
		f, p := newVolumeFake(t)
		f.fail = func(call string) error {
			if call == "create p/v"+begunEnding {
				change(f)
			}
			return nil
		}
		err := createVolume(t, p, "p/v", schema.Object{"pool": "p", "capacity": int64(4096), "format": "qcow2", "clone": "q/base"})
		if err == nil || !strings.Contains(err.Error(), says) || len(f.files["p"]) > 0 {
			t.Errorf("it ended with %v, want %q, and there are %v", err, says, f.files["p"])
		}
	}
}

// TestIncompleteNotUsed: a volume is not based on one that is still filled, and no machine gets it.
func TestIncompleteNotUsed(t *testing.T) {
	f, p := newVolumeFake(t)
	f.mark(t, "q/base", 4096, announcedEnding, begunEnding)
	expect(t, createVolume(t, p, "p/v", schema.Object{"pool": "p", "capacity": int64(4096), "backing": "q/base"}), providers.Busy, false, "q/base is incomplete")
	c := calling("libvirt.domain", "vm")
	c.Want = schema.Object{"memory": int64(1 << 20), "vcpus": int64(1), "disks": []any{map[string]any{"target": "vda", "volume": "q/base"}}}
	expect(t, served(t, p, "libvirt.domain").Kind.Create(t.Context(), c), providers.Busy, false, "q/base is incomplete")
}

// TestCloneLeadsOut: a header that a guest has written into its disk does not make libvirt copy a file of the node.
func TestCloneLeadsOut(t *testing.T) {
	for name, c := range map[string]struct {
		xml, head, says string
	}{
		"a guest's header": {"", qcow2Of(4096, nil), "its format is qcow2, and that of the volume is raw"},
		"a backing file":   {"<backingStore><path >/etc/shadow</path></backingStore>", qcow2Of(4096, func(head []byte) { head[qcow2Backing+7] = 200 }), "is based on /etc/shadow. A guest can write"},
		"a data file":      {"", qcow2Of(4096, func(head []byte) { head[qcow2Features+7] = qcow2DataFile }), "its data is in another file"},
		"nothing":          {"", "", "its format is raw, and that of the volume is qcow2"},
	} {
		t.Run(name, func(t *testing.T) {
			f, p := newVolumeFake(t)
			format := "qcow2"
			if name == "a guest's header" { // libvirt has not looked at it since
				format = "raw"
			}
			f.files["q"]["base"] = "<volume type='file'><name>base</name><capacity>4096</capacity><target><path>/srv/q/base</path><format type='" + format + "'/></target>" + c.xml + "</volume>"
			f.data["q/base"] = []byte(c.head)
			f.fail = func(call string) error { t.Errorf("it makes the call %q", call); return nil }
			expect(t, createVolume(t, p, "p/v", schema.Object{"pool": "p", "capacity": int64(4096), "clone": "q/base"}), providers.Invalid, false, c.says)
		})
	}
}
