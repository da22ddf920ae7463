package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"converge.dev/converge/internal/torture"
)

const firstSite = "../docs/first-site.md"

// The machines of the page, in the order in which they get their addresses.
var firstNodes = []string{"gpu-01", "gpu-02"}

// A block is what a page has its reader copy into the shells of some machines at once.
type block struct {
	line    int      // of its fence in the page
	hosts   []string // none: it is not run
	script  string
	printed *string // by each of the machines; nil: the page does not say
}

// blocks returns those of a page. The line above each names its machines: "On site:", "On gpu-01 and gpu-02:"; or it is
// "Not run by the test:". What the block prints may follow it, as text.
func blocks(page string) (found []block, err error) {
	on := regexp.MustCompile(`^On ([a-z0-9-]+(?:(?:, | and )[a-z0-9-]+)*):$`)
	const notRun = "Not run by the test:"
	var above string // the last line with anything in it
	var kind string  // of the block that the line is in
	var text strings.Builder
	fence, follows := 0, false // follows: only what the last block prints may come without a line above
	for i, line := range strings.Split(page, "\n") {
		n := i + 1
		info, fenced := strings.CutPrefix(line, "```")
		switch {
		case fence > 0 && line == "```":
			switch kind {
			case "sh":
				found[len(found)-1].script = text.String()
				follows = true
			case "text":
				printed := text.String()
				found[len(found)-1].printed = &printed
				follows = false
			}
			fence, above = 0, ""
		case fence > 0:
			text.WriteString(line + "\n")
		case fenced && info == "sh":
			b := block{line: n}
			if m := on.FindStringSubmatch(above); m != nil {
				b.hosts = strings.FieldsFunc(strings.ReplaceAll(m[1], " and ", ","), func(r rune) bool { return r == ',' || r == ' ' })
			} else if above != notRun {
				return nil, fmt.Errorf("line %d: the line above the block is %q: say where it is run, or %q", n, above, notRun)
			}
			found = append(found, b)
			fence, kind = n, "sh"
			text.Reset()
		case fenced && info == "text":
			if !follows || above != "" {
				return nil, fmt.Errorf("line %d: what is printed does not follow what prints it", n)
			}
			fence, kind = n, "text"
			text.Reset()
		case strings.Contains(line, "```"):
			return nil, fmt.Errorf("line %d: %q begins a block that is neither sh nor text", n, line)
		case strings.TrimSpace(line) != "":
			above = line
		}
	}
	if fence > 0 {
		return nil, fmt.Errorf("line %d: the block does not end", fence)
	}
	return found, nil
}

// varying is what differs from run to run, and what it is compared as. The page says so to its reader.
var varying = []struct {
	re *regexp.Regexp
	as string
}{
	{regexp.MustCompile(`\b\d{8}-\d{6}\.\d{3}-[0-9a-f]{6}\b`), "RUN"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z| UTC)?`), "TIME"},
	{regexp.MustCompile(`\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`), "UUID"},
	{regexp.MustCompile(`\b[0-9a-f]{16,64}\b`), "DIGEST"},
	{regexp.MustCompile(`\b(?:\d+h)?(?:\d+m)?\d+(?:\.\d+)?(?:h|m|s|ms|µs)\b`), "DURATION"},
	{regexp.MustCompile(`\(revision \d+\)`), "REVISION"},
	{regexp.MustCompile(`(?m) +`), " "}, // the width of a column depends on the above
	{regexp.MustCompile(`(?m) $`), ""},
}

// alike returns what a text says apart from what varies.
func alike(text string) string {
	for _, v := range varying {
		text = v.re.ReplaceAllString(text, v.as)
	}
	return strings.TrimSpace(text) + "\n"
}

// unlike returns how what was printed differs from what a page says. A line with nothing but … stands for any number of lines.
func unlike(said, printed string) string {
	said, printed = alike(said), alike(printed)
	var re strings.Builder
	for _, line := range strings.SplitAfter(said, "\n") {
		if line == "…\n" {
			re.WriteString(`(?:.*\n)*?`)
		} else {
			re.WriteString(regexp.QuoteMeta(line))
		}
	}
	if regexp.MustCompile(`^` + re.String() + `$`).MatchString(printed) {
		return ""
	}
	return cmp.Diff(said, printed)
}

// The page has blocks for all three machines, and what is not run is one block.
func TestFirstSitePage(t *testing.T) {
	page, err := os.ReadFile(firstSite)
	if err != nil {
		t.Fatal(err)
	}
	found, err := blocks(string(page))
	if err != nil {
		t.Fatalf("%s: %v", firstSite, err)
	}
	on := map[string]int{}
	for _, b := range found {
		for _, h := range b.hosts {
			on[h]++
		}
		if len(b.hosts) == 0 {
			on["nowhere"]++
		}
	}
	if on[siteHost] < 5 || on["gpu-01"] < 5 || on["gpu-02"] < 5 || on["nowhere"] != 1 || len(on) != 4 {
		t.Errorf("%s has blocks on %v", firstSite, on)
	}
}

// What is wrong with a page is found.
func TestFirstSiteWrongPages(t *testing.T) {
	const good = "On site, gpu-01 and gpu-02:\n\n```sh\ntrue\n```\n\n```text\n```\n\nNot run by the test:\n\n```sh\nfalse\n```\n"
	found, err := blocks(good)
	if err != nil || len(found) != 2 || !slices.Equal(found[0].hosts, []string{"site", "gpu-01", "gpu-02"}) || found[0].script != "true\n" || found[0].printed == nil ||
		found[1].hosts != nil || found[1].script != "false\n" || found[1].printed != nil {
		t.Fatalf("%+v, %v", found, err)
	}
	for _, change := range [][]string{
		{"On site, gpu-01 and gpu-02:", "Then:"},
		{"On site, gpu-01 and gpu-02:", "On site:\n\nIt is quick."},
		{"Not run by the test:\n", ""},
		{"```sh\ntrue", "```\ntrue"},
		{"```sh\ntrue", "  ```sh\ntrue"},
		{"```sh\ntrue", "```yaml\ntrue"},
		{"```\n\n```text", "```\n\nAnd so on.\n\n```text"},
		{"false\n```\n", "false\n"},
	} {
		if found, err := blocks(strings.Replace(good, change[0], change[1], 1)); err == nil {
			t.Errorf("%q instead of %q: %+v", change[1], change[0], found)
		}
	}
	for _, c := range []struct {
		said, printed string
		same          bool
	}{
		{"ok  1\n", "ok 1\n", true},
		{"20261129-190215.415-52c1f0 38ms\n", "20270101-000000.000-ffffff   1m2.5s\n", true},
		{"a\n…\nd\n", "a\nb\nc\nd\n", true},
		{"a\n…\nd\n", "a\nd\n", true},
		{"a\n…\nd\n", "a\nb\n", false},
		{"a\n", "a\nb\n", false},
		{"ok\n", "not ok\n", false},
		{"1 to add\n", "2 to add\n", false},
		{"", "a\n", false},
	} {
		if d := unlike(c.said, c.printed); (d == "") != c.same {
			t.Errorf("%q is said and %q printed: %s", c.said, c.printed, d)
		}
	}
}

// tools are the programs that a reader of the page has: coreutils, and what the page says it needs.
var tools = append(strings.Fields("bash sh cat chmod cp date env grep head hostname install ls mkdir mv printf pwd rm sed seq sleep sort stat tail tee test touch tr true uname wc"),
	"etcd", "etcdctl", "curl", "ip", "ovs-vsctl")

// machine is what a machine is made of before its reader comes: nothing of this machine can be written to, and what its packages
// would have started runs. $1 is the directory that all machines see, $2 the name of the machine, $3 whether it has a switch.
const machine = `set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /mnt
mkdir /mnt/net /mnt/etc /mnt/etcw /mnt/local /mnt/localw /mnt/tools
mount --bind "$1" /mnt/net
mount -t overlay overlay -o lowerdir=/etc,upperdir=/mnt/etc,workdir=/mnt/etcw /etc
mount -t overlay overlay -o lowerdir=/usr/local,upperdir=/mnt/local,workdir=/mnt/localw /usr/local
mount --bind "$1/$2" /root
for dir in /run /var/lib /var/log /home /opt /tmp; do mount -t tmpfs tmpfs $dir; done
echo "$2" > /proc/sys/kernel/hostname
cp /mnt/net/hosts /etc/hosts
for tool in $4; do ln -s "$(command -v $tool)" /mnt/tools/; done
cat > /mnt/tools/scp <<'END'
#!/bin/sh
# It copies FILE... root@HOST:, as scp does to the home directory of root on another machine.
set -e
for to; do :; done
case $to in root@*:) ;; *) echo "scp: $to is not root@HOST:" >&2; exit 1 ;; esac
to=${to#root@}
while [ $# -gt 1 ]; do cp -- "$1" "/mnt/net/${to%:}/"; shift; done
END
chmod 755 /mnt/tools/scp
if [ "$3" = switch ]; then
	mkdir /run/openvswitch /var/lib/openvswitch /var/log/openvswitch
	ovsdb-tool create /var/lib/openvswitch/conf.db /usr/share/openvswitch/vswitch.ovsschema
	ovsdb-server /var/lib/openvswitch/conf.db --remote=punix:/run/openvswitch/db.sock --pidfile=/run/openvswitch/ovsdb-server.pid --detach --log-file=/var/log/openvswitch/ovsdb-server.log
	ovs-vsctl --no-wait init
	ovs-vswitchd unix:/run/openvswitch/db.sock --disable-system --pidfile=/run/openvswitch/ovs-vswitchd.pid --detach --log-file=/var/log/openvswitch/ovs-vswitchd.log
fi
`

// sealed makes the rest of the machine read-only.
const sealed = "mount -o remount,bind,ro /\nPATH=/usr/local/bin:/mnt/tools\n"

// A shell is that of a reader at a machine, which stays while he goes through the page.
type shell struct {
	s     *site
	host  string
	dir   string // which all machines see
	cmd   *exec.Cmd
	say   *os.File
	tells *os.File       // a line for each script that has ended well
	ended *bufio.Scanner // of tells
	n     int
}

// shell opens the shell of a machine in its network namespace, in namespaces of its own for mounts and processes: when it ends, so
// does all that was started in it.
func (h *hosts) shell(host, dir string, args ...string) *shell {
	s := h.s
	s.Helper()
	in, say, err := os.Pipe()
	s.must(err)
	tells, tell, err := os.Pipe()
	s.must(err)
	// What is read is one line at a time, so that what the lines start finds nothing there.
	sh := &shell{s: s, host: host, dir: dir, say: say, tells: tells, ended: bufio.NewScanner(tells)}
	sh.cmd = exec.CommandContext(s.ctx, "ip", append([]string{"netns", "exec", h.name(host), "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "bash", "--norc", "-s"}, args...)...)
	sh.cmd.Stdin, sh.cmd.ExtraFiles = in, []*os.File{tell}
	var problems transcript
	sh.cmd.Stdout, sh.cmd.Stderr = &problems, &problems
	sh.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/root", "USER=root", "LANG=C.UTF-8"}
	s.must(sh.cmd.Start())
	in.Close()
	tell.Close()
	s.Cleanup(func() {
		say.Close()
		_ = sh.cmd.Process.Kill() // a script may be waiting
		_ = sh.cmd.Wait()
		tells.Close()
		if said := problems.String(); s.Failed() && said != "" {
			s.Logf("the shell of %s said:\n%s", host, said)
		}
	})
	return sh
}

// run has a script run to its end, and returns what it printed. ok is false when a command failed, which ends
// the shell, or when it takes too long.
func (sh *shell) run(script string) (printed string, ok bool) {
	sh.s.Helper()
	sh.n++
	name := fmt.Sprintf("%s-%d", sh.host, sh.n)
	sh.s.must(os.WriteFile(filepath.Join(sh.dir, name), []byte("set -e\n"+script), 0o600))
	at := sh.dir // where the shell finds the directory: at first where it is
	if sh.n > 1 {
		at = "/mnt/net"
	}
	sh.s.must(sh.tells.SetReadDeadline(time.Now().Add(torture.Patience)))
	_, err := fmt.Fprintf(sh.say, ". %[1]s/%[2]s 3>&- </dev/null >%[1]s/%[2]s.out 2>&1; echo %[3]d >&3\n", at, name, sh.n)
	ok = err == nil && sh.ended.Scan() && sh.ended.Text() == strconv.Itoa(sh.n)
	out, err := os.ReadFile(filepath.Join(sh.dir, name+".out"))
	sh.s.must(err)
	return string(out), ok
}

// A reader of the page who has three fresh machines, and copies each block as it stands into the machine that the line above it
// names, has a site of two nodes, and in the end three machines as fresh as before. This belongs to the nightly figures.
func TestTortureFirstSite(t *testing.T) {
	t.Parallel()
	if torture.Scale(0, 0, 1) == 0 {
		return
	}
	if !realRequired() {
		t.Skip("it needs root, etcd and Open vSwitch; CONVERGE_REAL=1 runs it")
	}
	for name, pkg := range map[string]string{"etcd": "etcd-server", "etcdctl": "etcd-client", "ovs-vswitchd": "openvswitch-switch", "curl": "curl"} {
		program(t, name, pkg)
	}
	page, err := os.ReadFile(firstSite)
	if err != nil {
		t.Fatal(err)
	}
	found, err := blocks(string(page))
	if err != nil {
		t.Fatalf("%s: %v", firstSite, err)
	}
	s := newSite(t)
	h := newHosts(s)
	dir := t.TempDir()
	names := "127.0.0.1 localhost\n" + siteAddress + " " + siteHost + "\n"
	for i, node := range firstNodes {
		h.plug(node)
		address := h.address(i + 1)
		h.ip(node, "link set eth0 up", "addr add "+address+" dev eth0")
		names += strings.TrimSuffix(address, "/24") + " " + node + "\n"
	}
	s.must(os.WriteFile(filepath.Join(dir, "hosts"), []byte(names), 0o644))
	program, err := os.ReadFile(binary)
	s.must(err)
	shells, before := map[string]*shell{}, map[string]string{}
	for _, host := range append([]string{siteHost}, firstNodes...) {
		s.must(os.Mkdir(filepath.Join(dir, host), 0o700))
		which := "switch"
		if host == siteHost {
			which = "none"
		}
		sh := h.shell(host, dir, dir, host, which, strings.Join(tools, " "))
		if out, ok := sh.run(machine); !ok {
			t.Fatalf("%s cannot be made:\n%s", host, out)
		}
		if out, ok := sh.run(sealed); !ok { // a script of its own: nothing here may be open for writing
			t.Fatalf("%s cannot be sealed:\n%s", host, out)
		}
		shells[host] = sh
		before[host] = sh.state()
		s.must(os.WriteFile(filepath.Join(dir, host, "converge"), program, 0o755)) // the block that is not run brings it
	}
	for _, b := range found {
		for _, host := range b.hosts {
			sh := shells[host]
			if sh == nil {
				t.Fatalf("%s:%d: there is no machine %q", firstSite, b.line, host)
			}
			printed, ok := sh.run(b.script)
			if !ok {
				t.Fatalf("%s:%d: on %s a command fails, or does not end:\n%s\n%s\n%s", firstSite, b.line, host, b.script, printed, sh.logs())
			}
			t.Logf("%s:%d: on %s:\n%s%s", firstSite, b.line, host, b.script, printed)
			if b.printed != nil {
				if d := unlike(*b.printed, printed); d != "" {
					t.Errorf("%s:%d: on %s this prints something else (-page +printed):\n%s\n%s", firstSite, b.line, host, b.script, d)
				}
			}
		}
	}
	for host, was := range before {
		if is := shells[host].state(); is != was {
			t.Errorf("%s is not as it was before the first block (-was +is):\n%s", host, cmp.Diff(was, is))
		}
	}
}

// state is what a machine holds: its processes, files, links and switch.
func (sh *shell) state() string {
	sh.s.Helper()
	out, ok := sh.run(`cd /root
(
	PATH=/usr/sbin:/usr/bin:/sbin:/bin
	for p in /proc/[0-9]*; do
		name= && read -r name < $p/comm || true
		case $name in bash | sort | "") ;; *) echo "$name" ;; esac # those that look
	done | sort
	find /root /etc /usr/local /home /opt -xdev -newer /mnt/net/hosts ! -type d ! -path /etc/hosts | sort
	ls -A /root /var/lib /run
	ip -br link | sed 's/@.*//; s/ .*//' | sort
	[ ! -S /run/openvswitch/db.sock ] || ovs-vsctl show | sed 1d
)
PATH=/usr/local/bin:/mnt/tools
`)
	if !ok {
		sh.s.Fatalf("%s cannot be looked at:\n%s", sh.host, out)
	}
	return out
}

// logs returns what the services of a machine have logged, for the report of a test that fails.
func (sh *shell) logs() string {
	var all strings.Builder
	logs, _ := filepath.Glob(filepath.Join(sh.dir, "*", "*", "*.log"))
	for _, l := range logs {
		text, _ := os.ReadFile(l)
		fmt.Fprintf(&all, "%s:\n%s\n", l, text)
	}
	return all.String()
}
