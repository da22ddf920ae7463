// Command bench measures what docs/performance.md promises: whole processes, with their time and memory, on sites of a
// given size. Run it with `make bench`.
//
// Speed depends on the machine, and on the day. So a figure of time stands beside its floor, plain code that does the least
// that the work needs, measured right after it in the same run; their ratio is what is promised. Bytes are promised as they
// are, and so are the seconds that somebody waits for a look at a node. It prints one Markdown table, always complete, and exits 1 when a budget is missed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

var (
	binary = flag.String("converge", "bin/converge", "the program to measure")
	rounds = flag.Int("rounds", 5, "how often each thing is measured, by turns with its floor; the median counts")
	strict = flag.Bool("strict", true, "exit 1 when a budget is missed")
	most   = flag.Int("most", 100_000, "leave out sites with more resources")
	node   = flag.Int("node", 100, "how many networks, pools, volumes and machines a node has; another has a fifth as many bridges, with half as many ports each, and twice as many machines")
	only   = flag.String("only", "", "measure only these parts, separated by commas: start, validate, memory, world, unchanged, carbide, changed, libvirt, switch")
	emit   = flag.String("emit", "", "print a document instead: mixed:N or networks:N")
	floor  = flag.String("floor", "", "do the work of a floor instead")
)

// store is where converge keeps its etcd.
const store = ".converge/etcd"

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	if *emit != "" {
		return document(os.Stdout, *emit)
	}
	if *floor != "" {
		d, err := floors[*floor](context.Background(), flag.Args())
		return errors.Join(err, json.NewEncoder(os.Stdout).Encode(d))
	}
	converge, err := filepath.Abs(*binary)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "converge-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bencher{converge: converge, self: self, dir: dir}
	parts := []struct {
		name    string
		measure func() error
	}{
		{"start", b.start}, {"validate", b.validate}, {"memory", b.memory}, {"world", b.world}, {"unchanged", b.unchanged},
		{"carbide", b.carbide}, {"changed", b.changed}, {"libvirt", b.virtualization}, {"switch", b.switching},
	}
	var failed []error
	for _, part := range parts {
		if *only == "" || slices.Contains(strings.Split(*only, ","), part.name) {
			failed = append(failed, part.measure())
		}
	}
	return errors.Join(append(failed, b.report(os.Stdout))...)
}

type bencher struct {
	converge, self string // programs
	dir            string // for everything
	table
}

// A cost is what one process took.
type cost struct {
	wall time.Duration
	rss  int64  // bytes of memory at its peak, pages of files included, which the kernel keeps once for all processes
	own  uint64 // of them, those that are the process's alone
	said string // its output
}

// run runs converge in the folder at and returns its cost. It must exit with that code.
func (b *bencher) run(at string, code int, args ...string) (cost, error) {
	return execute(b.converge, at, code, args...)
}

// floor does the work of a floor in the folder at.
func (b *bencher) floor(at, name string, args ...string) (d done, err error) {
	c, err := execute(b.self, at, 0, append([]string{"-floor=" + name}, args...)...)
	if err == nil {
		err = json.Unmarshal([]byte(c.said), &d)
	}
	return d, err
}

func execute(program, at string, code int, args ...string) (cost, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir = at
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = append(os.Environ(), "NO_COLOR=1", "CONVERGE_IN_AUTOMATION=", "TF_IN_AUTOMATION=", "CI=") // the output for people is read
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return cost{}, err
	}
	own := sampled(cmd.Process.Pid)
	err := cmd.Wait()
	took := time.Since(begin)
	mine := own()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return cost{}, err
	}
	if cmd.ProcessState.ExitCode() != code {
		text := out.String()
		return cost{}, fmt.Errorf("%s: exit %d: %s", strings.Join(cmd.Args, " "), cmd.ProcessState.ExitCode(), text[max(0, len(text)-2000):])
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return cost{took, usage.Maxrss << 10, mine, out.String()}, nil
}

// sampled looks at the memory of a process that is not of files every few milliseconds, until the function that it returns is
// called. That returns the most it has seen, in bytes: the kernel keeps no peak of it.
func sampled(pid int) (most func() uint64) {
	stop, seen := make(chan struct{}), make(chan uint64, 1)
	go func() {
		var most uint64
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				seen <- most
				return
			case <-tick.C:
			}
			p, err := procfs.NewProc(pid)
			if err != nil {
				continue // it has ended
			}
			if status, err := p.NewStatus(); err == nil {
				most = max(most, status.RssAnon)
			}
		}
	}()
	return func() uint64 {
		close(stop)
		return <-seen
	}
}

// folder creates a folder with a document, and with the configuration for converge.
func (b *bencher) folder(name, document, config string) (string, error) {
	at := filepath.Join(b.dir, name)
	return at, errors.Join(
		os.MkdirAll(at, 0o700),
		os.WriteFile(filepath.Join(at, "converge.yaml"), []byte(config), 0o600),
		b.write(filepath.Join(at, "site.json"), document),
	)
}
