package replicas

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"converge.dev/converge/internal/torture"
)

var (
	binary  string // converge with failpoints
	scratch string // where sites are created
)

func TestMain(m *testing.M) {
	flag.Parse()
	torture.Together(16) // they wait for leases to expire
	os.Exit(func() int {
		if !torture.Full() {
			return m.Run() // every test is skipped
		}
		var err error
		if scratch, err = os.MkdirTemp("/dev/shm", "replicas"); err != nil {
			scratch, err = os.MkdirTemp("", "replicas")
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(scratch)
		defer func() { stop() }()
		binary = filepath.Join(scratch, "converge")
		build := exec.Command("go", "build", "-tags=failpoint,libvirt_dlopen", "-o", binary, "../../cmd/converge")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "build the program under test:", err)
			return 1
		}
		return m.Run()
	}())
}

// A transcript is what a process has written so far.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *transcript) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

// String returns everything so far.
func (o *transcript) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// A process is a run of converge.
type process struct {
	s      *site
	args   string
	cmd    *exec.Cmd
	out    transcript
	points string        // file of the failpoints that it passed
	over   chan struct{} // closed when it has ended
}

// start starts converge in the folder of the site. Rules are those of package failpoint. It is killed at the end of the test at the latest.
func (s *site) start(rules string, args ...string) *process {
	s.Helper()
	s.started++
	p := &process{s: s, args: strings.Join(args, " "), cmd: exec.Command(binary, args...), over: make(chan struct{})}
	p.points = filepath.Join(s.dir, fmt.Sprint("points.", s.started))
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = s.dir, &p.out, &p.out
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "TMPDIR=" + os.TempDir(), "CONVERGE_FAILPOINT=" + rules}
	if rules != "" {
		p.cmd.Env = append(p.cmd.Env, "CONVERGE_FAILPOINT_LOG="+p.points)
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.must(p.cmd.Start())
	go func() {
		defer close(p.over)
		_ = p.cmd.Wait() // how it ended is in ProcessState
	}()
	s.mu.Lock()
	s.all = append(s.all, p)
	s.mu.Unlock()
	return p
}

// gone reports whether the process has ended.
func (p *process) gone() bool {
	select {
	case <-p.over:
		return true
	default:
		return false
	}
}

// kill ends the process like a crash.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.over
}

func (p *process) signal(sig syscall.Signal) {
	p.s.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.s.Fatal(err)
	}
}

// await waits until the output from an offset on matches so many times. It fails when the process ends before.
func (p *process) await(from int, pattern string, times int) {
	p.s.Helper()
	re := regexp.MustCompile(pattern)
	p.s.until(fmt.Sprintf("converge %s writes %s", p.args, pattern), func() bool {
		ended := p.gone()
		ok := len(re.FindAllString(p.out.String()[from:], times)) >= times
		if !ok && ended {
			p.s.Fatalf("converge %s ended (%v) and never wrote %s:\n%s", p.args, p.cmd.ProcessState, pattern, p.out.String())
		}
		return ok
	})
}

// ended waits until the process has ended, which must be with a status.
func (p *process) ended(status int) *process {
	p.s.Helper()
	p.s.until("converge "+p.args+" ends", p.gone)
	if got := p.cmd.ProcessState.ExitCode(); got != status {
		p.s.Fatalf("converge %s: exit status %d, want %d:\n%s", p.args, got, status, p.out.String())
	}
	return p
}

// passed reports whether the process has passed a failpoint.
func (p *process) passed(point string) bool {
	text, _ := os.ReadFile(p.points) // there is none before the first point
	return slices.Contains(strings.Split(string(text), "\n"), point)
}

// stopped waits until the process stands still.
func (p *process) stopped() {
	p.s.Helper()
	p.s.until("converge "+p.args+" stands still", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil || p.gone() {
			p.s.Fatalf("converge %s ended (%v):\n%s", p.args, p.cmd.ProcessState, p.out.String())
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(rest, "T")
	})
}
