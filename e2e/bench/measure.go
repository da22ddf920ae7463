package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/perf/benchfmt"
)

// A scale is the size of a site, with what is promised for it.
type scale struct {
	n      int
	ratio  float64 // to the floor; zero: nothing
	memory float64 // in MiB; zero: nothing
}

// measure measures something round by round, at each scale.
func measure(scales []scale, do func(s scale, round int) error) error {
	for _, s := range scales {
		if s.n > *most {
			break
		}
		for round := range *rounds {
			if err := do(s, round); err != nil {
				return err
			}
		}
	}
	return nil
}

// start measures the time to the first output, with a store that holds only a document. The floor is a process that opens such
// a store, from its start to its end.
func (b *bencher) start() error {
	at, err := b.folder("start", "networks:1", "")
	if err != nil {
		return err
	}
	if _, err := b.run(at, 0, "put", "site.json"); err != nil {
		return err
	}
	if _, err := b.floor(at, "commit", store, "floor", "0"); err != nil {
		return err
	}
	return measure([]scale{{n: 1, ratio: 2}}, func(s scale, _ int) error {
		for range 3 { // it is short
			c, err := b.run(at, 0, "runs")
			if err != nil {
				return err
			}
			floor, err := execute(b.self, at, 0, "-floor=open", "floor")
			if err != nil {
				return err
			}
			b.row(s.ratio, "start to first output, empty store").time(c.wall, floor.wall)
		}
		return nil
	})
}

// validate has decoding the same bytes as its floor.
func (b *bencher) validate() error {
	return measure([]scale{{n: 1_000}, {10_000, 2.5, 120}, {n: 100_000, ratio: 2.5}}, func(s scale, _ int) error {
		at, err := b.folder(fmt.Sprint("validate-", s.n), fmt.Sprint("mixed:", s.n), "")
		if err != nil {
			return err
		}
		times := 1
		if s.n <= 10_000 {
			times = 3 // it is short
		}
		for range times {
			c, err := b.run(at, 0, "validate", "site.json")
			if err != nil {
				return err
			}
			floor, err := b.floor(at, "decode", "site.json")
			if err != nil {
				return err
			}
			b.row(s.ratio, "validate %d (JSON)", s.n).time(c.wall, floor.Took)
			b.row(s.memory*(1<<20), "validate %d: memory", s.n).bytes(c.rss)
		}
		return nil
	})
}

// memory runs benchmarks of what is done in memory, each of which has its own floor beside each figure.
func (b *bencher) memory() error {
	for _, m := range []struct{ pkg, name, by, what string }{
		{"engine/plan", "BenchmarkNoOp", "plan", "no-op plan of %d in memory"},
		{"schema/load", "BenchmarkRevise", "revise", "one change in a document of %d in memory"},
	} {
		test := filepath.Join(b.dir, filepath.Base(m.pkg)+".test")
		if _, err := execute("go", ".", 0, "test", "-c", "-o", test, "converge.dev/converge/"+m.pkg); err != nil {
			return err
		}
		err := measure([]scale{{n: 1_000}, {n: 10_000, ratio: 3}, {n: 100_000, ratio: 3}}, func(s scale, _ int) error {
			took, err := benchmark(test, b.dir, fmt.Sprintf("^%s$/^n=%d$", m.name, s.n))
			if err != nil {
				return err
			}
			figure, floor := took["/by="+m.by], took["/by=floor"]
			if figure == 0 || floor == 0 {
				return fmt.Errorf("%s does not measure %s", m.name, m.by)
			}
			b.row(s.ratio, m.what, s.n).time(figure, floor)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// benchmark runs benchmarks of a test program, and returns how long an operation of each takes, by the last part of its name.
func benchmark(test, dir, names string) (map[string]time.Duration, error) {
	c, err := execute(test, dir, 0, "-test.run=^$", "-test.bench="+names, "-test.benchtime=500ms")
	if err != nil {
		return nil, err
	}
	took := map[string]time.Duration{}
	for r := benchfmt.NewReader(strings.NewReader(c.said), test); r.Scan(); {
		if result, ok := r.Result().(*benchfmt.Result); ok {
			_, parts := result.Name.Parts()
			seconds, _ := result.Value("sec/op")
			took[string(parts[1])] = time.Duration(seconds * float64(time.Second))
		}
	}
	return took, nil
}

// world applies and destroys sites on the fake world, with the embedded store and its durable journal. The floor decodes the
// document, the world and the records, repeats the commits that this left in the store, and writes the world as it became.
func (b *bencher) world() error {
	return measure([]scale{{n: 1_000}, {n: 10_000, ratio: 2}}, func(s scale, round int) error {
		at, err := b.folder(fmt.Sprintf("world-%d-%d", s.n, round), fmt.Sprint("networks:", s.n), "fake: {world: world.json}\n")
		if err != nil {
			return err
		}
		var floor done // has all that converge stored up to its revision
		both := func(args ...string) (took time.Duration, err error) {
			was, err := os.ReadFile(filepath.Join(at, "world.json"))
			if errors.Is(err, fs.ErrNotExist) {
				was, err = []byte("{}"), nil
			}
			if err := errors.Join(err, os.WriteFile(filepath.Join(at, "was.json"), was, 0o600)); err != nil {
				return 0, err
			}
			c, err := b.run(at, 0, args...)
			if err == nil {
				floor, err = b.floor(at, "carry", store, "floor", fmt.Sprint(floor.Revision), "site.json", "was.json", "world.json")
			}
			return c.wall, err
		}

		took, err := both("apply", "-auto-approve", "-quiet", "site.json")
		if err != nil {
			return err
		}
		b.row(s.ratio, "apply %d on the fake world", s.n).time(took, floor.Took)

		if err := edit(filepath.Join(at, "site.json")); err != nil {
			return err
		}
		if _, err := both("apply", "-auto-approve", "-quiet", "site.json"); err != nil {
			return err
		}
		b.row(64<<10, "apply one change in %d: stored", s.n).bytes(floor.Stored)

		asked, err := b.run(at, 7, "destroy", "-auto-approve", "-quiet")
		if err != nil {
			return err
		}
		took, err = both("destroy", regexp.MustCompile(`-approve=[0-9a-f]+`).FindString(asked.said), "-quiet")
		if err != nil {
			return err
		}
		b.row(s.ratio, "destroy %d on the fake world", s.n).time(took, floor.Took)
		return nil
	})
}

// unchanged is how a plan without changes begins.
const unchanged = "No changes."

// unchanged plans a site on the fake world that is as its document says. The floor is a process that opens a copy of the store, and
// decodes the records in it, the document and the world's file.
func (b *bencher) unchanged() error {
	for _, s := range []scale{{n: 1_000}, {n: 10_000, ratio: 3}, {n: 100_000, ratio: 3}} {
		if s.n > *most {
			break
		}
		at, err := b.folder(fmt.Sprint("unchanged-", s.n), fmt.Sprint("mixed:", s.n), "fake: {world: world.json}\n")
		if err == nil {
			_, err = b.run(at, 0, "apply", "-auto-approve", "-quiet", "site.json")
		}
		if err == nil {
			err = os.CopyFS(filepath.Join(at, "floor"), os.DirFS(filepath.Join(at, store)))
		}
		if err != nil {
			return err
		}
		for range *rounds {
			c, err := b.run(at, 0, "plan", "-quiet", "site.json")
			if err != nil {
				return err
			}
			if !strings.Contains(c.said, unchanged) {
				return fmt.Errorf("that is no plan without changes:\n%s", c.said)
			}
			floor, err := execute(b.self, at, 0, "-floor=open", "floor", "site.json", "world.json")
			if err != nil {
				return err
			}
			b.row(s.ratio, "no-op plan of %d on the fake world", s.n).time(c.wall, floor.wall)
			b.row(0, "no-op plan of %d on the fake world: memory of its own", s.n).bytes(int64(c.own))
			b.row(0, "no-op plan of %d on the fake world: memory of its floor", s.n).bytes(int64(floor.own))
		}
	}
	return nil
}

// carbide applies and plans against the simulator, in a process of its own, over mutual TLS. The floors make the same calls
// with a bare client, for the apply to an empty simulator, and then repeat the commits that it left in the store.
func (b *bencher) carbide() error {
	return measure([]scale{{n: 1_000}, {10_000, 2, 130}}, func(s scale, round int) error {
		at, err := b.folder(fmt.Sprintf("carbide-%d-%d", s.n, round), fmt.Sprint("networks:", s.n), "")
		if err != nil {
			return err
		}
		var apply, plan cost
		var floor, commits done
		err = b.simulated(at, func() (err error) {
			if apply, err = b.run(at, 0, "apply", "-auto-approve", "-quiet", "site.json"); err != nil {
				return err
			}
			if commits, err = b.floor(at, "commit", store, "floor", "0"); err != nil { // its records are read below
				return err
			}
			if plan, err = b.run(at, 0, "plan", "-quiet", "site.json"); err != nil {
				return err
			}
			if !strings.Contains(plan.said, unchanged) {
				return fmt.Errorf("that is no plan without changes:\n%s", plan.said)
			}
			floor, err = b.floor(at, "look", "converge.yaml", "site.json", "floor")
			return err
		})
		if err != nil {
			return err
		}
		if plan.own == 0 {
			return errors.New("the memory of a plan was not seen while it ran")
		}
		b.row(s.ratio, "no-op plan of %d against the simulator", s.n).time(plan.wall, floor.Took)
		b.row(s.memory*(1<<20), "no-op plan of %d: memory of its own", s.n).bytes(int64(plan.own))
		b.row(0, "no-op plan of %d: memory with pages of files", s.n).bytes(plan.rss)

		err = b.simulated(at, func() (err error) {
			floor, err = b.floor(at, "make", "converge.yaml", "site.json")
			return err
		})
		if err != nil {
			return err
		}
		b.row(s.ratio, "apply %d on the simulator", s.n).time(apply.wall, floor.Took+commits.Took)
		b.row(0, "apply %d on the simulator: to the calls alone", s.n).time(apply.wall, floor.Took)
		return nil
	})
}

// changed plans the effect of one edit in a large site, against the simulator, by a process that knows nothing yet. The floor is a
// process that opens a copy of the store, from its start to its end.
func (b *bencher) changed() error {
	for _, s := range []scale{{n: 1_000}, {100_000, 1.5, 600}} {
		if s.n > *most {
			break
		}
		at, err := b.folder(fmt.Sprint("changed-", s.n), fmt.Sprint("networks:", s.n), "")
		if err == nil {
			err = b.simulated(at, func() error { return b.changedAt(at, s) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bencher) changedAt(at string, s scale) error {
	if _, err := b.run(at, 0, "apply", "-auto-approve", "-quiet", "site.json"); err != nil {
		return err
	}
	if err := edit(filepath.Join(at, "site.json")); err != nil {
		return err
	}
	if _, err := b.run(at, 0, "put", "site.json"); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(at, "floor"), os.DirFS(filepath.Join(at, store))); err != nil {
		return err
	}
	for range *rounds {
		c, err := b.run(at, 0, "plan", "-refresh=changed", "-quiet")
		if err != nil {
			return err
		}
		if of := fmt.Sprintf("of %d resources", s.n); !strings.Contains(c.said, "1 to change") || !strings.Contains(c.said, of) {
			return fmt.Errorf("that is no plan of one change %s:\n%s", of, c.said)
		}
		floor, err := execute(b.self, at, 0, "-floor=open", "floor")
		if err != nil {
			return err
		}
		b.row(s.ratio, "plan -refresh=changed, one change in %d", s.n).time(c.wall, floor.wall)
		b.row(s.memory*(1<<20), "plan -refresh=changed, one change in %d: memory", s.n).bytes(c.rss)
	}
	return nil
}

// edit changes one resource of a document.
func edit(site string) error {
	text, err := os.ReadFile(site)
	if err != nil {
		return err
	}
	return os.WriteFile(site, bytes.Replace(text, []byte(`"bench"`), []byte(`"edited"`), 1), 0o600)
}

// simulated does something while a new simulator runs. Its address is in converge.yaml.
func (b *bencher) simulated(at string, do func() error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	sim := exec.CommandContext(ctx, b.converge, "dev", "carbide", "-listen=127.0.0.1:0", "-tls-dir=tls", "-fast")
	sim.Dir = at
	said, err := sim.StderrPipe()
	if err != nil {
		return err
	}
	config, err := os.Create(filepath.Join(at, "converge.yaml")) // it prints what belongs there
	if err != nil {
		return err
	}
	defer config.Close()
	sim.Stdout = config
	if err := sim.Start(); err != nil {
		return err
	}
	defer func() { cancel(); _ = sim.Wait() }()
	var told []string
	for lines := bufio.NewScanner(said); lines.Scan(); told = append(told, lines.Text()) {
		if strings.HasPrefix(lines.Text(), "Press") {
			return do()
		}
	}
	return fmt.Errorf("the simulator ended: %s", strings.Join(told, "\n"))
}
