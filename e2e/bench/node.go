package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"converge.dev/converge/internal/libvirttest"
	"converge.dev/converge/internal/ovstest"
	"converge.dev/converge/providers"
	"converge.dev/converge/schema"
)

// siteID is the identity of the sites of a node.
const siteID = "7c0d1f5e-2a34-4f6b-9c8d-1e2f3a4b5c6d"

const (
	diskSize   = 1 << 30  // of a volume; its file is sparse
	memorySize = 64 << 20 // of a machine
)

func numbered(what string, i int) string { return fmt.Sprintf("%s-%04d", what, i) }
func poolPath(dir string, i int) string  { return filepath.Join(dir, numbered("pool", i)) }
func hardware(i int) string              { return fmt.Sprintf("52:54:00:00:%02x:%02x", i/256, i%256) }

// nodes returns the document of a site with one node.
func nodes(kinds map[string]any) []byte {
	doc, _ := json.Marshal(map[string]any{
		"apiVersion": "converge.dev/v1", "site": map[string]any{"name": "bench", "id": siteID}, "nodes": map[string]any{"n1": kinds},
	})
	return doc
}

// virtual returns a document of n networks, pools, volumes and machines. The networks lead nowhere and have no DHCP, so that none starts
// a program, and name their bridges, because libvirt can choose one name twice when it starts several at the same time. The machines are
// only defined.
func virtual(n int, dir string) []byte {
	networks, pools, volumes, domains := map[string]any{}, map[string]any{}, map[string]any{}, map[string]any{}
	for i := range n {
		networks[numbered("net", i)] = map[string]any{"bridge": numbered("br", i), "autostart": false}
		pools[numbered("pool", i)] = map[string]any{"path": poolPath(dir, i), "autostart": false}
		volumes[numbered("vol", i)] = map[string]any{"pool": numbered("pool", i), "capacity": diskSize}
		domains[numbered("vm", i)] = map[string]any{
			"type": "qemu", "state": "stopped", "autostart": false, "vcpus": 1, "memory": memorySize,
			"disks":      []any{map[string]any{"target": "vda", "volume": numbered("vol", i)}},
			"interfaces": []any{map[string]any{"mac": hardware(i), "network": numbered("net", i)}},
		}
	}
	return nodes(map[string]any{"libvirt": map[string]any{"network": networks, "pool": pools, "volume": volumes, "domain": domains}})
}

// ports returns a document of a switch, and of as many machines of the test driver.
func ports(bridges, each, machines int) []byte {
	b, p, d := map[string]any{}, map[string]any{}, map[string]any{}
	for i := range bridges {
		b[numbered("br", i)] = map[string]any{"datapath_type": ovstest.Datapath}
		for j := range each {
			p[numbered("p", i*each+j)] = map[string]any{"bridge": numbered("br", i), "tag": 1 + j, "interface": map[string]any{"type": "internal"}}
		}
	}
	for i := range machines {
		d[numbered("vm", i)] = map[string]any{"type": "qemu", "autostart": false, "vcpus": 1, "memory": memorySize}
	}
	return nodes(map[string]any{"ovs": map[string]any{"bridge": b, "port": p}, "libvirt": map[string]any{"domain": d}})
}

// remembered returns the file of a test driver that begins with the machines of ports. It keeps what it has in the memory of each
// process, so they have to be there already, with the marks of the site.
func remembered(machines int) []byte {
	var file strings.Builder
	file.WriteString("<node>\n")
	for i := range machines {
		ref := schema.Ref{Scope: "n1", Kind: "libvirt.domain", Name: numbered("vm", i)}
		fmt.Fprintf(&file, `<domain type='qemu'><name>%s</name><uuid>%s-%012d</uuid>
<metadata><converge:domain xmlns:converge="https://converge.dev/libvirt" mark="%s" stop_timeout="60"/></metadata>
<memory unit='b'>%d</memory><vcpu>1</vcpu><os><type>hvm</type></os></domain>
`, ref.Name, siteID[:23], i, providers.Mark{Site: siteID, Ref: ref, Incarnation: 1}, memorySize)
	}
	file.WriteString("</node>\n")
	return []byte(file.String())
}

// put creates a folder with a document and the configuration of its node.
func (b *bencher) put(name string, document []byte, settings string) (string, error) {
	at := filepath.Join(b.dir, name)
	return at, errors.Join(
		os.MkdirAll(at, 0o700),
		os.WriteFile(filepath.Join(at, "converge.yaml"), []byte("nodes: {n1: {"+settings+"}}\n"), 0o600),
		os.WriteFile(filepath.Join(at, "site.json"), document, 0o600),
	)
}

var errNotDialed = errors.New("it needs the package libvirt0, and this program built with cgo and the tag libvirt_dlopen")

// absent leaves rows out where a machine cannot have their daemons. That is an error where budgets are judged.
func absent(rows string, why error) error {
	if *strict || os.Getenv(libvirttest.Required) != "" {
		return fmt.Errorf("%s cannot be measured: %w", rows, why)
	}
	fmt.Fprintf(os.Stderr, "left out: %s: %v\n", rows, why)
	return nil
}

// virtualization creates and deletes things of a libvirtd that has a host of its own. The floor makes the same calls by the bare
// library, alternately with converge and on the same libvirtd.
func (b *bencher) virtualization() error {
	if !dialed || !libvirttest.Installed() {
		return absent("libvirt", errNotDialed)
	}
	host, err := libvirttest.Open()
	if errors.Is(err, libvirttest.ErrMissing) {
		return absent("libvirt", err)
	}
	if err != nil {
		return err
	}
	err = measure([]scale{{n: *node}}, func(s scale, round int) error { return b.virtualized(host, s.n, round) })
	return errors.Join(err, host.Close())
}

func (b *bencher) virtualized(host *libvirttest.Host, n, round int) error {
	dir := filepath.Join(host.Dir, "srv")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	created, err := b.floor(b.dir, "define", host.URI(), fmt.Sprint(n), dir)
	if err != nil {
		return err
	}
	deleted, err := b.floor(b.dir, "remove", host.URI(), fmt.Sprint(n), dir)
	if err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil { // the directories of pools stay
		return err
	}
	at, err := b.put(fmt.Sprint("libvirt-", round), virtual(n, dir), fmt.Sprintf("libvirt: %q", host.URI()))
	if err != nil {
		return err
	}
	apply, err := b.run(at, 0, "apply", "-auto-approve", "-quiet", "site.json")
	if err != nil {
		return err
	}
	b.row(1.15, "apply %d each of network, pool, volume, domain on libvirt", n).time(apply.wall, created.Took)

	if err := os.CopyFS(filepath.Join(at, "floor"), os.DirFS(filepath.Join(at, store))); err != nil {
		return err
	}
	for range 3 { // it is short
		plan, err := b.noop(at)
		if err != nil {
			return err
		}
		floor, err := execute(b.self, at, 0, "-floor=observe", host.URI(), "site.json", "floor")
		if err != nil {
			return err
		}
		b.within(0.3, "no-op plan of %d on libvirt", 4*n).time(plan.wall, floor.wall)
	}

	asked, err := b.run(at, 7, "destroy", "-auto-approve", "-quiet")
	if err != nil {
		return err
	}
	destroy, err := b.run(at, 0, "destroy", approval.FindString(asked.said), "-quiet")
	if err != nil {
		return err
	}
	b.row(1.05, "destroy %d each of network, pool, volume, domain on libvirt", n).time(destroy.wall, deleted.Took)
	return os.RemoveAll(dir)
}

// approval is in the output of a destroy that needs one.
var approval = regexp.MustCompile(`-approve=[0-9a-f]+`)

// noop makes a plan that must have no changes.
func (b *bencher) noop(at string) (cost, error) {
	c, err := b.run(at, 0, "plan", "-quiet", "site.json")
	if err == nil && !strings.Contains(c.said, unchanged) {
		err = fmt.Errorf("that is no plan without changes:\n%s", c.said)
	}
	return c, err
}

// switching plans a node with a real Open vSwitch and machines, and waits for a watch to tell what another client has changed there.
func (b *bencher) switching() error {
	if !dialed || !libvirttest.Installed() {
		return absent("Open vSwitch", errNotDialed)
	}
	ovs, err := ovstest.Open()
	if errors.Is(err, ovstest.ErrMissing) {
		return absent("Open vSwitch", err)
	}
	if err != nil {
		return err
	}
	return errors.Join(b.switched(ovs), ovs.Close())
}

func (b *bencher) switched(ovs *ovstest.Switch) error {
	bridges, perBridge, machines := max(1, *node/5), max(1, *node/2), 2*(*node)
	file := filepath.Join(b.dir, "machines.xml")
	driver := "test://" + file
	at, err := b.put("switch", ports(bridges, perBridge, machines), fmt.Sprintf("ovs: %q, libvirt: %q", ovs.Endpoint, driver))
	if err == nil {
		err = os.WriteFile(file, remembered(machines), 0o600)
	}
	if err == nil {
		_, err = b.run(at, 0, "apply", "-auto-approve", "-quiet", "site.json")
	}
	if err == nil {
		err = os.CopyFS(filepath.Join(at, "floor"), os.DirFS(filepath.Join(at, store)))
	}
	if err != nil {
		return err
	}
	for range 3 * *rounds { // it is short
		plan, err := b.noop(at)
		if err != nil {
			return err
		}
		floor, err := execute("sh", at, 0, "-c", `ovsdb-client dump "$0" >ovs.txt && "$1" -floor=observe "$2" site.json floor`, ovs.Endpoint, b.self, driver)
		if err != nil {
			return err
		}
		b.within(0.3, "no-op plan of %d bridges, %d ports, %d domains", bridges, bridges*perBridge, machines).time(plan.wall, floor.wall)
	}
	return b.told(at, ovs)
}

// told measures from the start of ovs-vsctl until a watch prints what it has changed. The floor is a bare monitor of the column.
func (b *bencher) told(at string, ovs *ovstest.Switch) error {
	port := numbered("p", 0)
	watch, err := b.follow(at, b.converge, "drift", "-watch", "-interval=1h")
	if err != nil {
		return err
	}
	defer watch.end()
	monitor, err := b.follow(at, "ovsdb-client", "-voff", "monitor", "--format=json", ovs.Endpoint, "Port", "tag")
	if err != nil {
		return err
	}
	defer monitor.end()
	if _, err := watch.until("No drift"); err != nil {
		return err
	}
	if _, err := monitor.until("initial"); err != nil {
		return err
	}
	for round := range *rounds {
		tag := fmt.Sprint(3000 + round)
		begin := time.Now()
		if _, err := execute("ovs-vsctl", at, 0, "--timeout=20", "--db="+ovs.Endpoint, "set", "port", port, "tag="+tag); err != nil {
			return err
		}
		seen, err := monitor.until(tag)
		if err != nil {
			return err
		}
		printed, err := watch.until(tag)
		if err != nil {
			return err
		}
		b.within(1, "ovs-vsctl set, until drift -watch tells").time(printed.Sub(begin), seen.Sub(begin))
	}
	return nil
}

// A follower reads what a process prints while it runs.
type follower struct {
	cmd   *exec.Cmd
	lines chan line
	stop  context.CancelFunc
}

type line struct {
	at   time.Time
	text string
}

// follow starts a process that runs until end.
func (b *bencher) follow(at, program string, args ...string) (*follower, error) {
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stderr = at, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		stop()
		return nil, err
	}
	f := &follower{cmd, make(chan line, 1<<16), stop}
	go func() {
		defer close(f.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			f.lines <- line{time.Now(), s.Text()}
		}
	}()
	return f, nil
}

// until returns when the process printed a line that contains a text.
func (f *follower) until(text string) (time.Time, error) {
	var said []string
	late := time.After(time.Minute)
	for {
		select {
		case l, ok := <-f.lines:
			if !ok {
				return time.Time{}, fmt.Errorf("%s ended:\n%s", f.cmd, strings.Join(said, "\n"))
			}
			if strings.Contains(l.text, text) {
				return l.at, nil
			}
			said = append(said, l.text)
		case <-late:
			return time.Time{}, fmt.Errorf("%s does not print %q:\n%s", f.cmd, text, strings.Join(said, "\n"))
		}
	}
}

func (f *follower) end() {
	f.stop()
	for range f.lines { // until it has ended
	}
	_ = f.cmd.Wait()
}
