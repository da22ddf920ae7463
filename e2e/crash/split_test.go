package crash

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"converge.dev/converge/engine/journal"
	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/failpoint"
	"converge.dev/converge/internal/loopback"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

// A scenario is a plan on the simulated Carbide service.
type scenario struct {
	name   string
	before string // the document that the site is first brought to; empty: carbideBefore
	after  string // the document
	fails  string // the method that is permanently refused
	exit   int
	points []string
}

const (
	carbideBefore = `{"tenant": {"acme": {"display_name": "Acme"}},
		"tenant_keyset": {"ops": {"tenant": "acme"}, "old": {"tenant": "acme"}},
		"vpc": {"prod": {"tenant": "acme", "labels": {"env": "prod"}}},
		"vpc_prefix": {"links": {"vpc": "prod", "prefix": "10.20.128.0/20"}}}`
	carbideAfter = `{"tenant": {"acme": {"display_name": "Acme"}},
		"tenant_keyset": {"ops": {"tenant": "acme"}, "new": {"tenant": "acme"}},
		"vpc": {"prod": {"tenant": "acme", "labels": {"env": "test"}}, "staging": {"tenant": "acme"}},
		"vpc_prefix": {"links": {"vpc": "prod", "prefix": "10.20.128.0/20"}},
		"network_segment": {"staging-a": {"vpc": "staging", "prefixes": [{"prefix": "10.30.0.0/24", "gateway": "10.30.0.1"}]}}}`
	carbideFinal = `{"tenant": {"acme": {"display_name": "Acme"}},
		"tenant_keyset": {"ops": {"tenant": "acme"}, "old": {"tenant": "acme"}},
		"vpc": {"prod": {"tenant": "acme", "labels": {"env": "test"}}}}`
	carbideOther = `{"tenant": {"acme": {"display_name": "Acme"}},
		"tenant_keyset": {"ops": {"tenant": "acme"}, "old": {"tenant": "acme"}},
		"vpc": {"prod": {"tenant": "acme", "labels": {"env": "other"}}},
		"vpc_prefix": {"links": {"vpc": "prod", "prefix": "10.20.128.0/20"}}}`
)

// scenarios returns a plan for each point that reaches it.
func scenarios() []scenario {
	applied := scenario{name: "applied", after: carbideAfter}
	reverted := scenario{name: "reverted", after: carbideAfter, fails: "CreateNetworkSegment", exit: 3}
	final := scenario{name: "final", after: carbideFinal}
	for _, p := range failpoint.Points {
		before, _, _ := strings.Cut(p, ".")
		switch {
		case before == "undo" || before == "settle" || before == "verify" || strings.HasPrefix(p, "journal.revert"):
			reverted.points = append(reverted.points, p)
		case strings.HasPrefix(p, "journal.no-return"):
			final.points = append(final.points, p)
		default:
			applied.points = append(applied.points, p)
		}
	}
	return []scenario{applied, reverted, final}
}

// A far is a site whose far side is a simulated service and whose store is an etcd that it shares.
type far struct {
	site
	name  string
	world *carbidesim.World
	kv    state.KV
	exit  int
	plan  *plan.Plan
}

// changing are the methods that change something.
func changing(method string) bool {
	for _, verb := range []string{"Create", "Update", "Delete", "Allocate", "Release", "Set", "Associate", "Remove"} {
		if strings.HasPrefix(method, verb) {
			return true
		}
	}
	return false
}

// effects counts the calls that change something.
func (f *far) effects() (n int) {
	for method, count := range f.world.Calls() {
		if changing(method) {
			n += count
		}
	}
	return n
}

// serveEtcd starts an etcd of one member and returns its URL.
func serveEtcd(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("etcd")
	if err != nil {
		t.Fatal("etcd is needed: install the Debian package etcd-server")
	}
	dir, err := os.MkdirTemp(scratch, "etcd")
	if err != nil {
		t.Fatal(err)
	}
	url, peer := "http://"+loopback.Address(t), "http://"+loopback.Address(t)
	cmd := exec.Command(path, "--data-dir", filepath.Join(dir, "data"), "--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--log-level", "error")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	ctx, cancel := context.WithTimeout(t.Context(), torture.Patience)
	defer cancel()
	for {
		kv, err := etcd.Open(ctx, etcd.Options{Endpoints: []string{url}})
		if err == nil {
			if err := kv.Close(); err != nil {
				t.Fatal(err)
			}
			return url
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// newFar creates a site, brings it to the first document and saves the plan of the scenario.
func newFar(t *testing.T, name, url string, sc scenario) *far {
	t.Helper()
	dir, err := os.MkdirTemp(scratch, name)
	if err != nil {
		t.Fatal(err)
	}
	f := &far{site: site{dir: dir, history: &history{marks: map[place]string{}}, flags: []string{"-parallelism=2"}}, name: name, exit: sc.exit}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	f.world, err = carbidesim.New(carbidesim.Options{Timing: carbidesim.FastTiming})
	must(err)
	server, err := carbidesim.NewServer(f.world, carbidesim.ServerOptions{})
	must(err)
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(dir, "forge.sock"))
	must(err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		f.remove()
	})
	f.kv, err = etcd.Open(t.Context(), etcd.Options{Endpoints: []string{url}})
	must(err)
	t.Cleanup(func() { _ = f.kv.Close() })
	write := func(file, text string) { must(os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600)) }
	write("converge.yaml", fmt.Sprintf("site: %s\netcd: {endpoints: [%q]}\ncarbide: {address: \"unix:forge.sock\", tls: {mode: \"off\"}, late: 1s}\n", name, url))
	for file, carbide := range map[string]string{"before.json": cmp.Or(sc.before, carbideBefore), "after.json": sc.after, "other.json": carbideOther} {
		write(file, fmt.Sprintf(`{"apiVersion": "converge.dev/v1", "site": {"name": %q, "id": "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e"}, "policy": {"max_destroy": "100%%"}, "carbide": %s}`, name, carbide))
	}
	must(f.must(0, "apply", "-auto-approve", "before.json"))
	must(f.must(0, "plan", "-out=plan", "after.json"))
	data, err := os.ReadFile(filepath.Join(dir, "plan"))
	must(err)
	saved, err := plan.DecodeFile(data)
	must(err)
	f.plan = saved.Plan
	if len(f.plan.Irreversible()) > 0 {
		f.approve = []string{"-approve=" + f.plan.Approval()}
	}
	if sc.fails != "" {
		must(f.world.Inject(carbidesim.Fault{Method: sc.fails, Effect: carbidesim.Before, Code: codes.InvalidArgument, Times: -1}))
	}
	return f
}

// longest is longer than a lease lives.
const longest = state.DefaultTTL + 3*time.Second

// A process that was stopped for longer than its lease lives, and was replaced, changes nothing when it wakes.
func TestTortureSplitBrain(t *testing.T) {
	t.Parallel()
	if !torture.Full() {
		t.Skip("it waits for leases of ten seconds: set CONVERGE_TORTURE=push")
	}
	url := serveEtcd(t)
	covered := torture.Cover(t, "points at which a process stood still", failpoint.Points)
	var (
		mu    sync.Mutex
		cases int
		exits = map[int]int{}
		late  int
	)
	t.Cleanup(func() {
		torture.Report(t, "D", "%d processes stood still for %s at %d points, were replaced and woken; ended with %v; %d calls that change something after that", cases, longest, len(failpoint.Points), exits, late)
	})
	for round := range torture.Scale(0, 1, 50) {
		t.Run(fmt.Sprintf("round %d", round), func(t *testing.T) {
			for i, sc := range scenarios() {
				for j, point := range sc.points {
					name := fmt.Sprintf("r%d-%d-%d", round, i, j)
					t.Run(point, func(t *testing.T) {
						t.Parallel()
						f := newFar(t, name, url, sc)
						defer func() {
							if t.Failed() {
								t.Logf("what was run:\n%s", f.report())
							}
						}()
						code, calls := f.split(t, point, 1+round)
						mu.Lock()
						defer mu.Unlock()
						if code >= 0 {
							covered.Reach(point)
							cases++
							exits[code]++
							late += calls
						}
					})
				}
			}
		})
	}
}

// split stops an apply at a point, lets another process finish, and wakes the first. It returns the exit status of the
// first, -1 when it never reached the point, and how many changing calls it made after it was woken.
func (f *far) split(t *testing.T, point string, nth int) (code, calls int) {
	t.Helper()
	first, err := start(f.dir, fmt.Sprintf("%s:%d=stop", point, nth), slices.Concat([]string{"apply"}, f.flags, f.approve, []string{"plan"})...)
	if err != nil {
		t.Fatal(err)
	}
	stopped, err := first.next()
	if err != nil {
		t.Fatal(err)
	}
	if !stopped {
		if nth == 1 || first.code() != f.exit {
			t.Fatalf("it never stood still:\n%s", first.report())
		}
		return -1, 0
	}
	defer func() {
		f.said = append(f.said, "woken: "+first.report())
	}()
	select { // this delay is what is tested, not a wait for something
	case <-time.After(longest):
	case <-t.Context().Done():
	}
	passed := first.passed()
	document := f.second(t, passed)
	world, effects := string(f.world.DumpAll()), f.effects()
	before := f.world.Calls()
	if err := first.wake(); err != nil {
		t.Fatal(err)
	}
	if _, err := first.next(); err != nil {
		t.Fatal(err)
	}
	calls = f.effects() - effects
	if now := string(f.world.DumpAll()); now != world {
		t.Errorf("after it was woken it changed the world:\n%s", difference(world, now))
	}
	if calls > 0 {
		t.Errorf("after it was woken it made %d calls that change something: %v, before %v", calls, f.world.Calls(), before)
	}
	over := point == "journal.end.after" || point == releasing // its run had ended, and it was to report that
	said := first.said()
	switch first.code() {
	case 0:
		if !over {
			t.Error("it ended with 0")
		}
	case 1, 4:
		if !slices.ContainsFunc([]string{"the site lock is no longer held", "lease", "expected revision"}, func(s string) bool { return strings.Contains(said, s) }) {
			t.Error("it does not say that it lost the lock")
		}
	case 6, 7: // it took the lock again, in order, and found that others were faster
		if !strings.HasPrefix(point, "lock.") {
			t.Errorf("it ended with %d", first.code())
		}
	default:
		t.Errorf("it ended with %d", first.code())
	}
	if strings.Contains(said, "Apply complete") && !over || strings.Contains(said, "panic:") {
		t.Error("it says what is not so")
	}
	f.intact(t, document)
	return first.code(), calls
}

// second finishes what the first began, or does something else where the first had not begun or had ended. It returns the
// document that the site then conforms to.
func (f *far) second(t *testing.T, passed []string) (document string) {
	t.Helper()
	begun, ended := slices.Contains(passed, "run.open.after"), slices.Contains(passed, "journal.end.after")
	args, exit, document := []string{"resume"}, f.exit, "after.json"
	switch {
	case !begun || ended:
		args, exit, document = []string{"apply", "-auto-approve", "other.json"}, 0, "other.json"
	case exit == 3:
		document = "before.json"
	}
	if ended { // more has to be undone than other.json contains
		p, err := f.run("", slices.Concat(args, f.flags)...)
		if err != nil {
			t.Fatal(err)
		}
		if p.code() == 7 { // it deletes a VPC
			_, approval, _ := strings.Cut(p.said(), "-approve=")
			args = append(args, "-approve="+approval[:min(16, len(approval))])
		}
	}
	p, err := f.run("", slices.Concat(args, f.flags)...)
	if err != nil {
		t.Fatal(err)
	}
	if p.code() != exit {
		t.Fatalf("the second process ended with %d, want %d", p.code(), exit)
	}
	return document
}

// intact fails unless the site, including the store, is as the second process left it.
func (f *far) intact(t *testing.T, document string) {
	t.Helper()
	store := state.New(f.kv, f.name)
	if holder, err := store.LockInfo(t.Context()); err != nil || holder != nil {
		t.Errorf("the lock is held by %v (%v)", holder, err)
	}
	runs, err := store.Runs(t.Context())
	if err != nil {
		t.Error(err)
	}
	for _, run := range runs {
		log, err := journal.Read(t.Context(), store, run.ID)
		if err != nil {
			t.Error(err)
			continue
		}
		if run.Status == state.RunOpen || !slices.ContainsFunc(log.Records, func(r journal.Record) bool { return r.Kind == journal.End }) {
			t.Errorf("run %s is %s, with %d records", run.ID, run.Status, len(log.Records))
		}
	}
	if err := f.settled(document); err != nil {
		t.Error(err)
	}
	if document != "before.json" { // the newest document is that of the second
		if err := f.must(0, "plan", "-detailed-exitcode"); err != nil {
			t.Errorf("the newest document is not the one that was applied last: %v", err)
		}
	}
}
