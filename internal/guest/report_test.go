package guest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// What a guest says becomes the verdict of the test that ran it, and a message that says why.
var reports = []struct {
	name    string
	result  outcome
	passes  bool
	says    []string // to who runs go test -v
	silence string   // what nobody must read
}{
	{
		"passed", outcome{output: said("=== RUN   TestA", "=== RUN   TestA/sub", "    a_test.go:7: seen", "--- PASS: TestA (0.01s)", "    --- PASS: TestA/sub (0.00s)", "PASS")},
		true, []string{"--- PASS: TestReported/TestA/sub", "a_test.go:7: seen"}, "",
	},
	{
		"failed", outcome{code: 1, output: said("=== RUN   TestA", "=== RUN   TestA/sub", "    a_test.go:7: wrong", "--- FAIL: TestA (0.01s)", "    --- FAIL: TestA/sub (0.00s)", "=== RUN   TestB", "--- PASS: TestB (0.00s)", "FAIL")},
		false, []string{"--- FAIL: TestReported/TestA/sub", "a_test.go:7: wrong", "--- PASS: TestReported/TestB", "in the guest 1 of 2 tests failed; exit status 1"}, "",
	},
	{
		"one passed, one skipped", outcome{output: said("=== RUN   TestA", "    a_test.go:7: not here", "--- SKIP: TestA (0.00s)", "=== RUN   TestB", "--- PASS: TestB (0.00s)", "PASS")},
		true, []string{"--- SKIP: TestReported/TestA", "a_test.go:7: not here"}, "",
	},
	{
		"all skipped", outcome{output: said("=== RUN   TestA", "    a_test.go:7: not here", "--- SKIP: TestA (0.00s)", "PASS")},
		false, []string{"no test ran in the guest: 1 were skipped"}, "",
	},
	{
		"none", outcome{output: said("testing: warning: no tests to run", "PASS")},
		false, []string{"no test ran in the guest", "warning: no tests to run"}, "",
	},
	{
		"not even a test binary", outcome{},
		false, []string{"no test ran in the guest"}, "",
	},
	{
		"the binary panicked", outcome{code: 2, output: said("=== RUN   TestA", "--- FAIL: TestA (0.00s)", "panic: no way", "", "goroutine 7 [running]:")},
		false, []string{"--- FAIL: TestReported/TestA", "panic: no way", "exit status 2"}, "",
	},
	{
		"the kernel panicked", outcome{
			verdict: errors.New("the kernel panicked or powered off"), output: said("=== RUN   TestA", "--- PASS: TestA (0.00s)", "=== RUN   TestB", "    b_test.go:9: half way"),
			console: []byte(strings.Repeat("long ago\r\n", 1000) + "Kernel panic - not syncing\r\n"),
		},
		false, []string{"--- PASS: TestReported/TestA", "--- FAIL: TestReported/TestB", "b_test.go:9: half way", "no verdict: the kernel panicked", "Kernel panic - not syncing"}, "\r",
	},
}

// said is what a test binary prints with -test.v=test2json.
func said(lines ...string) []byte {
	var b strings.Builder
	for _, l := range lines {
		if t := strings.TrimLeft(l, " "); strings.HasPrefix(t, "=== ") || strings.HasPrefix(t, "--- ") || l == "PASS" || l == "FAIL" {
			b.WriteByte(0x16)
		}
		b.WriteString(l + "\n")
	}
	return []byte(b.String())
}

const reported = "CONVERGE_REPORTED"

// TestReported is the test that ran a guest, in a process that TestReports starts.
func TestReported(t *testing.T) {
	for _, r := range reports {
		if r.name == os.Getenv(reported) {
			r.result.report(t)
			return
		}
	}
	t.Skip("TestReports runs this")
}

func TestReports(t *testing.T) {
	for _, r := range reports {
		t.Run(r.name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestReported$", "-test.v")
			cmd.Env = append(os.Environ(), reported+"="+r.name)
			out, err := cmd.CombinedOutput()
			if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
				t.Fatal(err)
			}
			if (err == nil) != r.passes {
				t.Errorf("it passes: %v, want %v", err == nil, r.passes)
			}
			for _, s := range r.says {
				if !strings.Contains(string(out), s) {
					t.Errorf("it does not say %q", s)
				}
			}
			if r.silence != "" && strings.Contains(string(out), r.silence) {
				t.Errorf("it says %q", r.silence)
			}
			if t.Failed() {
				t.Logf("%s", out)
			}
		})
	}
}

// Only what the guest's first process wrote is a verdict. All else is QEMU's end or the kernel's.
func TestVerdict(t *testing.T) {
	late, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("an hour has passed"))
	for _, c := range []struct {
		name   string
		ctx    context.Context
		script string
		code   int
		none   string
	}{
		{"passed", t.Context(), "exit 3", 0, ""},
		{"failed", t.Context(), "exit 5", 1, ""},
		{"panicked", t.Context(), "exit 7", 2, ""},
		{"could not run", t.Context(), "exit 255", 0, "could not run the test"},
		{"kernel ended", t.Context(), "exit 0", 0, "the kernel panicked or powered off"},
		{"wrong option", t.Context(), "echo no such device >&2; exit 1", 0, "QEMU failed (exit status 1): no such device"},
		{"killed", t.Context(), "kill -9 $$", 0, "QEMU was ended (signal: killed)"},
		{"late", late, "exit 3", 0, "the guest did not end in time: an hour has passed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", c.script)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			err := cmd.Run()
			code, none := verdict(c.ctx, cmd.ProcessState, err, stderr.String())
			if code != c.code || (none == nil) != (c.none == "") || none != nil && !strings.Contains(none.Error(), c.none) {
				t.Errorf("exit code %d, %v; want %d, %q", code, none, c.code, c.none)
			}
		})
	}
	t.Run("no QEMU", func(t *testing.T) {
		cmd := exec.Command("/nowhere/qemu")
		if _, none := verdict(t.Context(), cmd.ProcessState, cmd.Run(), ""); none == nil || !strings.Contains(none.Error(), "QEMU did not start") {
			t.Error(none)
		}
	})
}

// What a guest asks for and the machine does not have is answered, so that no test waits for it.
func TestAnswerToNonsense(t *testing.T) {
	m := Machine{Name: "small", Devices: []Device{NVMe("disk")}}
	for line, want := range map[string]string{
		"unplug moon": `the machine small has no device "moon"`,
		"paint disk":  `nobody knows how to "paint disk"`,
		"":            `the machine small has no device ""`,
	} {
		if _, err := m.answer(nil, line); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", line, err, want)
		}
	}
}

// A kernel that panics under a test is no verdict, whatever the tests had said by then, and its last words are there to read.
func TestPanic(t *testing.T) {
	k, err := ready()
	if os.Getenv(Variable) != "" || err != nil && os.Getenv(Required) == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	result, err := run(t.Context(), t.TempDir(), Machine{Name: "short"}, k, "^TestGuest(BeforePanic|Panics)$", ".")
	if err != nil {
		t.Fatal(err)
	}
	if result.verdict == nil || !strings.Contains(result.verdict.Error(), "panicked") {
		t.Errorf("the verdict is %d, %v", result.code, result.verdict)
	}
	if !strings.Contains(end(string(result.console)), "sysrq triggered crash") {
		t.Errorf("the end of the console: %s", end(string(result.console)))
	}
	tests, err := read(result.output)
	if err != nil {
		t.Fatal(err)
	}
	if len(tests.subs) != 2 || tests.subs[0].action != "pass" || tests.subs[1].action != "" {
		t.Errorf("the tests said:\n%s", result.output)
	}
}

func TestGuestBeforePanic(t *testing.T) {
	In(t, "short")
	content, err := os.ReadFile("testdata/message.txt")
	if err != nil || string(content) != "read in the guest\n" {
		t.Errorf("the testdata of the package is %q, %v", content, err)
	}
}

func TestGuestPanics(t *testing.T) {
	In(t, "short")
	if err := os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0); err != nil {
		t.Fatal(err)
	}
	t.Fatal("it did not panic")
}
