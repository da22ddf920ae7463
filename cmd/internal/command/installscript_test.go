package command

import (
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// An install is a machine below a directory, on which a script is run.
type install struct {
	bench
	root     string
	requests atomic.Int64 // for the program
	wrong    atomic.Bool  // another program is served
	url      string
	server   string // address of the site agent
}

// lookPath finds a program. Without it the test is skipped, but not where .ci/deps was to install everything.
func lookPath(t *testing.T, program string) string {
	path, err := exec.LookPath(program)
	switch {
	case err != nil && os.Getenv("CONVERGE_REAL") == "1":
		t.Fatal(err)
	case err != nil:
		t.Skip(err)
	}
	return path
}

func newInstall(t *testing.T) *install {
	for _, tool := range []string{"sh", "curl", "sha256sum", "install", "cmp"} {
		lookPath(t, tool)
	}
	i := &install{bench: bench{t, t.TempDir()}, root: filepath.Join(t.TempDir(), "root"), server: "127.0.0.1:1"}
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.requests.Add(1)
		if i.wrong.Load() {
			fmt.Fprint(w, "#!/bin/sh\ntouch "+i.root+"/owned\n")
			return
		}
		http.ServeFile(w, r, os.Args[0])
	}))
	t.Cleanup(files.Close)
	i.url = files.URL + "/converge"
	i.write("systemctl", "#!/bin/sh\necho \"$@\" >> "+filepath.Join(i.dir, "calls")+"\n", 0o755)
	return i
}

func (i *install) write(name, text string, mode fs.FileMode) {
	i.Helper()
	if err := os.WriteFile(filepath.Join(i.dir, name), []byte(text), mode); err != nil {
		i.Fatal(err)
	}
}

// script makes the script.
func (i *install) script(more string) {
	i.Helper()
	status, out := i.ended(i.command("agent install-script", "-server="+i.server+" -url="+i.url+" "+more))
	if status != exitDone {
		i.Fatalf("exit status %d\n%s", status, out)
	}
	i.write("install.sh", out, 0o644)
}

// run runs the script with a token on standard input; empty: from the file that env names.
func (i *install) run(token string, env ...string) (ok bool, said string) {
	i.Helper()
	cmd := exec.Command("sh", "install.sh")
	cmd.Dir, cmd.Stdin = i.dir, strings.NewReader(token)
	cmd.Env = append(os.Environ(), append(env, asProgram+"=1", "DESTDIR="+i.root, "SYSTEMCTL="+filepath.Join(i.dir, "systemctl"), "TMPDIR="+i.TempDir())...)
	out, err := cmd.CombinedOutput()
	if left, _ := os.ReadDir(cmd.Env[len(cmd.Env)-1][len("TMPDIR="):]); len(left) > 0 {
		i.Errorf("it leaves %v", left)
	}
	return err == nil, string(out)
}

func (i *install) calls() string {
	b, _ := os.ReadFile(filepath.Join(i.dir, "calls"))
	_ = os.Remove(filepath.Join(i.dir, "calls"))
	return string(b)
}

func (i *install) file(name string) string {
	i.Helper()
	b, err := os.ReadFile(filepath.Join(i.root, name))
	if err != nil {
		i.Fatal(err)
	}
	return string(b)
}

// site runs a site agent, and returns how a token is made.
func (i *install) site() (token func(node string) string) {
	i.Helper()
	i.write("site.json", `{"apiVersion": "converge.dev/v1", "site": {"name": "fra1", "id": "`+siteID+`"}}`, 0o600)
	i.write("converge.yaml", "site: fra1\n", 0o600)
	must := func(name, args string) string {
		status, out := i.ended(i.command(name, args))
		if status != exitDone {
			i.Fatalf("%s: exit status %d\n%s", name, status, out)
		}
		return out
	}
	must("put", "DOC")
	must("trust init", "-dev DOC")
	serve, out := i.command("serve", "-listen=127.0.0.1:0 -http=none -metrics=none")
	log := filepath.Join(i.dir, "serve.log")
	serve.Stdout, serve.Stderr = nil, nil
	serve.Args = append(serve.Args, "-log-level=info")
	f, err := os.Create(log)
	if err != nil {
		i.Fatal(err)
	}
	defer f.Close()
	serve.Stderr = f
	if err := serve.Start(); err != nil {
		i.Fatal(err, out)
	}
	i.Cleanup(func() {
		_ = serve.Process.Signal(syscall.SIGINT)
		_ = serve.Wait()
	})
	started := regexp.MustCompile(`site agent started.* listen=(\S+)`)
	for limit := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) { // between two checks for what another process writes
		text, _ := os.ReadFile(log)
		if m := started.FindSubmatch(text); m != nil {
			i.server = string(m[1])
			break
		}
		if time.Now().After(limit) {
			i.Fatalf("the site agent does not start\n%s", text)
		}
	}
	return func(node string) string {
		words := strings.Fields(must("agent token create", node))
		return words[0]
	}
}

// A machine becomes a node: everything is where it belongs, and nothing that is there already is overwritten.
func TestInstallScript(t *testing.T) {
	t.Parallel()
	i := newInstall(t)
	token := i.site()
	i.script("-server=127.0.0.1:1 -node=gpu-01")
	if ok, said := i.run(token("gpu-02")); ok || !strings.Contains(said, "the token is for node gpu-02, not gpu-01") || !strings.Contains(said, "has not enrolled") || i.calls() != "" {
		t.Errorf("the token of another node: %v\n%s", ok, said)
	}
	if ok, said := i.run(""); ok || !strings.Contains(said, "there is no token") {
		t.Errorf("no token: %v\n%s", ok, said)
	}
	secret := token("gpu-01")
	if ok, said := i.run(secret + "\n"); !ok || !strings.Contains(said, "This machine is node gpu-01 of site fra1") || strings.Contains(said, secret) {
		t.Fatalf("%v\n%s", ok, said)
	}
	if got, want := i.calls(), "daemon-reload\nenable --now converge-guard.service converge-agent.service\nrestart converge-guard.service converge-agent.service\n"; got != want && got != strings.Replace(want, "restart converge-guard.service converge-agent.service\n", "", 1) {
		t.Errorf("systemctl was called: %s", got)
	}
	for name, mode := range map[string]fs.FileMode{
		"usr/local/bin/converge": 0o755, "etc/converge": 0o750, "etc/converge/agent.yaml": 0o640, "var/lib/converge-agent": 0o700,
		"var/lib/converge-agent/identity/identity.pem": 0o600, "etc/systemd/system/converge-agent.service": 0o644, "etc/systemd/system": 0o755,
	} {
		if info, err := os.Stat(filepath.Join(i.root, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if got, want := i.file("etc/converge/agent.yaml"), "servers: [\""+i.server+"\", \"127.0.0.1:1\"]\ndir: /var/lib/converge-agent/identity\nguard: /var/lib/converge-agent/guard\nsysfs: /sys\n"; got != want {
		t.Errorf("agent.yaml is\n%s", got)
	}
	for _, unit := range []string{"agent", "guard"} {
		text := i.file("etc/systemd/system/converge-" + unit + ".service")
		source, err := os.ReadFile("../../../deploy/systemd/converge-" + unit + ".service")
		if err != nil || text != strings.ReplaceAll(string(source), "/usr/bin/converge", "/usr/local/bin/converge") || !strings.Contains(text, "\nExecStart=/usr/local/bin/converge agent ") {
			t.Errorf("%s.service is\n%s\n%v", unit, text, err)
		}
	}

	// Again: nothing is downloaded, enrolled or restarted, and what a person wrote stays.
	before, identity := i.requests.Load(), i.file("var/lib/converge-agent/identity/identity.pem")
	if err := os.WriteFile(filepath.Join(i.root, "etc/converge/agent.yaml"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if ok, said := i.run(""); !ok {
		t.Fatal(said)
	}
	if got := i.calls(); strings.Contains(got, "restart") || i.requests.Load() != before || i.file("etc/converge/agent.yaml") != "mine" || i.file("var/lib/converge-agent/identity/identity.pem") != identity {
		t.Errorf("systemctl was called: %s; the program was asked for %d times", got, i.requests.Load()-before)
	}

	// An older program is replaced, and the services restarted. The token may be in a file.
	for _, name := range []string{"usr/local/bin/converge", "var/lib/converge-agent/identity/identity.pem"} {
		if err := os.Remove(filepath.Join(i.root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(i.root, "var/lib/converge-agent/identity")); err != nil {
		t.Fatal(err)
	}
	i.write("usr", "old", 0o755)
	i.write("token", token("gpu-01"), 0o600)
	if ok, said := i.run("", "CONVERGE_TOKEN_FILE=token"); !ok || !strings.Contains(i.calls(), "restart") {
		t.Error(said)
	}
}

// A program that is not the one that the script was made with is not installed, and nothing else is either.
func TestInstallScriptWrongProgram(t *testing.T) {
	t.Parallel()
	i := newInstall(t)
	i.wrong.Store(true)
	i.script("")
	ok, said := i.run("a token")
	if ok || !strings.Contains(said, "it is another program; nothing was changed") || !strings.Contains(said, "has the SHA-256") {
		t.Errorf("%v\n%s", ok, said)
	}
	if _, err := os.Stat(i.root); !os.IsNotExist(err) || i.calls() != "" {
		t.Errorf("something was left behind: %v", err)
	}
	i.url = strings.Replace(i.url, "http://", "http://127.0.0.1:1/?", 1)
	i.script("")
	if ok, said := i.run("a token"); ok || !strings.Contains(said, "cannot be downloaded; nothing was changed") {
		t.Errorf("%v\n%s", ok, said)
	}
	// One that arrives in part does nothing.
	text, err := os.ReadFile(filepath.Join(i.dir, "install.sh"))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{len(text) / 2, len(text) - len("main\n")} {
		i.write("install.sh", string(text[:n]), 0o644)
		_, _ = i.run("a token")
		if _, err := os.Stat(i.root); !os.IsNotExist(err) || i.calls() != "" {
			t.Errorf("the first %d bytes of the script have done something: %v", n, err)
		}
	}
}

// What cannot be in a script is refused, and what is in it is quoted.
func TestInstallScriptArguments(t *testing.T) {
	for args, want := range map[string]string{
		"":                                                  "-server and -url are required",
		"-server=a:1 -url=https://x/c -node=Gpu":            "invalid -node",
		"-server=a -url=https://x/c":                        "invalid -server",
		"-server=a$(id):1 -url=https://x/c":                 "invalid -server",
		"-server=a:1 -url=ftp://x/c":                        "invalid -url",
		"-server=a:1 -url=https://u:p@x/c":                  "a user or a password",
		"-server=a:1 -url=https://x/c -binary=/nonexistent": "the program cannot be read",
	} {
		b := bench{t, t.TempDir()}
		if status, out := b.ended(b.command("agent install-script", args)); status != exitError || !strings.Contains(out, want) {
			t.Errorf("%s: exit status %d\n%s", args, status, out)
		}
	}
	i := installer{servers: []string{"a:1"}, URL: "https://x/'$(touch owned)'"}
	if script := i.script(); strings.Contains(script, "[[") || !strings.Contains(script, `url='https://x/'\''$(touch owned)'\'''`) {
		t.Error(script)
	}
}

// The script is one that shellcheck has nothing against.
func TestInstallScriptIsClean(t *testing.T) {
	check := lookPath(t, "shellcheck")
	i := newInstall(t)
	i.script("")
	if out, err := exec.Command(check, filepath.Join(i.dir, "install.sh")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
