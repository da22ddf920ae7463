package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/failpoint"
	"converge.dev/converge/internal/libvirttest"
	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/internal/torture"
	"converge.dev/converge/state"
)

// A node is a site with one real node, which has one of two revisions. From the first to the second, everything can be undone; back to the
// first, volumes are deleted, replaced and grown, which cannot.
type node struct {
	site
	*testing.T
	host *libvirttest.Host
	sw   *ovstest.Switch

	second bool
	back   int // how often it was brought back to the first: a volume grows with each

	ways map[string]*way
	want map[bool]string // what the node has in the first and in the second revision
}

// A way is a change of revision, as it is when nothing is killed.
type way struct {
	exit   int
	points map[string]int // how often it passes each point
}

const mebibyte = 1 << 20

// document returns a revision. The one that fails has a machine that the node cannot run, and that is made last.
func (n *node) document(second bool, back int, fails bool) []byte {
	pick := func(first, then any) any {
		if second {
			return then
		}
		return first
	}
	mac := func(i int) string { return fmt.Sprintf("52:54:00:00:00:%02x", i) }
	address := func(i int) []any {
		return []any{object{"address": fmt.Sprintf("10.77.%d.1/24", i), "dhcp_ranges": []any{object{"start": fmt.Sprintf("10.77.%d.100", i), "end": fmt.Sprintf("10.77.%d.%d", i, pick(150, 160))}}}}
	}
	machine := func(fields object) object {
		all := object{"type": "qemu", "vcpus": 1, "memory": 64 * mebibyte, "state": "stopped", "stop_timeout": 0, "autostart": false}
		for field, v := range fields {
			all[field] = v
		}
		return all
	}
	disk := func(target, volume string) object { return object{"target": target, "volume": volume} }
	port := func(fields object) object {
		fields["interface"] = object{"type": "internal"}
		return fields
	}
	volumes := object{
		"base":     object{"external": true},
		"root":     object{"pool": "machines", "capacity": 64 * mebibyte, "backing": "base"},
		"spare":    object{"pool": "machines", "capacity": 2 * mebibyte},
		"kept":     object{"pool": "machines", "capacity": mebibyte},
		"grown":    object{"pool": "machines", "capacity": (1 + back) * mebibyte, "format": "raw"},
		"replaced": object{"pool": "machines", "capacity": mebibyte, "format": []string{"raw", "qcow2"}[back%2]},
	}
	networks := object{"net": object{"bridge": "virbr-net", "mac": mac(1), "ips": address(1), "domain": pick("first", "second")}}
	bridges := object{"main": object{"datapath_type": ovstest.Datapath, "fail_mode": "secure"}}
	ports := object{
		"changed": port(object{"bridge": "main", "tag": pick(1, 2)}),
		"moved":   port(object{"bridge": "main", "trunks": pick([]any{1, 2}, []any{2, 3})}),
	}
	stopped := []any{disk("vda", "spare")}
	domains := object{
		"stopped":  machine(object{"vcpus": pick(1, 2), "memory": pick(64*mebibyte, 96*mebibyte), "cdroms": []any{object{"target": "sda", "bus": "sata", "seed": "seed"}}}),
		"replaced": machine(object{"machine": pick("pc", "q35")}),
	}
	if second {
		volumes["copy"] = object{"pool": "machines", "capacity": 48 * mebibyte, "clone": "base"}
		volumes["second"] = object{"pool": "machines", "capacity": 3 * mebibyte, "backing": "kept"}
		networks["second"] = object{"bridge": "virbr-second", "mac": mac(3), "ips": address(3)}
		bridges["second"] = object{"datapath_type": ovstest.Datapath}
		ports["moved"].(object)["bridge"] = "second"
		ports["port-second"] = port(object{"bridge": "second", "tag": 9})
		stopped = []any{disk("vda", "copy"), disk("vdb", "spare")}
		domains["second"] = machine(object{"disks": []any{disk("vda", "grown")}, "interfaces": []any{object{"mac": mac(12), "network": "second"}}})
	} else {
		networks["first"] = object{"bridge": "virbr-first", "mac": mac(2), "ips": address(2)}
		ports["port-first"] = port(object{"bridge": "main", "tag": 8})
		domains["first"] = machine(object{"disks": []any{disk("vda", "grown")}, "interfaces": []any{object{"mac": mac(11), "network": "first"}}})
	}
	domains["running"] = machine(object{"state": "running", "disks": []any{disk("vda", "root")}}) // which runs on, unchanged
	domains["stopped"].(object)["disks"] = stopped
	domains["stopped"].(object)["interfaces"] = []any{object{"mac": mac(10), "network": "net"}, object{"mac": mac(20), "ovs_bridge": "main", "vlan": pick(5, 6)}}
	if fails {
		domains["unable"] = machine(object{"type": "kvm", "state": "running", "depends_on": []any{"n/libvirt.domain/stopped", "n/libvirt.domain/second", "n/ovs.port/port-second", "n/libvirt.cloudinit/seed"}})
	}
	return text(object{
		"apiVersion": "converge.dev/v1",
		"site":       object{"name": "fra1", "id": "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e"},
		"policy":     object{"max_destroy": "100%"},
		"nodes": object{"n": object{
			"ovs": object{"bridge": bridges, "port": ports},
			"libvirt": object{
				"pool":      object{"theirs": object{"external": true}, "machines": object{"path": n.host.Dir + "/srv/machines"}},
				"volume":    volumes,
				"network":   networks,
				"dhcp_host": object{"guest": object{"network": "net", "mac": mac(10), "ip": pick("10.77.1.10", "10.77.1.11")}},
				"cloudinit": object{"seed": object{"pool": "machines", "instance_id": "i-1", "hostname": pick("first", "second"), "user_data": object{"from": "file:user-data"}}},
				"domain":    domains,
			},
		}},
	})
}

// others makes what somebody else has on the node.
func (n *node) others() {
	n.Helper()
	for _, f := range []struct{ command, xml string }{
		{"net-define", `<network><name>theirs</name><bridge name='virbr-theirs'/><dns><host ip='10.78.0.2'><hostname>printer</hostname></host></dns><ip address='10.78.0.1' netmask='255.255.255.0'/></network>`},
		{"define", `<domain type='qemu'><name>theirs</name><description>"quoted" &amp; kept</description><memory unit='MiB'>64</memory><os><type>hvm</type></os>
			<devices><disk type='volume' device='disk'><source pool='theirs' volume='disk'/><target dev='vda'/></disk></devices></domain>`},
	} {
		n.host.Define(n, f.command, f.xml)
	}
	n.sh(`mkdir theirs && cd theirs
head -c 33554432 /dev/urandom >raw && qemu-img convert -f raw -O qcow2 raw base && rm raw && qemu-img create -q -f raw disk 1M
virsh -q pool-define-as theirs dir --target "$PWD" && virsh -q pool-start theirs && virsh -q pool-autostart theirs
virsh -q net-start theirs`)
	n.sw.Vsctl(n, "add-br", "theirs", "--", "set", "bridge", "theirs", "datapath_type="+ovstest.Datapath, "other_config:note=x",
		"--", "add-port", "theirs", "their-port", "tag=7", "--", "set", "interface", "their-port", "type=internal")
}

// theirs returns that, as libvirt, the switch and the file system have it, and which process the running machine is: it runs on.
func (n *node) theirs() string {
	n.Helper()
	return n.sh(`virsh -q 'net-dumpxml theirs; net-dumpxml --inactive theirs; dumpxml theirs; pool-dumpxml theirs; vol-dumpxml --pool theirs base; vol-dumpxml --pool theirs disk' | grep -v '<allocation\|<available\|<atime'
cd theirs && ls -A && stat -c '%n %i %Y %a %u' base disk && sha256sum base disk
if [ -e /run/libvirt/qemu/running.pid ]; then cat /run/libvirt/qemu/running.pid; fi`) +
		n.sw.Vsctl(n, "list", "bridge", "theirs") + n.sw.Vsctl(n, "list", "port", "theirs", "their-port")
}

// sh runs a script on the node, in the directory of the pools.
func (n *node) sh(script string) string {
	n.Helper()
	return n.host.Sh(n, "mkdir -p "+n.host.Dir+"/srv && cd "+n.host.Dir+"/srv\n"+script)
}

// shows returns what a revision says, as the node has it by other clients, and everything that is there by its name. The two volumes that
// are different each time are only named. Libvirt notices some of an image only when it looks at it again; the number in
// the mark of a machine counts how often that was made.
func (n *node) shows() string {
	n.Helper()
	return n.sh(`ask=$(
for d in $(virsh -q list --all --name | sort); do echo "dumpxml --inactive $d; domstate $d; dominfo $d; domblklist $d"; done
for net in $(virsh -q net-list --all --name | sort); do echo "net-dumpxml $net; net-dumpxml --inactive $net; net-info $net"; done
for p in $(virsh -q pool-list --all --name | sort); do
	echo "pool-dumpxml $p; pool-info $p"
	for v in $(virsh -q vol-list $p | sed 's/^ *\([^ ]*\) .*/\1/' | sort); do
		case $v in grown|replaced) ;; *) echo "vol-dumpxml --pool $p $v";; esac
	done
done)
virsh -q "$(echo "$ask" | tr '\n' ';')" | grep -v '<allocation\|<available\|<[acm]time>\|<btime>\|^Allocation\|^Available\|^CPU time\|^Id\|<physical\|<clusterSize' | sed "s/<format type='iso'/<format type='raw'/; s/#[0-9]*\" stop_timeout/\" stop_timeout/"
find . -type f | sort
ls /sys/class/net
for p in /proc/[0-9]*; do { tr '\0' ' ' <$p/cmdline; } 2>/dev/null | grep -o '^[^ ]*dnsmasq --conf-file=[^ ]*\|guest=[^,]*' || true; done | sort
for v in machines/*; do
	case $v in */grown|*/replaced) ;; *) qemu-img info -U $v | grep -v '^disk size\|^ *refcount';; esac
done
sha256sum machines/*.iso
if [ -e machines/copy ]; then qemu-img compare -U machines/copy theirs/base; fi`) +
		n.switchLook()
}

// switchLook returns what the switch has.
func (n *node) switchLook() string {
	n.Helper()
	lines := strings.SplitAfter(n.sw.Vsctl(n, "--format=csv", "--columns=name,tag,trunks,vlan_mode", "list", "port")+
		n.sw.Vsctl(n, "--format=csv", "--columns=name,fail_mode,datapath_type", "list", "bridge")+
		n.sw.Vsctl(n, "--format=csv", "--columns=name,type", "list", "interface"), "\n")
	slices.Sort(lines)
	all := strings.Join(lines, "")
	for bridge := range strings.FieldsSeq(n.sw.Vsctl(n, "list-br")) {
		all += bridge + ": " + strings.Join(strings.Fields(n.sw.Vsctl(n, "list-ports", bridge)), " ") + "\n"
	}
	return all
}

// A blow is what ends an apply.
type blow string

const (
	atPoint  blow = "converge is killed at a point"
	inCall   blow = "converge is killed in a call"
	libvirtd blow = "libvirtd is killed in a call"
)

var blows = []blow{atPoint, inCall, libvirtd}

// An end is how the run of a round ends.
type end string

const (
	resumed  end = "applied by resume"
	rolled   end = "rolled back"
	reverted end = "a failed one reverted by resume"
)

var ends = []end{resumed, rolled, reverted}

// Wherever an apply on a real node is killed, or its libvirtd is, the node comes to the one or the other revision, as other clients see
// it, and what others have there stays.
func TestTortureKilledOnNode(t *testing.T) {
	t.Parallel()
	if !torture.Full() {
		t.Skip("it takes minutes, mostly of waiting: set CONVERGE_TORTURE=push")
	}
	kills, runs := torture.Cover(t, "what was killed", list(blows)), torture.Cover(t, "how runs ended", list(ends))
	var mu sync.Mutex
	rounds, again := 0, 0
	t.Cleanup(func() {
		torture.Report(t, "A", "real nodes with libvirt and Open vSwitch: %d rounds: %s, and %d kills of a recovery; %s: each node had the one or the other revision, and what others have",
			rounds, kills, again, runs)
	})
	for lane := range torture.Scale(0, 3, 6) { // they wait for what a killed process may still have under way; to learn how a node goes takes as long as four rounds
		t.Run(fmt.Sprint(lane), func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			defer n.remove()
			theirs := n.theirs()
			least := torture.Scale(0, 4, 40)
			for i := 0; i < least || len(kills.Missing())+len(runs.Missing()) > 0 && i < 4*least; i++ {
				r := n.draw(2*lane+i, rand.New(rand.NewPCG(uint64(lane), uint64(i))))
				if err := n.round(r); err != nil {
					t.Fatalf("round %d, %s: %v\n%s", i, r, err, n.report())
				}
				if got := n.theirs(); got != theirs {
					t.Fatalf("round %d, %s: what others have changed:\n%s\n%s", i, r, difference(theirs, got), n.report())
				}
				n.said = nil
				if r.hit {
					kills.Reach(string(r.blow))
				}
				runs.Reach(string(r.end))
				mu.Lock()
				rounds++
				again += r.again
				mu.Unlock()
				t.Logf("round %d, %s", i, r)
			}
		})
	}
}

func list[S ~string](all []S) (texts []string) {
	for _, s := range all {
		texts = append(texts, string(s))
	}
	return texts
}

// newNode makes a node with the first revision, after it had the second one, and learns how each change of it goes.
func newNode(t *testing.T) *node {
	n := &node{T: t, host: libvirttest.Start(t), sw: ovstest.Start(t), ways: map[string]*way{}, want: map[bool]string{}}
	dir, err := os.MkdirTemp(scratch, "node")
	if err != nil {
		t.Fatal(err)
	}
	n.site = site{dir: dir, history: &history{marks: map[place]string{}}}
	n.write("converge.yaml", fmt.Appendf(nil, "nodes: {n: {ovs: %q, libvirt: %q}}\nsecrets: {dir: secrets}\n", n.sw.Endpoint, n.host.URI()))
	n.must(os.Mkdir(filepath.Join(dir, "secrets"), 0o700))
	n.write("secrets/user-data", []byte("#cloud-config\n"))
	n.others()
	n.plan(false, 0, false)
	n.must(n.site.must(0, "apply", "plan"))
	n.want[false] = n.shows()
	for _, w := range []struct {
		second, fails bool
		back, exit    int
	}{{true, true, 0, 3}, {true, false, 0, 0}, {false, false, 1, 0}} {
		n.plan(w.second, w.back, w.fails)
		p, err := n.apply("")
		n.must(err)
		if p.code() != w.exit {
			t.Fatalf("without a kill it ends with %d, want %d:\n%s", p.code(), w.exit, p.report())
		}
		passed := map[string]int{}
		for _, point := range p.passed() {
			passed[point]++
		}
		n.ways[wayOf(w.second, w.fails)] = &way{w.exit, passed}
		n.must(n.site.must(0, "release", "-all"))
		now := n.shows()
		if w.exit == 0 && w.second {
			n.want[true] = now
			continue
		}
		if now != n.want[false] {
			t.Fatalf("without a kill the first revision is not as it was:\n%s\n%s", difference(n.want[false], now), n.report())
		}
	}
	n.back = 1
	n.said = nil
	return n
}

func wayOf(second, fails bool) string { return fmt.Sprint(second, fails) }

func (n *node) write(name string, content []byte) {
	n.Helper()
	n.must(os.WriteFile(filepath.Join(n.dir, name), content, 0o600))
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatalf("%v\n%s", err, n.report())
	}
}

// plan saves the plan for a revision.
func (n *node) plan(second bool, back int, fails bool) *plan.Plan {
	n.Helper()
	n.write("document.json", n.document(second, back, fails))
	n.must(n.site.must(0, "plan", "-out=plan", "document.json"))
	data, err := os.ReadFile(filepath.Join(n.dir, "plan"))
	n.must(err)
	saved, err := plan.DecodeFile(data)
	n.must(err)
	n.approve = nil
	if len(saved.Plan.Irreversible()) > 0 {
		n.approve = []string{"-approve=" + saved.Plan.Approval()}
	}
	return saved.Plan
}

// A round is one change of the revision during which something is killed.
type round struct {
	blow    blow
	end     end
	rule    string        // of the apply
	after   time.Duration // in a call: when after it has begun
	flags   []string
	recover string // the rule of the first recovery

	hit   bool // something was killed
	again int  // how often the recovery was
}

func (r *round) String() string {
	return fmt.Sprintf("%s (%s, after %s, %s), %s", r.blow, r.rule, r.after, r.flags, r.end)
}

// draw draws a round.
func (n *node) draw(number int, r *rand.Rand) *round {
	d := &round{blow: blows[number%len(blows)], end: []end{resumed, rolled}[r.IntN(2)]}
	if !n.second {
		d.end = ends[(number/2)%len(ends)]
	}
	w := n.ways[wayOf(!n.second, d.end == reverted)]
	var points []string
	for _, p := range failpoint.Points {
		edge := strings.HasPrefix(p, "call.") || strings.HasPrefix(p, "undo.")
		if w.points[p] > 0 && (d.blow == atPoint || edge && strings.HasSuffix(p, ".before") && p != "call.observe.before") {
			points = append(points, p)
		}
	}
	at := points[r.IntN(len(points))]
	act := "stop"
	if d.blow == atPoint {
		act = "kill"
	}
	d.rule = fmt.Sprintf("%s:%d=%s", at, 1+r.IntN(w.points[at]), act)
	d.after = time.Duration(r.IntN(150)) * time.Millisecond
	d.flags = []string{fmt.Sprintf("-parallelism=%d", []int{1, 3, 10}[r.IntN(3)])}
	if r.IntN(2) == 0 {
		again := []string{"call.observe.after", "call.create.before", "call.create.after", "undo.delete.after", "undo.update.before", "journal.outcome.before", "settle.after", "verify.before", "journal.end.before"}
		d.recover = fmt.Sprintf("%s:%d=kill", again[r.IntN(len(again))], 1+r.IntN(3))
	}
	return d
}

// round changes the revision, and checks where the node is in the end.
func (n *node) round(d *round) error {
	second, back := !n.second, n.back
	if !second {
		back++
	}
	t := &template{plan: n.plan(second, back, d.end == reverted), exit: n.ways[wayOf(second, d.end == reverted)].exit}
	n.flags = d.flags
	first, err := n.strike(d)
	if err != nil {
		return err
	}
	passed := first.passed()
	if d.end == rolled && (!slices.Contains(passed, "run.open.after") || slices.Contains(passed, "journal.no-return.before")) {
		d.end = resumed // there is nothing to roll back, or what cannot be undone was begun
	}
	rule := d.recover
	for ended := false; !ended; rule = "" {
		var p *process
		if d.end == rolled {
			p, ended, err = n.rollback(t, rule)
		} else {
			p, ended, err = n.recovery(t, rule)
		}
		if err != nil {
			return err
		}
		if !ended && p.killed() {
			d.again++
		}
	}
	if d.end == resumed {
		n.second, n.back = second, back
	}
	if err := n.site.must(0, "release", "-all"); err != nil {
		return err
	}
	return n.reached()
}

// strike applies the plan until it has ended or is killed.
func (n *node) strike(d *round) (*process, error) {
	if d.blow == atPoint {
		p, err := n.apply(d.rule)
		d.hit = err == nil && p.killed()
		return p, err
	}
	p, err := start(n.dir, d.rule, slices.Concat([]string{"apply"}, n.flags, n.approve, []string{"plan"})...)
	if err != nil {
		return nil, err
	}
	defer func() { n.said = append(n.said, p.report()) }()
	stopped, err := p.next()
	if err != nil || !stopped {
		return p, err
	}
	if err := p.wake(); err != nil {
		return nil, err
	}
	time.Sleep(d.after) // how far the call has got by then is what is tested
	if d.hit = true; d.blow == inCall {
		if err := syscall.Kill(p.cmd.Process.Pid, syscall.SIGKILL); err != nil {
			return nil, err
		}
	} else {
		n.host.Kill(n)
		n.host.Restart(n)
	}
	_, err = p.next()
	return p, err
}

// rollback rolls back the run of a plan, as often as that is killed. It reports whether it has ended.
func (n *node) rollback(t *template, rule string) (p *process, ended bool, err error) {
	var run state.Run
	if err := n.site.look(func(ctx context.Context, store *state.Store) error {
		run, _, err = last(ctx, store, t.plan)
		return err
	}); err != nil {
		return nil, false, err
	}
	if run.Status == state.RunRolledBack || run.Status == state.RunReverted {
		return nil, true, nil
	}
	if p, err = n.run(rule, "rollback", "-auto-approve", run.ID); err != nil || p.killed() {
		return p, false, err
	}
	if p.code() != 0 {
		err = fmt.Errorf("the rollback ended with %d", p.code())
	}
	return p, true, err
}

// reached checks that the node has its revision, all of it and nothing else.
func (n *node) reached() error {
	n.Helper()
	if now := n.shows(); now != n.want[n.second] {
		return fmt.Errorf("the node has not its revision (second: %t):\n%s", n.second, difference(n.want[n.second], now))
	}
	for name, want := range map[string]string{
		"grown":    fmt.Sprintf("%d raw", (1+n.back)*mebibyte),
		"replaced": fmt.Sprintf("%d %s", mebibyte, []string{"raw", "qcow2"}[n.back%2]),
	} {
		got := n.sh("qemu-img info -U machines/" + name)
		form := regexp.MustCompile(`(?s)file format: (\w+)\n.*\((\d+) bytes\)`).FindStringSubmatch(got)
		if form == nil || form[2]+" "+form[1] != want {
			return fmt.Errorf("volume %s is not %s:\n%s", name, want, got)
		}
	}
	n.write("document.json", n.document(n.second, n.back, false))
	return n.settled("document.json")
}
