package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/carbidesim/devcert"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers/carbide/forge"
)

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "e2e")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "bin", "converge")
		build := exec.Command("go", "build", fmt.Sprintf("-race=%v", race), "-o", binary, "../cmd/converge")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "build the program under test:", err)
			return 1
		}
		flag.Parse()
		torture.Together(8) // they wait for leases to expire and for calls that may come late
		return m.Run()
	}())
}

// realRequired reports whether what a test needs from the machine must exist.
func realRequired() bool { return os.Getenv("CONVERGE_REAL") == "1" }

// chosen thins a series out: every night all of it is tried, where real systems are required half, and elsewhere a quarter, so that the tests
// take seconds and not minutes. The same series are tried without processes by e2e/faults.
func chosen(n int) bool {
	switch {
	case torture.Scale(0, 0, 1) == 1:
		return true
	case realRequired():
		return n%2 == 1
	}
	return n%4 == 1
}

// program finds a program of a Debian package. Without it the test is skipped, unless real systems are required.
func program(t *testing.T, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path
	case realRequired():
		t.Fatalf("%s is missing: install the package %s", name, pkg)
	default:
		t.Skipf("%s is missing: install the package %s", name, pkg)
	}
	return ""
}

// A site is a simulated Carbide site, served over mutual TLS, and a folder in which converge is run.
type site struct {
	*testing.T
	world   *carbidesim.World
	server  *carbidesim.Server
	address string
	certs   devcert.Files
	dir     string
	store   []string // flags that select the store; none: embedded in dir
	program string   // the program under test; empty: binary
	ctx     context.Context
}

// newSite starts a site with eight machines and writes its converge.yaml.
func newSite(t *testing.T, changes ...func(*carbidesim.Options)) *site {
	t.Helper()
	s := &site{T: t, dir: t.TempDir()}
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithTimeout(t.Context(), torture.Patience)
	t.Cleanup(cancel)
	var err error
	o := carbidesim.Options{Timing: carbidesim.FastTiming, Hosts: carbidesim.Hosts{Count: 8}}
	for _, change := range changes {
		change(&o)
	}
	s.world, err = carbidesim.New(o)
	s.must(err)
	s.certs, err = devcert.Ensure(filepath.Join(s.dir, "tls"))
	s.must(err)
	s.server, err = carbidesim.NewServer(s.world, carbidesim.ServerOptions{
		CertFile: s.certs.ServerCert, KeyFile: s.certs.ServerKey, ClientCA: s.certs.CA, Mutual: true, Roles: carbidesim.DefaultRoles,
	})
	s.must(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	s.address = l.Addr().String()
	ended := make(chan error, 1)
	go func() { ended <- s.server.Serve(l) }()
	t.Cleanup(func() {
		s.server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	s.write("converge.yaml", fmt.Sprintf("carbide:\n  address: %s\n  tls: {ca: tls/ca.crt, cert: tls/client.crt, key: tls/client.key}\n  late: 1s\n", s.address))
	for _, name := range []string{"before.cue", "after.cue"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		s.must(err)
		s.write(name, string(text))
	}
	return s
}

func (s *site) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// write writes a file into the folder.
func (s *site) write(name, text string) {
	s.Helper()
	s.must(os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600))
}

// read reads a file of the folder.
func (s *site) read(name string) string {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, name))
	s.must(err)
	return string(text)
}

// inject declares faults.
func (s *site) inject(faults ...carbidesim.Fault) {
	s.Helper()
	for _, f := range faults {
		s.must(s.world.Inject(f))
	}
}

// struck waits until all declared faults have met their calls.
func (s *site) struck() {
	s.Helper()
	s.until("the faults strike", func() bool { return len(s.world.Faults()) == 0 })
}

// until checks repeatedly whether something has become true; the simulator notifies nobody.
func (s *site) until(what string, true func() bool) {
	s.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !true() {
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			s.Fatalf("waiting until %s: %v", what, s.ctx.Err())
		}
	}
}

// dump returns what the world holds.
func (s *site) dump() string { return string(s.world.Dump()) }

// same fails when the world has changed.
func (s *site) same(before string) {
	s.Helper()
	if now := s.dump(); now != before {
		s.Errorf("the world is not the same:\n%s", difference(before, now))
	}
}

// difference returns the lines that only one of two texts has.
func difference(before, after string) string {
	count := map[string]int{}
	for _, l := range strings.Split(before, "\n") {
		count[l]--
	}
	for _, l := range strings.Split(after, "\n") {
		count[l]++
	}
	var lines []string
	for l, n := range count {
		switch {
		case n < 0:
			lines = append(lines, "- "+l)
		case n > 0:
			lines = append(lines, "+ "+l)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// A process is a run of converge.
type process struct {
	s      *site
	args   string
	cmd    *exec.Cmd
	stdout transcript
	stderr transcript
	over   chan struct{} // closed when it has ended
	err    error         // how; read after over
}

// A transcript is what a process has written so far.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
	news chan struct{} // closed and replaced with every write
}

// Write implements io.Writer.
func (o *transcript) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.news != nil {
		close(o.news)
		o.news = nil
	}
	return o.text.Write(b)
}

func (o *transcript) look() (text string, news <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.news == nil {
		o.news = make(chan struct{})
	}
	return o.text.String(), o.news
}

// String returns everything so far.
func (o *transcript) String() string { text, _ := o.look(); return text }

// prepare returns a process that is not started yet.
func (s *site) prepare(args ...string) *process {
	args = append(slices.Clone(args[:1]), append(slices.Clone(s.store), args[1:]...)...)
	p := &process{s: s, args: strings.Join(args, " "), cmd: exec.CommandContext(s.ctx, cmp.Or(s.program, binary), args...)}
	p.cmd.Dir = s.dir
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "TMPDIR=" + os.TempDir(),
		"GORACE=atexit_sleep_ms=0"} // otherwise the race detector makes every process last a second longer
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.WaitDelay = 10 * time.Second
	return p
}

// start starts converge in the folder. It is killed at the end of the test at the latest.
func (s *site) start(args ...string) *process {
	s.Helper()
	p := s.prepare(args...)
	p.start()
	return p
}

func (p *process) start() {
	p.s.Helper()
	p.over = make(chan struct{})
	p.s.must(p.cmd.Start())
	go func() {
		defer close(p.over)
		p.err = p.cmd.Wait()
	}()
	p.s.Cleanup(p.kill)
}

// wait returns the exit status; -1 when a signal ended the process.
func (p *process) wait() int {
	p.s.Helper()
	<-p.over // the deadline of the test ends the process
	var exit *exec.ExitError
	if p.err != nil && !errors.As(p.err, &exit) {
		p.s.Fatalf("converge %s: %v", p.args, p.err)
	}
	if err := p.s.ctx.Err(); err != nil {
		p.s.Fatalf("converge %s: %v\n%s", p.args, err, p.report())
	}
	if all := p.report(); strings.Contains(all, "panic:") || strings.Contains(all, "goroutine ") {
		p.s.Errorf("converge %s: it panicked:\n%s", p.args, all)
	}
	return p.cmd.ProcessState.ExitCode()
}

// kill ends the process like a crash.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.over
}

// await waits until the output matches so many times; it fails when the process ends first.
func (p *process) await(out *transcript, pattern string, times int) {
	p.s.Helper()
	re := regexp.MustCompile(pattern)
	for ended := false; ; {
		text, news := out.look()
		switch {
		case len(re.FindAllString(text, times)) >= times:
			return
		case ended:
			p.s.Fatalf("converge %s never wrote %s:\n%s", p.args, pattern, p.report())
		}
		select {
		case <-news:
		case <-p.over: // all its output is there by now
			ended = true
		}
	}
}

func (p *process) report() string {
	return "stdout:\n" + p.stdout.String() + "\nstderr:\n" + p.stderr.String()
}

// says fails when something is not in the output.
func (p *process) says(what ...string) {
	p.s.Helper()
	for _, w := range what {
		if !strings.Contains(p.stdout.String()+p.stderr.String(), w) {
			p.s.Errorf("converge %s does not say %q:\n%s", p.args, w, p.report())
		}
	}
}

// ended waits for the process, which must end with a status.
func (p *process) ended(status int) *process {
	p.s.Helper()
	if got := p.wait(); got != status {
		p.s.Fatalf("converge %s: exit status %d, want %d\n%s", p.args, got, status, p.report())
	}
	return p
}

// run runs converge, which must end with a status.
func (s *site) run(status int, args ...string) *process {
	s.Helper()
	return s.start(args...).ended(status)
}

// apply applies a document, which must work.
func (s *site) apply(document string) {
	s.Helper()
	s.run(0, "apply", "-auto-approve", document)
}

// approved runs converge, which must require the approval of its plan, and runs it again with that.
func (s *site) approved(status int, args ...string) *process {
	s.Helper()
	asked := s.run(7, args...)
	approval := regexp.MustCompile(`-approve=[0-9a-f]{16}`).FindString(asked.stderr.String())
	if approval == "" {
		s.Fatalf("converge %s does not say how to approve:\n%s", asked.args, asked.report())
	}
	return s.run(status, append(args, approval)...)
}

// released fails when anything is held but the revision of the document that the last run undid, and releases that.
func (s *site) released() {
	s.Helper()
	var list struct{ Holds []struct{ Scope string } }
	s.must(json.Unmarshal([]byte(s.run(0, "hold", "list", "-json").stdout.String()), &list))
	for _, h := range list.Holds {
		if !strings.HasPrefix(h.Scope, "serial:") {
			s.Errorf("%s is held", h.Scope)
		}
	}
	if tried := s.lastRun().Status == "reverted"; tried != (len(list.Holds) > 0) {
		s.Errorf("the last run ended %s, and held is %v", s.lastRun().Status, list.Holds)
	}
	if len(list.Holds) > 0 {
		s.run(0, "release", "-all")
	}
}

// plan saves the plan of a document and returns it.
func (s *site) plan(document, file string) *plan.Plan {
	s.Helper()
	s.run(2, "plan", "-detailed-exitcode", "-out="+file, document)
	saved, err := plan.DecodeFile([]byte(s.read(file)))
	s.must(err)
	return saved.Plan
}

// lastRun returns the newest run.
func (s *site) lastRun() (run struct {
	ID     string
	Status string
	Failed string
}) {
	s.Helper()
	var list struct{ Runs []json.RawMessage }
	s.must(json.Unmarshal([]byte(s.run(0, "runs", "-json").stdout.String()), &list))
	if len(list.Runs) == 0 {
		s.Fatal("there is no run")
	}
	s.must(json.Unmarshal(list.Runs[0], &run))
	return run
}

// settled fails when the world is not what the document says, with every thing there once and nothing stray.
func (s *site) settled(document string) {
	s.Helper()
	s.run(0, "plan", "-detailed-exitcode", document)
	var drift struct{ Drifted, Strays []any }
	s.must(json.Unmarshal([]byte(s.run(0, "drift", "-json").stdout.String()), &drift))
	if len(drift.Drifted) > 0 || len(drift.Strays) > 0 {
		s.Errorf("there is drift: %+v", drift)
	}
	seen := map[string]int{}
	for _, o := range s.world.Objects() {
		name := nameOf(o)
		if seen[name]++; seen[name] > 1 {
			s.Errorf("%s is there twice", name)
		}
	}
	s.released()
	s.run(0, "lock", "status").says("not locked")
}

// nameOf returns kind and name of an object; one without a name is identified by its id.
func nameOf(o carbidesim.Object) string {
	if m, ok := o.Message.(interface{ GetMetadata() *forge.Metadata }); ok && m.GetMetadata().GetName() != "" {
		return o.Kind + "/" + m.GetMetadata().GetName()
	}
	return o.Kind + "/" + o.ID
}
