// Package carbidetest holds what tests need to know about each Carbide kind, one file per kind: examples for the laws, how to
// create many objects of it, and what happens to one where faults are injected. A new kind needs a file here and its line in
// [Kinds].
//
// Everything refers to the site that [carbidesim] simulates.
package carbidetest

import (
	"slices"
	"testing"

	"converge.dev/converge/internal/carbidesim"
	"converge.dev/converge/internal/providertest"
	"converge.dev/converge/providers"
	"converge.dev/converge/providers/carbide/forge"
	"converge.dev/converge/schema"
)

// A Kind is what tests need to know about one.
type Kind struct {
	Noun   string // its name without the provider's
	Varies bool   // the generations of the service differ in this kind

	Cases   []providertest.Case                      // for the laws, without the kind
	CasesOn func(hosts []string) []providertest.Case // the same for a kind whose objects are on hosts, of which twelve are enough

	// Older replaces Cases on a server of the older generation, where that knows less of the kind. Newer says that it does not
	// know the kind at all.
	Older []providertest.Case
	Newer bool

	Populations []Population

	// Scenes are what faults are injected into. Internal is what INTERNAL or ALREADY_EXISTS mean to a create, unless they mean
	// "not now" or "taken": it is refused, or what exists is busy.
	Scenes   []Scene
	Internal string

	// Database is what PostgreSQL says through INTERNAL about calls that had no effect, with its meaning.
	Database []Words

	// Whole is CUE: resources of the kind that set all of its fields, and refer to what the other kinds have here. It may use
	// what a scene may, and _meta, a description and labels.
	Whole string
}

// A Population says how to create many objects of a kind, and how many calls it takes to list them.
type Population struct {
	As    string                         // what is particular about these objects; empty: nothing
	Site  func(n int) carbidesim.Options // the required site; nil: the default
	Plant func(b *Bed, n int) []string   // makes n objects and returns their ids
	Once  int                            // calls for all objects together
	Page  int                            // calls for each page, of as many ids as the site accepts
	After int                            // calls for all objects that were found, if any
	Why   string                         // required where it is not one call for the ids and one for each page
}

// A Scene is two states of one resource, between which faults are injected. Its CUE is below carbide in a document that has a
// tenant acme, in which _host, _other and _bare are the ids of three machines, the last without a DPU, and _secret is a secret.
type Scene struct {
	As     string // what is particular about it; empty: nothing
	Ways   string // which of create, update and delete it is about; empty: all that the kind has
	OnHost bool   // the name of the resource is the id of a machine
	Needs  string // what else is in the document
	One    string
	Two    string // empty: it cannot change

	Otherwise []Otherwise // what ends differently from what the traits of the kind say
}

// Otherwise are cells of the grid of faults that end differently from what the traits of the kind say. All are of verbs that
// take several calls, about which the traits say nothing, and in all of them the run reports what exists.
type Otherwise struct {
	Why  string
	Ends map[string]string // by way, with a ~ when it is undone, method and fault
}

// Words are a text that the database of the service returns for a call.
type Words struct {
	Verb  string // create, update, delete
	Text  string
	Class providers.Class
}

// Kinds returns all kinds.
func Kinds() []Kind {
	return []Kind{
		tenants,
		tenantKeysets,
		vpcs,
		vpcPrefixes,
		networkSegments,
		networkSecurityGroups,
		instanceTypes,
		computeAllocations,
		instances,
		vpcPeerings,
		ibPartitions,
		nvlinkLogicalPartitions,
		spxPartitions,
		expectedMachines,
		expectedSwitches,
		expectedPowerShelves,
		expectedRacks,
		skus,
		machines,
		operatingSystems,
		osImages,
		dpuExtensionServices,
	}
}

// Cases returns the examples of all kinds, for sites that have these hosts. Kinds whose objects are on hosts are tried in the
// world that hosted opens instead of the suite's, which has no hosts: hosts would be most of what there is to observe.
func Cases(hosts []string, hosted func(*testing.T) providertest.World) []providertest.Case {
	return examples(hosts, hosted, false)
}

// CasesOlder is [Cases] for a server of the older generation.
func CasesOlder(hosts []string, hosted func(*testing.T) providertest.World) []providertest.Case {
	return examples(hosts, hosted, true)
}

func examples(hosts []string, hosted func(*testing.T) providertest.World, older bool) []providertest.Case {
	var all []providertest.Case
	for _, k := range Kinds() {
		cases, open := k.Cases, (func(*testing.T) providertest.World)(nil)
		if k.CasesOn != nil {
			cases, open = k.CasesOn(hosts), hosted
		}
		switch {
		case older && k.Newer:
			continue
		case older && k.Older != nil:
			cases = k.Older
		}
		for _, c := range cases {
			c.Kind, c.Open = k.Name(), open
			all = append(all, c)
		}
	}
	return all
}

// Hosts returns the ids of the machines of a world that are hosts, those with GPUs first.
func Hosts(w *carbidesim.World) []string {
	var ids, plain []string
	for _, o := range w.Objects() {
		switch m, _ := o.Message.(*forge.Machine); {
		case m.GetMachineType() != forge.MachineType_HOST:
		case len(m.GetCapabilities().GetGpu()) > 0:
			ids = append(ids, o.ID)
		default:
			plain = append(plain, o.ID)
		}
	}
	return slices.Concat(ids, plain)
}

// Name returns the name of the kind.
func (k *Kind) Name() string { return "carbide." + k.Noun }

// ID returns the id that the laws give to an object of a kind.
func ID(noun, name string) string { return providertest.ID("carbide."+noun, name) }

func made(noun, name string, spec schema.Object) providertest.Made {
	return providertest.Made{Kind: "carbide." + noun, Name: name, Spec: spec}
}

func labels(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return m
}
