//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const (
	viewsPage    = "../../docs/plan-views.md"
	viewsPicture = "../../docs/plan-view.svg"
)

// TestPlanViews keeps docs/plan-views.md true: it repeats every capture in it, on terminals of several widths and without
// one.
func TestPlanViews(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"before.cue", "after.cue"} {
		data, err := os.ReadFile(filepath.Join("testdata/views", name))
		if err != nil {
			t.Fatal(err)
		}
		write(name, data)
	}
	write("converge.yaml", []byte("fake: {world: world.json}\n"))
	write("site.json", bigSite(t))
	capture(t, dir, 0, nil, "apply", "-auto-approve", "-quiet", "before.cue")

	noColor := []string{"NO_COLOR=1"}
	var page strings.Builder
	page.WriteString(`# Plan views

The same plan on terminals of three widths and without a terminal, and a large plan as counts. A test repeats and compares
all of it: ` + "`go test ./cmd/converge -run TestPlanViews`; `-update` rewrites this page" + `.

![A plan in colour](plan-view.svg)

The marks show what happens to each line, even without colour: ` + "`+` is added, `-` is removed, `~` changes" + `. Lines without a mark
are unchanged, and are shown for context.
`)
	show := func(title, text string) {
		fmt.Fprintf(&page, "\n## %s\n\n```\n%s```\n", title, text)
	}
	for _, columns := range []int{80, 100, 200} {
		text := capture(t, dir, columns, noColor, "plan", "-quiet", "after.cue")
		fits(t, text, columns)
		show(fmt.Sprintf("A terminal with %d columns and NO_COLOR", columns), text)
	}
	piped := capture(t, dir, 0, nil, "plan", "-quiet", "after.cue")
	if strings.Contains(piped, "\x1b") {
		t.Error("without a terminal there are escape sequences")
	}
	show("Without a terminal: lines are not wrapped", piped)
	show("`-full`: values are not truncated", capture(t, dir, 80, noColor, "plan", "-quiet", "-full", "-target=site/carbide.tenant_keyset/*", "after.cue"))
	show("`-group-by=action`", only(capture(t, dir, 80, noColor, "plan", "-quiet", "-group-by=action", "after.cue"), func(line string) bool {
		return !strings.HasPrefix(line, "     ")
	}))
	show("`-summary`", capture(t, dir, 80, noColor, "plan", "-quiet", "-summary", "after.cue"))
	big := capture(t, dir, 80, noColor, "plan", "-quiet", "-summary", "site.json")
	if n := strings.Count(big, "\n"); n > 24 {
		t.Errorf("10 000 changes take %d lines", n)
	}
	show("`-summary` of 10 000 changes", big)
	same(t, viewsPage, page.String())

	colored := capture(t, dir, 100, nil, "plan", "-quiet", "after.cue")
	same(t, viewsPicture, picture(t, colored, 100))
	if plain := regexp.MustCompile("\x1b\\[[0-9]*m").ReplaceAllString(colored, ""); plain != capture(t, dir, 100, noColor, "plan", "-quiet", "after.cue") {
		t.Error("the text in colour is another than without")
	}
}

// same compares text with a file of the documentation.
func same(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s differs (-want +got); run with -update if that is meant:\n%s", path, d)
	}
}

// fits fails when a line is wider than the terminal.
func fits(t *testing.T, text string, columns int) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > columns {
			t.Errorf("a line of %d columns on %d: %s", n, columns, line)
		}
	}
}

// only returns some of the lines.
func only(text string, keep func(line string) bool) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if keep(line) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// bigSite returns a document of 10 000 resources of a few kinds.
func bigSite(t *testing.T) []byte {
	type object = map[string]any
	tenants, keysets, vpcs, segments, nodes := object{}, object{}, object{}, object{}, object{}
	for i := range 50 {
		tenants[fmt.Sprintf("t%d", i)] = object{}
		keysets[fmt.Sprintf("k%d", i)] = object{"tenant": fmt.Sprintf("t%d", i), "keys": []string{"ssh-ed25519 AAAA"}}
	}
	for i := range 100 {
		vpcs[fmt.Sprintf("v%d", i)] = object{"tenant": fmt.Sprintf("t%d", i/2)}
	}
	for i := range 6000 {
		net := fmt.Sprintf("10.%d.%d.", i/250, i%250)
		segments[fmt.Sprintf("s%d", i)] = object{"vpc": fmt.Sprintf("v%d", i/60), "prefixes": []any{object{"prefix": net + "0/24", "gateway": net + "1"}}}
	}
	for i := range 200 {
		ports := object{}
		for j := range 18 {
			ports[fmt.Sprintf("p%d", j)] = object{"bridge": "br"}
		}
		nodes[fmt.Sprintf("gpu-%03d", i)] = object{"ovs": object{"bridge": object{"br": object{}}, "port": ports}}
	}
	data, err := json.Marshal(object{
		"apiVersion": "converge.dev/v1", "policy": object{"max_destroy": "100%"}, "site": object{"name": "fra1", "id": "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e"}, "nodes": nodes,
		"carbide": object{"tenant": tenants, "tenant_keyset": keysets, "vpc": vpcs, "network_segment": segments},
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// capture returns what converge writes: on a terminal of that many columns, or in a pipe when there are none.
func capture(t *testing.T, dir string, columns int, env []string, args ...string) string {
	t.Helper()
	program, err := exec.LookPath("converge")
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(program, append(args, "-data-dir=store")...)
	c.Dir = dir
	c.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TERM=xterm", "CONVERGE_CLI_ARGS=-eval-timeout=1m -eval-memory=2048"}, env...)
	var said bytes.Buffer
	c.Stderr = &said
	var out []byte
	if columns == 0 {
		out, err = c.Output()
	} else {
		out, err = onTerminal(t, c, columns)
	}
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", args, err, out, said.Bytes())
	}
	return regexp.MustCompile(`-approve=[0-9a-f]{16}`).ReplaceAllString(string(out), "-approve=9b1f27c04de81a35")
}

// onTerminal runs a command whose standard output is a terminal.
func onTerminal(t *testing.T, c *exec.Cmd, columns int) ([]byte, error) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil && os.Getenv("CONVERGE_REAL") != "" {
		t.Fatal("CONVERGE_REAL is set, but there are no terminals here: ", err)
	} else if err != nil {
		t.Skip("there are no terminals here: ", err)
	}
	defer ours.Close()
	fd := int(ours.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: uint16(columns)}); err != nil {
		t.Fatal(err)
	}
	theirs, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout = theirs
	err = c.Start()
	_ = theirs.Close()
	if err != nil {
		return nil, err
	}
	out, _ := io.ReadAll(ours) // reading a terminal that no process has open any more ends with an error
	return bytes.ReplaceAll(out, []byte("\r\n"), []byte("\n")), c.Wait()
}

// picture draws what a terminal shows.
func picture(t *testing.T, text string, columns int) string {
	t.Helper()
	const wide, high = 8.4, 19
	classes := map[string]string{"1": "b", "2": "d", "31": "r", "32": "g", "33": "y", "35": "p", "36": "c"}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="14">
<style>text{fill:#d4d4d4;white-space:pre}.b{font-weight:bold;fill:#fff}.d{fill:#8b949e}.r{fill:#ff7b72}.g{fill:#7ee787}.y{fill:#e3b341}.p{fill:#d2a8ff}.c{fill:#76e3ea}</style>
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
`, float64(columns)*wide+32, len(lines)*high+28)
	for i, line := range lines {
		fmt.Fprintf(&b, `<text x="16" y="%d" xml:space="preserve">`, 28+i*high)
		for j, part := range strings.Split(line, "\x1b[") {
			code, rest, found := strings.Cut(part, "m")
			switch class, known := classes[code]; {
			case j == 0:
				b.WriteString(html.EscapeString(part))
			case found && known:
				fmt.Fprintf(&b, `<tspan class="%s">%s</tspan>`, class, html.EscapeString(rest))
			case found && code == "0":
				b.WriteString(html.EscapeString(rest))
			default:
				t.Fatalf("%q is no colour", part)
			}
		}
		b.WriteString("</text>\n")
	}
	return b.String() + "</svg>\n"
}
