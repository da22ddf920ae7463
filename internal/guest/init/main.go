// Command init is the first process of a guest: it mounts what a test expects, loads modules, runs one test binary and
// reports its exit code to QEMU. Nothing else runs in the guest.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"converge.dev/converge/internal/guest/order"
)

func main() {
	code, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "init:", err) // to the console
		code = order.Broken
	}
	end(code)
}

func run() (code int, err error) {
	for _, m := range []struct{ kind, at string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/run"}} {
		if err := mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return 0, fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	content, err := os.ReadFile(order.File)
	if err != nil {
		return 0, err
	}
	var o order.Order
	if err := json.Unmarshal(content, &o); err != nil {
		return 0, err
	}
	for _, m := range o.Modules {
		if err := load(m); err != nil {
			return 0, fmt.Errorf("load %s: %w", m, err)
		}
	}
	if o.Userland {
		if err := userland(o.Kernel); err != nil {
			return 0, fmt.Errorf("the computer's file system: %w", err)
		}
	}
	result, err := open(order.Result)
	if err != nil {
		return 0, err
	}
	// Held open to the end, so that the settings stay and no byte is dropped when a test closes it.
	if _, err := open(order.Requests); err != nil {
		return 0, err
	}
	test, err := os.StartProcess(order.Test, append([]string{order.Test}, o.Args...), &os.ProcAttr{
		Dir: o.Dir, Env: o.Env, Files: []*os.File{nil, result, result},
	})
	if err != nil {
		return 0, err
	}
	for { // what others leave behind is the first process's to wait for, too: libvirtd waits until a QEMU is gone that it has ended
		var pid int
		var status unix.WaitStatus
		err := uninterrupted(func() (err error) {
			pid, err = unix.Wait4(-1, &status, 0, nil)
			return err
		})
		switch {
		case err != nil:
			return 0, fmt.Errorf("wait for the test: %w", err)
		case pid != test.Pid:
		case !status.Exited():
			return 0, fmt.Errorf("the test ended by the signal %s", status.Signal())
		default:
			return status.ExitStatus(), drain(result)
		}
	}
}

func load(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := uninterrupted(func() error { return unix.FinitModule(int(f.Fd()), "", 0) }); err != unix.EEXIST {
		return err
	}
	return nil
}

func mount(what, at, kind string, flags uintptr, options string) error {
	return uninterrupted(func() error { return unix.Mount(what, at, kind, flags, options) })
}

// uninterrupted makes a call of the kernel until no signal has cut it short. The first process gets one whenever a process ends that
// a test has left behind, and the runtime sends itself others.
func uninterrupted(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// root is where a guest with the computer's file system has its own: a layer over it, in memory.
const root = "/whole"

// userland makes the computer's file system that of the guest, with directories in memory for what belongs to a running system, and
// the kernel's modules, of which drivers need more than a test can name.
func userland(modules string) error {
	const lower, layer = "/lower", "/layer"
	for _, dir := range []string{lower, layer, root} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mount(order.Userland, lower, "9p", unix.MS_RDONLY, "trans=virtio,version=9p2000.L,msize=512000,cache=loose"); err != nil {
		return err
	}
	if err := mount("tmpfs", layer, "tmpfs", 0, ""); err != nil {
		return err
	}
	upper, work := filepath.Join(layer, "upper"), filepath.Join(layer, "work")
	for _, dir := range []string{upper, work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mount("overlay", root, "overlay", 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+work); err != nil {
		return err
	}
	for _, m := range []struct{ what, at, options string }{
		{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"cgroup2", "/sys/fs/cgroup", ""},
		{"devtmpfs", "/dev", ""}, {"devpts", "/dev/pts", "gid=5,mode=620,ptmxmode=666"}, {"tmpfs", "/dev/shm", ""}, {"hugetlbfs", "/dev/hugepages", ""},
		{"tmpfs", "/run", ""}, {filepath.Join(root, modules), "/lib/modules", ""}, {order.Programs, order.Programs, ""},
	} {
		at, kind, flags := filepath.Join(root, m.at), m.what, uintptr(0)
		if filepath.IsAbs(m.what) {
			kind, flags = "", unix.MS_BIND
		}
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := mount(m.what, at, kind, flags, m.options); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	// To be the root for namespaces, too, such as those of libvirt's machines, it has to be a root and not only look like one.
	if err := mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return err
	}
	return unix.Chroot(".")
}

// open opens a serial port that changes nothing of what passes through it: no echo, no carriage returns.
func open(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cflag = unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

// drain waits until the port has sent everything. QEMU ends at once when it is told to, and what is in the port is lost.
func drain(port *os.File) error {
	return uninterrupted(func() error { return unix.IoctlSetInt(int(port.Fd()), unix.TCSBRK, 1) })
}

// end makes QEMU exit. Powering off is what is left when that fails; QEMU then exits with 0, which is no verdict.
func end(code int) {
	if err := drain(os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "init: drain the console:", err)
	}
	if port, err := os.OpenFile("/dev/port", os.O_WRONLY, 0); err == nil {
		_, err = port.WriteAt([]byte{byte(code + order.Ended)}, order.ExitPort)
		fmt.Fprintln(os.Stderr, "init: exit:", err)
	}
	err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	fmt.Fprintln(os.Stderr, "init: power off:", err)
}
