package ovstest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"converge.dev/converge/internal/netns"
)

// Required names the variable that makes a missing or failing Open vSwitch an error instead of a reason to skip.
const Required = "CONVERGE_REAL"

// programs are the programs that a real switch needs.
var programs = []string{"ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ip", "nsenter", "sh"}

// script starts the daemons and stays as the first process of its namespaces. When its input ends, which also happens
// when the test dies, it ends too, and the kernel ends everything else in there.
const script = `set -e
ip link set lo up
ovsdb-tool create "$OVS_DBDIR/conf.db" /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server "$OVS_DBDIR/conf.db" --remote=punix:"$OVS_RUNDIR/db.sock" --pidfile --detach --no-chdir --log-file
ovs-vsctl --no-wait init
` + daemon + `
echo ready
exec cat
`

// daemon starts ovs-vswitchd.
const daemon = "ovs-vswitchd --disable-system --pidfile --detach --no-chdir --log-file"

// ErrMissing says that this machine cannot run a switch: it lacks root, a program or namespaces.
var ErrMissing = errors.New("it needs root and the packages openvswitch-switch, iproute2 and util-linux")

// Start runs ovsdb-server and ovs-vswitchd with the userspace datapath in network and process namespaces of their own,
// with private directories, until the test ends. Without root or without the programs it skips the test, or fails it
// when the environment sets Required.
func Start(t testing.TB) *Switch {
	t.Helper()
	s, err := Open()
	switch {
	case errors.Is(err, ErrMissing) && os.Getenv(Required) != "":
		t.Fatalf("%s is set, but %v", Required, err)
	case errors.Is(err, ErrMissing):
		t.Skipf("%v; %s=1 makes this an error", err, Required)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.end()
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(s.dir, "ovs-vswitchd.log"))
			t.Logf("ovs-vswitchd says:\n%s", log)
		}
		if err := os.RemoveAll(s.dir); err != nil {
			t.Error(err)
		}
	})
	s.freeze = func(frozen bool) error {
		signal := "-CONT"
		if frozen {
			signal = "-STOP"
		}
		return s.Command(t, "sh", "-c", "kill "+signal+` $(cat "$OVS_RUNDIR/ovs-vswitchd.pid")`).Run()
	}
	s.connect(t)
	return s
}

// Open does what Start does for a program that is no test, until Close. Such a program has only the Endpoint of the switch.
func Open() (*Switch, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("this process does not run as root: %w", ErrMissing)
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			return nil, fmt.Errorf("there is no %s: %w", p, ErrMissing)
		}
	}
	dir, err := os.MkdirTemp("", "ovs") // its name is short, as that of tempDir
	if err != nil {
		return nil, err
	}
	s := &Switch{Real: true, Endpoint: "unix:" + socket(dir), dir: dir}
	if err := s.start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

func (s *Switch) start() error {
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = append(os.Environ(), s.environ()...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID}
	var problems strings.Builder
	cmd.Stderr = &problems
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("namespaces cannot be made: %w: %w", err, ErrMissing)
	}
	s.pid = cmd.Process.Pid
	s.end = func() {
		in.Close()
		_ = cmd.Wait() // it ends because its input did
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		s.end()
		return fmt.Errorf("Open vSwitch does not start: %q: %v: %s", line, err, problems.String())
	}
	return nil
}

// Close ends a switch that Open has started.
func (s *Switch) Close() error {
	s.end()
	return os.RemoveAll(s.dir)
}

// Kill ends ovs-vswitchd of a real switch at once, like a crash.
func (s *Switch) Kill(t testing.TB) {
	t.Helper()
	s.sh(t, `kill -9 $(cat "$OVS_RUNDIR/ovs-vswitchd.pid")`)
}

// Restart starts ovs-vswitchd of a real switch again after Kill.
func (s *Switch) Restart(t testing.TB) {
	t.Helper()
	s.sh(t, daemon)
}

func (s *Switch) sh(t testing.TB, script string) {
	t.Helper()
	if out, err := s.Command(t, "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
}

// Link connects the network namespaces of two real switches by a pair of interfaces, one in each, which are up.
func Link(t testing.TB, a *Switch, nameA string, b *Switch, nameB string) {
	t.Helper()
	pair := exec.Command("ip", "link", "add", nameA, "netns", strconv.Itoa(a.pid), "type", "veth", "peer", "name", nameB, "netns", strconv.Itoa(b.pid))
	for _, cmd := range []*exec.Cmd{pair, a.Command(t, "ip", "link", "set", nameA, "up"), b.Command(t, "ip", "link", "set", nameB, "up")} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", cmd.Args, err, out)
		}
	}
}

// Socket opens a UDP socket in the network namespace of a real switch, until the test ends.
func (s *Switch) Socket(t testing.TB, address string) *net.UDPConn {
	t.Helper()
	conn, err := s.listen(address)
	if err != nil {
		t.Fatalf("a socket at %s: %v", address, err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn.(*net.UDPConn)
}

// listen opens the socket in the namespace of the switch.
func (s *Switch) listen(address string) (conn net.PacketConn, err error) {
	err = netns.Within(fmt.Sprintf("/proc/%d/ns/net", s.pid), func() error {
		conn, err = net.ListenPacket("udp", address)
		return err
	})
	return conn, err
}
