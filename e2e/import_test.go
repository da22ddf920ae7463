package e2e

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"converge.dev/converge/engine/plan"
	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/schema/kinds"
)

// exampleSecrets are the variables in which the examples look for secrets.
var exampleSecrets = []string{
	"BMC_PASSWORD=factory", "NVOS_PASSWORD=nvos", "IMAGE_TOKEN=token",
	"REGISTRY=registry.fra1.example", "REGISTRY_USER=puller", "REGISTRY_PASSWORD=pull",
	"VM_1_USER_DATA=#cloud-config",
	// The same, under the names that an import invents when nothing is recorded.
	"GLOBEX_SIM_AUTH_TOKEN=token", "RACK_09_1_BMC_PASSWORD=factory", "RACK_09_2_BMC_PASSWORD=factory",
	"RACK_09_NVSWITCH_BMC_PASSWORD=factory", "RACK_09_NVSWITCH_NVOS_PASSWORD=nvos", "RACK_09_POWER_BMC_PASSWORD=factory",
}

// informed runs converge as run does, with the secrets of the examples in its environment.
func (s *site) informed(status int, args ...string) *process {
	s.Helper()
	p := s.prepare(args...)
	p.cmd.Env = append(p.cmd.Env, exampleSecrets...)
	p.start()
	return p.ended(status)
}

// established applies a document with a part that cannot be undone exactly, with the approval that the plan requires.
func (s *site) established(document string) {
	s.Helper()
	asked := s.informed(7, "apply", "-auto-approve", document)
	approval := regexp.MustCompile(`-approve=[0-9a-f]{16}`).FindString(asked.stderr.String())
	if approval == "" {
		s.Fatalf("converge %s does not say how to approve:\n%s", asked.args, asked.report())
	}
	s.informed(0, "apply", "-auto-approve", document, approval).says("Apply complete!")
}

// open serves the world a second time, with all permissions for every caller, and makes converge.yaml name that address.
func (s *site) open() {
	s.Helper()
	server, err := carbidesim.NewServer(s.world, carbidesim.ServerOptions{
		CertFile: s.certs.ServerCert, KeyFile: s.certs.ServerKey, ClientCA: s.certs.CA, Mutual: true,
	})
	s.must(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	s.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			s.Error(err)
		}
	})
	s.write("converge.yaml", strings.Replace(s.read("converge.yaml"), s.address, l.Addr().String(), 1))
}

// steps returns what a saved plan would do.
func (s *site) steps(file string) []plan.Step {
	s.Helper()
	saved, err := plan.DecodeFile([]byte(s.read(file)))
	s.must(err)
	return saved.Plan.Steps
}

// The example of a whole site uses every kind of Carbide, is applied, and comes back from the site as a document whose
// plan is empty without edits: machines that no document mentioned are in it, and remain unmanaged.
func TestImportWholeSite(t *testing.T) {
	t.Parallel()
	const machines = 64
	s := newSite(t, func(o *carbidesim.Options) {
		o.Hosts.Count = machines
		o.Rules.Peering = carbidesim.PeeringMixed
	})
	s.open()
	doc := filepath.Join(s.dir, "doc")
	s.must(os.CopyFS(doc, os.DirFS("../examples/gpu-site")))
	s.must(os.Remove(filepath.Join(doc, "nodes.cue"))) // Open vSwitch has tests of its own
	s.informed(0, "put", "doc")
	var said struct{ Carbide map[string]any }
	s.must(json.Unmarshal([]byte(s.run(0, "get").stdout.String()), &said))
	known, err := kinds.New()
	s.must(err)
	for name := range known.Kinds() {
		if noun, ok := strings.CutPrefix(name, "carbide."); ok && said.Carbide[noun] == nil {
			t.Errorf("the example has no %s", name)
		}
	}
	s.established("doc")
	s.informed(0, "plan", "-detailed-exitcode", "doc")
	made := s.dump()
	s.informed(0, "import", "-discover", "-out=found")
	if n := len(regexp.MustCompile(`(?m)^\tfm100ht`).FindAllString(s.read("found/carbide_machine.cue"), -1)); n != machines {
		t.Errorf("%d machines are found, of %d", n, machines)
	}
	s.informed(0, "plan", "-detailed-exitcode", "found").says("No changes")

	// Actual values that are not stated are there as comments, which can be stated as they are: nothing would change.
	files, err := filepath.Glob(filepath.Join(s.dir, "found", "*.cue"))
	s.must(err)
	for _, file := range files {
		name := filepath.Join("found", filepath.Base(file))
		s.write(name, regexp.MustCompile(`(?m)^(\t+)// (.*: .*|[\]}]+,?|\t.*)$`).ReplaceAllString(s.read(name), "$1$2"))
	}
	s.informed(2, "plan", "-detailed-exitcode", "-out=stated.plan", "found")
	for _, step := range s.steps("stated.plan") {
		if step.Action != plan.Adopt {
			t.Errorf("%s is to %s: %s: %v", step.Ref, step.Action, step.Reason, step.Changes)
		}
	}

	// With nothing recorded, everything that bears our mark, and the rest that cannot bear one, is adopted as it is.
	s.store = []string{"-data-dir=other"}
	s.informed(0, "import", "-discover", "-out=again", "doc")
	s.informed(2, "plan", "-detailed-exitcode", "-out=again.plan", "again")
	for _, step := range s.steps("again.plan") {
		if step.Action != plan.Adopt {
			t.Errorf("%s is to %s: %s", step.Ref, step.Action, step.Reason)
		}
	}
	s.informed(0, "apply", "-auto-approve", "again")
	s.informed(0, "plan", "-detailed-exitcode", "again").says("No changes")
	s.same(made)
}
