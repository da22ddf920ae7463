package guest_test

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"converge.dev/converge/internal/guest"
	"converge.dev/converge/internal/guest/facts"
)

var (
	full = guest.Machine{
		Name: "full", IOMMU: true, NUMA: 2, MemoryMiB: 1024,
		Devices: []guest.Device{
			guest.NVMe(facts.Disk).Node(0), guest.NVMe(facts.Far).Node(1), guest.SRIOVNVMe(facts.SRIOV, facts.Functions),
			guest.SharedGroup(facts.Shared), guest.E1000e(facts.NIC), guest.NVMe(facts.Later).Unplugged(),
		},
	}
	plain = guest.Machine{Name: "plain", Devices: []guest.Device{guest.NVMe(facts.Disk)}}
)

func TestKernel(t *testing.T)             { guest.Run(t, full, "^TestGuestKernel$", ".") }
func TestKernelWithoutIOMMU(t *testing.T) { guest.Run(t, plain, "^TestGuestKernelWithoutIOMMU$", ".") }

func TestGuestKernel(t *testing.T) {
	guest.In(t, full.Name)
	facts.Try(t, host, facts.WithIOMMU)
}

func TestGuestKernelWithoutIOMMU(t *testing.T) {
	guest.In(t, plain.Name)
	facts.Try(t, host, facts.WithoutIOMMU)
}

// host is the guest with its real kernel.
func host(t testing.TB) facts.Host {
	g := guest.In(t, os.Getenv(guest.Variable))
	return facts.Host{
		Kernel:  sys{},
		Address: g.Address, Plug: g.Plug, Unplug: g.Unplug,
		Viable:  viable,
		Use:     func(device string) (wanted, end func()) { return use(t, g.Address(device)) },
		Uevents: func() func() string { return uevents(t) },
	}
}

// sys is the real /sys.
type sys struct{}

func (sys) Read(path string) (string, error) {
	content, err := os.ReadFile("/sys/" + path)
	return string(content), err
}

func (sys) Write(path, value string) error {
	f, err := os.OpenFile("/sys/"+path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(value)
	return err
}

func (sys) Readlink(path string) (string, error) { return os.Readlink("/sys/" + path) }

func (sys) ReadDir(path string) ([]string, error) {
	entries, err := os.ReadDir("/sys/" + path)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// uevents listens to what the kernel says of its devices.
func uevents(t testing.TB) func() string {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s) })
	if err := unix.Bind(s, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		t.Fatal(err)
	}
	wait := unix.Timeval{Sec: 120}
	if err := unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 64<<10)
	return func() string {
		t.Helper()
		for {
			n, _, err := unix.Recvfrom(s, buffer, 0)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				t.Fatalf("the kernel says nothing: %v", err)
			}
			what, _, _ := strings.Cut(string(buffer[:n]), "\x00")
			return what
		}
	}
}
