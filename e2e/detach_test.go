package e2e

import (
	"fmt"
	"testing"
)

// A segment in use is deleted before its successor can have its addresses: the instance is detached first and attached to the
// new one afterwards, whether the segment changes or gets another name. The plan refuses what an instance cannot be without.
func TestDetach(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	document := func(file, name, more, vni string) {
		s.write(file, fmt.Sprintf(`
apiVersion: "converge.dev/v1"
site: {name: "fra1", id: "5a2f0a4e-8d1f-4f0e-9b62-0f3f1b2c3d4e"}
policy: max_destroy: "100%%"
carbide: {
	tenant: acme: {}
	vpc: vv: {tenant: "acme"%[3]s}
	network_segment: {
		aa: {vpc: "vv", prefixes: [{prefix: "10.20.0.0/24"}]}
		%[1]s: {vpc: "vv", prefixes: [{prefix: "10.20.1.0/24"}]%[2]s}
	}
	instance: web: {tenant: "acme", os: ipxe: "#!ipxe", interfaces: [
		{segment: "aa"}, {function: "virtual", virtual_function_id: 0, segment: "%[1]s"},
	]}
}
`, name, more, vni))
	}
	document("first.cue", "bb", "", "")
	document("mtu.cue", "bb", ", mtu: 1500", "")
	document("renamed.cue", "cc", ", mtu: 1500", "")
	document("vni.cue", "cc", ", mtu: 1500", ", vni: 7001")
	s.apply("first.cue")
	for _, file := range []string{"mtu.cue", "renamed.cue"} {
		s.run(0, "plan", file).says("it stops referring to site/carbide.network_segment/bb")
		s.approved(0, "apply", "-auto-approve", file)
		s.run(0, "plan", "-detailed-exitcode", file).says("No changes")
	}
	for _, args := range [][]string{{"plan", "vni.cue"}, {"plan", "-replace=site/carbide.vpc/vv", "renamed.cue"}} {
		s.run(7, args...).says("site/carbide.instance/web refers to it in interfaces[0].segment", "first apply a document in which")
	}
}
