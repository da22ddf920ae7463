package libvirttest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Required names the variable that makes a missing or failing libvirt an error instead of a reason to skip.
const Required = "CONVERGE_REAL"

// programs are the programs that a host needs.
var programs = []string{"libvirtd", "virtlogd", "virsh", "qemu-img", "dnsmasq", "iptables", "ip", "nsenter", "mount", "sh"}

// script gives the host its own /proc, /sys and directories of libvirt, starts the daemons, and stays as the first process of the
// namespaces. When its input ends, which also happens when the test dies, it ends too, and the kernel ends everything else in there.
//
// /dev/kvm is hidden: where libvirt and QEMU disagree on whether it can be opened, libvirt probes QEMU again for every domain, for
// seconds. Its user is root here, who may open anything, but may write to no file that is mounted read-only. The cache of what QEMU can
// do is the only directory that hosts share, because filling it takes seconds.
const script = `set -e
mount --make-rprivate /
mount -t proc proc /proc
mkdir -p "$base/cgroup"
mount --rbind /sys/fs/cgroup "$base/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$base/cgroup" /sys/fs/cgroup
mkdir -p "$base/run" "$base/lib" "$base/etc" "$base/log" /run/libvirt /var/cache/libvirt
cp -a /etc/libvirt/. "$base/etc/"
rm -f "$base"/etc/qemu/networks/autostart/* "$base"/etc/qemu/networks/*.xml
printf 'namespaces = []\nuser = "root"\ngroup = "root"\nsecurity_driver = "none"\n' >> "$base/etc/qemu.conf"
mount --bind "$base/run" /run/libvirt
mount --bind "$base/lib" /var/lib/libvirt
mount --bind "$base/etc" /etc/libvirt
mount --bind "$base/log" /var/log/libvirt
mount --bind "$cache" /var/cache/libvirt
if [ -e /dev/kvm ]; then
	: > "$base/no-kvm"
	chmod 000 "$base/no-kvm"
	mount --bind "$base/no-kvm" /dev/kvm
	mount -o remount,bind,ro /dev/kvm
fi
ip link set lo up
virtlogd -d -p /run/libvirt/virtlogd.pid
` + daemon + `
set +e
while sleep 0.2; do
	# Dead, not meant to be, and still dead: a test may end it, or start it again, between any two of these.
	! kill -0 "$(cat /run/libvirt/libvirtd.pid)" && [ ! -e ` + down + ` ] && ! kill -0 "$(cat /run/libvirt/libvirtd.pid)" || continue
	date '+%F %T libvirtd has ended by itself' >>/var/log/libvirt/ends.log
	` + sweep + `
	[ -e ` + down + ` ] || ` + daemon + `
done 2>/dev/null &
set -e
echo ready
exec 3<&0
cat <&3 >/dev/null & # a shell that waits also reaps what libvirtd leaves behind, for which libvirtd waits
wait $!
`

// daemon starts libvirtd. One that ends by itself is started again, as systemd does it on a node: libvirtd (9.0) uses freed memory, and may
// crash, when a client is gone whose calls it has not answered yet. That is found in ends.log.
const daemon = "libvirtd -d -p /run/libvirt/libvirtd.pid"

// down is there while a test wants no libvirtd.
const down = "/run/libvirt/down"

// sweep ends what is left of networks that libvirtd was starting or stopping when it died, before it is started again: it forgets them, and
// such a network does not start until somebody has deleted its bridge, and ended the dnsmasq that has its address.
const sweep = `for p in /proc/[0-9]*; do
	n=$({ tr '\0' '\n' <$p/cmdline; } 2>/dev/null | sed -n 's|^--conf-file=/var/lib/libvirt/dnsmasq/\(.*\)\.conf$|\1|p')
	if [ "$n" ] && [ ! -e "/run/libvirt/network/$n.xml" ]; then kill -9 ${p#/proc/} || true; fi
done
for b in /sys/class/net/*/bridge; do
	b=${b%/bridge} b=${b#/sys/class/net/}
	if [ "$b" != "*" ] && ! grep -qs "<bridge name='$b'" /run/libvirt/network/*.xml; then ip link delete "$b"; fi
done`

// ErrMissing says that this machine cannot run a host: it lacks root, a program or namespaces.
var ErrMissing = errors.New("it needs root and the packages libvirt-daemon-system, libvirt-clients, qemu-system-x86, qemu-utils, " +
	"dnsmasq-base, iptables and iproute2")

// Start runs libvirtd on a host of its own, with private network, processes and directories, until the test ends. Without root or
// without the programs it skips the test, or fails it when the environment sets Required.
func Start(t testing.TB) *Host {
	t.Helper()
	h, err := Open()
	switch {
	case errors.Is(err, ErrMissing) && os.Getenv(Required) != "":
		t.Fatalf("%s is set, but %v", Required, err)
	case errors.Is(err, ErrMissing):
		t.Skipf("%v; %s=1 makes this an error", err, Required)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.end()
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(h.Dir, "log", "*.log"))
			for _, name := range logs {
				log, _ := os.ReadFile(name)
				t.Logf("%s:\n%s", filepath.Base(name), log)
			}
		}
		if err := os.RemoveAll(h.Dir); err != nil {
			t.Error(err)
		}
	})
	return h
}

// Open does what Start does for a program that is no test, until Close.
func Open() (*Host, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("this process does not run as root: %w", ErrMissing)
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			return nil, fmt.Errorf("there is no %s: %w", p, ErrMissing)
		}
	}
	cache := filepath.Join(os.TempDir(), "converge-libvirt-cache")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	// The path of a socket has at most 107 bytes, for which the directory of a subtest leaves no room.
	dir, err := os.MkdirTemp("", "libvirt")
	if err != nil {
		return nil, err
	}
	h := &Host{Dir: dir}
	if err := h.start(cache); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return h, nil
}

func (h *Host) start(cache string) error {
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = append(os.Environ(), "base="+h.Dir, "cache="+cache)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
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
	h.pid = cmd.Process.Pid
	h.end = func() {
		in.Close()
		_ = cmd.Wait() // it ends because its input did
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		h.end()
		return fmt.Errorf("libvirt does not start: %q: %v: %s", line, err, problems.String())
	}
	return nil
}

// Close ends a host that Open has started, and everything on it.
func (h *Host) Close() error {
	h.end()
	return os.RemoveAll(h.Dir)
}

// A Host is a private host with a running libvirtd.
type Host struct {
	Dir string // for files of the test; the paths in it are the same on the host

	pid int    // of the process whose namespaces are those of the host
	end func() // ends that process, and waits for it
}

// URI is where its libvirtd listens.
func (h *Host) URI() string { return "qemu+unix:///system?socket=" + h.Dir + "/run/libvirt-sock" }

// Command prepares a command that runs on the host.
func (h *Host) Command(name string, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{
		fmt.Sprintf("--target=%d", h.pid), "--net", "--pid", "--mount", "--", name,
	}, args...)...)
}

// Sh runs a script on the host and returns its output.
func (h *Host) Sh(t testing.TB, script string) string {
	t.Helper()
	out, err := h.Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

// Virsh runs virsh on the host, as another client of libvirt, and returns its output.
func (h *Host) Virsh(t testing.TB, args ...string) string {
	t.Helper()
	out, err := h.Command("virsh", append([]string{"--quiet"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("virsh %q: %v: %s", args, err, out)
	}
	return string(out)
}

// Define gives virsh a definition by a command such as net-define.
func (h *Host) Define(t testing.TB, command, xml string) {
	t.Helper()
	file := filepath.Join(h.Dir, "define.xml")
	if err := os.WriteFile(file, []byte(xml), 0o600); err != nil {
		t.Fatal(err)
	}
	h.Virsh(t, command, file)
}

// Kill ends libvirtd at once, like a crash.
func (h *Host) Kill(t testing.TB) {
	t.Helper()
	h.Sh(t, ": >"+down+`; pid=$(cat /run/libvirt/libvirtd.pid); kill -9 $pid; while kill -0 $pid 2>/dev/null; do :; done`)
}

// Freeze stops libvirtd without ending it, until Thaw.
func (h *Host) Freeze(t testing.TB) {
	t.Helper()
	h.Sh(t, "kill -STOP $(cat /run/libvirt/libvirtd.pid)")
}

// Thaw lets libvirtd continue.
func (h *Host) Thaw(t testing.TB) {
	t.Helper()
	h.Sh(t, "kill -CONT $(cat /run/libvirt/libvirtd.pid)")
}

// Restart starts libvirtd again after Kill.
func (h *Host) Restart(t testing.TB) {
	t.Helper()
	h.Sh(t, sweep+"\n"+daemon+` || kill -0 "$(cat /run/libvirt/libvirtd.pid)"; rm `+down)
}

// Clear deletes all networks, pools and domains, and the files of pools below the directory srv of the host.
func (h *Host) Clear(t testing.TB) {
	t.Helper()
	h.Sh(t, `
for d in $(virsh -q list --name); do virsh -q destroy "$d"; done
for d in $(virsh -q list --all --name); do virsh -q undefine "$d"; done
for n in $(virsh -q net-list --name); do virsh -q net-destroy "$n"; done
for n in $(virsh -q net-list --all --name); do virsh -q net-undefine "$n"; done
for p in $(virsh -q pool-list --name); do virsh -q pool-destroy "$p"; done
for p in $(virsh -q pool-list --all --name); do virsh -q pool-undefine "$p"; done
rm -rf '`+h.Dir+`/srv'; mkdir '`+h.Dir+`/srv'`)
}
