// Command bench measures what docs/performance.md promises: whole processes, with their time and memory, on sites of a
// given size. Run it with `make bench`. It prints one Markdown table; a budget that is missed makes it exit 1.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"converge.dev/converge/internal/loadtest"
)

var (
	binary = flag.String("converge", "bin/converge", "the program to measure")
	rounds = flag.Int("rounds", 3, "how often each thing is measured; the median counts")
	strict = flag.Bool("strict", true, "exit 1 when a budget is missed")
	most   = flag.Int("most", 100_000, "leave out sites with more resources")
	emit   = flag.String("emit", "", "print a document instead: mixed:N or networks:N")
)

func main() {
	flag.Parse()
	if *emit != "" {
		if err := document(os.Stdout, *emit); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	path, err := filepath.Abs(*binary)
	if err == nil {
		err = bench(path)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// document prints a document of n resources: mixed, of all kinds, or only networks.
func document(w io.Writer, what string) error {
	kind, text, _ := strings.Cut(what, ":")
	n, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	body := loadtest.Site
	if kind == "networks" {
		body = networks
	}
	_, err = w.Write(body(n))
	return err
}

// write makes a document in a process of its own: a child is charged with the memory that its parent had when it was
// started, so this process stays small.
func write(path, what string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "-emit="+what)
	cmd.Stdout, cmd.Stderr = f, os.Stderr
	return errors.Join(cmd.Run(), f.Close())
}

// A cost is what one process took.
type cost struct {
	wall time.Duration
	rss  int64  // bytes
	said string // what it wrote
}

// A row is one line of the table.
type row struct {
	work   string
	got    cost
	wall   time.Duration // budget; zero: none
	rss    int64         // budget in MiB; zero: none
	missed bool
}

type bencher struct {
	converge string
	dir      string
	rows     []row
}

func bench(converge string) error {
	dir, err := os.MkdirTemp("", "converge-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bencher{converge: converge, dir: dir}
	for _, step := range []func() error{b.start, b.validate, b.world, b.carbide} {
		if err := step(); err != nil {
			return err
		}
	}
	fmt.Print("\n| work | time | budget | RSS MiB | budget |\n|---|---|---|---|---|\n")
	missed := false
	for _, r := range b.rows {
		limit, memory := "–", "–"
		if r.wall > 0 {
			limit = r.wall.String()
		}
		if r.rss > 0 {
			memory = fmt.Sprint(r.rss)
		}
		mark := ""
		if r.missed {
			mark, missed = " **missed**", true
		}
		fmt.Printf("| %s | %.2f s%s | %s | %d | %s |\n", r.work, r.got.wall.Seconds(), mark, limit, r.got.rss>>20, memory)
	}
	if missed && *strict {
		return errors.New("a budget was missed")
	}
	return nil
}

// run runs converge in the folder at and gives its cost. Exit codes in ok count as success.
func (b *bencher) run(at string, ok []int, args ...string) (cost, error) {
	cmd := exec.Command(b.converge, args...)
	cmd.Dir = at
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = append(os.Environ(), "NO_COLOR=1", "CONVERGE_IN_AUTOMATION=", "TF_IN_AUTOMATION=", "CI=") // what a person is told is read
	begin := time.Now()
	err := cmd.Run()
	took := time.Since(begin)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return cost{}, err
	}
	if !slices.Contains(ok, cmd.ProcessState.ExitCode()) {
		text := out.String()
		return cost{}, fmt.Errorf("converge %s: exit %d: %s", strings.Join(args, " "), cmd.ProcessState.ExitCode(), text[max(0, len(text)-2000):])
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return cost{took, usage.Maxrss << 10, out.String()}, nil
}

// measure takes the median of several runs.
func (b *bencher) measure(work string, wall time.Duration, rss int64, at string, args ...string) (cost, error) {
	var costs []cost
	for range *rounds {
		c, err := b.run(at, []int{0}, args...)
		if err != nil {
			return cost{}, err
		}
		costs = append(costs, c)
	}
	slices.SortFunc(costs, func(x, y cost) int { return int(x.wall - y.wall) })
	c := costs[len(costs)/2]
	b.add(work, c, wall, rss)
	return c, nil
}

func (b *bencher) add(work string, c cost, wall time.Duration, rss int64) {
	r := row{work: work, got: c, wall: wall, rss: rss, missed: wall > 0 && c.wall > wall || rss > 0 && c.rss>>20 > rss}
	b.rows = append(b.rows, r)
	fmt.Fprintf(os.Stderr, "%-60s %6.2f s %5d MiB\n", work, c.wall.Seconds(), c.rss>>20)
}

func (b *bencher) folder(name string) (string, error) {
	at := filepath.Join(b.dir, name)
	return at, os.MkdirAll(at, 0o700)
}

// start is the time to the first output, with a store in which there is nothing but a document.
func (b *bencher) start() error {
	at, err := b.folder("start")
	if err != nil {
		return err
	}
	if err := write(filepath.Join(at, "site.json"), "networks:1"); err != nil {
		return err
	}
	if _, err := b.run(at, []int{0}, "put", "site.json"); err != nil {
		return err
	}
	_, err = b.measure("start to first output (runs)", 400*time.Millisecond, 0, at, "runs")
	return err
}

func (b *bencher) validate() error {
	at, err := b.folder("validate")
	if err != nil {
		return err
	}
	for _, s := range []struct {
		n    int
		wall time.Duration
		rss  int64
	}{{1_000, 0, 0}, {10_000, 300 * time.Millisecond, 120}, {100_000, 3 * time.Second, 0}} {
		if s.n > *most {
			break
		}
		file := fmt.Sprintf("%d.json", s.n)
		if err := write(filepath.Join(at, file), fmt.Sprintf("mixed:%d", s.n)); err != nil {
			return err
		}
		if _, err := b.measure(fmt.Sprintf("validate %d resources (JSON)", s.n), s.wall, s.rss, at, "validate", file); err != nil {
			return err
		}
	}
	return nil
}

// world applies and destroys sites on the fake world, with the embedded store and its durable journal.
func (b *bencher) world() error {
	for _, s := range []struct {
		n    int
		wall time.Duration
	}{{1_000, 0}, {10_000, 3 * time.Second}} {
		if s.n > *most {
			break
		}
		at, err := b.folder(fmt.Sprintf("world-%d", s.n))
		if err != nil {
			return err
		}
		if err := errors.Join(
			os.WriteFile(filepath.Join(at, "converge.yaml"), []byte("fake: {world: world.json}\n"), 0o600),
			write(filepath.Join(at, "site.json"), fmt.Sprintf("networks:%d", s.n)),
		); err != nil {
			return err
		}
		c, err := b.run(at, []int{0}, "apply", "-auto-approve", "-quiet", "site.json")
		if err != nil {
			return err
		}
		b.add(fmt.Sprintf("apply %d on the fake world", s.n), c, s.wall, 0)
		if _, err := b.measure(fmt.Sprintf("no-op plan of %d on the fake world", s.n), 0, 0, at, "plan", "-quiet", "site.json"); err != nil {
			return err
		}
		asked, err := b.run(at, []int{7}, "destroy", "-auto-approve", "-quiet")
		if err != nil {
			return err
		}
		c, err = b.run(at, []int{0}, "destroy", regexp.MustCompile(`-approve=[0-9a-f]+`).FindString(asked.said), "-quiet")
		if err != nil {
			return err
		}
		b.add(fmt.Sprintf("destroy %d on the fake world", s.n), c, s.wall, 0)
	}
	return nil
}

// carbide plans against the simulator, in a process of its own, over mutual TLS.
func (b *bencher) carbide() error {
	for _, s := range []struct {
		n    int
		wall time.Duration
		rss  int64
	}{{1_000, 0, 0}, {10_000, 1500 * time.Millisecond, 300}} {
		if s.n > *most {
			break
		}
		if err := b.simulated(s.n, s.wall, s.rss); err != nil {
			return err
		}
	}
	return nil
}

func (b *bencher) simulated(n int, wall time.Duration, rss int64) error {
	at, err := b.folder(fmt.Sprintf("carbide-%d", n))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	sim := exec.CommandContext(ctx, b.converge, "dev", "carbide", "-listen=127.0.0.1:0", "-tls-dir=tls", "-fast")
	sim.Dir = at
	said, err := sim.StderrPipe()
	if err != nil {
		return err
	}
	config, err := os.Create(filepath.Join(at, "converge.yaml")) // what it prints is what belongs there
	if err != nil {
		return err
	}
	defer config.Close()
	sim.Stdout = config
	if err := sim.Start(); err != nil {
		return err
	}
	defer func() { cancel(); _ = sim.Wait() }()
	lines := bufio.NewScanner(said)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "Press") {
		fmt.Fprintln(os.Stderr, lines.Text())
	}
	if err := write(filepath.Join(at, "site.json"), fmt.Sprintf("networks:%d", n)); err != nil {
		return err
	}
	c, err := b.run(at, []int{0}, "apply", "-auto-approve", "-quiet", "site.json")
	if err != nil {
		return err
	}
	b.add(fmt.Sprintf("apply %d on the simulator, mutual TLS", n), c, 0, 0)
	_, err = b.measure(fmt.Sprintf("no-op plan of %d against the simulator, mutual TLS", n), wall, rss, at, "plan", "-quiet", "site.json")
	return err
}

// networks is a site of n resources without machines: tenants, VPCs, their prefixes, segments and security groups.
func networks(n int) []byte {
	kinds := map[string]map[string]any{"tenant": {"acme": map[string]any{}}}
	put := func(kind, name string, spec map[string]any) {
		if kinds[kind] == nil {
			kinds[kind] = map[string]any{}
		}
		if n--; n > 0 {
			kinds[kind][name] = spec
		}
	}
	for i := 0; n > 0; i++ {
		name := fmt.Sprintf("v%05d", i)
		labels := map[string]any{"env": "prod", "cost": fmt.Sprint(i % 97)}
		put("network_security_group", name, map[string]any{"tenant": "acme", "labels": labels, "rules": []any{
			map[string]any{"id": "ssh", "direction": "ingress", "protocol": "tcp", "action": "permit", "priority": 100, "src_prefix": "10.0.0.0/8", "dst_prefix": "0.0.0.0/0", "dst_ports": map[string]any{"start": 22, "end": 22}},
		}})
		put("vpc", name, map[string]any{"tenant": "acme", "labels": labels, "network_security_group": name, "description": "bench"})
		put("vpc_prefix", name, map[string]any{"vpc": name, "prefix": fmt.Sprintf("10.%d.%d.0/25", i/256, i%256), "labels": labels})
		put("network_segment", name, map[string]any{"vpc": name, "prefixes": []any{
			map[string]any{"prefix": fmt.Sprintf("10.%d.%d.128/25", i/256, i%256), "gateway": fmt.Sprintf("10.%d.%d.129", i/256, i%256)},
		}})
	}
	doc, _ := json.Marshal(map[string]any{
		"apiVersion": "converge.dev/v1",
		"site":       map[string]any{"name": "bench", "id": "7c0d1f5e-2a34-4f6b-9c8d-1e2f3a4b5c6d"},
		"carbide":    kinds,
	})
	return doc
}
