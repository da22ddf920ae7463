package libvirt

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// A volume that a domain needs is not deleted, however it needs it, and one that runs on it in another way than as its disk keeps it
// from being resized.
func TestNeeded(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/base", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, dir+"/link"); err != nil {
		t.Fatal(err)
	}
	// An image in another directory, which is based on one that is based on it.
	overlay := func(path, backing string) string {
		head := binary.BigEndian.AppendUint32([]byte("QFI\xfb"), 3)
		head = binary.BigEndian.AppendUint64(head, 104)
		head = binary.BigEndian.AppendUint32(head, uint32(len(backing)))
		mustDo(t, os.WriteFile(path, append(append(head, make([]byte, 104-len(head))...), backing...), 0o600))
		return path
	}
	overlay(dir+"/middle", "base")
	over := overlay(filepath.Join(t.TempDir(), "over"), "file:"+dir+"/link/middle")
	disk := func(rest string) string {
		return "<devices><disk type='file' device='disk'><source file='/other'/>" + rest + "<target dev='vda'/></disk></devices>"
	}
	file := func(path string) string { return "<source file='" + path + "'/>" }
	for name, c := range map[string]struct{ inside, says string }{
		"disk":                {"<devices><disk type='file'><source file='" + dir + "/base'/><target dev='vda'/></disk></devices>", "disk vda of domain vm"},
		"disk through a link": {"<devices><disk type='file'><source file='" + dir + "/link/base'/><target dev='vda'/></disk></devices>", "disk vda of domain vm"},
		"disk with slashes":   {"<devices><disk type='file'><source file='" + dir + "//base'/><target dev='vda'/></disk></devices>", "disk vda of domain vm"},
		"disk by its names":   {"<devices><disk type='volume'><source pool='p' volume='base'/><target dev='vda'/></disk></devices>", "disk vda of domain vm"},
		"base":                {disk("<backingStore type='file'><format type='raw'/>" + file(dir+"/base") + "<backingStore/></backingStore>"), "in the backing chain of disk vda of domain vm"},
		"base of a base":      {disk("<backingStore type='file'><format type='qcow2'/>" + file("/mid") + "<backingStore type='file'><format type='raw'/>" + file(dir+"/base") + "<backingStore/></backingStore></backingStore>"), "in the backing chain of disk vda of domain vm"},
		"base in its header":  {"<devices><disk type='file'>" + file(over) + "<target dev='vda'/></disk></devices>", "in the backing chain of disk vda of domain vm"},
		"mirror":              {disk("<mirror type='file' job='copy'><format type='raw'/>" + file(dir+"/base") + "</mirror>"), "copy of disk vda of domain vm"},
		"base of a mirror":    {disk("<mirror type='file' job='copy'>" + file("/mid") + "<backingStore type='file'><format type='raw'/>" + file(dir+"/base") + "<backingStore/></backingStore></mirror>"), "copy of disk vda of domain vm"},
		"kernel":              {"<os><type>hvm</type><kernel>" + dir + "/base</kernel></os>", "kernel of domain vm"},
		"initrd":              {"<os><type>hvm</type><initrd>" + dir + "/base</initrd></os>", "initrd of domain vm"},
		"loader":              {"<os><type>hvm</type><loader>" + dir + "/base</loader></os>", "loader of domain vm"},
		"nvram":               {"<os><type>hvm</type><nvram>" + dir + "/base</nvram></os>", "nvram of domain vm"},
		"nvram as a source":   {"<os><type>hvm</type><nvram type='file'>" + file(dir+"/base") + "</nvram></os>", "nvram of domain vm"},
		"nvram's template":    {"<os><type>hvm</type><nvram template='" + dir + "/base'>/nv</nvram></os>", "nvram of domain vm"},
	} {
		for _, runs := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, running %t", name, runs), func(t *testing.T) {
				f := newFake()
				pool := "<pool type='dir'><name>p</name><target><path>" + dir + "</path></target></pool>"
				f.put(poolObject, "p", pool, pool)
				f.files["p"] = map[string]string{"base": "<volume type='file'><name>base</name><capacity>1024</capacity><target><path>" + dir + "/base</path><format type='raw'/></target></volume>"}
				text := "<domain type='qemu'><name>vm</name>" + c.inside + "</domain>"
				f.guests = []definition{{name: "vm", stored: text}}
				if runs {
					f.guests = []definition{{name: "vm", stored: "<domain><name>vm</name></domain>", running: text}}
				}
				var resized string
				f.fail = func(call string) error { resized = call; return nil }
				p := f.open(t)
				expect(t, served(t, p, "libvirt.volume").Kind.Delete(t.Context(), calling("libvirt.volume", "p/base")), providers.Invalid, false, c.says)
				if len(f.files["p"]) == 0 {
					t.Error("the volume is gone")
				}
				err := updated(t, p, "libvirt.volume", "p/base", schema.Object{"capacity": int64(2048)})
				if top := c.says == "disk vda of domain vm"; runs && !top {
					expect(t, err, providers.Invalid, false, c.says)
				} else if want := map[bool]string{true: "resize disk vda of vm", false: "resize p/base"}[runs]; err != nil || resized != want {
					t.Errorf("resized by %q, want %q: %v", resized, want, err)
				}
			})
		}
	}
}

// A pool that is being created or deleted is stopped for a moment. A volume of another pool can be deleted meanwhile, but not while a
// pool stays stopped, whose volumes are unknown.
func TestOtherPoolStopped(t *testing.T) {
	for name, c := range map[string]struct {
		looks int // at the pool, after which it is otherwise
		then  func(f *fake)
		says  string
	}{
		"it is being deleted": {2, func(f *fake) { delete(f.objects[poolObject], "q") }, ""},
		"it is being created": {2, func(f *fake) { f.objects[poolObject]["q"] = running(f.objects[poolObject]["q"]) }, ""},
		"it stays stopped":    {1 << 30, nil, "pool q is stopped, so its volumes are unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				pool := func(name string) string {
					return "<pool type='dir'><name>" + name + "</name><target><path>/srv/" + name + "</path></target></pool>"
				}
				f.put(poolObject, "p", pool("p"), pool("p"))
				f.put(poolObject, "q", pool("q"), "")
				f.files["p"] = map[string]string{"v": "<volume type='file'><name>v</name><capacity>1024</capacity><target><path>/srv/p/v</path><format type='raw'/></target></volume>"}
				looks := 0
				f.observing = func(context.Context) {
					f.mu.Lock()
					defer f.mu.Unlock()
					if looks++; looks == c.looks+3 { // the first see the volume itself
						c.then(f)
					}
				}
				p := f.open(t)
				err := served(t, p, "libvirt.volume").Kind.Delete(t.Context(), calling("libvirt.volume", "p/v"))
				if c.says != "" {
					expect(t, err, providers.Invalid, false, c.says)
				} else if err != nil || len(f.files["p"]) > 0 {
					t.Errorf("the volume was not deleted: %v", err)
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// running returns an object that was started.
func running(d definition) definition {
	d.running = d.stored
	return d
}
