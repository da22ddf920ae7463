package hostile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"converge.dev/converge/internal/torture"
)

// folder is where the program under test is built.
var folder string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if folder, err = os.MkdirTemp("", "hostile"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(folder)
		return m.Run()
	}())
}

// binary builds the program under test, once, when the first test needs it: half of the tests here do not.
var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(folder, "converge")
	build := exec.Command("go", "build", fmt.Sprintf("-race=%v", race), "-o", path, "../../cmd/converge")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program under test: %w\n%s", err, out)
	}
	return path, nil
})

// A yard is a folder with a work folder in which converge is run, and things around it that must stay unchanged.
type yard struct {
	*testing.T
	root    string // everything
	work    string // root/work: what converge may write
	program string
}

func newYard(t *testing.T) *yard {
	t.Helper()
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	y := &yard{T: t, root: t.TempDir(), program: program}
	y.work = filepath.Join(y.root, "work")
	for _, dir := range []string{"work", "home", "tmp", "outside"} {
		y.must(os.Mkdir(filepath.Join(y.root, dir), 0o700))
	}
	y.must(os.WriteFile(filepath.Join(y.root, "outside", "precious"), []byte("as it was\n"), 0o644))
	y.write("converge.yaml", "fake: {world: world.json}\n")
	return y
}

func (y *yard) must(err error) {
	y.Helper()
	if err != nil {
		y.Fatal(err)
	}
}

func (y *yard) write(name, text string) {
	y.Helper()
	y.must(os.WriteFile(filepath.Join(y.work, name), []byte(text), 0o600))
}

// link creates a symbolic link in the work folder to something outside of it.
func (y *yard) link(name, outside string) {
	y.Helper()
	y.must(os.Symlink(filepath.Join(y.root, "outside", outside), filepath.Join(y.work, name)))
}

// outside returns what is in the root and not in the work folder, file by file.
func (y *yard) outside() map[string]string {
	y.Helper()
	all := map[string]string{}
	y.must(filepath.WalkDir(y.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == y.work {
			return filepath.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		what := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			what += fmt.Sprintf(" %x", sha256.Sum256(text))
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			what += " " + to
		}
		all[path] = what
		return nil
	}))
	return all
}

// unchanged fails when something outside the work folder has changed.
func (y *yard) unchanged(before map[string]string) {
	y.Helper()
	now := y.outside()
	for path, was := range before {
		if now[path] != was {
			y.Errorf("%s was %s, is %q", path, was, now[path])
		}
		delete(now, path)
	}
	for path, is := range now {
		y.Errorf("%s is new: %s", path, is)
	}
}

// A result is how a run of the program ended and its cost.
type result struct {
	args   string
	status int
	out    string // standard output and standard error
	stdout string
	took   time.Duration // of processors, by the program and its children: the machine may be busy
	peak   int64         // MiB resident, of the program or a child of it, whichever is larger
}

// run runs converge in the work folder.
func (y *yard) run(args ...string) result { y.Helper(); return y.feed(nil, args...) }

// feed is run with standard input.
func (y *yard) feed(stdin io.Reader, args ...string) result {
	y.Helper()
	ctx, cancel := context.WithTimeout(y.Context(), torture.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, y.program, args...)
	cmd.Dir, cmd.Stdin = y.work, stdin
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(y.root, "home"), "TMPDIR=" + filepath.Join(y.root, "tmp"), "GORACE=atexit_sleep_ms=0"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stdout, all bytes.Buffer
	both := &shared{w: &all}
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&stdout, both), both
	y.must(cmd.Start())
	over := make(chan struct{})
	peak := make(chan int64)
	go func() { peak <- watch(cmd.Process.Pid, over) }()
	err := cmd.Wait()
	close(over)
	r := result{args: strings.Join(args, " "), status: cmd.ProcessState.ExitCode(), stdout: stdout.String(), out: all.String(), took: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), peak: <-peak >> 10}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		// A program that refuses its input does not read it to the end.
		if !errors.Is(err, syscall.EPIPE) {
			y.Fatalf("converge %s: %v", r.args, err)
		}
	}
	if ctx.Err() != nil {
		y.Fatalf("converge %s did not end within %v: %.2000s", r.args, torture.Patience, r.out)
	}
	if strings.Contains(r.out, "panic:") || strings.Contains(r.out, "goroutine ") {
		y.Errorf("converge %s panicked:\n%.4000s", r.args, r.out)
	}
	return r
}

// shared is a writer for two streams.
type shared struct {
	mu sync.Mutex
	w  io.Writer
}

// Write implements io.Writer.
func (s *shared) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(b)
}

// watch returns the largest resident size in KiB that a process or one of its children had, as the kernel recorded it. What
// the kernel reports for an ended process includes its parent, so it is read while it runs.
func watch(pid int, over <-chan struct{}) (peak int64) {
	tick := time.NewTicker(10 * time.Millisecond) // the mark never falls, and what is too much takes longer
	defer tick.Stop()
	for {
		peak = max(peak, highWater(pid))
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // whichever thread started the child
		for _, thread := range threads {
			children, _ := os.ReadFile(thread)
			for _, c := range strings.Fields(string(children)) {
				if n, err := strconv.Atoi(c); err == nil {
					peak = max(peak, highWater(n))
				}
			}
		}
		select {
		case <-over:
			return peak
		case <-tick.C:
		}
	}
}

// highWater returns VmHWM of a process in KiB; 0 when it has ended.
func highWater(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, ok := strings.Cut(string(text), "VmHWM:")
	if !ok {
		return 0
	}
	fields := strings.Fields(rest)
	n, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// ended fails when a run did not end with one of some statuses.
func (y *yard) ended(r result, statuses ...int) result {
	y.Helper()
	if !slices.Contains(statuses, r.status) {
		y.Fatalf("converge %s: exit status %d, want %v:\n%.4000s", r.args, r.status, statuses, r.out)
	}
	return r
}
