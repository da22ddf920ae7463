package outside

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

const root = "../.."

// documents are what the tests write: a site, the same with something changed and removed, with things of others, and invalid
// ones.
var documents = map[string]string{
	"site.json":     document(`"prod": {"tenant": "acme", "labels": {"env": "prod"}}, "old": {"tenant": "acme"}`),
	"less.json":     document(`"prod": {"tenant": "acme", "labels": {"env": "test"}}`),
	"other.json":    document(`"prod": {"tenant": "apex", "labels": {"env": "prod"}}, "old": {"tenant": "acme"}`),
	"labelled.json": document(`"prod": {"tenant": "acme", "labels": {"env": "prod"}}, "old": {"tenant": "acme", "labels": {"env": "prod"}}`),
	"wrong.json":    document(`"prod": {"tenant": "acme", "lables": {"env": "prod"}}`),
	"typed.json":    document(`"prod": {"tenant": 7}`),

	// Things managed by others are in a document by name only, or with their id, and nothing else.
	"external.json": document(`"prod": {"tenant": "acme"}, "theirs": {"external": true}, "known": {"external": {"id": "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4f"}}`),
	"stated.json":   document(`"prod": {"tenant": "acme"}, "theirs": {"external": true, "tenant": "acme"}`),
	"false.json":    document(`"prod": {"tenant": "acme"}, "theirs": {"external": false}`),
}

func document(vpcs string) string {
	return `{"apiVersion": "converge.dev/v1", "site": {"name": "fra1", "id": "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e"},
 "carbide": {"tenant": {"acme": {}, "apex": {}}, "vpc": {` + vpcs + `}}}`
}

// A site is a folder with documents and a world, and the program that is tested.
type site struct {
	*testing.T
	program, dir string
}

func newSite(t *testing.T) *site {
	s := &site{t, filepath.Join(t.TempDir(), "converge"), t.TempDir()}
	build := exec.Command("go", "build", "-o", s.program, "./cmd/converge")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.fill()
	return s
}

// openSite returns a new site for a program that has been built.
func openSite(t *testing.T, program string) *site {
	s := &site{t, program, t.TempDir()}
	s.fill()
	return s
}

func (s *site) fill() {
	s.Helper()
	for name, text := range documents {
		s.write(name, []byte(text))
	}
	s.write("converge.yaml", []byte("fake: {world: world.json}\n"))
}

func (s *site) read(name string) string {
	s.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		s.Fatal(err)
	}
	return string(b)
}

func (s *site) write(name string, data []byte) {
	s.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), data, 0o600); err != nil {
		s.Fatal(err)
	}
}

// run runs converge, which must succeed, and returns its standard output.
func (s *site) run(args ...string) []byte { s.Helper(); return s.ended(0, args...) }

// ended runs converge, which must end with a status.
func (s *site) ended(status int, args ...string) []byte {
	s.Helper()
	var diagnostics bytes.Buffer
	cmd := exec.Command(s.program, args...)
	cmd.Dir, cmd.Stderr = s.dir, &diagnostics
	out, err := cmd.Output()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != status {
		s.Fatalf("converge %s: %v, want exit status %d\n%s%s", strings.Join(args, " "), err, status, out, diagnostics.Bytes())
	}
	return out
}

// plan returns the JSON of a plan for a document.
func (s *site) plan(document string) []byte {
	s.Helper()
	s.run("plan", "-max-destroy=100%", "-out=saved.plan", document)
	return s.run("show", "-json", "saved.plan")
}

// refused returns the JSON of a plan that may not be applied.
func (s *site) refused(document, flag string) []byte {
	s.Helper()
	s.ended(7, "plan", flag, "-out=refused.plan", document)
	return s.run("show", "-json", "refused.plan")
}

// TestOutside uses one site, because building the program takes most of the time.
func TestOutside(t *testing.T) {
	s := newSite(t)
	first := s.plan("site.json")
	s.run("apply", "-auto-approve", "site.json")
	less, other := s.plan("less.json"), s.plan("other.json")
	refused := s.refused("less.json", "-max-destroy=0")
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"TerraformPlan", func(t *testing.T) { terraformPlan(t, first, less, other) }},
		{"TerraformState", func(t *testing.T) { terraformState(t, s.run("show", "-json")) }},
		{"Conftest", func(t *testing.T) {
			conftest(t, s, map[string][]byte{"first": first, "less": less, "other": other, "refused": refused})
		}},
		{"JSONSchema", func(t *testing.T) { jsonSchema(t, s.run("schema", "-format=jsonschema")) }},
		{"CUE", func(t *testing.T) { cueVet(t, s) }},
		{"Traces", func(t *testing.T) { traces(t, s.program) }},
		{"CloudEvents", func(t *testing.T) { cloudEvents(t, s.program) }},
		{"ACME", func(t *testing.T) { acme(t, s.program) }},
	} {
		t.Run(c.name, c.test)
	}
}

// terraformPlan: HashiCorp's own reader of plans accepts ours, and finds its content.
func terraformPlan(t *testing.T, first, less, other []byte) {
	read := func(data []byte) (*tfjson.Plan, map[string]*tfjson.Change) {
		t.Helper()
		var p tfjson.Plan
		if err := json.Unmarshal(data, &p); err != nil {
			t.Fatal(err)
		}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		changes := map[string]*tfjson.Change{}
		for _, c := range p.ResourceChanges {
			if c.Mode != tfjson.ManagedResourceMode || c.Type == "" || c.Name == "" || c.ProviderName == "" {
				t.Errorf("it does not say what is changed: %+v", c)
			}
			changes[c.Address] = c.Change
		}
		if p.Complete == nil || !*p.Complete || len(p.Checks) == 0 || p.Timestamp == "" {
			t.Errorf("complete %v, %d checks, made at %q", p.Complete, len(p.Checks), p.Timestamp)
		}
		return &p, changes
	}
	const prod, old, acme = "site/carbide.vpc/prod", "site/carbide.vpc/old", "site/carbide.tenant/acme"
	p, changes := read(first)
	if len(changes) != 4 || !changes[prod].Actions.Create() || len(p.PlannedValues.RootModule.Resources) != 4 {
		t.Errorf("the first plan: %v", changes)
	}
	_, changes = read(less)
	if !changes[prod].Actions.Update() || !changes[old].Actions.Delete() || !changes[acme].Actions.NoOp() {
		t.Errorf("a change: %v", changes)
	}
	p, changes = read(other)
	if c := changes[prod]; !c.Actions.Replace() || len(c.ReplacePaths) != 1 || !slices.Equal(c.ReplacePaths[0].([]any), []any{"tenant"}) {
		t.Errorf("a replacement: %+v", c)
	}
	for _, c := range p.Checks {
		if want := c.Address.Name == "reversible"; (c.Status == tfjson.CheckStatusFail) != want {
			t.Errorf("%s: %s", c.Address.ToDisplay, c.Status)
		}
	}
}

func terraformState(t *testing.T, data []byte) {
	var s tfjson.State
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(); err != nil || len(s.Values.RootModule.Resources) != 4 {
		t.Errorf("%+v, %v", s.Values, err)
	}
}

// jsonSchema: a validator accepts the exported schema, and agrees with converge about documents.
func jsonSchema(t *testing.T, data []byte) {
	definition, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("converge.json", definition); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("converge.json")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range documents {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(doc); (err != nil) != wrong(name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func wrong(name string) bool {
	return slices.Contains([]string{"wrong.json", "typed.json", "stated.json", "false.json"}, name)
}

// cueVet: the command cue accepts the exported schema, and agrees with converge about documents.
func cueVet(t *testing.T, s *site) {
	s.write("schema.cue", s.run("schema", "-format=cue"))
	for name := range documents {
		out, err := exec.Command("go", "tool", "cue", "vet", "-c", filepath.Join(s.dir, "schema.cue"), filepath.Join(s.dir, name), "-d", "#Document").CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if (err != nil) != wrong(name) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
