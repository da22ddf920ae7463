package crash

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/internal/torture"
)

// A process that was stopped while it changed a real switch, and was replaced twice, changes nothing there when it wakes:
// its further requests are refused, because the switch has the epoch of its successor.
func TestTortureStoodStillOnSwitch(t *testing.T) {
	t.Parallel()
	if !torture.Full() {
		t.Skip("it waits for leases of ten seconds: set CONVERGE_TORTURE=push")
	}
	sw := ovstest.Start(t)
	url := serveEtcd(t)
	rounds := torture.Scale(0, 8, 200)
	var mu sync.Mutex
	woken := 0
	t.Cleanup(func() {
		torture.Report(t, "D", "%d processes stood still in the middle of changing a real switch, were replaced twice and woken: nothing changed after that", woken)
	})
	for round := range rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprintf("sw%d", round)
			dir, err := os.MkdirTemp(scratch, name)
			if err != nil {
				t.Fatal(err)
			}
			s := &site{dir: dir, history: &history{marks: map[place]string{}}, flags: []string{"-parallelism=4"}}
			defer s.remove()
			defer func() {
				if t.Failed() {
					t.Logf("what was run:\n%s", s.report())
				}
			}()
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(os.WriteFile(filepath.Join(dir, "converge.yaml"), fmt.Appendf(nil, "site: %s\netcd: {endpoints: [%q]}\nnodes: {n: {ovs: %q}}\n", name, url, sw.Endpoint), 0o600))
			for file, ports := range map[string]int{"before.json": 2, "after.json": 20} {
				must(os.WriteFile(filepath.Join(dir, file), bridge(name, round, ports), 0o600))
			}
			must(s.must(0, "apply", "-auto-approve", "before.json"))
			must(s.must(0, "plan", "-out=plan", "after.json"))
			point := []string{"call.create.before", "call.create.after", "call.observe.before", "journal.intent.after"}[round%4]
			first, err := start(dir, fmt.Sprintf("%s:%d=stop", point, 1+round%15), slices.Concat([]string{"apply"}, s.flags, []string{"plan"})...)
			must(err)
			defer func() { s.said = append(s.said, "woken: "+first.report()) }()
			if stopped, err := first.next(); err != nil || !stopped {
				t.Fatalf("it never stood still (%v):\n%s", err, first.report())
			}
			select { // this delay is what is tested, not a wait for something
			case <-time.After(longest):
			case <-t.Context().Done():
			}
			must(s.must(0, "resume"))
			must(s.must(0, "apply", "-auto-approve", "before.json"))
			was := ports(t, sw, name)
			if n := strings.Count(was, "\n"); n != 3 {
				t.Fatalf("the bridge has %d ports, want its own and two:\n%s", n, was)
			}
			must(first.wake())
			if _, err := first.next(); err != nil {
				t.Fatal(err)
			}
			if is := ports(t, sw, name); is != was {
				t.Errorf("after it was woken it changed the switch:\n%s", difference(was, is))
			}
			if code := first.code(); code != 4 && code != 1 {
				t.Errorf("it ended with %d", code)
			}
			must(s.must(0, "drift"))
			mu.Lock()
			defer mu.Unlock()
			woken++
		})
	}
}

// bridge returns a document of one bridge with some ports.
func bridge(name string, id, ports int) []byte {
	port := map[string]any{}
	for i := range ports {
		port[fmt.Sprintf("%s-p%02d", name, i)] = map[string]any{"bridge": name, "tag": 100 + i, "interface": map[string]any{"type": "internal"}}
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": "converge.dev/v1",
		"site":       map[string]any{"name": name, "id": fmt.Sprintf("5a2f0a4e-8d1f-4f0e-9b62-%012d", id)},
		"policy":     map[string]any{"max_destroy": "100%"},
		"nodes":      map[string]any{"n": map[string]any{"ovs": map[string]any{"bridge": map[string]any{name: map[string]any{"datapath_type": ovstest.Datapath}}, "port": port}}},
	})
	if err != nil {
		panic(err)
	}
	return text
}

// ports returns what a switch has of a bridge.
func ports(t *testing.T, sw *ovstest.Switch, bridge string) string {
	t.Helper()
	var lines []string
	for _, line := range strings.Split(sw.Vsctl(t, "--format=csv", "--columns=name,_uuid,tag,external_ids", "list", "port"), "\n") {
		if strings.HasPrefix(line, bridge+",") || strings.HasPrefix(line, bridge+"-") {
			lines = append(lines, line+"\n")
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
