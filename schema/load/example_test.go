package load_test

import (
	"context"
	"fmt"

	"converge.dev/converge/schema/kinds"
	"converge.dev/converge/schema/load"
)

func Example() {
	s, err := kinds.New()
	if err != nil {
		panic(err)
	}
	doc, ds := load.Document(context.Background(), s, load.Options{}, load.Source{Name: "site.cue", Data: []byte(`
apiVersion: "converge.dev/v1"
site: {name: "fra1", id: "5a2f0c9e-7d41-4c8b-9a36-1b0e5d7f2c44", serial: 42}
carbide: {
	tenant: acme: {}
	vpc: prod: {tenant: "acme", virtualization: "fnn"}
}
`)})
	if err := ds.Err(); err != nil {
		panic(err)
	}
	for _, r := range doc.Resources {
		fmt.Println(r.Ref, "after", r.After)
	}

	_, ds = load.Document(context.Background(), s, load.Options{}, load.Source{Name: "site.json", Data: []byte(`{
	"apiVersion": "converge.dev/v1",
	"site": {"name": "fra1", "id": "5a2f0c9e-7d41-4c8b-9a36-1b0e5d7f2c44", "serial": 43},
	"carbide": {"vpc": {"prod": {"tenant": "acme", "vnni": 7001}}}
}`)})
	fmt.Println(ds.Err())
	// Output:
	// site/carbide.tenant/acme after []
	// site/carbide.vpc/prod after [site/carbide.tenant/acme]
	// site.json:4:49: error CV1001: Unknown field: carbide.vpc.prod.vnni: There is no field "vnni". Did you mean "vni"?
}
