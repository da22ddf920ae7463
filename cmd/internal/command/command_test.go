package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"converge.dev/converge/cmd/internal/view"
	"converge.dev/converge/engine"
	"converge.dev/converge/state"
	"converge.dev/converge/state/etcd"
)

func testApp() *app {
	return &app{out: &output{w: &bytes.Buffer{}}, err: &output{w: &bytes.Buffer{}}, env: env{}}
}

// Every command explains itself, with examples; flags are written with one dash, and no flag has a single letter.
func TestHelp(t *testing.T) {
	a := testApp()
	root := a.root()
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "completion" || c.Name() == "help" {
			return
		}
		text := helpText(c)
		if c.Short == "" || c.Long == "" {
			t.Errorf("%s has no text", c.CommandPath())
		}
		if c.HasParent() && !c.HasAvailableSubCommands() && c.Example == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if len(f.Name) == 1 || f.Shorthand != "" && f.Name != "help" {
				t.Errorf("%s -%s: single letters are not used", c.CommandPath(), f.Name)
			}
			if f.Usage == "" {
				t.Errorf("%s -%s has no text", c.CommandPath(), f.Name)
			}
			if strings.Contains(text, "--"+f.Name) {
				t.Errorf("%s -%s is shown with two dashes", c.CommandPath(), f.Name)
			}
		})
		for _, line := range strings.Split(text, "\n") {
			if n := len([]rune(line)); n > 120 {
				t.Errorf("%s: a line of %d characters: %s", c.CommandPath(), n, line)
			}
		}
		for _, child := range c.Commands() {
			visit(child)
		}
	}
	visit(root)
}

func TestDoubleDashes(t *testing.T) {
	takes := map[string]bool{"out": true, "target": true}
	for in, want := range map[string]string{
		"plan -out=x -json":           "plan --out=x --json",
		"plan --out x --json":         "plan --out x --json",
		"plan -out -x -json":          "plan --out -x --json",
		"plan -target a -target=b -h": "plan --target a --target=b -h",
		"validate - -x":               "validate - --x",
		"plan -json -- -x":            "plan --json -- -x",
		"diff -- ":                    "diff -- ",
	} {
		got := strings.Join(doubleDashes(strings.Split(in, " "), takes), " ")
		if got != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
	}
}

func TestCommitOf(t *testing.T) {
	for want, settings := range map[string][]debug.BuildSetting{
		"":                   {{Key: "GOOS", Value: "linux"}, {Key: "vcs.modified", Value: "true"}},
		"0123456789ab":       {{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "false"}},
		"0123456789ab-dirty": {{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"}},
	} {
		if got := commitOf(settings); got != want {
			t.Errorf("%v: %q, want %q", settings, got, want)
		}
	}
}

func TestStatus(t *testing.T) {
	a := testApp()
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0}, {errors.New("x"), 1}, {outcome(3), 3}, {&state.LockedError{}, 5}, {&etcd.NoAnswerError{}, 1}, {&engine.StaleError{}, 6},
		{&engine.SpentError{}, 6}, {&engine.RefusedError{}, 7}, {&engine.HeldError{}, 7}, {&engine.UnknownError{}, 8}, {engine.ErrInterrupted, 130},
		{&openRun{err: state.ErrFenced}, 4},
	} {
		if got := a.status(errors.Join(c.err)); got != c.want {
			t.Errorf("%T: %d, want %d", c.err, got, c.want)
		}
	}
}

// After a signal, what fails before a run begins was interrupted; how a run ended remains true.
func TestStatusAfterSignal(t *testing.T) {
	for _, c := range []struct {
		signal os.Signal
		err    error
		want   int
	}{
		{syscall.SIGINT, errors.New("rpc error: code = Canceled"), 130},
		{syscall.SIGTERM, errors.New("rpc error: code = Canceled"), 143},
		{syscall.SIGTERM, &engine.UnknownError{}, 143},
		{syscall.SIGHUP, context.Canceled, 129},
		{syscall.SIGINT, &state.LockedError{}, 130},
		{syscall.SIGINT, context.Canceled, 130},
		{syscall.SIGTERM, outcome(exitDifferent), 2},
		{syscall.SIGTERM, nil, 0},
	} {
		a := testApp()
		a.view = view.NewHuman(view.Options{Out: a.out, Err: a.err})
		a.signal.Store(&c.signal)
		if got := a.end(nil, c.err); got != c.want {
			t.Errorf("%v, %v: %d, want %d", c.signal, c.err, got, c.want)
		}
	}
	a, term := testApp(), os.Signal(syscall.SIGTERM)
	a.view = view.NewHuman(view.Options{Out: a.out, Err: a.err})
	a.signal.Store(&term)
	a.started()
	if got := a.end(nil, &openRun{err: state.ErrFenced}); got != exitPartial {
		t.Errorf("an open run: %d", got)
	}
}

// What -timeout ends says so. A run that it ended is open, unlike after a signal.
func TestOvertime(t *testing.T) {
	for _, c := range []struct {
		err     error
		started bool
		want    int
	}{
		{fmt.Errorf("run R was %w; 3 of 4 steps are done", engine.ErrInterrupted), true, exitPartial},
		{fmt.Errorf("look: %w", context.DeadlineExceeded), true, exitPartial},
		{context.DeadlineExceeded, false, exitError},
		{errors.Join(engine.ErrInterrupted), false, exitError},
	} {
		a, said := testApp(), &bytes.Buffer{}
		a.err = &output{w: said}
		a.view = view.NewHuman(view.Options{Out: a.out, Err: a.err})
		a.flags.timeout = time.Second
		ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
		a.limited = ctx
		if c.started {
			a.started()
		}
		if got := a.end(nil, c.err); got != c.want || !strings.Contains(said.String(), "did not finish within -timeout=1s") {
			t.Errorf("%v: %d, want %d\n%s", c.err, got, c.want, said)
		}
		cancel()
	}
}

// After a failed write nothing more is written, and writers get no error.
func TestOutput(t *testing.T) {
	w := &failing{}
	o := &output{w: w}
	for range 3 {
		if n, err := o.Write([]byte("abc")); n != 3 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if w.calls != 1 || o.failed == nil {
		t.Errorf("%d calls, %v", w.calls, o.failed)
	}
}

type failing struct{ calls int }

func (f *failing) Write([]byte) (int, error) {
	f.calls++
	return 0, errors.New("broken pipe")
}
