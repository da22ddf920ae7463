// Package guest runs tests on a real Linux kernel, in a virtual machine with the PCI devices, IOMMU and NUMA nodes they ask for.
// QEMU emulates it, without KVM and without root; a run takes about ten seconds. A guest has nothing but its kernel and the test, unless
// its Machine says Userland: then it has the programs of this computer, such as libvirtd, and changes only a copy of its files.
//
// A test for a guest is an ordinary test that begins with In, which skips it anywhere but in the guest it is meant for, and returns
// what only the host knows or can do: the PCI address of a device, hot plug and unplug. A second test of the same package runs on
// the host and calls Run, which builds the package's test binary, boots the machine and runs the first test there:
//
//	func TestDiskInGuest(t *testing.T) {
//		guest.Run(t, guest.Machine{Name: "one-disk", Devices: []guest.Device{guest.NVMe("disk")}}, "^TestGuestDisk$", ".")
//	}
//
//	func TestGuestDisk(t *testing.T) {
//		g := guest.In(t, "one-disk")
//		... // "/sys/bus/pci/devices/" + g.Address("disk")
//	}
//
// Tests of the guest become subtests of the test that called Run, with their output and their result. Run fails its test with the
// end of the console if there is no verdict: the kernel panicked, QEMU died, or time ran out. It also fails it if no test ran, or
// all were skipped.
//
// Guests queue: only one runs at a time on a computer, whichever packages start them.
//
// The kernel is Debian's; .ci/deps unpacks it and installs QEMU. Without them Run skips its test, or fails it if the environment
// sets CONVERGE_REAL. Devices that the QEMU of Debian's release does not know, such as IGB, need a newer one, which .ci/deps unpacks if it
// can; without it Run skips its test in any case.
package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"converge.dev/converge/internal/guest/order"
)

// Required names the variable that makes a missing QEMU or kernel an error instead of a reason to skip.
const Required = "CONVERGE_REAL"

// Variable is set in a guest, to the name of its machine.
const Variable = "CONVERGE_GUEST"

// patience is how long a guest may run: it takes ten seconds, two minutes for a whole node, and several times as long on a busy
// computer.
const patience = 20 * time.Minute

// Run boots the machine and runs those tests of the package there whose names match the pattern, as with go test -run. Their working
// directory contains the testdata of the package; with the computer's file system it is that of the package. Called in a guest, Run
// skips its test.
func Run(t *testing.T, m Machine, tests, pkg string) {
	t.Helper()
	if os.Getenv(Variable) != "" {
		t.Skip("this test starts a guest, and runs in one")
	}
	if err := m.emulated(); err != nil {
		t.Skipf("%v: make deps unpacks it where Debian's archive can be reached", err)
	}
	k, err := ready()
	if err != nil {
		if os.Getenv(Required) != "" {
			t.Fatalf("%s is set, but %v: run make deps", Required, err)
		}
		t.Skipf("%v: make deps installs it; %s=1 makes this an error", err, Required)
	}
	ctx := t.Context()
	if limit, ok := t.Deadline(); ok { // after which there is no telling what the guest did
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, limit.Add(-10*time.Second), errors.New("the test itself has no more time"))
		defer cancel()
	}
	result, err := run(ctx, t.TempDir(), m, k, tests, pkg)
	if err != nil {
		t.Fatal(err)
	}
	result.report(t)
}

// ready finds what a guest needs.
func ready() (kernel, error) {
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		return kernel{}, errors.New("there is no qemu-system-x86_64")
	}
	if _, err := exec.LookPath(sbin("modprobe")); err != nil {
		return kernel{}, errors.New("there is no modprobe")
	}
	return newest()
}

// run runs tests in a guest. What it builds is in dir.
func run(ctx context.Context, dir string, m Machine, k kernel, tests, pkg string) (outcome, error) {
	modules, err := k.modules(m.modules()...)
	if err != nil {
		return outcome{}, err
	}
	o := order.Order{
		Modules: modules, Dir: order.Dir,
		// The test binary gives up first, since it can say where it hangs.
		Args: []string{"-test.v=test2json", "-test.paniconexit0", "-test.timeout=" + (patience - time.Minute).String(), "-test.run=" + tests},
		Env:  []string{Variable + "=" + m.Name, "HOME=/run", "TMPDIR=/run", "PATH=" + order.Programs + ":/usr/sbin:/usr/bin:/sbin:/bin"},
	}
	if m.Userland {
		o.Userland, o.Kernel = true, k.allModules()
		if o.Dir, err = folder(pkg); err != nil {
			return outcome{}, err
		}
	}
	image := filepath.Join(dir, "initrd")
	if err := writeImage(image, pkg, m.Programs, o); err != nil {
		return outcome{}, err
	}
	queue, err := turn(ctx)
	if err != nil {
		return outcome{}, err
	}
	defer queue.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%v have passed", patience)) // in the queue no time passes
	defer cancel()
	return boot(ctx, m, k, image)
}
