package command

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"converge.dev/converge/internal/loopback"
	"converge.dev/converge/internal/torture"
	"github.com/spf13/cobra"
)

// asProgram makes the test binary act as the program.
const asProgram = "CONVERGE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	environ := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CONVERGE_") })
	os.Exit(Run(System{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: environ, Executable: exe, Version: "test", Exit: os.Exit,
	}))
}

// A use is how a command is called so that its arguments are valid, and what it needs.
type use struct {
	args    string // DOC is a document, NEW a folder that does not exist
	offline bool   // it needs no store
	silent  bool   // it writes nothing to standard output when all is well
	acts    bool   // it changes something: its output only reports that
	after   string // a command that must be run first for that
	undone  bool   // it has nothing to do after another command
	serves  bool   // it goes on until it is interrupted
	lacks   string // offline: it fails, and says that, because of what there is not
}

// uses has every command; those of dev carbide talk to a simulator, which the scripts do.
var uses = map[string]use{
	"init":                  {args: "NEW", offline: true, acts: true},
	"validate":              {args: "DOC", offline: true},
	"plan":                  {args: "DOC"},
	"apply":                 {args: "-auto-approve DOC", acts: true},
	"destroy":               {args: "-auto-approve DOC", undone: true},
	"drift":                 {},
	"fmt":                   {args: "DOC", offline: true, silent: true},
	"schema":                {args: "carbide.vpc", offline: true},
	"put":                   {args: "DOC", acts: true},
	"get":                   {},
	"history":               {},
	"diff":                  {args: "DOC DOC", offline: true},
	"show":                  {},
	"explain":               {args: "R1", offline: true},
	"graph":                 {args: "DOC", offline: true},
	"import":                {args: "-discover"},
	"inventory":             {},
	"observe":               {},
	"runs":                  {},
	"cancel":                {undone: true},
	"confirm":               {args: "RUN", undone: true},
	"resume":                {undone: true},
	"rollback":              {args: "-auto-approve RUN", acts: true},
	"state list":            {},
	"state show":            {args: "site/carbide.vpc/prod"},
	"state rm":              {args: "site/carbide.vpc/prod", acts: true},
	"state mv":              {args: "site/carbide.vpc/prod site/carbide.vpc/main", acts: true},
	"state rebuild":         {args: "DOC", acts: true},
	"state repair":          {acts: true},
	"state restored":        {args: "-reason=r", acts: true},
	"hold list":             {},
	"hold set":              {args: "-reason=r site", acts: true},
	"hold release":          {args: "site", acts: true, after: "hold set -reason=r site"},
	"release":               {acts: true, after: "hold set -reason=r site"},
	"freeze":                {args: "-reason=r", acts: true},
	"lock status":           {},
	"force-unlock":          {args: "ID", undone: true},
	"audit":                 {},
	"serve":                 {serves: true},
	"approve":               {},
	"events":                {},
	"agent token create":    {args: "gpu-01", acts: true, after: "trust init -dev DOC"},
	"agent bootstrap":       {args: "-server=localhost:1 -token-file=token", offline: true, lacks: "the token cannot be read"},
	"agent run":             {offline: true, lacks: "the configuration of the agent cannot be found"},
	"agent guard":           {offline: true, lacks: "the configuration of the agent cannot be found"},
	"agent list":            {},
	"agent revoke":          {args: "gpu-01", undone: true},
	"agent drain":           {args: "-force gpu-01", acts: true},
	"agent status":          {offline: true, lacks: "the configuration of the agent cannot be found"},
	"agent health":          {offline: true, lacks: "the configuration of the agent cannot be found"},
	"agent config":          {offline: true, lacks: "the configuration of the agent cannot be found"},
	"agent renew-cert":      {offline: true, lacks: "the configuration of the agent cannot be found"},
	"agent reset-clock":     {offline: true, lacks: "the configuration of the agent cannot be found"},
	"agent logs":            {offline: true, lacks: "the configuration of the agent cannot be found"},
	"agent install-script":  {args: "-server=localhost:1 -url=https://localhost/converge", offline: true},
	"trust init":            {args: "-dev -trust-dir=NEW DOC", offline: true, acts: true},
	"trust show":            {offline: true, lacks: "has no keys for its nodes"},
	"trust rotate":          {args: "-key=root-1.key", offline: true, lacks: "has no keys for its nodes"},
	"trust sign":            {args: "-key=root-1.key next.json", offline: true, lacks: "the root key cannot be read"},
	"man":                   {args: "NEW", offline: true, acts: true},
	"version":               {offline: true},
	"completion bash":       {offline: true},
	"completion fish":       {offline: true},
	"completion zsh":        {offline: true},
	"completion powershell": {offline: true},
}

// commands returns every command that does something, as typed.
func commands() []string {
	a := testApp()
	root := a.root()
	root.InitDefaultCompletionCmd()
	var all []string
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		name := strings.TrimPrefix(c.CommandPath(), "converge ")
		if !c.HasSubCommands() && !c.Hidden && !strings.HasPrefix(name, "dev ") {
			all = append(all, name)
		}
		for _, child := range c.Commands() {
			visit(child)
		}
	}
	visit(root)
	return all
}

// A bench runs commands as processes, in a folder with a document and a converge.yaml that names an etcd.
type bench struct {
	*testing.T
	dir string
}

func newBench(t *testing.T, endpoint string) bench {
	b := bench{t, t.TempDir()}
	for name, text := range map[string]string{
		"site.json":     string(inboxDocument("fra1", siteID, 1, allowed)),
		"converge.yaml": "site: fra1\nfake: {world: world.json}\netcd: {endpoints: [\"" + endpoint + "\"]}\n",
	} {
		if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// As fmt would write it.
	if status, out := b.ended(b.command("fmt", "DOC")); status != 0 {
		t.Fatalf("%d\n%s", status, out)
	}
	return b
}

func (b bench) command(name, args string) (*exec.Cmd, *bytes.Buffer) {
	args = strings.NewReplacer("DOC", "site.json", "NEW", "new-"+rand.Text()).Replace(args)
	words := append(strings.Fields(name), strings.Fields(args)...)
	cmd := exec.Command(os.Args[0], words...)
	var out bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = b.dir, &out, &out, append(os.Environ(), asProgram+"=1")
	return cmd, &out
}

// ended runs or waits for a command and returns its exit status.
func (b bench) ended(cmd *exec.Cmd, out *bytes.Buffer) (int, string) {
	b.Helper()
	run := cmd.Run
	if cmd.Process != nil {
		run = cmd.Wait
	}
	var exit *exec.ExitError
	if err := run(); err != nil && !errors.As(err, &exit) {
		b.Fatal(err)
	}
	if status := cmd.ProcessState.ExitCode(); status >= 0 {
		return status, out.String()
	}
	return -1, cmd.ProcessState.String() + "\n" + out.String()
}

// Every command refuses an unknown flag, reports what it cannot reach, and survives a reader that goes away.
func TestEveryCommand(t *testing.T) {
	t.Parallel()
	for name := range uses {
		if !slices.Contains(commands(), name) {
			t.Errorf("there is no command %s", name)
		}
	}
	nobody := loopback.Address(t)
	b := newBench(t, "http://"+nobody)
	for _, name := range commands() {
		u, ok := uses[name]
		if !ok {
			t.Errorf("%s is not in the table of uses", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			b := bench{t, b.dir}
			cmd, said := b.command(name, "")
			cmd.Args = append(cmd.Args, "")
			if status, out := b.ended(cmd, said); status != exitError || !regexp.MustCompile(`is empty| takes |command ""`).MatchString(out) {
				t.Errorf("an empty argument: exit status %d\n%s", status, out)
			}
			if status, out := b.ended(b.command(name, "-nonsense "+u.args)); status != exitError || !strings.Contains(out, "has no flag -nonsense") {
				t.Errorf("a wrong flag: exit status %d\n%s", status, out)
			}
			status, out := b.ended(b.command(name, u.args))
			switch {
			case u.lacks != "":
				if status != exitError || !strings.Contains(out, u.lacks) {
					t.Errorf("exit status %d, want it to say %q\n%s", status, u.lacks, out)
				}
				return
			case u.offline && status != exitDone:
				t.Errorf("without a store: exit status %d\n%s", status, out)
			case !u.offline && (status != exitError || !strings.Contains(out, nobody)):
				t.Errorf("nobody answers at %s: exit status %d\n%s", nobody, status, out)
			}
			if !u.offline {
				return
			}
			b.unsaid(name, u)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			r.Close()
			cmd, said = b.command(name, u.args)
			cmd.Stdout = w
			if status, _ := b.ended(cmd, said); status != exitDone || said.Len() > 0 {
				t.Errorf("a reader that went away: exit status %d\n%s", status, said)
			}
			w.Close()
		})
	}
}

// unsaid runs a command whose output cannot be written. One that only shows fails then; one that changes something has done so.
func (b bench) unsaid(name string, u use) {
	b.Helper()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer full.Close()
	want, sign := exitError, "Error: standard output: "
	if u.acts || u.silent {
		want, sign = exitDone, "Warning: standard output: "
	}
	cmd, said := b.command(name, u.args)
	cmd.Stdout = full
	if status, said := b.ended(cmd, said); status != want || strings.Contains(said, sign) == u.silent {
		b.Errorf("a full disk: exit status %d, want %d and %q\n%s", status, want, sign, said)
	}
}

// The exit status of every command that uses a store reports what happened to the site, even when it cannot write.
func TestEveryCommandUnsaid(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"converge.yaml": "site: fra1\nfake: {world: world.json}\n",
		"site.json":     `{"apiVersion": "converge.dev/v1", "site": {"name": "fra1", "id": "` + siteID + `"}, "carbide": {"tenant": {"acme": {}}, "vpc": {"prod": {"tenant": "acme"}}}}`,
	}
	for _, name := range commands() {
		u := uses[name]
		if u.offline || u.undone || u.serves {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := bench{t, t.TempDir()}
			for name, text := range files {
				if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			must := func(name, args string) string {
				status, out := b.ended(b.command(name, args))
				if status != exitDone {
					t.Fatalf("%s %s: exit status %d\n%s", name, args, status, out)
				}
				return out
			}
			if name != "apply" {
				run := regexp.MustCompile(`Run (\S+):`).FindStringSubmatch(must("apply", "-auto-approve DOC"))
				u.args = strings.Replace(u.args, "RUN", run[1], 1)
			}
			if u.after != "" {
				must("", u.after)
			}
			b.unsaid(name, u)
		})
	}
}

// Every command that waits for its store ends as interrupted on request.
func TestEveryCommandInterrupted(t *testing.T) {
	t.Parallel()
	type waiting struct {
		name string
		cmd  *exec.Cmd
		out  *bytes.Buffer
		want int
	}
	var all []waiting
	b := bench{T: t}
	for i, name := range commands() { // first all of them are made to wait, because each takes some time to give up
		u, ok := uses[name]
		if !ok || u.offline {
			continue
		}
		l, err := net.Listen("tcp", "127.0.0.1:0") // which accepts connections and never answers
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		b = newBench(t, "http://"+l.Addr().String())
		w := waiting{name: name, want: exitInterrupted}
		w.cmd, w.out = b.command(name, u.args)
		if err := w.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer w.cmd.Process.Kill()
		if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(torture.Patience)); err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatalf("%s asks nobody: %v", name, err)
		}
		defer c.Close()
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil { // it has asked
			t.Fatal(err)
		}
		signal := syscall.SIGINT
		if i%2 == 0 {
			signal, w.want = syscall.SIGTERM, exitTerminated
		}
		if err := w.cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	for _, w := range all {
		if status, said := b.ended(w.cmd, w.out); status != w.want || !strings.Contains(said, "interrupted") {
			t.Errorf("%s: exit status %d, want %d\n%s", w.name, status, w.want, said)
		}
	}
}
