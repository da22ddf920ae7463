package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/torture"
)

// A farSide is a simulated Carbide site that is a process of its own, and stores its world in a file.
type farSide struct {
	*site
	process *process
	control *carbidesim.Control
	address string
}

var loopbacks atomic.Int32

// newFarSide starts a simulated site in a copy of a folder; without one it is new. Its address is not used otherwise, so that
// it can be started there again.
func newFarSide(t *testing.T, from string, lasts time.Duration) *farSide {
	t.Helper()
	dir, err := os.MkdirTemp("", "outage") // a short name, because the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(t.Context(), torture.Patience+lasts)
	t.Cleanup(cancel)
	f := &farSide{site: &site{T: t, dir: dir, ctx: ctx}, control: carbidesim.NewControl(filepath.Join(dir, "sim.sock"))}
	t.Cleanup(f.control.Close)
	if from != "" {
		if out, err := exec.Command("cp", "-a", "--sparse=always", from+"/.", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	pid, n := os.Getpid(), int(loopbacks.Add(1))
	f.address = fmt.Sprintf("127.%d.%d.%d:0", 1+pid>>8%126, pid%256, 1+n%254)
	f.serve()
	f.hurry()
	f.write("converge.yaml", fmt.Sprintf("carbide:\n  address: %s\n  tls: {ca: tls/ca.crt, cert: tls/client.crt, key: tls/client.key}\n  late: 1s\n", f.address))
	return f
}

func (f *farSide) serve() {
	f.Helper()
	f.process = f.start("dev", "carbide", "-machines=4", "-world=world.json", "-tls-dir=tls", "-control=sim.sock", "-listen="+f.address)
	f.process.await(&f.process.stdout, `key: \S+\n`, 1)
	f.address = regexp.MustCompile(`address: (\S+)`).FindStringSubmatch(f.process.stdout.String())[1]
}

// hurry makes an hour of the site a few seconds, so that there is something to wait for, but not for long.
func (f *farSide) hurry() {
	ctx, cancel := context.WithCancel(f.ctx)
	over := make(chan struct{})
	f.Cleanup(func() { cancel(); <-over })
	go func() {
		defer close(over)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = f.control.Advance(ctx, 10*time.Second) // it may be away
			case <-ctx.Done():
				return
			}
		}
	}()
}

// changes returns the changing methods that have been called.
func (f *farSide) changes() (methods []string) {
	f.Helper()
	calls, err := f.control.Calls(f.ctx)
	f.must(err)
	for m := range maps.Keys(calls) {
		if !slices.ContainsFunc([]string{"Find", "Get", "Search", "List", "Version"}, func(verb string) bool { return strings.HasPrefix(m, verb) }) {
			methods = append(methods, m)
		}
	}
	return methods
}

func (f *farSide) world() string {
	f.Helper()
	world, err := f.control.World(f.ctx, false)
	f.must(err)
	return string(world)
}

// documents writes a site with an instance, and what it is to become: with another one, on a network of its own, with changes
// of existing things, and something removed.
func (f *farSide) documents() {
	f.Helper()
	data, err := f.control.Call(f.ctx, "FindMachineIds", []byte("{}"))
	f.must(err)
	var machines struct {
		IDs []struct{ ID string } `json:"machine_ids"`
	}
	f.must(json.Unmarshal(data, &machines))
	const instance = `%s: {tenant: "acme", machine: %q, interfaces: [{segment: %q}], os: ipxe: "#!ipxe", labels: is: %q}`
	const head = `apiVersion: "converge.dev/v1", site: {name: "fra1", id: "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e"}
carbide: tenant: acme: {}
carbide: vpc: prod: tenant: "acme"
carbide: network_segment: "prod-a": {vpc: "prod", prefixes: [{prefix: "10.20.0.0/24", gateway: "10.20.0.1"}]}
carbide: tenant_keyset: ops: {tenant: "acme", keys: ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1ICWm8ZL8VYhPZ0r3k7Yt6n5N1x9l0wqkq7t2mV3bE ada@acme"]}
carbide: instance: `
	f.write("before.cue", head+fmt.Sprintf(instance, "one", machines.IDs[0].ID, "prod-a", "old")+`
carbide: tenant_keyset: old: carbide.tenant_keyset.ops
`)
	f.write("after.cue", head+fmt.Sprintf(instance, "one", machines.IDs[0].ID, "prod-a", "new")+`
carbide: instance: `+fmt.Sprintf(instance, "two", machines.IDs[1].ID, "staging-a", "new")+`
carbide: vpc: staging: tenant: "acme"
carbide: network_segment: "staging-a": {vpc: "staging", prefixes: [{prefix: "10.30.0.0/24", gateway: "10.30.0.1"}]}
carbide: network_segment: "staging-b": {vpc: "staging", prefixes: [{prefix: "10.30.1.0/24", gateway: "10.30.1.1"}]}
`)
}

// An outage of a simulated site begins when a call has arrived.
type outage struct {
	at    int // the call, from 1
	lasts time.Duration
	stops bool // the process is stopped and continued; otherwise it is killed, and started again
}

func (o outage) String() string {
	return fmt.Sprintf("%s-%s-at-%d", map[bool]string{false: "killed", true: "stopped"}[o.stops], o.lasts, o.at)
}

// strikes waits for the call and makes the outage. It returns the changing calls until then; false means that the apply has
// ended before.
func (o outage) strikes(f *farSide, apply *process) (changes []string, struck bool) {
	f.Helper()
	fault := carbidesim.Fault{Method: "*", Nth: o.at, Effect: carbidesim.Slow, Delay: 200 * time.Millisecond} // so that it is in progress
	if !o.stops {
		fault.Effect = carbidesim.Hang
	}
	f.must(f.control.Inject(f.ctx, fault))
	apply.start()
	for struck = false; !struck; {
		select {
		case <-time.After(time.Millisecond): // the simulator notifies nobody
		case <-apply.over:
			return nil, false
		}
		left, err := f.control.Faults(f.ctx)
		f.must(err)
		struck = len(left) == 0
	}
	changes = f.changes()
	if o.stops {
		f.must(f.process.cmd.Process.Signal(syscall.SIGSTOP))
	} else {
		f.process.kill()
	}
	select { // this delay is what is tested, not a wait for something
	case <-time.After(o.lasts):
	case <-f.ctx.Done():
	}
	if o.stops {
		f.must(f.process.cmd.Process.Signal(syscall.SIGCONT))
	} else {
		f.serve()
	}
	return changes, true
}

// E: the process of the service is killed and started again, or stopped, at the calls of an apply that is a process too.
// The run continues or is resumed, and nothing is undone.
func TestTortureOutagesOfProcess(t *testing.T) {
	t.Parallel()
	calm := newFarSide(t, "", 0)
	calm.documents()
	calm.apply("before.cue")
	calm.plan("after.cue", "plan")
	calm.process.kill() // its file has everything that it has confirmed
	template := calm.dir

	calm = newFarSide(t, template, 0)
	calm.run(0, "apply", "plan").says("waiting: ")
	wanted, end := calm.changes(), calm.world()
	calls, err := calm.control.Calls(calm.ctx)
	calm.must(err)
	all := 0
	for _, n := range calls {
		all += n
	}

	var outages []outage
	for _, l := range []struct {
		lasts time.Duration
		calls int // at how many of an apply
	}{{time.Second, torture.Scale(2, 8, all)}, {10 * time.Second, torture.Scale(0, 0, 8)}, {3 * time.Minute, torture.Scale(0, 0, 6)}} {
		for i := range l.calls {
			for _, stops := range []bool{false, true} {
				outages = append(outages, outage{1 + (2*i+1)*all/(2*l.calls), l.lasts, stops})
			}
		}
	}
	var struck, resumed, again atomic.Int32
	t.Run("outages", func(t *testing.T) {
		for _, o := range outages {
			t.Run(o.String(), func(t *testing.T) {
				t.Parallel()
				f := newFarSide(t, template, o.lasts)
				apply := f.prepare("apply", "plan")
				changes, met := o.strikes(f, apply)
				if met {
					struck.Add(1)
				}
				runs := []*process{apply}
				switch status := apply.wait(); status {
				case 0:
				case 4: // the run was left open
					resumed.Add(1)
					runs = append(runs, f.run(0, "resume"))
				case 8: // none was begun
					again.Add(1)
					runs = append(runs, f.run(0, "apply", "plan"))
				default:
					t.Fatalf("it ended with %d\n%s", status, apply.report())
				}
				if run := f.lastRun(); run.Status != "applied" {
					t.Errorf("the run is %s", run.Status)
				}
				for _, r := range runs {
					if strings.Contains(r.report(), "everting") {
						t.Errorf("something was undone:\n%s", r.report())
					}
				}
				for _, m := range append(changes, f.changes()...) {
					if !slices.Contains(wanted, m) {
						t.Errorf("it calls %s, which it has no reason to\n%s", m, apply.report())
					}
				}
				if more := difference(end, f.world()); more != "" { // two segments may have swapped numbers
					t.Errorf("the world is not as it is without an outage:\n%s", more)
				}
				f.run(0, "plan", "-detailed-exitcode", "after.cue")
				f.run(0, "drift")
			})
		}
	})
	if struck.Load() == 0 {
		t.Error("no outage began in an apply")
	}
	torture.Report(t, "E", "Carbide as a process, of an apply with %d calls: %d outages of 1 s%s, killed and started again or stopped: nothing undone, %d runs resumed, %d begun again",
		all, struck.Load(), map[bool]string{true: " to 3 min"}[torture.Scale(0, 0, 1) == 1], resumed.Load(), again.Load())
}
