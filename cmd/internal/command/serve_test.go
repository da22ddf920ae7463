package command

import (
	"testing"

	"converge.dev/converge/schema/kinds"
)

// What nodes list of a kind is kept in memory only when it shows no secret, and not of what this version does not know.
func TestDiscreet(t *testing.T) {
	known, err := kinds.New()
	if err != nil {
		t.Fatal(err)
	}
	s := &session{app: &app{kinds: known.Kinds()}}
	for kind, want := range map[string]bool{
		"libvirt.domain": true, "ovs.port": true, "host.link": true,
		"libvirt.cloudinit": false, "carbide.dpu_extension_service": false, "future.kind": false,
	} {
		if s.discreet(kind) != want {
			t.Errorf("%s: %v", kind, !want)
		}
	}
}
