package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// A network is one namespace with a bridge, one namespace per member, and a cable to each; the client's cable ends in the
// namespace of the test. All faults are made on the side of the bridge, where members notice nothing but missing packets.
type network struct {
	sw     string   // namespace of the bridge
	hosts  []string // namespaces of the members
	subnet netip.Prefix

	janitor *exec.Cmd // removes the namespaces
	alive   io.Closer // until this is closed, by us or by the kernel
}

// Ports of the bridge: p0 leads to the client, p1 to the first member.
const clientPlug = 0

var networks atomic.Int64

// newNetwork creates a network. Its addresses are from the range that RFC 2544 reserves for tests.
func newNetwork(ctx context.Context) (_ *network, err error) {
	serial := networks.Add(1)
	name := fmt.Sprintf("cv%d-%d", os.Getpid(), serial)
	n := &network{sw: name + "-sw"}
	if n.subnet, err = freeSubnet(os.Getpid()*16 + int(serial)); err != nil {
		return nil, err
	}
	for i := range size {
		n.hosts = append(n.hosts, fmt.Sprint(name, "-m", i+1))
	}
	if err := n.employ(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	batch := []string{
		"netns add " + n.sw,
		"-n " + n.sw + " link add br0 type bridge",
		"-n " + n.sw + " link set br0 up",
		"link add " + name + " type veth peer name p0 netns " + n.sw,
		fmt.Sprintf("addr add %s/%d dev %s", n.address(clientPlug), n.subnet.Bits(), name),
		"link set " + name + " up",
		"-n " + n.sw + " link set p0 master br0 up",
	}
	for i, host := range n.hosts {
		port := fmt.Sprint("p", i+1)
		batch = append(batch,
			"netns add "+host,
			"-n "+n.sw+" link add "+port+" type veth peer name eth0 netns "+host,
			"-n "+n.sw+" link set "+port+" master br0 up",
			"-n "+host+" link set lo up",
			fmt.Sprintf("-n %s addr add %s/%d dev eth0", host, n.address(i+1), n.subnet.Bits()),
			"-n "+host+" link set eth0 up",
		)
	}
	for _, line := range batch {
		if err := run(ctx, "", "ip", strings.Fields(line)...); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// freeSubnet returns 16 addresses that no interface of this namespace has.
func freeSubnet(start int) (netip.Prefix, error) {
	const subnets = 1 << 13 // of 16 addresses, in 198.18.0.0/15
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Prefix{}, err
	}
	for i := range subnets {
		at := (start + i) % subnets
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, byte(18 + at>>12), byte(at >> 4), byte(at << 4)}), 28)
		taken := false
		for _, a := range addrs {
			have, err := netip.ParsePrefix(a.String())
			taken = taken || err == nil && have.Overlaps(p)
		}
		if !taken {
			return p, nil
		}
	}
	return netip.Prefix{}, errors.New("no free addresses")
}

// employ starts the process that removes the namespaces when this one has ended, however it ended. With a namespace its
// interfaces disappear and, with those, their peers.
func (n *network) employ() error {
	script := "cat >/dev/null; failed=0\n"
	for _, ns := range append([]string{n.sw}, n.hosts...) {
		script += fmt.Sprintf("[ ! -e /run/netns/%s ] || ip netns del %s || failed=1\n", ns, ns)
	}
	n.janitor = exec.Command("sh", "-c", script+"exit $failed")
	n.janitor.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt from the keyboard must not reach it
	stdin, err := n.janitor.StdinPipe()
	if err != nil {
		return err
	}
	n.alive = stdin
	return n.janitor.Start()
}

func (n *network) close() error {
	if n.janitor.ProcessState != nil {
		return nil // it has been closed
	}
	_ = n.alive.Close()
	if err := n.janitor.Wait(); err != nil {
		return fmt.Errorf("remove the network namespaces of %s: %w", n.sw, err)
	}
	return nil
}

// address returns the address of a port's host.
func (n *network) address(port int) string {
	a := n.subnet.Addr()
	for range port + 1 {
		a = a.Next()
	}
	return a.String()
}

// unplug removes the cable of a host from the bridge, or puts it back.
func (n *network) unplug(ctx context.Context, port int, out bool) error {
	state := "up"
	if out {
		state = "down"
	}
	return run(ctx, "", "ip", "-n", n.sw, "link", "set", fmt.Sprint("p", port), state)
}

// A rule drops some of the packets from one port of the bridge to another.
type rule string

func cut(from, to int) rule {
	return rule(fmt.Sprintf(`iifname "p%d" oifname "p%d" counter drop`, from, to))
}

func lose(percent int) rule {
	return rule(fmt.Sprintf("numgen random mod 100 < %d counter drop", percent))
}

// filter adds rules to the bridge.
func (n *network) filter(ctx context.Context, rules ...rule) error {
	var b strings.Builder
	b.WriteString("table bridge fault {\nchain forward {\ntype filter hook forward priority 0; policy accept;\n")
	for _, r := range rules {
		b.WriteString(string(r) + "\n")
	}
	b.WriteString("}\n}\n")
	return run(ctx, b.String(), "ip", "netns", "exec", n.sw, "nft", "-f", "-")
}

// unfilter removes the rules.
func (n *network) unfilter(ctx context.Context) error {
	return run(ctx, "", "ip", "netns", "exec", n.sw, "nft", "delete", "table", "bridge", "fault")
}

var packets = regexp.MustCompile(`packets (\d+)`)

// dropped returns how many packets the rules have dropped.
func (n *network) dropped(ctx context.Context) (int, error) {
	out, err := exec.CommandContext(ctx, "ip", "netns", "exec", n.sw, "nft", "list", "table", "bridge", "fault").Output()
	if err != nil {
		return 0, fmt.Errorf("read the bridge counters: %w", err)
	}
	sum := 0
	for _, m := range packets.FindAllSubmatch(out, -1) {
		k, _ := strconv.Atoi(string(m[1]))
		sum += k
	}
	return sum, nil
}

// run runs a program and returns its output as an error when it fails.
func run(ctx context.Context, stdin, program string, args ...string) error {
	c := exec.CommandContext(ctx, program, args...)
	c.Stdin = strings.NewReader(stdin)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
