package outside

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/open-policy-agent/conftest/output"
	"github.com/open-policy-agent/conftest/parser"
	"github.com/open-policy-agent/conftest/policy"
)

// A judge does what conftest test -policy=POLICY FILE does.
type judge func(t *testing.T, rules, file string) output.CheckResults

// conftest: policies over plans and documents of ours pass what is right, and name what is not. The program conftest takes
// long to build, because of its code to fetch policies from everywhere; so a nightly run has it, and every run has its packages
// that read files, evaluate policies and summarize.
func conftest(t *testing.T, s *site, plans map[string][]byte) {
	for name, data := range plans {
		s.write(name+".plan.json", data)
	}
	judges := map[string]judge{"packages": evaluate}
	if os.Getenv("CONVERGE_TORTURE") == "nightly" {
		judges["program"] = install(t)
	}
	const example, plan, document = root + "/examples/policy.rego", "testdata/plan.rego", "testdata/document.rego"
	const budget = "max_destroy: it would destroy 1 of 4 recorded objects, but max_destroy (0) allows 0: " +
		"review the plan; if it is what you want, raise policy.max_destroy in the document, or allow it this once (-max-destroy=1)"
	for _, c := range []struct {
		rules, file string
		denied      []string
	}{
		{example, "first.plan.json", nil},
		{example, "less.plan.json", []string{"site/carbide.vpc/old would be destroyed (delete)"}},
		{example, "other.plan.json", []string{"site/carbide.vpc/prod would be destroyed (delete, create)"}},
		{example, "refused.plan.json", []string{"check." + budget, "site/carbide.vpc/old would be destroyed (delete)"}},
		{plan, "first.plan.json", nil},
		{plan, "less.plan.json", []string{"reversible: delete site/carbide.vpc/old: only an equivalent with a new identity is created"}},
		{plan, "other.plan.json", []string{
			"reversible: delete site/carbide.vpc/prod: only an equivalent with a new identity is created",
			"site/carbide.vpc/prod is replaced for the sake of tenant",
		}},
		{plan, "refused.plan.json", []string{budget, "reversible: delete site/carbide.vpc/old: only an equivalent with a new identity is created"}},
		{document, "labelled.json", nil},
		{document, "site.json", []string{"carbide.vpc.old has no label env"}},
		{document, "less.json", []string{"carbide.vpc.prod is a test system"}},
	} {
		for name, judge := range judges {
			var denied []string
			looked := 0 // rules that were evaluated
			for _, r := range judge(t, c.rules, filepath.Join(s.dir, c.file)) {
				looked += r.Successes + len(r.Failures)
				for _, f := range r.Failures {
					denied = append(denied, f.Message)
				}
			}
			slices.Sort(denied)
			if looked == 0 || !slices.Equal(denied, c.denied) {
				t.Errorf("%s, %s over %s: %d rules, denied %q; want %q", name, c.rules, c.file, looked, denied, c.denied)
			}
		}
	}
}

// evaluate is a judge made of conftest's packages.
func evaluate(t *testing.T, rules, file string) output.CheckResults {
	t.Helper()
	read, err := parser.ParseConfigurations([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	capabilities, err := policy.LoadCapabilities("")
	if err != nil {
		t.Fatal(err)
	}
	engine, err := policy.LoadWithData([]string{rules}, nil, policy.CompilerOptions{RegoVersion: "v1", Capabilities: capabilities})
	if err != nil {
		t.Fatal(err)
	}
	results, err := engine.Check(t.Context(), read, "main")
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// install builds the program conftest, in the version of the packages, and returns a judge that runs it.
func install(t *testing.T) judge {
	t.Helper()
	const module = "github.com/open-policy-agent/conftest"
	version, err := exec.Command("go", "list", "-m", "-f={{.Version}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	build := exec.Command("go", "install", module+"@"+string(bytes.TrimSpace(version)))
	build.Env = append(os.Environ(), "GOBIN="+dir)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return func(t *testing.T, rules, file string) (results output.CheckResults) {
		t.Helper()
		var diagnostics bytes.Buffer
		cmd := exec.Command(filepath.Join(dir, "conftest"), "test", "--output=json", "--policy="+rules, file)
		cmd.Stderr = &diagnostics
		out, err := cmd.Output()
		if jerr := json.Unmarshal(out, &results); jerr != nil {
			t.Fatalf("conftest over %s: %v, %v\n%s%s", file, err, jerr, out, diagnostics.Bytes())
		}
		if cmd.ProcessState.ExitCode() != results.ExitCode() {
			t.Errorf("conftest over %s: %v\n%s", file, err, out)
		}
		return results
	}
}
