package guest

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"converge.dev/converge/internal/guest/order"
)

// A Guest is the machine that a test runs on, as that test sees it.
type Guest struct{ t testing.TB }

// In skips a test unless it runs in a guest with a machine of that name.
func In(t testing.TB, machine string) *Guest {
	t.Helper()
	if here := os.Getenv(Variable); here != machine {
		t.Skipf("this test runs in the guest %s only", machine)
	}
	return &Guest{t}
}

// Address returns the PCI address of a device that is plugged in, such as 0000:01:00.0.
func (g *Guest) Address(device string) string {
	g.t.Helper()
	return g.ask("address " + device)
}

// Plug hot-plugs a device into its empty slot. The kernel may find it only after Plug has returned.
func (g *Guest) Plug(device string) {
	g.t.Helper()
	g.ask("plug " + device)
}

// Unplug hot-unplugs a device and waits until the kernel has released it: for ever, if its driver does not.
func (g *Guest) Unplug(device string) {
	g.t.Helper()
	g.ask("unplug " + device)
}

// ask sends a request to the rig and returns what it answers. Tests that run at the same time wait for each other.
func (g *Guest) ask(request string) string {
	g.t.Helper()
	fail := func(err error) {
		g.t.Helper()
		g.t.Fatalf("%s: %v", request, err)
	}
	port, err := os.OpenFile(order.Requests, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		fail(err)
	}
	defer port.Close() // unlocks it, too
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(port.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		fail(err)
	}
	if _, err := fmt.Fprintln(port, request); err != nil {
		fail(err)
	}
	answer, err := bufio.NewReader(port).ReadString('\n')
	if err != nil {
		fail(err)
	}
	rest, ok := strings.CutPrefix(answer, "ok")
	if !ok {
		fail(fmt.Errorf("%s", strings.TrimSpace(answer)))
	}
	return strings.TrimSpace(rest)
}
