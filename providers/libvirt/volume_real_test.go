//go:build linux && cgo && libvirt_dlopen

package libvirt

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// aCopy makes copies across pools and formats. What is in them is compared by qemu-img, and the source can go.
func aCopy(n *node) {
	n.must(n.create("libvirt.pool", "p", schema.Object{"path": n.dir + "/p"}))
	n.must(n.create("libvirt.pool", "q", schema.Object{"path": n.dir + "/q"}))
	n.must(n.create("libvirt.volume", "q/raw", schema.Object{"pool": "q", "capacity": int64(8 << 20), "format": "raw"}))
	n.host.Sh(n, "dd if=/dev/urandom of="+n.dir+"/q/raw bs=64k count=10 seek=3 conv=notrunc 2>/dev/null")
	n.must(n.create("libvirt.volume", "q/qcow2", schema.Object{"pool": "q", "capacity": int64(8 << 20), "clone": "q/raw"}))
	n.must(n.create("libvirt.volume", "q/above", schema.Object{"pool": "q", "capacity": int64(8 << 20), "backing": "q/raw"}))
	for _, format := range []string{"raw", "qcow2"} {
		for _, from := range []string{"raw", "qcow2"} {
			for name, capacity := range map[string]int64{"same": 8 << 20, "larger": 16 << 20} {
				id := "p/" + format + "-" + from + "-" + name
				n.must(n.create("libvirt.volume", id, schema.Object{"pool": "p", "capacity": capacity, "format": format, "clone": "q/" + from}))
				if is := n.look("libvirt.volume", id); is.Spec["capacity"] != capacity || is.Spec["format"] != format || is.Spec["backing"] != nil || is.Detail != "" {
					n.Errorf("the copy %s is observed as %v", id, is)
				}
				n.host.Sh(n, "qemu-img compare -f raw -F "+format+" "+n.dir+"/q/raw "+n.dir+"/"+id)
			}
		}
	}
	n.unchanged(func() {
		n.fails(n.create("libvirt.volume", "p/v", schema.Object{"pool": "p", "capacity": int64(8 << 20), "clone": "q/above"}), providers.Invalid, "is based on q/raw")
	})
	if files := n.host.Sh(n, "ls "+n.dir+"/p | grep converge || true"); files != "" {
		n.Errorf("there are marks left: %s", files)
	}
	for _, name := range []string{"q/above", "q/qcow2", "q/raw"} {
		n.must(n.delete("libvirt.volume", name))
	}
	n.host.Sh(n, "qemu-img check "+n.dir+"/p/qcow2-qcow2-larger")
}

// anUpload makes volumes of images that qemu-img has made. libvirt looks at what was uploaded by itself, and it stays what it is.
func anUpload(n *node) {
	n.must(n.create("libvirt.pool", "p", schema.Object{"path": n.dir + "/p"}))
	dir := n.images(n.T)
	n.host.Sh(n, "cd "+dir+`
qemu-img create -q -f qcow2 disk.qcow2 8M
qemu-io -c 'write -q -P 7 1M 1M' disk.qcow2
qemu-img convert -O qcow2 -c disk.qcow2 packed.qcow2
qemu-img convert -O qcow2 -o compat=0.10 disk.qcow2 old.qcow2
qemu-img convert -O raw disk.qcow2 disk.raw
qemu-img create -q -f qcow2 -b /etc/shadow -F raw backed.qcow2 8M
qemu-img create -q -f qcow2 -o data_file=data,data_file_raw=on outside.qcow2 8M
for f in qcow qed vmdk vdi vpc; do qemu-img create -q -f $f other.$f 8M; done`)
	for _, name := range []string{"disk.qcow2", "packed.qcow2", "old.qcow2", "disk.raw"} {
		format := filepath.Ext(name)[1:]
		for size, capacity := range map[string]int64{"same": 8 << 20, "larger": 16 << 20} {
			id := "p/" + size + "-" + name
			n.must(n.create("libvirt.volume", id, schema.Object{"pool": "p", "capacity": capacity, "format": format, "image": name}))
			for range 2 {
				if is := n.look("libvirt.volume", id); is.Spec["capacity"] != capacity || is.Spec["format"] != format || is.Detail != "" {
					n.Errorf("the volume %s is observed as %v", id, is)
				}
				n.host.Virsh(n, "pool-refresh", "p")
			}
			n.host.Sh(n, "qemu-img compare -f raw -F "+format+" "+dir+"/disk.raw "+n.dir+"/"+id)
			if format == "qcow2" {
				n.host.Sh(n, "qemu-img check "+n.dir+"/"+id)
			}
		}
	}
	// libvirt calls the format of a file system for CDs iso; it is copied like any other contents.
	n.host.Sh(n, "cd "+dir+" && truncate -s 1M cd.iso && printf CD001 | dd of=cd.iso bs=1 seek=32769 conv=notrunc 2>/dev/null")
	n.must(n.create("libvirt.volume", "p/cd", schema.Object{"pool": "p", "capacity": int64(1 << 20), "format": "raw", "image": "cd.iso"}))
	n.host.Virsh(n, "pool-refresh", "p")
	if xml := n.host.Virsh(n, "vol-dumpxml", "--pool", "p", "cd"); !strings.Contains(xml, "<format type='iso'/>") {
		n.Errorf("libvirt has %s", xml)
	}
	n.field("libvirt.volume", "p/cd", "format", "raw")
	for _, format := range []string{"raw", "qcow2"} {
		n.must(n.create("libvirt.volume", "p/cd-"+format, schema.Object{"pool": "p", "capacity": int64(1 << 20), "format": format, "clone": "p/cd"}))
		n.host.Sh(n, "qemu-img compare -f raw -F "+format+" "+dir+"/cd.iso "+n.dir+"/p/cd-"+format)
	}
	n.must(n.create("libvirt.volume", "p/on-cd", schema.Object{"pool": "p", "capacity": int64(1 << 20), "backing": "p/cd"}))
	n.host.Sh(n, "qemu-img check "+n.dir+"/p/on-cd")

	n.unchanged(func() {
		for name, says := range map[string]string{
			"backed.qcow2": "it has a backing file", "outside.qcow2": "its data is in another file", "other.qcow": "version 1 of qcow2",
			"other.qed": "its format is qed", "other.vmdk": "its format is vmdk", "other.vdi": "its format is vdi", "disk.raw": "its format is raw",
		} {
			n.fails(n.create("libvirt.volume", "p/v", schema.Object{"pool": "p", "capacity": int64(8 << 20), "image": name}), providers.Invalid, says)
		}
		for _, name := range []string{"disk.qcow2", "backed.qcow2", "other.qcow", "other.qed", "other.vmdk", "other.vdi", "other.vpc"} {
			n.fails(n.create("libvirt.volume", "p/v", schema.Object{"pool": "p", "capacity": int64(8 << 20), "format": "raw", "image": name}), providers.Invalid, "that of the volume is raw")
		}
	})

	// libvirt confirms an upload of which the end did not fit on the disk.
	n.host.Sh(n, "mkdir "+n.dir+"/full && mount -t tmpfs -o size=2m none "+n.dir+"/full && head -c 2100K /dev/urandom >"+dir+"/large.raw")
	defer n.host.Sh(n, "umount "+n.dir+"/full")
	n.must(n.create("libvirt.pool", "full", schema.Object{"path": n.dir + "/full"}))
	n.fails(n.create("libvirt.volume", "full/v", schema.Object{"pool": "full", "capacity": int64(4 << 20), "format": "raw", "image": "large.raw"}), providers.Invalid, "")
	if files := n.host.Sh(n, "ls -A "+n.dir+"/full"); files != "" {
		n.Errorf("there are files left: %s", files)
	}
	n.must(n.delete("libvirt.pool", "full"))

	// What a guest writes into its raw disk does not make a copy of another file.
	n.must(n.create("libvirt.volume", "p/guest", schema.Object{"pool": "p", "capacity": int64(8 << 20), "format": "raw"}))
	for _, name := range []string{"backed.qcow2", "outside.qcow2"} {
		n.host.Sh(n, "dd if="+dir+"/"+name+" of="+n.dir+"/p/guest conv=notrunc 2>/dev/null")
		n.host.Virsh(n, "pool-refresh", "p")
		n.fails(n.create("libvirt.volume", "p/v", schema.Object{"pool": "p", "capacity": int64(8 << 20), "clone": "p/guest"}), providers.Invalid, "copied")
	}
}

// cutCopy ends libvirtd while it copies. It lists what is there of the copy like any volume then, with its full size; it is not taken for
// one, and can be made anew and deleted.
func cutCopy(n *node) {
	n.must(n.create("libvirt.pool", "p", schema.Object{"path": n.dir + "/p"}))
	n.must(n.create("libvirt.volume", "p/raw", schema.Object{"pool": "p", "capacity": int64(512 << 20), "format": "raw"}))
	n.host.Sh(n, "dd if=/dev/zero bs=1M count=512 2>/dev/null | tr '\\0' x | dd of="+n.dir+"/p/raw bs=1M conv=notrunc iflag=fullblock 2>/dev/null")
	for _, format := range []string{"raw", "qcow2"} {
		id, want := "p/copy-"+format, schema.Object{"pool": "p", "capacity": int64(512 << 20), "format": format, "clone": "p/raw"}
		ended := make(chan error, 1)
		go func() { ended <- n.create("libvirt.volume", id, want) }()
		file := filepath.Join(n.dir, id)
		for begun := time.Now(); ; {
			if _, err := os.Stat(file); err == nil {
				break
			}
			if time.Since(begun) > 2*time.Minute {
				n.Fatal("the copy does not begin")
			}
		}
		n.host.Kill(n)
		n.fails(<-ended, providers.Unknown)
		n.host.Restart(n)
		for begun := time.Now(); n.p.Health(n.Context()) != nil && time.Since(begun) < 2*time.Minute; {
			time.Sleep(50 * time.Millisecond)
		}
		n.host.Virsh(n, "vol-info", "--pool", "p", "copy-"+format)
		is := n.look("libvirt.volume", id)
		if isComplete(is.Spec) || is.Spec["capacity"] != int64(512<<20) {
			n.Fatalf("a part of a copy is observed as %v", is)
		}
		c := n.call("libvirt.volume", id)
		c.Have, c.Version, c.Want = is.Spec, is.Version, want
		n.must(n.kind("libvirt.volume").Update(n.Context(), c))
		n.field("libvirt.volume", id, "complete", true)
		n.host.Sh(n, "qemu-img compare -f raw -F "+format+" "+n.dir+"/p/raw "+file)
		n.must(n.delete("libvirt.volume", id))
	}
	n.must(n.delete("libvirt.volume", "p/raw"))
	n.must(n.delete("libvirt.pool", "p"))
}
