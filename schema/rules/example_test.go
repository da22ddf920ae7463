package rules_test

import (
	"fmt"

	"converge.dev/converge/schema"
	"converge.dev/converge/schema/rules"
)

// A port refers to a bridge that its node does not have.
func Example() {
	kinds := schema.Kinds{
		"ovs.bridge": {Name: "ovs.bridge", Node: true},
		"ovs.port":   {Name: "ovs.port", Node: true, Fields: []schema.Field{{Name: "bridge", Type: schema.String, Ref: "ovs.bridge"}}},
	}
	site := rules.NewSite(kinds, nil, []*rules.Resource{
		rules.NewResource(kinds, []string{"nodes", "gpu-01", "ovs", "bridge", "br-slice"}, map[string]any{}),
		rules.NewResource(kinds, []string{"nodes", "gpu-01", "ovs", "port", "vm-web"}, map[string]any{"bridge": "br-slise"}),
	})
	for _, r := range site.Resources {
		site.Accept(r)
	}
	for _, p := range site.Check(100).Problems {
		fmt.Println(p.Of.Ref, p.Path, p.Rule.Name)
		fmt.Println(p.Detail)
	}
	// Output:
	// gpu-01/ovs.port/vm-web [bridge] dangling-reference
	// There is no ovs.bridge named "br-slise" on node gpu-01. Did you mean "br-slice"?
}
