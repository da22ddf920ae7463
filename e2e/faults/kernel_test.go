package faults

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"converge.dev/converge/engine"
	"converge.dev/converge/engine/event"
	"converge.dev/converge/internal/enginetest"
	"converge.dev/converge/internal/kerneltest"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/host"
	"converge.dev/converge/providers/pci"
	"converge.dev/converge/providers/sysfs"
	"converge.dev/converge/state"
)

// An answer is what a kernel makes of a request: what it does, and what it says of it.
type answer struct {
	name  string
	does  bool
	says  error
	times int // how many requests in a row; 0: all from then on
}

// kernelAnswers are those of kernels that were seen to fail or to lie.
func kernelAnswers() (all []answer) {
	for _, errno := range []syscall.Errno{syscall.EBUSY, syscall.EIO, syscall.EINVAL, syscall.ENODEV, syscall.EACCES, syscall.ENOMEM, syscall.EOPNOTSUPP} {
		all = append(all, answer{fmt.Sprint("refused once, ", errno), false, errno, 1}, answer{fmt.Sprint("refused from now on, ", errno), false, errno, 0})
	}
	return append(all,
		answer{"done, said to have failed", true, syscall.EIO, 1},
		answer{"done, said to have failed each time", true, syscall.EIO, 0},
		answer{"not done, said to be done", false, nil, 1},
		answer{"not done, said to be done each time", false, nil, 0},
	)
}

// A liar is a kernel whose answers to requests are those of an answer, from a request on.
type liar struct {
	*kerneltest.Kernel
	answer
	counts bool // the requests of a run
	asked  []string
	from   int // the first request that is answered so; -1: none
}

func (l *liar) request(what string, do func() error) error {
	if !l.counts {
		return do()
	}
	n := len(l.asked) - l.from
	l.asked = append(l.asked, what)
	if l.from < 0 || n < 0 || l.times > 0 && n >= l.times {
		return do()
	}
	if l.does {
		if err := do(); err != nil {
			return err
		}
	}
	if l.says != nil {
		return &fs.PathError{Op: "write", Path: what, Err: l.says}
	}
	return nil
}

func (l *liar) Write(path, value string) error {
	return l.request(path+" "+strings.TrimSpace(value), func() error { return l.Kernel.Write(path, value) })
}

// cards is a liar for what is told to network cards.
type cards struct {
	sysfs.VFs
	l *liar
}

func (c cards) Set(iface string, number int, to sysfs.Setting) error {
	return c.l.request(fmt.Sprintf("%s vf %d %+v", iface, number, to), func() error { return c.VFs.Set(iface, number, to) })
}

// Steps of a node of this kernel create, change and delete things of each kind.
const (
	kernelFirst = `host: hugepages: {"node0-2048kB": count: 4, "node1-2048kB": count: 4},
		pci: function: {"0000:01:00.0": driver: "vfio-pci", "0000:04:00.0": driver: "vfio-pci"},
		pci: sriov: "0000:03:00.0": {num_vfs: 2, drivers_autoprobe: false, vfs: "0": {mac: "02:00:00:00:00:01", vlan: 5, trust: true}}`
	kernelLast = `host: hugepages: {"node0-2048kB": count: 10},
		pci: function: {"0000:01:00.0": driver: "nvme", "0000:02:00.1": {driver: "vfio-pci", physical_function: "0000:02:00.0"}},
		pci: sriov: {
			"0000:02:00.0": {num_vfs: 3, drivers_autoprobe: false},
			"0000:03:00.0": {num_vfs: 2, drivers_autoprobe: false, vfs: "0": {mac: "02:00:00:00:00:02", vlan: 7, trust: false}},
		}`
	// The memory does not suffice.
	kernelFailing = kernelLast + `, host: hugepages: "node1-2048kB": {count: 1000000, depends_on: [
		"n/host.hugepages/node0-2048kB", "n/pci.function/0000:01:00.0", "n/pci.function/0000:02:00.1", "n/pci.sriov/0000:02:00.0", "n/pci.sriov/0000:03:00.0"]}`
)

func newLiar(t *testing.T, a answer, from int) (*liar, *ground) {
	l := &liar{answer: a, from: from, Kernel: kerneltest.New(t, kerneltest.Machine{
		Drivers: []string{"vfio-pci"}, Pools: map[string]int{"node0-2048kB": 80, "node1-2048kB": 80},
		Functions: []kerneltest.Function{
			{Address: "0000:01:00.0", Class: "0x010802", Native: "nvme", Group: "1"},
			{Address: "0000:02:00.0", Class: "0x010802", Native: "nvme", Group: "2", VFs: 4},
			{Address: "0000:03:00.0", Native: "igb", Group: "3", VFs: 4, Link: true},
			{Address: "0000:04:00.0", Class: "0x010802", Native: "nvme", Group: "4"},
		},
	})}
	k := l.Kernel.Kernel()
	k.Sys, k.VFs = l, cards{k.VFs, l}
	return l, newGround(t, func(context.Context) ([]*providers.Provider, error) {
		return []*providers.Provider{pci.New("n", k, nil), host.New("n", k, nil)}, nil
	})
}

// run makes the change, and with undo one that fails in the end. Requests count from the first step on, or from the beginning of the undo.
func (l *liar) run(g *ground, undo bool) state.Run {
	g.emit = func(ev event.Event) {
		_, reverting := ev.(event.RevertStarted)
		_, starting := ev.(event.StepStarted)
		l.counts = l.counts || reverting && undo || starting && !undo
	}
	defer func() { g.emit = func(event.Event) {} }()
	if undo {
		return g.apply(kernelFailing)
	}
	return g.apply(kernelLast)
}

// TestTortureKernelAnswers: whatever a kernel answers to one request, or to all from one on, a run ends as it says it does: what is applied is there,
// and what is reverted is as it was before. Once the kernel is well again, the document comes true, and its reverse leaves nothing behind.
func TestTortureKernelAnswers(t *testing.T) {
	for _, undo := range []bool{false, true} {
		var before, first, last string // what sysfs shows
		var asked []string
		synctest.Test(t, func(t *testing.T) {
			l, g := newLiar(t, answer{}, -1)
			before = l.Dump()
			g.apply(kernelFirst)
			first = l.Dump()
			if run := l.run(g, undo); run.Status != map[bool]state.RunStatus{false: state.RunApplied, true: state.RunReverted}[undo] {
				t.Fatalf("without a fault it ended %s: %s", run.Status, run.Message)
			}
			if asked = l.asked; undo && l.Dump() != first {
				t.Fatal("without a fault it was not undone")
			}
			if undo {
				g.apply(kernelLast)
			}
			last = l.Dump()
		})
		ends := map[state.RunStatus]int{}
		stride := torture.Scale(7, 1, 1)
		cell := 0
		for n := range asked {
			for _, a := range kernelAnswers() {
				if cell++; cell%stride != 0 {
					continue
				}
				if strings.HasPrefix(asked[n], "bus/pci/drivers_probe") && !a.does && a.says == nil {
					continue // nobody can see whether a driver should have taken a function
				}
				t.Run(fmt.Sprintf("undo %t, request %d, %s", undo, n, a.name), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						l, g := newLiar(t, a, n)
						g.apply(kernelFirst)
						run := l.run(g, undo)
						ends[run.Status]++
						is := l.Dump()
						switch run.Status {
						case state.RunApplied:
							if undo || is != last {
								t.Errorf("it is not applied:\n%s", differing(last, is))
							}
							g.clean()
						case state.RunReverted:
							if is != first {
								t.Errorf("it is not reverted:\n%s", differing(first, is))
							}
							g.clean()
						case state.RunPartial:
							if is == first {
								t.Log("it is reverted, and the run does not know")
							}
							if len(run.Partial) == 0 {
								t.Error("it does not say what is left")
							}
						default:
							t.Errorf("it ended %s: %s", run.Status, run.Message)
						}
						l.counts = false
						if run.Status == state.RunPartial || run.Status == state.RunOpen {
							if _, err := g.Resume(context.Background(), "", engine.ApplyOptions{}); err != nil {
								t.Error(err)
							}
						}
						enginetest.Release(t, g.store)
						for _, turn := range []struct{ node, want string }{{kernelLast, last}, {"", before}} {
							if run := g.apply(turn.node); run.Status != state.RunApplied {
								t.Fatalf("once the kernel is well it ended %s: %s", run.Status, run.Message)
							}
							if is := l.Dump(); is != turn.want {
								t.Errorf("once the kernel is well:\n%s", differing(turn.want, is))
							}
						}
					})
				})
			}
		}
		if torture.Full() {
			torture.Report(t, "E", "kernel: %d requests × %d answers, undo %t: %v", len(asked), len(kernelAnswers()), undo, ends)
		}
	}
}

// differing returns the lines that only one of two texts has.
func differing(want, is string) string {
	var b strings.Builder
	a, z := strings.Split(want, "\n"), strings.Split(is, "\n")
	for _, line := range a {
		if !slices.Contains(z, line) {
			fmt.Fprintln(&b, "-", line)
		}
	}
	for _, line := range z {
		if !slices.Contains(a, line) {
			fmt.Fprintln(&b, "+", line)
		}
	}
	return b.String()
}
