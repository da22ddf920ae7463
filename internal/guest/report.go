package guest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"strings"
	"testing"
)

// event is a line of go tool test2json.
type event struct {
	Action, Test, Output string
}

// ran is a test that ran in a guest, or the test binary as a whole.
type ran struct {
	name   string // without that of the test around it
	action string // pass, fail or skip; "" when it did not end
	output strings.Builder
	subs   []*ran
}

// read makes a tree of what test binaries print with -test.v=test2json.
func read(output []byte) (*ran, error) {
	cmd := exec.Command("go", "tool", "test2json")
	cmd.Stdin = bytes.NewReader(output)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", cmd, err, stderr.String())
	}
	root := &ran{}
	tests := map[string]*ran{"": root}
	around := func(name string) string {
		for {
			if name = path.Dir(name); name == "." {
				return ""
			}
			if tests[name] != nil {
				return name
			}
		}
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return root, nil
		} else if err != nil {
			return nil, err
		}
		r := tests[e.Test]
		if r == nil {
			parent := around(e.Test)
			r = &ran{name: strings.TrimPrefix(strings.TrimPrefix(e.Test, parent), "/")}
			tests[e.Test] = r
			tests[parent].subs = append(tests[parent].subs, r)
		}
		switch e.Action {
		case "output":
			if !strings.HasPrefix(e.Output, "=== ") {
				r.output.WriteString(e.Output)
			}
		case "pass", "fail", "skip":
			r.action = e.Action
		}
	}
}

// count says how many tests ended like that, those around others not counted.
func (r *ran) count(action string) int {
	if len(r.subs) == 0 {
		if r.action == action {
			return 1
		}
		return 0
	}
	n := 0
	for _, s := range r.subs {
		n += s.count(action)
	}
	return n
}

// report makes subtests of what ran in the guest, and says what is wrong with the guest as a whole.
func (o outcome) report(t *testing.T) {
	t.Helper()
	tests, err := read(o.output)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range tests.subs {
		s.report(t)
	}
	passed, failed, skipped := tests.count("pass"), tests.count("fail"), tests.count("skip")
	switch {
	case o.verdict != nil:
		t.Errorf("no verdict: %v\nthe end of the guest's console:\n%s\n%s", o.verdict, end(string(o.console)), end(tests.output.String()))
	case len(tests.subs) == 0 && o.code == 0:
		t.Errorf("no test ran in the guest:\n%s", tests.output.String())
	case passed+failed == 0 && o.code == 0:
		t.Errorf("no test ran in the guest: %d were skipped", skipped)
	case o.code != 0:
		t.Errorf("in the guest %d of %d tests failed; exit status %d:\n%s", failed, passed+failed+skipped, o.code, end(tests.output.String()))
	}
}

func (r *ran) report(t *testing.T) {
	t.Run(r.name, func(t *testing.T) {
		for _, s := range r.subs {
			s.report(t)
		}
		said := "in the guest:\n" + strings.TrimSpace(r.output.String())
		switch r.action {
		case "pass":
			t.Log(said)
		case "skip":
			t.Skip(said)
		case "fail":
			t.Error(said)
		default:
			t.Errorf("it did not end in the guest:\n%s", strings.TrimSpace(r.output.String()))
		}
	})
}

// end returns the last lines of a text, without what only terminals need.
func end(text string) string {
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(text, "\r", "")), "\n")
	const most = 60
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}
