package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"converge.dev/converge/providers/carbide/forge"
)

// library returns a document with what instances boot and run, and secrets in all of it.
func library(service string) string {
	return fmt.Sprintf(`apiVersion: "converge.dev/v1"
site: {name: "lib1", id: "7a2f0c9e-7d41-4c8b-9a36-1b0e5d7f2c44"}
carbide: tenant: acme: {}
carbide: os_image: golden: {
	tenant: "acme", source_url: "https://images.example/golden.qcow2", digest: "sha256:aa"
	auth_type: "bearer", auth_token: from: "file:token"
}
carbide: operating_system: {
	rescue: {tenant: "acme", script: "#!ipxe\nshell"}
	ubuntu: {
		tenant: "acme", type: "template", template: "c4b1d4f6-69ba-5f55-90cd-ab2acd002475"
		parameters: [{name: "kernel_params", value: "quiet"}]
		artifacts: [
			{name: "kernel", url: "https://images.example/vmlinuz", auth_token: from: "file:token"},
			{name: "initrd", url: "https://images.example/initrd"},
		]
	}
}
carbide: dpu_extension_service: collector: {
	tenant: "acme"
	manifest: "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: a}]}}"
	%s
}
`, service)
}

// TestLibrary creates images, operating systems and an extension service, changes their secrets, and removes a credential
// that cannot be read back. Each time the next plan is empty, and no secret is in any output or file.
func TestLibrary(t *testing.T) {
	s := newSite(t)
	s.must(os.Mkdir(filepath.Join(s.dir, "secrets"), 0o700))
	s.write("converge.yaml", s.read("converge.yaml")+"secrets: {dir: secrets}\n")
	for name, text := range map[string]string{"token": "canary-t0ken", "registry": "nvcr.io/canary", "user": "canary-robot", "password": "canary-passw0rd"} {
		s.write(filepath.Join("secrets", name), text)
	}
	const credential = `registry: from: "file:registry", registry_username: from: "file:user", registry_password: from: "file:password"`
	collector := func() *forge.DpuExtensionService {
		t.Helper()
		for _, o := range s.world.Objects() {
			if service, ok := o.Message.(*forge.DpuExtensionService); ok {
				return service
			}
		}
		t.Fatal("there is no service")
		return nil
	}
	check := func(version int32, credential bool) {
		t.Helper()
		s.settled("library.cue")
		if c := collector(); c.VersionCtr != version || c.LatestVersionInfo.HasCredential != credential {
			t.Errorf("version %d, with a credential: %v; want %d and %v", c.VersionCtr, c.LatestVersionInfo.HasCredential, version, credential)
		}
	}

	s.write("library.cue", library(credential))
	s.approved(0, "apply", "-auto-approve", "library.cue").says("5 added")
	check(1, true)
	s.write("library.cue", library(credential+`, description: "collects"`))
	s.run(0, "apply", "-auto-approve", "library.cue").says("1 changed")
	check(1, true)
	s.write(filepath.Join("secrets", "password"), "canary-passw0rd-2")
	s.write(filepath.Join("secrets", "token"), "canary-t0ken-2")
	s.approved(0, "apply", "-auto-approve", "library.cue").says("3 changed")
	check(2, true)
	s.write("library.cue", library(`description: "collects"`))
	s.approved(0, "apply", "-auto-approve", "library.cue").says("1 changed")
	check(3, false)

	said := s.run(0, "runs", "-json").stdout.String()
	s.must(filepath.WalkDir(filepath.Join(s.dir, ".converge"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		said += string(b)
		return err
	}))
	if strings.Contains(said, "canary") {
		t.Error("a secret is in what was written down")
	}

	// What has left the document is deleted, which requires an approval: nothing can come back under the service's name.
	s.write("gone.cue", strings.Split(library(""), "carbide: dpu_extension_service")[0])
	s.approved(0, "apply", "-auto-approve", "gone.cue").says("1 destroyed")
	s.settled("gone.cue")
}
