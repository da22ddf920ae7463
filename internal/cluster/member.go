package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

// variable holds the configuration of a member in the environment of its process.
const variable = "CONVERGE_CLUSTER_MEMBER"

// Ports of a member: outside, where the proxy listens, and inside, where etcd does.
const (
	clientPort, innerClientPort = 2379, 12379
	peerPort, innerPeerPort     = 2380, 12380
)

const (
	// quotaBytes of data raise the alarm: few, so that a test can reach them.
	quotaBytes = 32 << 20
	// tickMs and electionMs are short, so that a test sees many elections.
	tickMs, electionMs = 50, 500
)

type config struct {
	Name    string
	Dir     string
	Address string
	Initial string // all members, in the form that etcd accepts
	State   string // new or existing
}

func (c config) log() string { return c.Dir + ".log" }

// A Member is one etcd process in its own network namespace.
type Member struct {
	config
	port      int // of the bridge
	namespace string

	process *exec.Cmd
	stdin   io.WriteCloser
	answers chan string // lines of its standard output; closed at its end
}

// URL returns where clients reach the member.
func (m *Member) URL() string { return fmt.Sprintf("http://%s:%d", m.Address, clientPort) }

func (m *Member) peerURL() string { return fmt.Sprintf("http://%s:%d", m.Address, peerPort) }

// String returns the name of the member.
func (m *Member) String() string { return m.Name }

// listen starts the process and waits until it can be reached. It does not wait for it to find the others.
func (m *Member) listen(ctx context.Context) error {
	text, err := json.Marshal(m.config)
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(m.Dir, 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(m.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	// ip replaces itself with the program, so the process is the member's own.
	c := exec.Command("ip", "netns", "exec", m.namespace, program)
	c.Env = append(os.Environ(), variable+"="+string(text))
	c.Stderr = log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if m.stdin, err = c.StdinPipe(); err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return fmt.Errorf("start %s: %w", m, err)
	}
	m.process, m.answers = c, make(chan string, 16)
	go func(lines *bufio.Scanner, to chan<- string) {
		defer close(to)
		for lines.Scan() {
			to <- lines.Text()
		}
	}(bufio.NewScanner(out), m.answers)
	_, err = m.expect(ctx, "listening")
	return err
}

// start starts the process and waits until it takes part.
func (m *Member) start(ctx context.Context) error {
	if err := m.listen(ctx); err != nil {
		return err
	}
	_, err := m.expect(ctx, "ready")
	return err
}

// expect waits for a line that begins with a word, and returns the rest.
func (m *Member) expect(ctx context.Context, word string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case line, ok := <-m.answers:
		if rest, found := strings.CutPrefix(line, word); found {
			return strings.TrimSpace(rest), nil
		}
		return "", fmt.Errorf("%s should print %q but printed %q (ended: %v); its log is %s", m, word, line, !ok, m.log())
	case <-ctx.Done():
		return "", fmt.Errorf("%s did not print %q: %w", m, word, context.Cause(ctx))
	}
}

// kill ends the process without a warning.
func (m *Member) kill() error {
	if m.process == nil {
		return nil
	}
	err := m.process.Process.Kill()
	for range m.answers { // until its end, before Wait closes the pipe
	}
	var exit *exec.ExitError
	if werr := m.process.Wait(); !errors.As(werr, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		err = errors.Join(err, fmt.Errorf("%s exited on its own: %w; its log is %s", m, werr, m.log()))
	}
	m.process = nil
	return err
}

// signal stops the process or lets it continue, and waits until the kernel confirms it.
func (m *Member) signal(ctx context.Context, s syscall.Signal) error {
	if err := m.process.Process.Signal(s); err != nil {
		return fmt.Errorf("signal %s: %w", m, err)
	}
	return until(ctx, m.Name+" to obey "+s.String(), func(context.Context) error {
		stopped, err := m.stopped()
		if err == nil && stopped != (s == syscall.SIGSTOP) {
			err = fmt.Errorf("stopped is %v", stopped)
		}
		return err
	})
}

func (m *Member) stopped() (bool, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.process.Process.Pid))
	if err != nil {
		return false, err
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(rest, "T"), nil
}

// slow delays everything that reaches or leaves the member. It returns how much was delayed before.
func (m *Member) slow(ctx context.Context, mean time.Duration) (late int, err error) {
	if _, err := fmt.Fprintln(m.stdin, mean); err != nil {
		return 0, fmt.Errorf("slow %s down: %w", m, err)
	}
	answer, err := m.expect(ctx, "late")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(answer)
}

// Main turns the process into a member when it was started as one, and then does not return.
func Main() {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return
	}
	if err := serve(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve runs etcd behind its proxies, and obeys commands on the standard input until that ends.
func serve(text string) error {
	var m config
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return err
	}
	wal.SegmentSizeBytes = 4 << 20
	c := embed.NewConfig()
	c.Name, c.Dir = m.Name, m.Dir
	c.ListenPeerUrls, c.ListenClientUrls = local(innerPeerPort), local(innerClientPort)
	c.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: net.JoinHostPort(m.Address, fmt.Sprint(peerPort))}}
	c.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: net.JoinHostPort(m.Address, fmt.Sprint(clientPort))}}
	c.InitialCluster, c.ClusterState = m.Initial, m.State
	c.TickMs, c.ElectionMs = tickMs, electionMs
	c.QuotaBackendBytes = quotaBytes
	c.SnapshotCount, c.SnapshotCatchUpEntries = 200, 20 // a member that was away for a moment gets a snapshot
	c.LogLevel, c.LogOutputs = "warn", []string{"stderr"}
	server, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	var proxies []*proxy
	for outer, inner := range map[int]int{peerPort: innerPeerPort, clientPort: innerClientPort} {
		l, err := net.Listen("tcp", net.JoinHostPort(m.Address, fmt.Sprint(outer)))
		if err != nil {
			return err
		}
		p := &proxy{target: fmt.Sprint("127.0.0.1:", inner)}
		proxies = append(proxies, p)
		go p.serve(l)
	}
	fmt.Println("listening")
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		return err
	case <-server.Server.StopNotify():
		return errors.New("etcd stopped")
	}
	fmt.Println("ready")
	go func() {
		select {
		case err := <-server.Err():
			fmt.Fprintln(os.Stderr, err)
		case <-server.Server.StopNotify(): // it was removed from the cluster
			fmt.Fprintln(os.Stderr, "etcd stopped")
		}
		select {} // only the test ends this process
	}()
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		mean, err := time.ParseDuration(orders.Text())
		if err != nil {
			return err
		}
		late := int64(0)
		for _, p := range proxies {
			p.delay.Store(int64(mean))
			late += p.late.Load()
		}
		fmt.Println("late", late)
	}
	return orders.Err()
}

func local(port int) []url.URL {
	return []url.URL{{Scheme: "http", Host: fmt.Sprint("127.0.0.1:", port)}}
}
