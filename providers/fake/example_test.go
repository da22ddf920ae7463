package fake_test

import (
	"context"
	"fmt"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/fake"
	"converge.dev/converge/schema"
)

// A create whose reply is lost has its effect all the same.
func Example() {
	world := fake.New(schema.Kinds{"lab.owner": {Name: "lab.owner"}})
	if err := world.Fail(fake.Fault{Op: "create", Ref: "site/lab.owner/*", Effect: fake.EffectAfter}); err != nil {
		fmt.Println(err)
		return
	}
	owners := world.Provider("lab", schema.ScopeSite).Kinds[0].Kind
	err := owners.Create(context.Background(), providers.Call{
		Ref: schema.Ref{Scope: schema.ScopeSite, Kind: "lab.owner", Name: "acme"}, ID: "42",
	})
	fmt.Println(err)
	fmt.Print(world.Dump())
	// Output:
	// create site/lab.owner/acme: injected fault of class unknown
	// {
	//   "things": {
	//     "site": {
	//       "lab.owner": {
	//         "42": {
	//           "name": "acme",
	//           "spec": {}
	//         }
	//       }
	//     }
	//   }
	// }
}
