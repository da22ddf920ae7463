package secrets

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"converge.dev/converge/internal/libvirttest"
)

const seeds = `apiVersion: "converge.dev/v1"
site: {name: "q", id: "5a2f8c1e-7b0d-4f3a-9c61-2e8d4b7a9f10"}
nodes: "gpu-01": libvirt: pool: p: path: %q
%s
`

const seed = `nodes: "gpu-01": libvirt: cloudinit: web: {pool: "p", instance_id: "i-1", hostname: "web", user_data: from: "file:user-data"}`

// TestUserData proves W6 for user data, which a real libvirtd gives back: none of it is in anything that the program writes, while a seed is
// made, seen, changed by others, cut off, repaired, used by a domain, and deleted.
func TestUserData(t *testing.T) {
	h := libvirttest.Start(t)
	s := newSite(t)
	pool := filepath.Join(h.Dir, "srv", "p")
	s.must(os.Mkdir(filepath.Dir(pool), 0o755))
	image := filepath.Join(pool, "web.cidata.iso")
	var all []canary
	userData := func(name string) {
		c := newCanary(name, "\"\\'%41+<&>\té漢\u2028😀=")
		all = append(all, c)
		s.write("secrets/user-data", "#cloud-config\npassword: "+c.value+"\n")
	}
	reached := func() {
		t.Helper()
		b, err := os.ReadFile(image)
		s.must(err)
		if c := all[len(all)-1]; len(search([]place{{image, b}}, []canary{c})) == 0 {
			t.Errorf("%s is not in the image", c.name)
		}
	}
	same := func() {
		t.Helper()
		if r := s.run([]int{0, 2}, "plan", "-detailed-exitcode"); r.status != 0 {
			t.Errorf("the next plan is not empty: %s", r.all())
		}
		for _, args := range [][]string{{"get"}, {"state", "show", "-json", "gpu-01/libvirt.cloudinit/web"}, {"drift", "-json"}} {
			s.run(done, args...)
		}
	}
	drifted := func(says string) {
		t.Helper()
		if r := s.run([]int{2}, "drift"); !strings.Contains(r.stdout, says) {
			t.Errorf("the drift does not say %q: %s", says, r.all())
		}
		s.run(done, "plan", "-json")
	}
	s.write("converge.yaml", fmt.Sprintf("secrets: {dir: secrets}\nnodes: {gpu-01: {libvirt: %q}}\n", h.URI()))
	s.write("site.cue", fmt.Sprintf(seeds, pool, seed))

	userData("the first one")
	s.run(done, "plan", "-json", "-out=first.plan", "site.cue")
	s.run(done, "show", "first.plan")
	s.apply(done, "first.plan")
	reached()
	same()

	first, err := os.ReadFile(image)
	s.must(err)
	userData("the second one")
	s.apply(done, "-auto-approve", "-json", "site.cue")
	reached()
	same()

	s.must(os.WriteFile(filepath.Join(h.Dir, "first"), first, 0o600)) // a stranger brings the first one back
	h.Virsh(t, "vol-upload", "--pool", "p", "web.cidata.iso", filepath.Join(h.Dir, "first"))
	drifted("user_data")
	s.apply(done, "-auto-approve", "site.cue")
	reached()
	same()

	s.must(os.WriteFile(filepath.Join(h.Dir, "mark"), []byte("r"), 0o600)) // as an update leaves it that is cut off
	h.Virsh(t, "vol-upload", "--pool", "p", "web.cidata.iso", filepath.Join(h.Dir, "mark"), "--offset", "32767", "--length", "1")
	drifted("being replaced")
	s.apply(done, "-auto-approve", "site.cue")
	reached()
	same()

	s.write("without.cue", fmt.Sprintf(seeds, pool, ""))
	s.run(done, "plan", "-max-destroy=100%", "-out=without.plan", "without.cue")
	h.Define(t, "define", `<domain type='qemu'><name>converge-user-data</name><memory unit='MiB'>64</memory><os><type arch='x86_64'>hvm</type></os>
<devices><disk type='volume' device='cdrom'><source pool='p' volume='web.cidata.iso'/><target dev='sda' bus='sata'/></disk></devices></domain>`)
	if r := s.apply(refused, "-auto-approve", "-max-destroy=100%", "without.cue"); !strings.Contains(r.all(), "it is disk sda of domain converge-user-data") {
		t.Errorf("the plan refuses to delete the seed of a domain for another reason: %s", r.all())
	}
	if r := s.apply(reverted, "-auto-approve", "without.plan"); !strings.Contains(r.all(), "it is disk sda of domain converge-user-data") {
		t.Errorf("the seed of a domain is kept for another reason: %s", r.all())
	}
	h.Virsh(t, "undefine", "converge-user-data")
	s.apply(done, "-destroy", "-auto-approve", "-max-destroy=100%", "-json")
	if _, err := os.Stat(image); err == nil {
		t.Error("the image is still there")
	}

	places, _ := s.places()
	for _, f := range search(places, all) {
		t.Errorf("%s, in %s, is in the %s: …%q…", f.canary, f.encoding, f.place, f.excerpt)
	}
}
